//! Trainings whose model is in stages: the curve of one rank with as many micro-batches, and checkpoints of any mesh.

use std::path::Path;

use phalanx_trainer::config::Resolved;

use crate::harness::engine::{Recorder, run_in, words};
use crate::harness::results::{checkpoint, contents};
use crate::harness::{Place, side_by_side};

/// A GPT-2 with dropout, averages and clipping, by `ranks` ranks.
fn resolved(ranks: usize, strategy: &str, steps: u64, further: &str) -> Resolved {
    let common = "model.layers=3 model.width=24 model.heads=6 model.context=16 train.global_batch=8 train.threads=1 train.clip_norm=0.5 \
        train.ema=0.9 eval.every=0 eval.limit=12 log.every=1 sample.rows=1 train.bucket_kib=8 schedule.warmup_steps=2 train.steps=40";
    let own = format!("train.ranks={ranks} train.strategy={strategy} train.stop_step={steps}");
    let resolved = phalanx::program().resolve("tiny-gpt", &words(&[common, &own, further]));
    resolved
        .and_then(|resolved| resolved.validate().map(|()| resolved))
        .unwrap_or_else(|error| panic!("{error}"))
}

/// The losses and the norms of gradients of the steps of a run, which goes on if it has a checkpoint.
fn curve(folder: &Path, resolved: &Resolved) -> Vec<Vec<f64>> {
    let recorder = Recorder::of_steps(|report| {
        let norm = report.updates[0].gradient_norm.unwrap_or_default();
        vec![report.phases[0].loss, norm]
    });
    recorder.train(&run_in(folder), resolved)
}

fn assert_near(what: &str, found: &[Vec<f64>], expected: &[Vec<f64>]) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (step, (found, expected)) in found.iter().flatten().zip(expected.iter().flatten()).enumerate() {
        assert!((found - expected).abs() <= 1e-5 * expected.abs(), "{what}, {step}: {found}, not {expected}");
    }
}

#[test]
fn stages_follow_one_rank() {
    let place = Place::new();
    let one = curve(&place.path("one"), &resolved(1, "ddp", 5, "train.accumulate=4"));
    let meshes = [
        ("gpipe", 2, "ddp", "parallel.pipeline=2 pipeline.schedule=gpipe pipeline.micro_batches=4"),
        ("1f1b", 2, "ddp", "parallel.pipeline=2 pipeline.micro_batches=4"),
        (
            "zero-bubble",
            2,
            "ddp",
            "parallel.pipeline=2 pipeline.schedule=zero-bubble pipeline.micro_batches=4",
        ),
        (
            "interleaved",
            2,
            "ddp",
            "parallel.pipeline=2 pipeline.schedule=interleaved pipeline.chunks=2 pipeline.micro_batches=4",
        ),
        ("three", 3, "ddp", "parallel.pipeline=3 train.accumulate=4"),
        ("four", 4, "ddp", "parallel.pipeline=4 pipeline.schedule=zero-bubble pipeline.micro_batches=4"),
        ("again", 2, "ddp", "parallel.pipeline=2 train.recompute=1 pipeline.micro_batches=4"),
        ("chosen", 2, "ddp", "parallel.pipeline=2"),
        ("named", 2, "ddp", "parallel.pipeline=2 pipeline.stages=[\"transformer.h.2\"]"),
        ("replicas", 4, "ddp", "parallel.pipeline=2 parallel.replicate=2 train.check_replicas=2"),
        ("zero1", 4, "zero1", "parallel.pipeline=2 pipeline.micro_batches=2"),
        ("zero2", 4, "zero2", "parallel.pipeline=2 pipeline.micro_batches=2"),
        ("fsdp", 4, "fsdp", "parallel.pipeline=2 parallel.shard=2 pipeline.micro_batches=2"),
        (
            "fsdp-zero-bubble",
            4,
            "fsdp",
            "parallel.pipeline=2 parallel.shard=2 pipeline.schedule=zero-bubble train.recompute=1 pipeline.micro_batches=2",
        ),
        ("hsdp", 8, "hsdp", "parallel.pipeline=2 parallel.replicate=2 parallel.shard=2"),
        ("tensor", 4, "ddp", "parallel.pipeline=2 parallel.tensor=2"),
        ("sequence", 4, "ddp", "parallel.pipeline=2 parallel.tensor=2 tensor.sequence=true"),
        ("all", 8, "zero1", "parallel.pipeline=2 parallel.tensor=2 parallel.shard=2"),
    ];
    side_by_side(meshes, |(name, ranks, strategy, further)| {
        assert_near(name, &curve(&place.path(name), &resolved(ranks, strategy, 5, further)), &one);
    });
    // The order of passes changes no bit, and neither does the number of stages.
    let expected = contents(&checkpoint(&place.path("1f1b"), 5));
    for name in ["gpipe", "zero-bubble", "interleaved", "three", "four", "again"] {
        assert!(contents(&checkpoint(&place.path(name), 5)) == expected, "{name}: the checkpoints differ");
    }
    // Where a strategy keeps parameters changes no bit either.
    let expected = contents(&checkpoint(&place.path("zero1"), 5));
    for name in ["zero2", "fsdp", "fsdp-zero-bubble"] {
        assert!(contents(&checkpoint(&place.path(name), 5)) == expected, "{name}: the checkpoints differ");
    }
}

