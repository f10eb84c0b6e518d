//! Curves of small language models, for trainings whose ranks share a model.

use std::path::Path;

use phalanx_config::Resolved;

use crate::harness::engine::{Recorder, run_in, words};
use crate::harness::results::{checkpoint, contents};
use crate::harness::{Place, side_by_side};

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

/// Fails unless four ranks that share a model begin with a codec at a loss, go on to the bit, and keep its state under a name that begins
/// with `kept`; `resolved` has the strategy, the codec and the last step. Runs lie in folders `STRATEGY-CODEC-whole` and `…-parts`.
pub(crate) fn codecs_go_on(
    place: &Place,
    subjects: &[(&str, &str)],
    (loss, kept): (f64, &str),
    resolved: impl Fn(&str, &str, u64) -> Resolved + Sync,
) {
    side_by_side(subjects.iter().copied(), |(strategy, codec)| {
        let [whole, parts] = ["whole", "parts"].map(|name| place.path(&format!("{strategy}-{codec}-{name}")));
        let found = curve(&whole, &resolved(strategy, codec, 4));
        // The first loss is of initial values, which codecs of parameters round.
        let allowed = if codec.contains("weights") { 1e-4 } else { 1e-5 };
        let first = found[0][0];
        assert!((first - loss).abs() <= allowed * loss, "{codec}: {first}, not {loss}");
        if codec.contains("auto") {
            // What is measured decides.
            return;
        }
        let mut resumed = curve(&parts, &resolved(strategy, codec, 2));
        resumed.extend(curve(&parts, &resolved(strategy, codec, 4)));
        assert_eq!(resumed, found, "{codec}");
        let [whole, parts] = [whole, parts].map(|run| contents(&checkpoint(&run, 4)));
        assert!(whole == parts, "{codec}: a run that goes on has another checkpoint");
        // All but int8 keep errors, or the number of a step.
        let keeps = whole.keys().any(|name| name.starts_with(kept));
        assert_eq!(keeps, !codec.contains("weights"), "{codec}");
    });
}
