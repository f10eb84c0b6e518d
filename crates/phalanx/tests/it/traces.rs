//! Traces of whole trainings by the built program: the format's rules, bytes, steps, interruptions, what the summary says.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::harness::Place;
#[cfg(target_os = "linux")]
use crate::harness::Running;
use crate::harness::results::json;

/// A span of a trace, in nanoseconds.
#[derive(Debug, Clone)]
struct Span {
    pid: u64,
    tid: u64,
    category: String,
    name: String,
    begin: i64,
    end: i64,
    args: Value,
}

fn nanoseconds(event: &Value, field: &str) -> i64 {
    let time = event[field].as_f64().unwrap_or_else(|| panic!("no number `{field}`: {event}"));
    assert!(time.is_finite() && time >= 0.0, "{event}");
    (time * 1000.0).round() as i64
}

/// The spans of a trace that keeps all rules of Chrome's format.
fn checked(trace: &Value) -> Vec<Span> {
    let events = trace["traceEvents"].as_array().expect("a list of events");
    let (mut spans, mut named) = (Vec::new(), BTreeSet::new());
    let (mut starts, mut ends) = (BTreeMap::new(), BTreeMap::new());
    let mut last: BTreeMap<(u64, u64), i64> = BTreeMap::new();
    for event in events {
        let number = |field: &str| event[field].as_u64().unwrap_or_else(|| panic!("no `{field}`: {event}"));
        let text =
            |field: &str| event[field].as_str().unwrap_or_else(|| panic!("no `{field}`: {event}")).to_owned();
        let (pid, tid) = (number("pid"), number("tid"));
        match text("ph").as_str() {
            "M" => {
                if text("name").ends_with("_name") {
                    assert!(event["args"]["name"].is_string(), "{event}");
                    named.insert((pid, text("name"), tid));
                }
            }
            "X" => {
                let begin = nanoseconds(event, "ts");
                let before = last.insert((pid, tid), begin);
                assert!(before.is_none_or(|before| before <= begin), "times of a thread go back: {event}");
                let end = begin + nanoseconds(event, "dur");
                let (category, name) = (text("cat"), text("name"));
                assert!(!name.is_empty() && event["args"].is_object(), "{event}");
                spans.push(Span { pid, tid, category, name, begin, end, args: event["args"].clone() });
            }
            "s" => assert!(
                starts.insert((pid, text("id")), (tid, nanoseconds(event, "ts"))).is_none(),
                "{event}"
            ),
            "f" => {
                assert_eq!(event["bp"].as_str(), Some("e"), "{event}");
                assert!(ends.insert((pid, text("id")), (tid, nanoseconds(event, "ts"))).is_none(), "{event}");
            }
            "C" => {
                nanoseconds(event, "ts");
                let numbers = event["args"].as_object().expect("numbers");
                assert!(!numbers.is_empty() && numbers.values().all(Value::is_number), "{event}");
            }
            other => panic!("a phase `{other}`: {event}"),
        }
    }
    assert_eq!(starts.keys().collect::<Vec<_>>(), ends.keys().collect::<Vec<_>>(), "flows have two ends");
    for (id, (tid, at)) in &ends {
        let (from, issued) = starts[id];
        assert!(issued <= *at && from != *tid, "flow {id:?}");
        let begins = |span: &&Span| (span.pid, span.tid, span.begin) == (id.0, *tid, *at);
        assert!(spans.iter().any(|span| begins(&span)), "flow {id:?} ends at no span");
    }
    for span in &spans {
        assert!(named.contains(&(span.pid, "process_name".to_owned(), 0)), "{span:?}");
        assert!(named.contains(&(span.pid, "thread_name".to_owned(), span.tid)), "{span:?}");
    }
    let mut by_thread: BTreeMap<(u64, u64), Vec<&Span>> = BTreeMap::new();
    spans.iter().for_each(|span| by_thread.entry((span.pid, span.tid)).or_default().push(span));
    for of_thread in by_thread.values() {
        let mut open: Vec<&Span> = Vec::new();
        for span in of_thread {
            while open.last().is_some_and(|outer| outer.end <= span.begin) {
                open.pop();
            }
            // Two times are rounded to nanoseconds.
            let inside = open.last().is_none_or(|outer| span.end <= outer.end + 1);
            assert!(inside, "{span:?} ends after {:?}", open.last());
            open.push(span);
        }
    }
    spans
}

