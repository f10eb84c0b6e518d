//! The predictions of `phalanx plan` equal the reports of runs, to the byte.

use std::fs;

use phalanx_trainer::engine::NoopObserver;
use serde_json::Value;

use crate::harness::engine::{resolve, run_in, try_train, words};
use crate::harness::results::{column, json};
use crate::harness::{Place, side_by_side};

fn plan(place: &Place, line: &str) -> Value {
    serde_json::from_str(&place.succeed(&format!("plan {line} --json"))).expect("is JSON")
}

#[test]
fn every_strategy_holds_what_was_planned() {
    let place = Place::new();
    // One with averages and with parameters outside of blocks, one without; their optimizers differ.
    let cvae = "train.ema=0.9 model.image_size=8 model.latent=3 model.widths=[3] model.embed=3 model.text_width=6 \
        model.text_vocab=514 model.text_context=16";
    let frozen = "model.kind=mlp model.mlp_width=20 optim.freeze=[\"0\",\"4.bias\"]";
    let later = "model.kind=mlp model.mlp_width=20 train.ema=0.9 optim.freeze=[\"2\"] optim.unfreeze_step=1";
    let subjects = [
        ("cvae", cvae),
        ("mlp", "model.kind=mlp model.mlp_width=20 optim.kind=sgd"),
        ("frozen", frozen),
        ("later", later),
    ];
    let small = "train.global_batch=12 train.steps=2 train.threads=1 checkpoint.enabled=false data.images=24 data.test_images=4 \
        sample.rows=1 sample.columns=1";
    for (name, subject) in subjects {
        let sets: Vec<String> = words(&[subject]).iter().map(|setting| format!("--set {setting}")).collect();
        // Every number of ranks with the first subject, and one number with the others.
        let worlds = if name == "cvae" { 1..=4 } else { 3..=3 };
        for ranks in worlds {
            let planned =
                plan(&place, &format!("tiny {} --set train.global_batch=12 --ranks {ranks}", sets.join(" ")));
            for row in planned["strategies"].as_array().expect("rows") {
                let strategy = row["strategy"].as_str().expect("a name");
                let out = format!("{name}-{strategy}-{ranks}");
                let own = format!("train.ranks={ranks} train.strategy={strategy}");
                let run = place.path(&out);
                try_train(&run_in(&run), &resolve(&[subject, small, &own]), Box::new(NoopObserver))
                    .unwrap_or_else(|error| panic!("{out}: {error}"));
                assert!(fs::read_dir(run.join("checkpoints")).expect("lists").next().is_none());
                let summary = json(&run.join("summary.json"));
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
    let place = Place::new();
    let shown = place.succeed("plan --model resnet18 --data cifar10 --ranks 4 --strategy fsdp");
    for words in ["11,173,962 parameters", "> fsdp", "42.63 MiB", "0.25", "Not counted: activations"] {
        assert!(shown.contains(words), "{words}: {shown}");
    }
    assert!(!place.succeed("plan --model resnet18").contains('>'));
    // The classes of CIFAR-10 are known without its path; 1.6 million million parameters are not allocated.
    let planned = plan(&place, "cifar10-resnet18 --ranks 4 --optimizer adam");
    let of = |strategy: &str, field: &str| {
        let rows = planned["strategies"].as_array().expect("rows");
        rows.iter().find(|row| row["strategy"] == strategy).map(|row| row[field].clone()).expect("a row")
    };
    assert_eq!(of("ddp", "held_bytes").as_u64(), Some(16 * 11_173_962));
    assert!(of("fsdp", "held_of_ddp").as_f64().is_some_and(|ratio| ratio <= 0.27), "{planned}");
    let huge = "--set model.mlp_width=131072 --set model.mlp_depth=96 --strategy hsdp --ranks 64 --batch 128";
    let planned = plan(&place, &format!("--model mlp {huge}"));
    assert_eq!(planned["parameters"].as_u64(), Some(3073 * 131_072 + 95 * 131_073 * 131_072 + 131_073 * 7));
    for (line, words) in [
        ("plan --model resnet19", "did you mean resnet18?"),
        ("plan tniy", "did you mean tiny?"),
        ("plan tiny --strategy fsdq", "did you mean fsdp?"),
        ("plan tiny --ranks 0", "train.ranks = 0 is not at least 1"),
        ("plan --model mlp --set model.mlp_depth=0", "model.mlp_depth = 0 is not at least 1"),
        ("plan --model mlp --data folder", "by data.path"),
        // The first samples are read.
        ("plan cifar10-resnet18 --ranks 2 --check", "cifar10 are read: add --data cifar10=PATH"),
    ] {
        let said = place.fail(line);
        assert!(said.contains(words), "{line}: {said}");
    }
}

#[test]
fn a_step_without_numbers_keeps_what_a_step_keeps() {
    let place = Place::new();
    let text = "--set model.layers=1 --set model.width=24 --set model.heads=2 --set model.context=16 --set sample.tokens=2";
    let images = "--set data.images=16 --set data.test_images=4 --set train.global_batch=8 --set model.image_size=16 --set sample.rows=1";
    let subjects = [
        ("gpt", format!("tiny-gpt {text} --set train.precision=bf16 --set train.accumulate=2")),
        ("cut", format!("tiny-gpt {text} --ranks 2 --parallel tensor=2 --set train.recompute=1")),
        ("sequence", format!("tiny-gpt {text} --ranks 2 --parallel tensor=2 --set tensor.sequence=true")),
        ("llama", format!("tiny-llama {text} --set model.key_heads=1")),
        ("bert", format!("tiny-bert {text}")),
        ("cvae", format!("tiny {images}")),
        (
            "resnet",
            format!(
                "tiny --set model.kind=resnet18 --set model.width=4 {images} --ranks 2 --parallel tensor=2"
            ),
        ),
        (
            "mobile",
            format!("tiny --set model.kind=mobilenetv2 {images} --set model.sync_batch_norm=true --ranks 2"),
        ),
        (
            "vit",
            format!(
                "tiny --set model.kind=vit --set model.width=12 --set model.layers=2 --set model.heads=4 {images} --ranks 2 --parallel tensor=2"
            ),
        ),
        (
            "stages",
            format!(
                "tiny-gpt {text} --set model.layers=3 --ranks 2 --parallel pipeline=2 --set train.recompute=1"
            ),
        ),
        (
            "turns",
            format!(
                "tiny-gpt {text} --set model.layers=3 --ranks 2 --parallel pipeline=2 --set pipeline.schedule=interleaved \
                 --set pipeline.chunks=2"
            ),
        ),
        ("mesh", format!("tiny-gpt {text} --set model.layers=3 --ranks 4 --parallel pipeline=2,tensor=2")),
        (
            "zero-bubble",
            format!(
                "tiny --set model.kind=resnet18 --set model.width=4 {images} --ranks 3 --parallel pipeline=3 \
                 --set pipeline.schedule=zero-bubble"
            ),
        ),
    ];

    side_by_side(subjects, |(name, line)| {
        let planned = plan(&place, &format!("{line} --check"));
        place.succeed(&format!(
            "train {line} --steps 1 --set eval.every=0 --set checkpoint.enabled=false --out {name}"
        ));
        let shared = planned["step"]["ranks"].as_array().expect("ranks");
        for (rank, of) in shared.iter().enumerate() {
            let lines = fs::read_to_string(place.path(name).join(format!("logs/rank-{rank}.usage.jsonl")));
            let lines = lines.expect("is written");
            let lines = lines.lines().map(|line| serde_json::from_str::<Value>(line).expect("is JSON"));
            let kept = lines.filter_map(|line| line["activation_bytes"].as_u64()).max();
            assert_eq!(kept, of["recorded_bytes"].as_u64(), "{name}, rank {rank}");
            assert!(of["operations"].as_u64() > Some(0), "{name}, rank {rank}");
            let (cut, staged) = (line.contains("tensor=2"), line.contains("pipeline="));
            assert_eq!(of["messages"].as_u64() > Some(0), cut, "{name}, rank {rank}");
            assert_eq!(of["bytes_to_stages"].as_u64() > Some(0), staged, "{name}, rank {rank}");
        }
    });
}

#[test]
fn an_mlp_learns() {
    let place = Place::new();
    let line = "train tiny --set model.kind=mlp --set model.mlp_width=64 --ranks 2 --set data.images=32 --set train.global_batch=16 --set train.steps=120 --set optim.lr=0.003 --strategy fsdp --set eval.enabled=false --out run";
    let shown = place.succeed(line);
    assert!(shown.contains("mlp of 3 hidden layers of 64") && !shown.contains("test loss"), "{shown}");
    let losses = column(&place.path("run"), "loss");
    assert!(losses[losses.len() - 1] < 0.9 * losses[0], "{losses:?}");
}

#[test]
fn steps_are_predicted_from_one_ranks_step_and_a_link() {
    let place = Place::new();
    let planned = |line: &str| {
        let planned = plan(&place, &format!("tiny --set comm.algorithm=ring {line}"));
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
    // Steps of ranks whose link is not known.
    place.fail("plan tiny --step-ms 5");
}
