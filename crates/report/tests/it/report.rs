//! Reports: what becomes of whole, cut-off, hostile and large folders of runs, and of the page in a real browser.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use phalanx_report::{Options, Report, ReportError};
use phalanx_run::Machine;
use serde_json::{Value, json};

/// A name that is HTML, JSON and a path's bad end at once.
const HOSTILE: &str = "<script>alert(1)</script>\"'&--></script>";

/// Makes the folder of a run of `steps` logged steps and `ranks` ranks.
fn make_run(folder: &Path, steps: usize, ranks: usize) {
    for part in ["logs", "samples"] {
        fs::create_dir_all(folder.join(part)).expect("a folder");
    }
    let config = format!(
        "description = '''{HOSTILE}'''\n[model]\nkind = \"cvae\"\n[train]\nranks = {ranks}\nseed = {steps}\n\
         [data]\nkind = \"folder\"\npath = '''/data/{HOSTILE}'''\n"
    );
    fs::write(folder.join("config.toml"), config).expect("writes");
    let mut lines = String::new();
    for step in 1..=steps {
        // One step in the middle stands out.
        let loss = if step == steps / 2 + 7 { 77.0 } else { 1.0 / step as f64 };
        let mut line = json!({"step": step, "loss": loss, "lr": 0.001, "grad_norm": 0.5, "seconds": step as f64 * 0.5,
            "samples_per_s": 100.0, "data_share": 0.1, "communication_share": 0.2, "memory_bytes": 1e8, "left_out": 0});
        if step % (steps / 4).max(1) == 0 {
            line["test_loss"] = json!(loss);
            line["warnings"] = json!([format!("{HOSTILE} has come to rest at 0.{step}")]);
        }
        let _ = writeln!(lines, "{line}");
    }
    fs::write(folder.join("metrics.jsonl"), lines).expect("writes");
    let rank = |rank: usize| {
        json!({"rank": rank, "peak_memory_bytes": 3e8, "parameter_bytes": 1e7, "gradient_bytes": 1e7, "optimizer_bytes": 2e7,
            "gathered_bytes": 0, "bytes_sent": 1e9, "bytes_received": 1e9, "communication_exposed_seconds": 2.0 + rank as f64,
            "communication_hidden_seconds": 3.0, "data_seconds": 1.0, "step_seconds": 20.0, "joules": 500.0,
            "synchrony": {"staleness": [5, 3, 1, 0], "leads": [9, 1], "waited_seconds": 0.5, "clock_spread": 2, "meetings": 3}})
    };
    let summary = json!({"status": "finished", "step": steps, "epochs": 2.0, "model": HOSTILE, "parameters": 1234,
        "world_size": ranks, "strategy": "ddp", "samples_per_second": 100.0, "wall_seconds": 30.0, "metrics": {"loss": 0.5},
        "ranks": (0..ranks).map(rank).collect::<Vec<_>>(),
        "dead": [{"rank": 9, "host": HOSTILE, "from_step": 3, "cause": "killed"}],
        "energy": {"cpu": {"kind": "estimated", "model": "seconds x watts", "joules": 1000.0},
            "gpu": {"kind": "absent", "model": "no GPU", "joules": null}, "joules_per_sample": 0.25, "mean_watts": 33.0},
        "machine": Machine { cores: 2, memory_bytes: Some(10_000_000_000), system: "linux".to_owned(), ..Machine::default() }});
    fs::write(folder.join("summary.json"), summary.to_string()).expect("writes");
    for rank in 0..ranks {
        let mut lines = String::new();
        for at in 0..steps.min(3000) {
            let at = at as f64;
            let line = json!({"time": 1e9 + at, "step": at, "rank": rank, "host": HOSTILE, "cpu_percent": 90.0, "resident_bytes": 2e8,
                "parameter_bytes": 1e7, "gradient_bytes": 1e7, "optimizer_bytes": 2e7, "activation_bytes": 3e7 + at,
                "network_sent_bytes": at * 1e6, "data_seconds": at * 0.1, "communication_exposed_seconds": at * 0.2,
                "communication_hidden_seconds": at * 0.1, "step_seconds": at * 0.9, "cpu_watts": 30.0, "cpu_joules": at * 30.0,
                "gpu_percent": null, "energy": "estimated"});
            let _ = writeln!(lines, "{line}");
        }
        fs::write(folder.join(format!("logs/rank-{rank}.usage.jsonl")), lines).expect("writes");
    }
    for step in [1, 2] {
        let path = folder.join(format!("samples/step-{step:08}.png"));
        image::RgbImage::from_pixel(20, 10, image::Rgb([200, 50, 50])).save(path).expect("saves");
    }
    fs::write(folder.join("samples/prompts.txt"), format!("{HOSTILE}\n")).expect("writes");
}