fn of<'a>(spans: &'a [Span], pid: u64, category: &str) -> Vec<&'a Span> {
    spans.iter().filter(|span| span.pid == pid && span.category == category).collect()
}

fn ranks(spans: &[Span]) -> Vec<u64> {
    spans.iter().map(|span| span.pid).collect::<BTreeSet<_>>().into_iter().collect()
}

fn steps(spans: &[Span], pid: u64) -> Vec<u64> {
    of(spans, pid, "step").iter().filter_map(|step| step.args["step"].as_u64()).collect()
}

#[test]
fn a_trace_tells_of_all_ranks_and_its_bytes_are_those_of_the_summary() {
    let place = Place::new();
    let line = "train tiny --ranks 2 --steps 6 --trace --out run --set log.every=1 --set train.overlap=always \
                --set checkpoint.every=3 --set log.usage_seconds=0.05 --set log.cpu_watts=10";
    let said = place.succeed(line);
    assert!(said.contains("trace summary"), "{said}");
    let run = place.path("run");
    let trace = json(&run.join("trace.json"));
    let spans = checked(&trace);
    assert_eq!(ranks(&spans), [0, 1]);
    let summary = json(&run.join("summary.json"));
    for rank in [0, 1] {
        assert_eq!(steps(&spans, rank), [1, 2, 3, 4, 5, 6]);
        // Of every collective in a step all bytes are there.
        let in_step = |moved: &&&Span| {
            of(&spans, rank, "step").iter().any(|step| step.begin <= moved.begin && moved.end <= step.end)
        };
        let moved = of(&spans, rank, "communication");
        let sent: u64 =
            moved.iter().filter(in_step).map(|moved| moved.args["sent"].as_u64().expect("bytes")).sum();
        assert_eq!(Some(sent), summary["ranks"][rank as usize]["step_bytes_sent"].as_u64());
        assert!(sent > 0);
        let reductions: Vec<_> = moved.iter().filter(|moved| moved.args["bucket"].is_u64()).collect();
        let threads: BTreeSet<u64> = reductions.iter().map(|moved| moved.tid).collect();
        let own = of(&spans, rank, "step")[0].tid;
        assert!(
            !reductions.is_empty() && !threads.contains(&own),
            "reductions run on other threads: {threads:?}"
        );
        assert!(
            reductions.iter().all(|moved| moved.name == "all-reduce" && moved.args["algorithm"].is_string())
        );
        // Every block runs forward in each step, and backward where its parameters are learnt.
        let blocks = |direction: &str| {
            let all = of(&spans, rank, "compute");
            let of_it = all.into_iter().filter(|span| span.name.starts_with(&format!("{direction} ")));
            of_it.filter(|span| in_step(&span)).map(|span| span.name.clone()).collect::<Vec<_>>()
        };
        let (forward, backward) = (blocks("forward"), blocks("backward"));
        assert!(forward.len() >= 12 && forward.len() == backward.len(), "{forward:?} {backward:?}");
        assert!(of(&spans, rank, "data").iter().any(|span| span.name == "make a batch"));
        // Of what all ranks have alike the first writes the files.
        let saving = of(&spans, rank, "saving");
        assert_eq!(rank == 0, saving.iter().any(|span| span.name == "write a checkpoint"));
        assert!(saving.iter().filter(|span| span.name == "begin a checkpoint").count() >= 2);
        assert!(of(&spans, rank, "evaluation").iter().any(|span| span.name == "evaluate"));
    }
    let events = trace["traceEvents"].as_array().expect("events");
    let counters: BTreeSet<_> =
        events.iter().filter(|event| event["ph"] == "C").filter_map(|event| event["name"].as_str()).collect();
    assert!(counters.contains("memory"), "{counters:?}");
    let clocks = trace["otherData"]["clocks"].as_array().expect("clocks");
    assert!(
        clocks.len() == 2 && clocks.iter().all(|clock| clock["uncertainty_us"].is_number()),
        "{clocks:?}"
    );
    assert_eq!(trace["otherData"]["complete"], true);
    // What the summary says of it.
    let told: Value = serde_json::from_str(&place.succeed("trace summary run --json")).expect("is JSON");
    assert_eq!((told["steps"].as_u64(), told["ranks"].as_array().map(Vec::len)), (Some(6), Some(2)));
    let overlap = told["ranks"][0]["overlap"].as_f64().expect("there was communication");
    assert!((0.0..=1.0).contains(&overlap));
    let text = place.succeed("trace summary run/trace.json");
    for what in
        ["6 steps of 2 ranks", "overlap", "Slowest: rank", "Critical paths of all steps", "Operations"]
    {
        assert!(text.contains(what), "{what}:\n{text}");
    }
    usage_is_written(&run, &summary);
    in_a_browser(&run.join("trace.json"), spans.len());
}

