//! Sweeps by the built program: tables of runs, what is finished is left as it is, and what failed or was stopped goes on.

use std::fs;

use phalanx_run::Summary;

use crate::harness::place::text;
use crate::harness::results::{column, json, steps, summary};
use crate::harness::{Place, Running, stderr};

const FILE: &str = r#"
about = "Which strategy, and which rate?"
extends = "tiny"
set = ["train.steps=12", "train.threads=1", "log.every=1", "sample.every=0", "eval.every=0"]
seeds = [0, 1]
columns = ["test_loss", "steps_to_target", "seconds", "staleness", "nothing"]

[target]
below = 100.0
window = 3

[[axis]]
name = "strategy"
choices = [{ name = "ddp" }, { name = "servers, alike", set = ["train.strategy=ps-bsp"] }]

[[axis]]
key = "optim.lr"
values = [1e-3, 4e-3]
"#;

#[test]
fn a_sweep_ends_in_tables_and_is_not_done_twice() {
    let place = Place::new();
    place.write("a.toml", FILE);
    let listed = text(&place.output("sweep a.toml --dry-run").stdout);
    assert!(
        listed.contains("servers-alike_0.004_seed1: 2 ranks") && listed.contains("8 runs in runs/a"),
        "{listed}"
    );
    assert!(!place.path("runs").exists(), "nothing is trained");

    let output = place.output("sweep a.toml --parallel 2");
    let said = stderr(&output);
    assert!(output.status.success(), "{said}{}", text(&output.stdout));
    assert_eq!(said.matches(": finished in").count(), 8, "{said}");
    let out = place.path("runs/a");
    let results = json(&out.join("results.json"));
    let rows = results["tables"][0]["rows"].as_array().expect("rows").clone();
    assert_eq!(rows.len(), 4);
    for (row, name) in
        rows.iter().zip(["ddp_0.001", "ddp_0.004", "servers-alike_0.001", "servers-alike_0.004"])
    {
        let of_seed = |seed: u64| {
            let summary = out.join(format!("runs/{name}_seed{seed}/summary.json"));
            Summary::read(&summary).expect("a summary").metrics["test_loss"].as_f64().expect("a loss")
        };
        let (a, b) = (of_seed(0), of_seed(1));
        assert_ne!(a, b, "{name}: seeds differ");
        let told = &row["numbers"]["test_loss"];
        assert!(
            (told["mean"].as_f64().expect("a mean") - f64::midpoint(a, b)).abs() < 1e-9,
            "{name}: {told}"
        );
        let deviation = (a - b).abs() / 2.0_f64.sqrt();
        assert!((told["deviation"].as_f64().expect("of two") - deviation).abs() < 1e-9, "{name}: {told}");
        // The first mean of three losses; of a worker's own, the third of both workers.
        assert_eq!(row["numbers"]["steps_to_target"]["mean"], 3.0, "{name}");
        assert_eq!(row["numbers"].get("staleness").is_some(), name.starts_with("servers"), "{name}");
    }
    // ps-bsp is ddp to the bit.
    assert_eq!(rows[0]["numbers"]["test_loss"], rows[2]["numbers"]["test_loss"]);
    let markdown = fs::read_to_string(out.join("results.md")).expect("reads");
    assert!(markdown.contains("| servers, alike | 0.004 |") && markdown.contains("±"), "{markdown}");
    let csv = fs::read_to_string(out.join("1.csv")).expect("reads");
    assert_eq!(csv.lines().count(), 5, "{csv}");
    let svg = fs::read_to_string(out.join("1.svg")).expect("reads");
    let lines = svg.matches("<path class=\"line").count();
    assert_eq!(lines, 8 + 2, "two lines in two panels, over steps and seconds, and in the legend");
    let page = fs::read_to_string(out.join("report.html")).expect("reads");
    for words in [
        "Which strategy, and which rate?",
        "loss; optim.lr: 0.004",
        "servers, alike",
        "<summary>Columns</summary>",
        "±",
    ] {
        assert!(page.contains(words), "{words}");
    }
    assert_eq!(
        rows[3]["runs"],
        serde_json::json!(["servers-alike_0.004_seed0", "servers-alike_0.004_seed1"])
    );

    let again = place.output("sweep a.toml");
    assert_eq!(stderr(&again).matches(": was finished").count(), 8, "{}", stderr(&again));
    assert_eq!(fs::read_to_string(out.join("1.csv")).expect("reads"), csv);
    let other = place.output("sweep a.toml --set optim.weight_decay=0.5");
    assert_eq!(other.status.code(), Some(2));
    assert!(stderr(&other).contains("holds a run of other settings"), "{}", stderr(&other));
}