/// Writes a trace of `steps` steps of two ranks into a run's folder, with half of the reductions hidden.
fn make_trace(folder: &Path, steps: u64) {
    let mut events = Vec::new();
    for rank in 0..2_u64 {
        for step in 0..steps {
            let at = step as f64 * 1000.0;
            let mut span = |tid: u64, cat: &str, name: &str, begin: f64, end: f64| {
                events.push(
                    json!({"ph": "X", "pid": rank, "tid": tid, "cat": cat, "name": name, "ts": at + begin,
                    "dur": end - begin, "args": {"step": step + 1}}),
                );
            };
            span(0, "step", "step", 0.0, 900.0);
            span(0, "data", "wait for a batch", 0.0, 100.0);
            span(0, "compute", "forward", 100.0, 300.0);
            span(0, "compute", "backward", 300.0, 600.0);
            span(0, "waiting", "wait for communication", 600.0, 800.0);
            span(0, "compute", "update", 800.0, 880.0);
            span(0, "saving", HOSTILE, 900.0, 950.0);
            span(1, "communication", "all_reduce", 400.0, 800.0);
        }
    }
    let trace = json!({"traceEvents": events, "otherData": {"producer": "phalanx"}});
    fs::write(folder.join("trace.json"), trace.to_string()).expect("writes");
}

/// Makes the folder of a sweep of two runs, of which one was only predicted for a third number of ranks.
fn make_sweep(folder: &Path) {
    for (name, steps) in [("ring_1", 40), ("ring_2", 44)] {
        make_run(&folder.join("runs").join(name), steps, 1);
    }
    let number = |mean: f64, deviation: f64| json!({"mean": mean, "deviation": deviation, "seeds": 2});
    let row = |ranks: &str, speedup: Value, runs: Value| {
        json!({"choices": {"gradients": "ring", "ranks": ranks}, "numbers": {"speedup": speedup}, "published": {},
            "runs": runs, "energy": {"kind": "estimated", "how": "seconds x 5 W"}, "seeds": 2, "errors": []})
    };
    let mut rows = [
        row("1", number(1.0, 0.25), json!(["ring_1"])),
        row("2", number(1.5, 0.5), json!(["ring_2"])),
        row("16", Value::Null, json!(["ring_16"])),
    ];
    rows[0]["numbers"]["joules"] = number(30.0, 1.0);
    rows[1]["published"] = json!({"speedup": 1.84});
    rows[1]["errors"] = json!([HOSTILE]);
    rows[2]["predicted"] = true.into();
    let line = |name: &str, points: &[(f64, f64)]| json!({"name": name, "points": points});
    let results = json!({
        "study": "mine", "about": HOSTILE, "measured": "Measured on two cores.", "meanings": {"speedup": "how much faster"},
        "target": {"loss": "loss", "below": 0.25, "window": 10},
        "tables": [{"title": HOSTILE, "axes": ["gradients", "ranks"], "columns": ["speedup", "joules"],
            "notes": ["Published: a paper."], "rows": rows,
            "speedups": [{"title": "gradients: ring", "series": [line("measured", &[(1.0, 1.0), (2.0, 1.5)]), line("predicted", &[(16.0, 9.0)])]}]}],
    });
    fs::write(folder.join("results.json"), results.to_string()).expect("writes");
}

fn page(folders: &[PathBuf]) -> String {
    Report::collect(folders, &Options::default()).expect("runs").html()
}