/// The resources of ranks are in their files and in the summary.
fn usage_is_written(run: &Path, summary: &Value) {
    let mut joules = 0.0;
    for rank in 0..2 {
        let text = fs::read_to_string(run.join(format!("logs/rank-{rank}.usage.jsonl"))).expect("reads");
        let lines: Vec<Value> =
            text.lines().map(|line| serde_json::from_str(line).expect("is JSON")).collect();
        let last = lines.last().expect("a line");
        let of_rank = &summary["ranks"][rank];
        assert_eq!((last["rank"].as_u64(), last["step"].as_u64()), (Some(rank as u64), Some(6)));
        assert_eq!(last["step_seconds"], of_rank["step_seconds"]);
        assert_eq!(last["data_seconds"], of_rank["data_seconds"]);
        assert_eq!(last["minor_faults"].is_u64(), cfg!(target_os = "linux"));
        let sent = last["network_sent_bytes"].as_u64().expect("bytes");
        assert!(sent >= of_rank["step_bytes_sent"].as_u64().expect("bytes"));
        assert!(lines.iter().any(|line| line["activation_bytes"].as_u64() > Some(0)), "{text}");
        assert!(lines.iter().any(|line| line["parameter_bytes"] == of_rank["parameter_bytes"]), "{text}");
        joules += of_rank["joules"].as_f64().expect("estimated");
    }
    let cpu = &summary["energy"]["cpu"];
    assert_eq!(cpu["kind"], "estimated");
    assert!(cpu["model"].as_str().expect("a model").contains("10 W"), "{cpu}");
    assert!((cpu["joules"].as_f64().expect("joules") - joules).abs() < 1e-6 * joules, "{cpu} {joules}");
    assert_eq!(summary["energy"]["gpu"]["kind"], "absent");
    assert!(summary["energy"]["joules_per_sample"].as_f64().is_some_and(|joules| joules > 0.0));
}

#[test]
fn only_the_steps_that_are_asked_for_are_recorded_of_threads_too() {
    let place = Place::new();
    let line =
        "train tiny --ranks 3 --strategy dp --steps 5 --trace 2..3 --out run --set log.usage_seconds=0.05";
    place.succeed(line);
    let trace = json(&place.path("run/trace.json"));
    let spans = checked(&trace);
    assert_eq!(ranks(&spans), [0, 1, 2]);
    assert!(
        (0..3).all(|rank| steps(&spans, rank) == [2, 3]),
        "{:?}",
        (0..3).map(|rank| steps(&spans, rank)).collect::<Vec<_>>()
    );
    assert!((0..3).all(|rank| !of(&spans, rank, "communication").is_empty()));
    // Ranks that are threads share a process, of which the first speaks.
    let line = |rank: usize| {
        let text = fs::read_to_string(place.path(&format!("run/logs/rank-{rank}.usage.jsonl")));
        serde_json::from_str::<Value>(text.expect("reads").lines().last().expect("a line")).expect("is JSON")
    };
    assert_eq!(line(0)["resident_bytes"].is_u64(), cfg!(target_os = "linux"));
    assert!(line(1)["resident_bytes"].is_null() && line(1)["step"].as_u64() == Some(5));
    // Without being asked there is none.
    place.succeed("train tiny --ranks 1 --steps 2 --out plain");
    assert!(!place.path("plain/trace.json").exists());
    let said = place.fail_with(2, "train tiny --trace 5..2 --out no");
    assert!(said.contains("the first comes first"), "{said}");
}

