//! Measurements that run whole trainings: complete tables, and memory as planned.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value as Json;

fn bench(folder: &Path, line: &str) -> Output {
    let arguments = line.split(' ').filter(|part| !part.is_empty());
    Command::new(env!("CARGO_BIN_EXE_phalanx-bench"))
        .args(arguments)
        .current_dir(folder)
        .output()
        .expect("the benchmarks run")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn read(path: &Path) -> Json {
    serde_json::from_slice(&std::fs::read(path).expect("reads")).expect("is JSON")
}

/// A perceptron on a few small images.
const SMALL: &str = "strategies --model mlp --set model.mlp_width=24 --data shapes --limit 48 --set data.test_images=16 \
    --image-size 16 --batch 12 --set log.every=1";

#[test]
fn a_table_has_a_row_for_every_strategy() {
    let folder = tempfile::tempdir().expect("a folder");
    let output = bench(folder.path(), &format!("{SMALL} --ranks 2 --epochs 2 --out table"));
    let shown = text(&output.stdout);
    assert!(output.status.success(), "{shown}\n{}", text(&output.stderr));
    let results = read(&folder.path().join("table/strategies.json"));
    let rows = results["rows"].as_array().expect("rows");
    let names: Vec<&str> = rows.iter().filter_map(|row| row["strategy"].as_str()).collect();
    let all: Vec<&str> = phalanx_sharding::STRATEGIES
        .iter()
        .filter(|row| row.is_bulk_synchronous())
        .map(|row| row.name)
        .collect();
    assert_eq!((names[0], &names[1..]), ("one-rank", &all[..]));
    let markdown = std::fs::read_to_string(folder.path().join("table/strategies.md")).expect("reads");
    let picture = std::fs::read_to_string(folder.path().join("table/strategies.svg")).expect("reads");
    assert!(shown.contains(markdown.trim()), "what is written is shown: {shown}");
    for row in rows {
        let (name, number) = (&row["strategy"], |field: &str| row[field].as_f64().expect("a number"));
        assert_eq!(row["steps"], 8, "{name}");
        for field in [
            "seconds_per_epoch",
            "samples_per_second",
            "peak_memory_bytes",
            "scaling_efficiency",
            "test_loss",
        ] {
            assert!(number(field) > 0.0, "{name}: {field}");
        }
        for field in ["communication_exposed_share", "communication_hidden_share", "test_accuracy"] {
            assert!((0.0..=1.5).contains(&number(field)), "{name}: {field}");
        }
        let among = row["ranks"].as_u64().expect("ranks") > 1;
        assert_eq!(number("bytes_sent_per_rank_and_step") > 0.0, among, "{name}");
        let name = name.as_str().expect("a name");
        // The images and their order are equal. In synchronous strategies only the order of sums differs.
        let together = name == "one-rank"
            || phalanx_sharding::Strategy::named(name).expect("a row").is_bulk_synchronous();
        let (loss, alone) = (number("loss"), rows[0]["loss"].as_f64().expect("a loss"));
        let tolerance = if together || name == "ps-bsp" { 1e-3 } else { 0.2 };
        assert!((loss - alone).abs() < tolerance * alone.abs(), "{name}: {loss} {alone}");
        assert!(
            markdown.contains(&format!("| {name} |")) && picture.contains(&format!(">{name}<")),
            "{name}"
        );
    }
    let again = bench(folder.path(), &format!("{SMALL} --out table"));
    assert!(
        !again.status.success() && text(&again.stderr).contains("is not empty"),
        "nothing is overwritten"
    );
}

#[test]
fn rows_that_fail_say_so_and_the_others_go_on() {
    let folder = tempfile::tempdir().expect("a folder");
    // One rank can take a batch of 12 in four pieces, three ranks cannot.
    let line = format!("{SMALL} --ranks 3 --steps 2 --set train.accumulate=12 --out table");
    let output = bench(folder.path(), &line);
    assert!(!output.status.success());
    let failed = phalanx_sharding::STRATEGIES.iter().filter(|row| row.is_bulk_synchronous()).count();
    assert!(text(&output.stderr).contains(&format!("{failed} of {} rows failed", failed + 1)));
    let rows = read(&folder.path().join("table/strategies.json"))["rows"].clone();
    assert!(rows[0]["samples_per_second"].as_f64().is_some_and(|rate| rate > 0.0), "{rows}");
    assert!(
        rows[1]["error"].as_str().is_some_and(|error| error.contains("train.accumulate 12 = 36")),
        "{rows}"
    );
    let markdown = std::fs::read_to_string(folder.path().join("table/strategies.md")).expect("reads");
    assert_eq!(markdown.matches("| failed: ").count(), failed, "{markdown}");
}

/// Compares bytes exactly. Returns the peak memory of the largest rank, and its plan.
fn memory(folder: &Path, parameters: &str, ranks: usize) -> Vec<(String, u64, u64)> {
    let out = format!("memory-{parameters}");
    let line = format!(
        "memory --parameters {parameters} --depth 8 --strategy all --ranks {ranks} --steps 3 --out {out}"
    );
    let output = bench(folder, &line);
    assert!(output.status.success(), "{}\n{}", text(&output.stdout), text(&output.stderr));
    let results = read(&folder.join(&out).join("memory.json"));
    let rows = results["rows"].as_array().expect("rows").iter();
    rows.map(|row| {
        let (planned, measured) = (&row["planned"], &row["measured"]);
        for field in ["parameter_bytes", "gradient_bytes", "optimizer_bytes"] {
            assert_eq!(planned[field], measured[field], "{field}: {row}");
        }
        let number = |value: &Json| value.as_u64().expect("a number");
        let name = row["strategy"].as_str().expect("a name").to_owned();
        (name, number(&planned["peak_bytes"]), number(&measured["peak_memory_bytes"]))
    })
    .collect()
}

#[test]
#[cfg(target_os = "linux")]
#[ignore = "trains 20 million parameters on four ranks by every strategy: cargo xtask test --full"]
fn processes_hold_little_more_than_planned() {
    let folder = tempfile::tempdir().expect("a folder");
    // The memory of a process without a model: the program, its threads, images.
    let empty = memory(folder.path(), "1e4", 4);
    for ((name, _, program), (_, planned, peak)) in empty.into_iter().zip(memory(folder.path(), "20e6", 4)) {
        let grown = peak.saturating_sub(program);
        let mebibyte = 1 << 20;
        assert!(
            grown < planned + planned / 4 + 32 * mebibyte,
            "{name}: {} MiB more than an empty process, {} MiB planned",
            grown / mebibyte,
            planned / mebibyte
        );
    }
}