/// The tags of a page outside of scripts and styles, in order: name, and what stands in it.
fn tags(page: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut rest = page;
    while let Some(at) = rest.find('<') {
        rest = &rest[at + 1..];
        let mut quoted = false;
        let end = rest
            .find(|c| {
                quoted ^= c == '"';
                c == '>' && !quoted
            })
            .expect("a tag ends");
        let (tag, after) = rest.split_at(end);
        let name: String = tag.chars().take_while(|c| !c.is_whitespace()).collect();
        rest = &after[1..];
        if name == "script" || name == "style" {
            let close = format!("</{name}>");
            rest = &rest[rest.find(&close).expect("it ends")..];
        }
        found.push((name, tag.to_owned()));
    }
    found
}

/// An attribute of a tag.
fn attribute<'a>(tag: &'a str, name: &str) -> Option<&'a str> {
    tag.split_once(&format!(" {name}=\""))?.1.split_once('"').map(|(value, _)| value)
}

/// The numbers that scripts read.
fn data(page: &str) -> Value {
    let (_, data) = page.split_once("<script type=\"application/json\" id=\"data\">").expect("data");
    serde_json::from_str(data.split_once("</script>").expect("it ends").0).expect("JSON")
}

/// Checks what holds for every page: tags are balanced, names are there, nothing is fetched, nothing hostile is a tag.
fn check(page: &str) {
    const VOID: [&str; 5] = ["!DOCTYPE", "meta", "link", "input", "img"];
    let (mut open, mut ids, mut named) = (Vec::new(), BTreeSet::new(), Vec::new());
    for (name, tag) in tags(page) {
        if let Some(closed) = name.strip_prefix('/') {
            assert_eq!(open.pop().as_deref(), Some(closed), "<{tag}>");
        } else if !VOID.contains(&name.as_str()) && !tag.ends_with('/') {
            open.push(name.clone());
        }
        if let Some(id) = attribute(&tag, "id") {
            assert!(ids.insert(id.to_owned()), "{id} is there twice");
        }
        for (attribute_name, start) in [("for", ""), ("aria-labelledby", ""), ("list", ""), ("href", "#")] {
            let value = attribute(&tag, attribute_name).and_then(|value| value.strip_prefix(start));
            named.extend(
                value
                    .filter(|value| !value.starts_with("data:") && !value.starts_with('/'))
                    .map(str::to_owned),
            );
        }
        for name in ["src", "href"] {
            let value = attribute(&tag, name).unwrap_or("#");
            assert!(value.starts_with('#') || value.starts_with("data:"), "{value} would be fetched");
        }
        let handler = tag.split_whitespace().any(|part| part.starts_with("on") && part.contains('='));
        assert!(!handler, "<{tag}>");
    }
    assert!(open.is_empty(), "{open:?} are not closed");
    for name in named {
        assert!(ids.contains(&name), "there is no #{name}");
    }
    let data = data(page);
    for chart in data["charts"].as_array().expect("charts") {
        assert!(ids.contains(chart["id"].as_str().expect("a name")), "{}", chart["id"]);
    }
    let tags = tags(page);
    assert_eq!(tags.iter().filter(|(name, _)| name == "script").count(), 2, "the data and the page's own");
    assert!(tags.iter().any(|(name, tag)| name == "meta" && tag.contains("default-src &#x27;none&#x27;")
        || tag.contains("default-src 'none'")));
    assert!(!page.contains("<script>alert") && !page.contains("import(") && !page.contains("@import"));
}

