//! The predictions of `phalanx plan` equal the reports of runs, to the byte.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

fn phalanx(folder: &Path, line: &str) -> Output {
    let arguments = line.split(' ').filter(|part| !part.is_empty());
    Command::new(env!("CARGO_BIN_EXE_phalanx"))
        .args(arguments)
        .current_dir(folder)
        .output()
        .expect("phalanx runs")
}

fn succeed(folder: &Path, line: &str) -> String {
    let output = phalanx(folder, line);
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{line}: {:?}\n{out}\n{err}", output.status);
    out.into_owned()
}

fn plan(folder: &Path, line: &str) -> Value {
    serde_json::from_str(&succeed(folder, &format!("plan {line} --json"))).expect("is JSON")
}

#[test]
fn every_strategy_holds_what_was_planned() {
    let folder = tempfile::tempdir().expect("a folder");
    // One with averages and with parameters outside of blocks, one without; their optimizers differ.
    let subjects = [
        ("cvae", "--set train.ema=0.9"),
        ("mlp", "--set model.kind=mlp --set model.mlp_width=20 --set optim.kind=sgd"),
    ];
    for (name, subject) in subjects {
        for ranks in 1..=4 {
            let common = format!("tiny {subject} --set train.global_batch=12 --ranks {ranks}");
            let planned = plan(folder.path(), &common);
            for row in planned["strategies"].as_array().expect("rows") {
                let strategy = row["strategy"].as_str().expect("a name");
                let out = format!("{name}-{strategy}-{ranks}");
                succeed(
                    folder.path(),
                    &format!(
                        "train {common} --steps 3 --strategy {strategy} --set checkpoint.enabled=false --out {out}"
                    ),
                );
                let run = folder.path().join(&out);
                assert!(std::fs::read_dir(run.join("checkpoints")).expect("lists").next().is_none());
                let summary = std::fs::read(run.join("summary.json")).expect("reads");
                let summary: Value = serde_json::from_slice(&summary).expect("is JSON");
                assert_eq!(summary["parameters"], planned["parameters"], "{out}");
                for rank in 0..ranks {
                    let planned = &row["ranks"][rank];
                    let bytes = |field: &str| planned[field].as_u64().expect("a number");
                    for field in ["parameter_bytes", "gradient_bytes"] {
                        assert_eq!(
                            summary["ranks"][rank][field], planned[field],
                            "{out}: {field} of rank {rank}"
                        );
                    }
                    // What a strategy keeps is state as an optimizer's is.
                    let state = bytes("optimizer_bytes") + bytes("synchrony_bytes");
                    assert_eq!(
                        summary["ranks"][rank]["optimizer_bytes"], state,
                        "{out}: state of rank {rank}"
                    );
                }
            }
        }
    }
}

#[test]
fn plans_need_no_images_and_no_memory() {
    let folder = tempfile::tempdir().expect("a folder");
    let shown = succeed(folder.path(), "plan --model resnet18 --data cifar10 --ranks 4 --strategy fsdp");
    for words in ["11,173,962 parameters", "> fsdp", "42.63 MiB", "0.25", "Not counted: activations"] {
        assert!(shown.contains(words), "{words}: {shown}");
    }
    assert!(!succeed(folder.path(), "plan --model resnet18").contains('>'));
    // The classes of CIFAR-10 are known without its path; 1.6 million million parameters are not allocated.
    let planned = plan(folder.path(), "cifar10-resnet18 --ranks 4 --optimizer adam");
    let of = |strategy: &str, field: &str| {
        let rows = planned["strategies"].as_array().expect("rows");
        rows.iter().find(|row| row["strategy"] == strategy).map(|row| row[field].clone()).expect("a row")
    };
    assert_eq!(of("ddp", "held_bytes").as_u64(), Some(16 * 11_173_962));
    assert!(of("fsdp", "held_of_ddp").as_f64().is_some_and(|ratio| ratio <= 0.27), "{planned}");
    let huge = "--set model.mlp_width=131072 --set model.mlp_depth=96 --strategy hsdp --ranks 64 --batch 128";
    let planned = plan(folder.path(), &format!("--model mlp {huge}"));
    assert_eq!(planned["parameters"].as_u64(), Some(3073 * 131_072 + 95 * 131_073 * 131_072 + 131_073 * 7));
    for (line, words) in [
        ("plan --model resnet19", "did you mean resnet18?"),
        ("plan tniy", "did you mean tiny?"),
        ("plan tiny --strategy fsdq", "did you mean fsdp?"),
        ("plan tiny --ranks 0", "train.ranks = 0 is not at least 1"),
        ("plan --model mlp --set model.mlp_depth=0", "model.mlp_depth = 0 is not at least 1"),
        ("plan --model mlp --data folder", "by data.path"),
    ] {
        let output = phalanx(folder.path(), line);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains(words), "{line}: {said}");
    }
}

#[test]
fn an_mlp_learns() {
    let folder = tempfile::tempdir().expect("a folder");
    let line = "train tiny --set model.kind=mlp --set model.mlp_width=64 --ranks 2 --set data.images=32 --set train.global_batch=16 --set train.steps=120 --set optim.lr=0.003 --strategy fsdp --set eval.enabled=false --out run";
    let shown = succeed(folder.path(), line);
    assert!(shown.contains("mlp of 3 hidden layers of 64") && !shown.contains("test loss"), "{shown}");
    let text = std::fs::read_to_string(folder.path().join("run/metrics.jsonl")).expect("reads");
    let losses: Vec<f64> = text
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).expect("is JSON")["loss"].as_f64())
        .collect();
    assert!(losses[losses.len() - 1] < 0.9 * losses[0], "{losses:?}");
}

#[test]
fn steps_are_predicted_from_one_ranks_step_and_a_link() {
    let folder = tempfile::tempdir().expect("a folder");
    let planned = |line: &str| {
        let planned = plan(folder.path(), &format!("tiny --set comm.algorithm=ring {line}"));
        let rows = planned["strategies"].as_array().expect("rows").clone();
        let of = |strategy: &str, name: &str| {
            let row = rows.iter().find(|row| row["strategy"] == strategy).expect("a row");
            (row[name].as_f64(), row["bytes_sent_per_step"].as_f64().expect("bytes"))
        };
        ["ddp", "zero2", "fsdp", "local-sgd"].map(|strategy| of(strategy, "predicted_step_ms"))
    };
    let [(ddp, sent), (zero2, _), (fsdp, _), (apart, _)] = planned("--ranks 4 --link 10Mbit,0us --step-ms 1");
    // All that is sent takes its time, and hardly any of it hides behind a millisecond.
    let way = sent * 8.0 / 1e7 * 1e3;
    let [ddp, zero2, fsdp] = [ddp, zero2, fsdp].map(|time| time.expect("predicted"));
    assert!((way..way + 2.0).contains(&ddp) && zero2 >= way && fsdp >= way, "{way} {ddp} {zero2} {fsdp}");
    assert_eq!(apart, None, "its ranks take no step together");
    let [(alone, _), ..] = planned("--ranks 1 --link 10Mbit,0us --step-ms 7");
    assert!((alone.expect("predicted") - 7.0).abs() < 1e-9);
    let [(hidden, _), ..] = planned("--ranks 4 --link 100Gbit,0us --step-ms 1000");
    assert!((1000.0..1002.0).contains(&hidden.expect("predicted")));
    assert_eq!(planned("--ranks 4")[0].0, None, "of what nothing was measured");
    let refused = phalanx(folder.path(), "plan tiny --step-ms 5");
    assert!(!refused.status.success(), "steps of ranks whose link is not known");
}
