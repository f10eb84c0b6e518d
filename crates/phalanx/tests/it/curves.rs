//! Curves of small language models, for trainings whose ranks share a model.

use std::path::Path;

use phalanx_trainer::config::Resolved;

use crate::harness::engine::{Recorder, run_in, words};

/// A GPT-2 of six heads with dropout, averages and clipping, by `ranks` ranks.
pub(crate) fn tiny_gpt(ranks: usize, strategy: &str, steps: u64, further: &str) -> Resolved {
    let common = "model.layers=2 model.width=24 model.heads=6 model.context=16 train.global_batch=8 train.threads=1 train.clip_norm=0.5 \
        train.ema=0.9 eval.every=0 log.every=1 sample.rows=1 sample.tokens=4 train.bucket_kib=8 schedule.warmup_steps=2 train.steps=40";
    let own = format!("train.ranks={ranks} train.strategy={strategy} train.stop_step={steps}");
    let resolved = phalanx::program().resolve("tiny-gpt", &words(&[common, &own, further]));
    resolved
        .and_then(|resolved| resolved.validate().map(|()| resolved))
        .unwrap_or_else(|error| panic!("{error}"))
}

/// The losses and the norms of gradients of the steps of a run, which goes on if it has a checkpoint.
pub(crate) fn curve(folder: &Path, resolved: &Resolved) -> Vec<Vec<f64>> {
    let recorder = Recorder::of_steps(|report| {
        let norm = report.updates[0].gradient_norm.unwrap_or_default();
        vec![report.phases[0].loss, norm]
    });
    recorder.train(&run_in(folder), resolved)
}

/// The losses of the steps of a run.
pub(crate) fn losses(folder: &Path, resolved: &Resolved) -> Vec<Vec<f64>> {
    Recorder::of_steps(|report| vec![report.phases[0].loss]).train(&run_in(folder), resolved)
}

pub(crate) fn assert_near(what: &str, found: &[Vec<f64>], expected: &[Vec<f64>]) {
    assert_within(1e-5, what, found, expected);
}

/// Fails unless numbers differ by no more than a part of them.
pub(crate) fn assert_within(part: f64, what: &str, found: &[Vec<f64>], expected: &[Vec<f64>]) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (step, (found, expected)) in found.iter().flatten().zip(expected.iter().flatten()).enumerate() {
        assert!((found - expected).abs() <= part * expected.abs(), "{what}, {step}: {found}, not {expected}");
    }
}

/// Fails unless a run that goes from mesh to mesh (ranks, strategy, further settings), two steps on each, follows one rank.
pub(crate) fn follows_one_rank(
    (one, moved): (&Path, &Path),
    meshes: &[(usize, &str, &str)],
    resolved: impl Fn(usize, &str, u64, &str) -> Resolved,
) {
    let one = curve(one, &resolved(1, "ddp", 2 * meshes.len() as u64, ""));
    let mut found = Vec::new();
    for (at, (ranks, strategy, further)) in meshes.iter().enumerate() {
        let until = 2 * (at as u64 + 1);
        found.extend(curve(moved, &resolved(*ranks, strategy, until, further)));
        assert_near(further, &found, &one[..until as usize]);
    }
}