#[test]
fn a_run_is_told_whole() {
    let place = tempfile::tempdir().expect("a folder");
    let run = place.path().join("run");
    make_run(&run, 400, 3);
    let page = page(&[run]);
    check(&page);
    for words in [
        "finished",
        "loss",
        "learning rate",
        "gradient norm",
        "samples per second",
        "where time goes, rank 2",
        "memory by kind, rank 0",
        "Balance of ranks",
        "estimated",
        "absent",
        "no GPU",
        "updates by staleness",
        "rank 9 on",
        "killed",
        "(4 times)",
        "data:image/png;base64,",
        "Step of the samples",
        "train.seed",
        "energy per sample",
        "0.2500 J",
        "sent to other ranks",
    ] {
        assert!(page.contains(words), "{words}");
    }
    // Curves are there without scripts.
    assert!(page.matches("class=\"line s").count() >= 8 && page.matches("class=\"area s").count() >= 20);
    // Charts of zeros are named, and samples come before curves.
    assert!(page.contains("Not shown, because all values are 0 or absent: steps left out."), "no such line");
    assert!(page.find("Step of the samples") < page.find("id=\"curves\""));
}

#[test]
fn texts_of_a_language_model_are_shown_by_step() {
    let place = tempfile::tempdir().expect("a folder");
    let run = place.path().join("run");
    make_run(&run, 4, 1);
    fs::remove_dir_all(run.join("samples")).expect("there");
    fs::create_dir(run.join("samples")).expect("a folder");
    for step in [1, 2] {
        fs::write(run.join(format!("samples/step-{step:08}.txt")), format!("[1]\n{step} {HOSTILE}\n"))
            .expect("writes");
    }
    let page = page(&[run]);
    check(&page);
    assert!(
        page.contains("<pre data-step=\"1\" hidden>[1]\n1 ") && page.contains("<pre data-step=\"2\">[1]\n2 ")
    );
    assert!(page.contains("Step of the samples") && !page.contains("captions, in the order"));
}

#[test]
fn a_trace_becomes_a_timeline_of_steps() {
    let place = tempfile::tempdir().expect("a folder");
    let run = place.path().join("run");
    make_run(&run, 40, 2);
    assert!(!page(std::slice::from_ref(&run)).contains("class=\"plot timeline\""));
    make_trace(&run, 9);
    let page = page(std::slice::from_ref(&run));
    check(&page);
    // Each step takes as long; the one in the middle and two after it.
    for words in [
        "steps 5 to 7: 2.900 ms",
        ">step 6<",
        "rank 1, computing thread: forward 0.6000 ms, in 3 stretches",
        "rank 0, communication: communication, hidden 0.6000 ms, in 3 stretches",
        "rank 0, communication: communication, waited for 0.6000 ms, in 3 stretches",
        "rank 0, computing thread: saving",
        "time of a step, rank 0",
    ] {
        assert!(page.contains(words), "{words}");
    }
    fs::write(run.join("trace.json"), "{").expect("writes");
    let broken = self::page(&[run]);
    check(&broken);
    assert!(broken.contains("is no trace in Chrome"));
}

#[test]
fn a_sweep_is_told_with_what_was_published_predicted_and_estimated() {
    let place = tempfile::tempdir().expect("a folder");
    make_sweep(place.path());
    let page = page(&[place.path().to_owned()]);
    check(&page);
    for words in [
        "Measured on two cores.",
        "how much faster",
        "Published: a paper.",
        ">speedup, published<",
        ">1.84<",
        "1.500 ± 0.5000",
        "30.00 ± 1.000 estimated",
        "<span class=\"badge going\">predicted</span>",
        "speed-up; gradients: ring",
        "data:image/png;base64,",
    ] {
        assert!(page.contains(words), "{words}");
    }
    assert!(page.find("Tables of the sweep") < page.find("Settings compared"));
    let data = data(&page);
    let charts = data["charts"].as_array().expect("charts");
    let lines = |title: &str| {
        let chart = charts.iter().find(|chart| chart["title"] == title).expect(title);
        let names = chart["lines"]
            .as_array()
            .expect("lines")
            .iter()
            .map(|line| line["name"].as_str().expect("a name"));
        (
            chart["across"].as_str().expect("a direction").to_owned(),
            names.map(str::to_owned).collect::<Vec<_>>(),
        )
    };
    let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    assert_eq!(lines("speed-up; gradients: ring"), ("ranks".to_owned(), names(&["measured", "predicted"])));
    // The first axis makes the lines, the second the charts; the third row has no run.
    assert_eq!(lines("loss; ranks: 1"), ("steps".to_owned(), names(&["ring", "target"])));
    assert_eq!(lines("loss; ranks: 2"), ("steps".to_owned(), names(&["ring", "target"])));
}