#[test]
fn checkpoints_of_stages_go_from_any_mesh_to_any_other() {
    let place = Place::new();
    let one = curve(&place.path("one"), &resolved(1, "ddp", 16, ""));
    let meshes = [
        (2, "ddp", "parallel.pipeline=2"),
        (1, "ddp", ""),
        (4, "zero1", "parallel.pipeline=2 parallel.tensor=2"),
        (3, "ddp", "parallel.pipeline=3"),
        (4, "fsdp", "parallel.pipeline=2 parallel.shard=2"),
        (2, "fsdp", ""),
        (4, "zero2", "parallel.pipeline=2"),
        (2, "ddp", "parallel.tensor=2"),
    ];
    let folder = place.path("moved");
    let mut found = Vec::new();
    for (at, (ranks, strategy, further)) in meshes.into_iter().enumerate() {
        let until = 2 * (at as u64 + 1);
        found.extend(curve(&folder, &resolved(ranks, strategy, until, further)));
        assert_near(further, &found, &one[..until as usize]);
    }
}

/// A term of a loss may be known to an earlier stage alone, which computes it.
#[test]
fn measures_of_earlier_stages_are_told() {
    let place = Place::new();
    let measures = |name: &str, ranks: usize, further: &str| {
        let common = "model.widths=[16,16] train.global_batch=8 train.threads=1 data.images=16 data.test_images=4 eval.every=0 log.every=1 \
            sample.rows=1 sample.columns=1 train.steps=2";
        let own = format!("train.ranks={ranks}");
        let resolved =
            phalanx::program().resolve("tiny", &words(&[common, &own, further])).expect("known settings");
        resolved.validate().unwrap_or_else(|error| panic!("{name}: {error}"));
        let recorder = Recorder::of_steps(|report| {
            let phase = &report.phases[0];
            phase.measures.iter().map(|(_, number)| *number).chain([phase.loss]).collect::<Vec<f64>>()
        });
        recorder.train(&run_in(&place.path(name)), &resolved)
    };
    let one = measures("one", 1, "");
    assert!(one[0].len() > 2, "the terms of the loss");
    assert_near("two", &measures("two", 2, "parallel.pipeline=2 pipeline.micro_batches=1"), &one);
    assert_near("three", &measures("three", 3, "parallel.pipeline=3 pipeline.micro_batches=1"), &one);
}

#[test]
fn settings_that_do_not_go_with_stages_are_refused() {
    let refused = |further: &str| {
        let words = words(&["train.ranks=2 parallel.pipeline=2 train.global_batch=8", further]);
        let resolved = phalanx::program().resolve("tiny-gpt", &words).expect("known settings");
        resolved.validate().expect_err(further).to_string()
    };
    for (further, told) in [
        (
            "train.strategy=local-sgd",
            "stages take every step together; choose ddp, zero1, zero2, fsdp or hsdp",
        ),
        ("train.logical_ranks=2", "logical ranks are parts of the data on one rank each"),
        ("elastic.min=1", "a rank that leaves takes its stage along"),
        ("optim.kind=muon", "would be turned by each"),
        ("sample.every=2", "no rank has the whole model; draw them from a checkpoint"),
    ] {
        let error = refused(further);
        assert!(error.contains("parallel.pipeline = 2 does not go with") && error.contains(told), "{error}");
    }
    let error = refused("pipeline.schedule=interleaved pipeline.chunks=2 pipeline.micro_batches=3");
    assert!(error.contains("the 2 ranks must divide the 3 micro-batches"), "{error}");
    let error = refused("pipeline.schedule=2f2b");
    assert!(error.contains("there is no such schedule; there is: gpipe, 1f1b"), "{error}");
}

#[test]
fn stages_are_found_before_ranks_meet() {
    let place = Place::new();
    let fail = |ranks: usize, further: &str| {
        place.fail(&format!(
            "train tiny-gpt --ranks {ranks} --parallel pipeline={ranks} --steps 1 --out run {further}"
        ))
    };
    let told = fail(2, "--set pipeline.stages=[\"transformer.h.9\"]");
    assert!(told.contains("there is no block `transformer.h.9`; there is: "), "{told}");
    let told = fail(2, "--set pipeline.stages=[\"transformer.h.1\",\"transformer.h.2\"]");
    assert!(
        told.contains("the first blocks of 2 chunks, and there are 2: name one for each but the first"),
        "{told}"
    );
    let told = fail(9, "--set train.global_batch=18 --set model.layers=1");
    assert!(told.contains("blocks, which cannot make 9 stages: choose fewer"), "{told}");
    let told = place.fail("train tiny-gpt --set pipeline.chunks=2 --steps 1 --out run");
    assert!(
        told.contains("pipeline.chunks is for models in stages: give parallel.pipeline, their number"),
        "{told}"
    );
}