#[test]
#[cfg(target_os = "linux")]
fn an_interrupted_run_writes_what_it_has_and_a_failed_one_too() {
    let place = Place::new();
    let run = place.path("run");
    let line =
        "train tiny --ranks 2 --steps 100000 --trace --out run --set log.every=1 --set eval.enabled=false";
    let mut running = Running::start(&place, line);
    running.wait_for_step(3);
    running.signal("-INT");
    running.succeed();
    let trace = json(&run.join("trace.json"));
    let spans = checked(&trace);
    assert_eq!((ranks(&spans), &trace["otherData"]["complete"]), (vec![0, 1], &Value::Bool(false)));
    assert!(steps(&spans, 0).len() >= 3 && steps(&spans, 0) == steps(&spans, 1));
    // A loss that is not a number ends the run; each rank leaves its recording next to its log.
    let line = "train tiny --ranks 2 --steps 50 --trace --out broken --set optim.lr=1e30 --set log.every=1";
    place.fail_with(1, line);
    // A rank that another one's failure has ended at once may have left nothing.
    let left = |rank: u64| place.path(&format!("broken/logs/rank-{rank}.trace.json"));
    let found: Vec<u64> = (0..2).filter(|rank| left(*rank).exists()).collect();
    assert!(!found.is_empty());
    for rank in found {
        let spans = checked(&json(&left(rank)));
        assert_eq!(ranks(&spans), [rank]);
        assert!(!steps(&spans, rank).is_empty());
    }
    assert!(!place.path("broken/trace.json").exists());
}

#[test]
#[cfg(target_os = "linux")]
fn energy_is_measured_once_a_host_and_shared_among_its_ranks() {
    let place = Place::new();
    let zone = place.path("powercap/intel-rapl:0");
    fs::create_dir_all(&zone).expect("a folder");
    let range = 1_000_000_u64;
    let put = |name: &str, value: &str| {
        // Renamed into place, so that no reader sees half a number.
        fs::write(zone.join("aside"), value).expect("writes");
        fs::rename(zone.join("aside"), zone.join(name)).expect("renames");
    };
    put("name", "package-0\n");
    put("max_energy_range_uj", &format!("{range}\n"));
    put("energy_uj", "900000\n");
    let line =
        "train tiny --ranks 2 --steps 40 --out run --set log.usage_seconds=0.02 --set log.cpu_watts=10";
    let mut child = place
        .command(line)
        .env("PHALANX_POWERCAP", place.path("powercap"))
        .stdout(Stdio::null())
        .spawn()
        .expect("starts");
    // The counter goes on while the run does, and passes its end again and again.
    let (mut counter, mut given) = (900_000_u64, 0_u64);
    let status = loop {
        if let Some(status) = child.try_wait().expect("waits") {
            break status;
        }
        (counter, given) = ((counter + 40_000) % range, given + 40_000);
        put("energy_uj", &format!("{counter}\n"));
        std::thread::sleep(Duration::from_millis(5));
    };
    assert!(status.success());
    let summary = json(&place.path("run/summary.json"));
    let cpu = &summary["energy"]["cpu"];
    assert_eq!(cpu["kind"], "measured", "{cpu}");
    let joules = cpu["joules"].as_f64().expect("joules");
    assert!(joules > 0.0 && joules <= given as f64 * 1e-6, "{joules} of {given}");
    let share = |rank: usize, name: &str| summary["ranks"][rank][name].as_f64().expect("a number");
    assert!((share(0, "joules") + share(1, "joules") - joules).abs() < 1e-9 * joules);
    let text = |rank: usize| {
        fs::read_to_string(place.path(&format!("run/logs/rank-{rank}.usage.jsonl"))).expect("reads")
    };
    assert!(text(0).contains("\"energy\":\"measured\""), "{}", text(0));
    assert!(!text(1).contains("cpu_joules"), "the first rank of a host tells: {}", text(1));
}