#[test]
fn runs_are_compared_key_by_key() {
    let place = tempfile::tempdir().expect("a folder");
    // A folder's name cannot hold a slash.
    let names = [HOSTILE.replace('/', "|"), "b".to_owned()].map(|name| place.path().join(name));
    make_run(&names[0], 40, 1);
    make_run(&names[1], 44, 2);
    let page = page(&names);
    check(&page);
    assert!(page.contains("The runs differ in 2 keys, which come first."));
    let (first, same) = (
        page.find("<tr class=\"differs\"").expect("a difference"),
        page.find(">model.kind<").expect("a key"),
    );
    assert!(first < same);
    let data = data(&page);
    let loss = &data["charts"][0];
    assert_eq!((loss["title"].as_str(), loss["lines"].as_array().map(Vec::len)), (Some("loss"), Some(4)));
    assert_ne!(loss["lines"][0]["colour"], loss["lines"][1]["colour"]);
}

#[test]
fn long_runs_are_thinned_and_keep_their_extremes() {
    let place = tempfile::tempdir().expect("a folder");
    let run = place.path().join("run");
    make_run(&run, 50_000, 4);
    let pictures = 2 * fs::metadata(run.join("samples/step-00000001.png")).expect("a picture").len();
    let page = page(&[run]);
    check(&page);
    assert!(page.len() as u64 - 2 * pictures < 2 << 20, "{}", page.len());
    let data = data(&page);
    let line = &data["charts"][0]["lines"][0];
    let (steps, values) =
        (line["steps"].as_array().expect("steps"), line["values"].as_array().expect("values"));
    assert!(steps.len() <= 2000 && steps.len() == values.len(), "{}", steps.len());
    let highest = values.iter().position(|value| *value == 77).expect("the step that stands out");
    assert_eq!(
        (&steps[highest], &steps[0], &steps[steps.len() - 1]),
        (&json!(25_007), &json!(1), &json!(50_000))
    );
}

#[test]
fn many_runs_stay_below_the_size() {
    let place = tempfile::tempdir().expect("a folder");
    for at in 0..210 {
        make_run(&place.path().join("runs").join(format!("strategy-{at}_pace_seed{at}")), 60, 1);
    }
    let results = json!({"tables": [{"title": HOSTILE, "rows": [
        {"choices": {"strategy": "a"}, "numbers": {"loss": {"mean": 2.0, "deviation": 0.5, "seeds": 2}}, "seeds": 2, "errors": []},
        {"choices": {"strategy": "b"}, "numbers": {}, "seeds": 0, "errors": [HOSTILE]}]}]});
    fs::write(place.path().join("results.json"), results.to_string()).expect("writes");
    let options = Options { pictures: 0, ..Options::default() };
    let page = Report::collect(&[place.path().to_owned()], &options).expect("a sweep").html();
    check(&page);
    assert!(page.len() < 2 << 20, "{}", page.len());
    assert!(
        page.contains("2.000 ± 0.5000")
            && page.contains("there are 210 runs, of which the first 200 are shown")
    );
}

#[test]
fn what_is_missing_or_cut_off_is_lived_with() {
    let place = tempfile::tempdir().expect("a folder");
    let run = place.path().join("run");
    make_run(&run, 40, 2);
    let collect = |path: &Path| Report::collect(&[path.to_owned()], &Options::default());
    let files = [
        "metrics.jsonl",
        "summary.json",
        "config.toml",
        "logs/rank-1.usage.jsonl",
        "samples/step-00000002.png",
        "samples/prompts.txt",
    ];
    for file in files {
        let whole = fs::read(run.join(file)).expect("reads");
        for length in [0, whole.len() / 2, whole.len() - 1] {
            fs::write(run.join(file), &whole[..length]).expect("writes");
            check(&collect(&run).expect("a run").html());
        }
        fs::write(run.join(file), [whole.as_slice(), b"\xff\xfe\0{]"].concat()).expect("writes");
        check(&collect(&run).expect("a run").html());
        fs::remove_file(run.join(file)).expect("removes");
        match file {
            "config.toml" => assert!(matches!(collect(&run), Err(ReportError::NoRun(_)))),
            _ => check(&collect(&run).expect("a run").html()),
        }
        fs::write(run.join(file), whole).expect("writes");
    }
    // A run that has just begun.
    fs::remove_file(run.join("summary.json")).expect("removes");
    assert!(page(std::slice::from_ref(&run)).contains("under way"));
    fs::write(run.join("metrics.jsonl"), "").expect("writes");
    check(&page(&[run]));
    let error = collect(&place.path().join("gone")).expect_err("nothing").to_string();
    assert!(error.contains("there is no folder"), "{error}");
}

