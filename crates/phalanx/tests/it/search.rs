//! Searches by the built program: the same trials in every call, hopeless and failed ones, and the best row.

use std::fs;

use serde_json::Value;

use crate::harness::place::text;
use crate::harness::results::json;
use crate::harness::{Place, stderr};

const FILE: &str = r#"
about = "Which rate?"
extends = "tiny"
set = ["train.steps=6", "train.ranks=1", "train.threads=1", "log.every=1", "sample.every=0"]
columns = ["loss", "steps"]
[search]
trials = TRIALS
startup = 3
seed = 5
measure = "test_loss"
keys."optim.lr" = { from = 1e-5, to = 1e-2, log = true }
keys."optim.kind" = ["adamw", "sgd"]
"#;

fn file(trials: usize) -> String {
    FILE.replace("TRIALS", &trials.to_string())
}

/// Returns the rows of the table.
fn rows(place: &Place, folder: &str) -> Vec<Value> {
    let results = json(&place.path(folder).join("results.json"));
    results["tables"][0]["rows"].as_array().expect("rows").clone()
}

/// Returns the drawn settings and the measure of a row.
fn trial(row: &Value) -> (Value, Value) {
    (row["choices"].clone(), row["numbers"]["test_loss"]["mean"].clone())
}

#[test]
fn a_search_has_the_same_trials_at_once_and_in_two_calls() {
    let place = Place::new();
    place.write("a.toml", &file(4));
    let listed = text(&place.output("sweep a.toml --dry-run").stdout);
    assert!(
        listed.contains("trial-2: 1 ranks") && listed.contains("1 runs that the search will draw"),
        "{listed}"
    );
    place.succeed("sweep a.toml");
    place.write("a.toml", &file(6));
    let said = text(&place.output("sweep a.toml").stdout);
    assert_eq!(said.matches(": was finished").count(), 4, "{said}");
    assert_eq!(said.matches(": finished in").count(), 2, "{said}");
    place.write("b.toml", &file(6));
    place.succeed("sweep b.toml");
    let (twice, once) = (rows(&place, "runs/a"), rows(&place, "runs/b"));
    assert_eq!(twice.iter().map(trial).collect::<Vec<_>>(), once.iter().map(trial).collect::<Vec<_>>());
    let measures: Vec<f64> = once.iter().map(|row| trial(row).1.as_f64().expect("a loss")).collect();
    let best = measures.iter().copied().fold(f64::INFINITY, f64::min);
    let marked: Vec<usize> = (0..6).filter(|at| once[*at]["best"] == true).collect();
    assert_eq!(marked.len(), 1);
    assert_eq!(measures[marked[0]], best);
    let line = format!("best: trial {}, test_loss ", marked[0]);
    assert!(said.contains(&line) && said.contains("phalanx eval runs/a/runs/trial-"), "{said}");
    assert!(said.contains(&format!("{} (best)", marked[0])), "{said}");
    let page = fs::read_to_string(place.path("runs/b/report.html")).expect("reads");
    assert!(page.contains("<span class=\"badge good\">best</span>") && page.contains("--set train.steps=12"));
    // More at once are drawn from less.
    let other = file(6).replace("seed = 5", "seed = 6");
    place.write("b.toml", &other);
    let refused = place.fail("sweep b.toml");
    assert!(refused.contains("search.json holds trials of other settings of [search]"), "{refused}");
}

#[test]
fn hopeless_trials_are_stopped_and_failed_ones_are_counted() {
    let place = Place::new();
    let search = r#"
about = "Which rate?"
extends = "tiny"
set = ["train.steps=120", "train.ranks=1", "train.threads=1", "log.every=1", "sample.every=0", "checkpoint.enabled=false"]
[search]
method = "random"
trials = 6
seed = 7
measure = "test_loss"
prune = { kind = "median", after = 20, every = 20, startup = 1, measure = "loss" }
keys."optim.lr" = [2e-3, 3e-3, 1e-9, 2e-9, 1e30]
"#;
    place.write("p.toml", search);
    let output = place.output("sweep p.toml");
    let said = text(&output.stdout);
    assert!(output.status.success(), "{said}{}", stderr(&output));
    let found = rows(&place, "runs/p");
    let mut kinds = [0; 3];
    for row in &found {
        let rate: f64 =
            row["choices"]["optim.lr"].as_str().and_then(|rate| rate.parse().ok()).expect("a rate");
        if rate > 1.0 {
            assert!(row["errors"][0].as_str().expect("an error").contains("the loss is NaN"), "{row}");
            kinds[2] += 1;
        } else if rate < 1e-6 {
            assert_eq!(
                (&row["pruned"], &row["numbers"]["steps"]["mean"]),
                (&20.into(), &20.0.into()),
                "{row}"
            );
            kinds[1] += 1;
        } else {
            assert!(row["pruned"].is_null() && row["numbers"]["test_loss"].is_object(), "{row}");
            kinds[0] += 1;
        }
    }
    assert!(kinds.iter().all(|kind| *kind > 0), "{kinds:?}: {said}");
    let count = format!("6 trials: {} finished, {} stopped early, {} failed.", kinds[0], kinds[1], kinds[2]);
    assert!(said.contains(&count) && said.contains("(pruned at step 20)"), "{said}");
    // Nothing is trained again.
    let before = fs::read_to_string(place.path("runs/p/search.json")).expect("reads");
    let again = text(&place.output("sweep p.toml").stdout);
    assert!(!again.contains(": finished in"), "{again}");
    assert_eq!(fs::read_to_string(place.path("runs/p/search.json")).expect("reads"), before);
    assert_eq!(rows(&place, "runs/p"), found);

    place.write("q.toml", &search.replace("[2e-3, 3e-3, 1e-9, 2e-9, 1e30]", "[1e30, 1e31]"));
    let failed = place.fail("sweep q.toml");
    assert!(failed.contains("every trial of the search failed; the first: "), "{failed}");
    place.write("r.toml", &search.replace(", measure = \"loss\" }", " }"));
    let refused = place.fail("sweep r.toml");
    assert!(refused.contains("set eval.every, or prune.measure = \"loss\""), "{refused}");
}