#[test]
fn an_unrecorded_span_costs_one_load_of_a_static() {
    use tracing_subscriber::layer::SubscriberExt as _;
    use tracing_subscriber::{EnvFilter, Layer as _};
    // As the program logs without a trace.
    let log = tracing_subscriber::fmt::layer().with_writer(std::io::sink).with_filter(EnvFilter::new("info"));
    let logging = tracing_subscriber::registry().with(log);
    let fastest = || {
        let round = |_| {
            let begun = Instant::now();
            for step in 0..500_u64 {
                let span =
                    tracing::trace_span!(target: "phalanx_trace::compute", "forward", block = "stem", step);
                drop(std::hint::black_box(span.entered()));
            }
            begun.elapsed() / 500
        };
        // Short rounds, of which some are not disturbed by other programs.
        (0..400).map(round).min().expect("four hundred")
    };
    let unwanted = tracing::subscriber::with_default(logging, fastest);
    let collecting = tracing_subscriber::registry().with(phalanx_trace::layer());
    let recorder = phalanx_trace::Recorder::installed().expect("the layer was made");
    recorder.record(true);
    let recorded = tracing::subscriber::with_default(collecting, fastest);
    recorder.record(false);
    eprintln!("an unrecorded span: {unwanted:?}; one that is recorded: {recorded:?}");
    assert_eq!(recorder.take(0, true).events.len(), 200_000);
    assert!(unwanted < Duration::from_nanos(100) && recorded < Duration::from_micros(50));
}

/// A browser that runs without a window, if there is one.
fn browser() -> Option<PathBuf> {
    if let Some(named) = std::env::var_os("PHALANX_BROWSER") {
        return Some(named.into());
    }
    let folders = std::env::var_os("PATH")?;
    let names = ["chromium", "chromium-browser", "google-chrome", "chrome"];
    std::env::split_paths(&folders)
        .flat_map(|folder| names.map(|name| folder.join(name)))
        .find(|path| path.is_file())
}

/// Has a browser read the file by the rules of Perfetto's importer of JSON: slices of a thread close in the order in which they
/// opened, flows bind to the slices that enclose their ends.
fn in_a_browser(trace: &Path, spans: usize) {
    let Some(browser) = browser() else {
        eprintln!("no browser is there (chromium, or PHALANX_BROWSER): the trace was not opened in one");
        return;
    };
    let text = fs::read_to_string(trace).expect("reads").replace("</", "<\\/");
    let page = format!(
        r#"<!doctype html><meta charset="utf-8"><body><script>
const trace = {text};
const threads = new Map(), flows = new Map();
let slices = 0, bound = 0, problem = "";
for (const event of trace.traceEvents) {{
  const key = event.pid + "/" + event.tid;
  if (event.ph === "X") {{
    const stack = threads.get(key) || [];
    while (stack.length && stack[stack.length - 1].end <= event.ts) stack.pop();
    const end = event.ts + event.dur;
    if (stack.length && end > stack[stack.length - 1].end + 0.0015) problem = problem || "overlap: " + JSON.stringify(event);
    stack.push({{ end }}); threads.set(key, stack); slices++;
  }} else if (event.ph === "s") flows.set(event.pid + "." + event.id, event);
  else if (event.ph === "f" && flows.has(event.pid + "." + event.id) && event.bp === "e") bound++;
}}
if (bound !== flows.size) problem = problem || "flows: " + bound + " of " + flows.size;
document.body.textContent = problem || "read " + slices + " slices";
</script>"#
    );
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("trace.html");
    fs::write(&file, page).expect("writes");
    let shown = Command::new(&browser)
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=10000", "--dump-dom"])
        .arg(format!("--user-data-dir={}", folder.path().join("profile").display()))
        .arg(format!("file://{}", file.display()))
        .output()
        .expect("the browser runs");
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(shown.contains(&format!("read {spans} slices")), "{}", &shown[..shown.len().min(400)]);
}