/// The browser, if there is one: `PHALANX_BROWSER`, or `chromium`.
fn browser() -> Option<PathBuf> {
    let named = std::env::var_os("PHALANX_BROWSER").map(PathBuf::from);
    let paths = std::env::var_os("PATH").unwrap_or_default();
    named.or_else(|| {
        std::env::split_paths(&paths).map(|path| path.join("chromium")).find(|path| path.is_file())
    })
}

/// Returns the DOM that a browser makes of a page, without messages.
fn drawn(browser: &Path, place: &Path, page: &str) -> String {
    let file = place.join("report.html");
    fs::write(&file, page).expect("writes");
    let mut command = Command::new(browser);
    command.args([
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--enable-logging=stderr",
        "--virtual-time-budget=3000",
    ]);
    command
        .arg(format!("--user-data-dir={}", place.join("profile").display()))
        .arg("--window-size=1200,9000");
    let output =
        command.arg("--dump-dom").arg(format!("file://{}", file.display())).output().expect("a browser");
    let said = String::from_utf8_lossy(&output.stderr);
    let complaints: Vec<&str> = said.lines().filter(|line| line.contains("CONSOLE")).collect();
    assert!(output.status.success() && complaints.is_empty(), "{complaints:#?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Returns the texts of the charts of a page, by the id of the chart.
fn texts_of_charts(page: &str) -> Vec<(String, Vec<String>)> {
    let figures = page.split("<figure class=\"chart\" id=\"").skip(1);
    let of_figure = |figure: &str| {
        let (id, rest) = figure.split_once('"').expect("an id");
        let svg = rest.split("</svg>").next().unwrap_or_default();
        let texts = svg.split("<text ").skip(1).filter_map(|text| {
            let (attributes, text) = text.split_once('>')?;
            let place = |name: &str| attribute(&format!(" {attributes}"), name).map(str::to_owned);
            let text = text.split('<').next()?.replace("&#x2F;", "/");
            Some(format!("{:?} {:?} {text}", place("x"), place("y")))
        });
        (id.to_owned(), texts.collect::<Vec<_>>())
    };
    figures.map(of_figure).collect()
}

#[test]
fn scripts_draw_the_axes_of_the_static_charts() {
    let Some(browser) = browser() else {
        println!("skipped: there is no chromium, and PHALANX_BROWSER is not set");
        return;
    };
    let place = tempfile::tempdir().expect("a folder");
    let run = place.path().join("run");
    make_run(&run, 400, 3);
    // The size of the static charts.
    let page = page(&[run]).replace("</style>", ".canvas{width:640px}</style>");
    let with_scripts = drawn(&browser, place.path(), &page);
    let (expected, found) = (texts_of_charts(&page), texts_of_charts(&with_scripts));
    assert_eq!(expected.len(), found.len());
    let drawn_anew = with_scripts.matches("<clipPath").count();
    assert!(drawn_anew >= 12, "{drawn_anew}");
    for (expected, found) in expected.iter().zip(&found) {
        assert_eq!(expected, found);
    }
}

#[test]
fn what_was_made_comes_first_and_defaults_last() {
    let place = tempfile::tempdir().expect("a folder");
    let run = place.path().join("run");
    make_run(&run, 40, 1);
    fs::create_dir(run.join("evaluation")).expect("a folder");
    fs::write(run.join("evaluation/confusion_matrix.svg"), "<svg xmlns='http://www.w3.org/2000/svg'/>")
        .expect("writes");
    fs::create_dir(run.join("explain")).expect("a folder");
    fs::write(run.join("explain/levels.svg"), "<svg xmlns='http://www.w3.org/2000/svg'/>").expect("writes");
    let explained = json!({
        "step": 40, "attributes": ["shape"], "samples": 8,
        "features": [{"features": HOSTILE, "width": 64, "accuracy": [0.5]}],
        "levels": [{"level": 0.5, "error": 0.1, "without_caption": 0.25, "wrong": [null]}],
    });
    fs::write(run.join("explain/explain.json"), explained.to_string()).expect("writes");
    fs::write(run.join("notes.md"), format!("{HOSTILE}\nsecond line")).expect("writes");
    let line = json!({"step": 40, "loss": 0.1, "test_accuracy": 0.75, "test_loss": 0.2, "seconds": 20.0});
    fs::write(
        run.join("metrics.jsonl"),
        format!("{}\n{line}\n", json!({"step": 20, "loss": 0.2, "lr": null})),
    )
    .expect("writes");
    let mut defaults = phalanx_report::Defaults::default();
    let keys = [("train.ranks", 1.into()), ("train.seed", 7.into()), ("model.kind", "cvae".into())];
    defaults.insert("cvae", keys.map(|(key, value): (&str, toml::Value)| (key.to_owned(), value)));
    let options = Options { defaults, ..Options::default() };
    let page = Report::collect(&[run], &options).expect("a run").html();
    check(&page);
    let at = |words: &str| page.find(words).unwrap_or_else(|| panic!("no {words}"));
    let order = [
        "second line</div>",
        "data:image/svg+xml;base64,",
        "Step of the samples",
        "id=\"curves\"",
        "class=\"facts\"",
        ">Captions</h2>",
        ">50.0 %<",
        ">+25.0 %<",
        ">train.seed<",
        "1 key has its default value",
        ">train.ranks<",
    ];
    assert!(order.windows(2).all(|pair| at(pair[0]) < at(pair[1])), "{:?}", order.map(at));
    assert!(at("<dt>test accuracy</dt>") < at("<dt>loss</dt>"), "accuracy leads");
    // The only value of the test split is a mark next to the line of training.
    let data = data(&page);
    let loss = data["charts"]
        .as_array()
        .expect("charts")
        .iter()
        .find(|chart| chart["title"] == "loss")
        .expect("losses");
    assert_eq!(loss["lines"].as_array().map(Vec::len), Some(2));
    let figure =
        page.split("<figcaption>loss</figcaption>").nth(1).and_then(|rest| rest.split("</svg>").next());
    assert_eq!(figure.expect("a figure").matches("class=\"dot s1\"").count(), 1);
}

#[test]
fn a_browser_draws_it_without_complaints() {
    let Some(browser) = browser() else {
        println!("skipped: there is no chromium, and PHALANX_BROWSER is not set");
        return;
    };
    let place = tempfile::tempdir().expect("a folder");
    let run = place.path().join("run");
    make_run(&run, 400, 3);
    make_trace(&run, 5);
    let of_run = drawn(&browser, place.path(), &page(&[run]));
    // The script has drawn the charts anew: only it clips them, and makes buttons of legends.
    assert!(of_run.matches("<clipPath").count() >= 6, "{}", of_run.matches("<clipPath").count());
    assert!(
        of_run.contains("aria-pressed=\"true\"") && of_run.contains("id=\"controls\">"),
        "controls are shown"
    );
    assert!(of_run.contains("class=\"plot timeline\"") && !of_run.contains("<script>alert"));

    let sweep = place.path().join("sweep");
    make_sweep(&sweep);
    let of_sweep = drawn(&browser, place.path(), &page(&[sweep]));
    // The speed-ups come first.
    assert!(of_sweep.contains("<clipPath id=\"clip-chart-1\"") && of_sweep.contains(">ranks</text>"));
    assert!(!of_sweep.contains("<script>alert"));
}