#[test]
fn runs_that_fail_are_told_and_tried_again() {
    let place = Place::new();
    let file = "about = \"x\"\nextends = \"tiny\"\nset = [\"train.steps=3\", \"train.ranks=1\"]\n[[axis]]\nname = \"data\"\n\
                choices = [{ name = \"shapes\" }, { name = \"folder\", set = [\"data.kind=folder\", \"data.path=images\"] }]\n";
    place.write("b.toml", file);
    // The trainings must not take the folder for an option.
    let output = place.output("sweep b.toml --out=-out");
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert!(stderr(&output).contains("1 of 2 runs failed"), "{}", stderr(&output));
    let markdown = fs::read_to_string(place.path("-out/results.md")).expect("reads");
    assert!(markdown.contains("| folder | failed |") && markdown.contains("images"), "{markdown}");
    for class in ["train/a", "train/b", "test/a", "test/b"] {
        let of_class = place.path("images").join(class);
        fs::create_dir_all(&of_class).expect("a folder");
        for at in 0..20_u8 {
            let picture = image::RgbImage::from_pixel(16, 16, image::Rgb([at * 10, 0, 0]));
            picture.save(of_class.join(format!("{at}.png"))).expect("saves");
        }
    }
    let output = place.output("sweep b.toml --out=-out --json");
    let said = stderr(&output);
    assert!(output.status.success(), "{said}{}", text(&output.stdout));
    let results: serde_json::Value = serde_json::from_str(&text(&output.stdout)).expect("JSON alone");
    assert_eq!(results["tables"][0]["rows"].as_array().map(Vec::len), Some(2), "{results}");
    assert!(said.contains("shapes: was finished") && said.contains("folder: finished in"), "{said}");
}

#[test]
fn an_interrupted_sweep_goes_on_where_it_was() {
    let place = Place::new();
    let file = "about = \"x\"\nextends = \"tiny\"\nset = [\"train.steps=60\", \"log.every=1\", \
                'chaos.delay=\"rank=0,ms=20;rank=1,ms=20\"']\n[[axis]]\nkey = \"optim.lr\"\nvalues = [1e-3, 2e-3]\n";
    place.write("c.toml", file);
    let first = place.path("out/runs/0.001");
    let mut running = Running::spawn(first.clone(), place.command("sweep c.toml --out out"));
    running.wait_for_step(5);
    running.signal("-INT");
    assert_eq!(running.end().code, Some(130));
    assert_eq!(summary(&first).status, "interrupted");
    assert!(!place.path("out/runs/0.002/metrics.jsonl").exists(), "the second has not begun");

    place.succeed("sweep c.toml --out out");
    assert_eq!(steps(&first), (1..=60).collect::<Vec<_>>(), "each step once");
    let seconds = column(&first, "seconds");
    assert!(seconds.is_sorted() && seconds.len() == 60, "time goes on too: {seconds:?}");
}

#[cfg(target_os = "linux")]
#[test]
fn more_ranks_than_cores_are_timed_by_simulated_clocks_and_predicted() {
    let place = Place::new();
    let file = r#"
about = "How much faster?"
extends = "tiny"
set = [
  "train.steps=6", "train.threads=1", "log.every=1", "sample.every=0", "eval.every=0", "checkpoint.enabled=false",
  "comm.algorithm=ring", "comm.clock=cpu",
]
columns = ["step_ms", "predicted_step_ms", "efficiency", "mb_sent"]
predict = { "train.ranks" = 1 }

[[relative]]
name = "efficiency"
of = "step_ms"
to = { "train.ranks" = 1 }
as = "inverse"

[[axis]]
key = "train.ranks"
values = [1, 3]
predicted = [16]
times = { "train.global_batch" = 4 }
"#;
    place.write("d.toml", file);
    let said = place.fail("sweep d.toml");
    assert!(said.contains("comm.clock = cpu needs comm.link"), "{said}");
    // The 0.58 MB of gradients take more than a second of simulated time, and no real time.
    place.succeed("sweep d.toml --link 5Mbit,1ms --ranks 1,4");
    let results = json(&place.path("runs/d/results.json"));
    let rows = results["tables"][0]["rows"].as_array().expect("rows");
    let number = |row: usize, name: &str| rows[row]["numbers"][name]["mean"].as_f64();
    assert_eq!(rows.len(), 3);
    assert_eq!([&rows[1], &rows[2]].map(|row| &row["choices"]["train.ranks"]), ["4", "16"]);
    let (one, four) = (number(0, "step_ms").expect("measured"), number(1, "step_ms").expect("measured"));
    // What a rank sends goes through its wire.
    let least = number(1, "mb_sent").expect("measured") * 1e6 * 8.0 / 5e6 * 1e3;
    assert!(four > 0.99 * least && four < 1.3 * (least + one), "{four} ms, at least {least}; alone {one}");
    assert!((number(1, "efficiency").expect("of both") - one / four).abs() < 1e-9);
    let predicted = number(1, "predicted_step_ms").expect("predicted");
    assert!((0.8..1.25).contains(&(predicted / four)), "predicted {predicted} ms, measured {four}");
    assert!(number(2, "step_ms").is_none() && number(2, "predicted_step_ms").expect("predicted") > predicted);
    let log = fs::read_to_string(place.path("runs/d/results.md")).expect("reads");
    assert!(log.contains("simulated clocks"), "{log}");
    let page = fs::read_to_string(place.path("runs/d/report.html")).expect("reads");
    assert!(
        page.contains("<span class=\"badge going\">predicted</span>") && page.contains("simulated clocks")
    );
}
