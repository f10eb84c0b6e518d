//! With logical ranks any number of ranks, by any strategy whose ranks take every step together, ends in the same bits: the same
//! weights, the same state of the optimizer, the same averages, and the same losses and norms on the way.

use std::sync::Arc;

use phalanx_checkpoint::{Checkpoint, Hashes, MODEL};
use phalanx_run::RunFolder;

use crate::harness::Place;
use crate::harness::engine::{Once, Recorder, refusal, resolve, run_in};

/// Of every step its number, the bits of the loss and the measures, and those of the gradient's norm.
type Row = (u64, Vec<u64>, Option<u64>);

/// Trains in a folder, or resumes there: its steps.
fn train_in(folder: &RunFolder, settings: &str) -> Vec<Row> {
    let recorder = Recorder::of_steps(|report| {
        let measures = report.phases.iter().flat_map(|phase| {
            std::iter::once(phase.loss).chain(phase.measures.iter().map(|(_, measure)| *measure))
        });
        let norm = report.updates[0].gradient_norm.map(f64::to_bits);
        (report.step, measures.map(f64::to_bits).collect(), norm)
    });
    recorder.train(folder, &resolve(&[settings]))
}

/// Eleven images over four logical ranks, of which none has as many as all others; the last step of an epoch has three, so that one
/// logical rank has none. Messages are small, so that there are many.
const COMMON: &str = "train.logical_ranks=4 train.global_batch=11 train.bucket_kib=32 data.images=25 data.test_images=4 \
    data.flip=true data.tail=ragged train.threads=1 eval.enabled=false sample.rows=1 sample.columns=1 schedule.kind=cosine";

/// Noise by sample, two terms of the loss, averages, clipping, decay of matrices only.
const CVAE: &str =
    "optim.kind=adamw optim.lr=0.002 optim.weight_decay=0.05 train.clip_norm=0.5 train.ema=0.8 train.steps=5";

/// Batch norm, and activations whose kinks make much of any rounding.
const RESNET: &str = "model.kind=resnet18 model.width=8 model.image_size=32 optim.kind=sgd optim.lr=0.05 \
    optim.momentum=0.9 optim.weight_decay=0.0005 train.clip_norm=2 model.label_smoothing=0.1 train.steps=4";

/// Returns the hashes of a run.
fn hashes(folder: &RunFolder) -> Hashes {
    let (newest, damaged) = Checkpoint::newest(&folder.checkpoints());
    assert!(damaged.is_empty(), "{damaged:?}");
    let newest = newest.expect("a checkpoint");
    let hashes = newest.hashes().expect("in the index");
    assert_eq!(newest.computed_hashes().expect("readable"), hashes, "the index says what is in the files");
    hashes
}

/// The steps and the hashes of a whole training.
type Outcome = (Vec<Row>, Hashes);

/// The outcome of a training by a strategy on some ranks. Each is trained once for all tests.
fn trained(settings: &str, strategy: &str, ranks: usize) -> Arc<Outcome> {
    static KNOWN: Once<String, Outcome> = Once::new();
    let own = format!("{COMMON} {settings} train.strategy={strategy} train.ranks={ranks}");
    KNOWN.get(own.clone(), || {
        let place = Place::new();
        let folder = run_in(&place.path("run"));
        (train_in(&folder, &own), hashes(&folder))
    })
}

/// Every cell comes to what one rank comes to.
fn check(settings: &str, cells: &[(&str, usize)]) {
    let alone = trained(settings, "ddp", 1);
    assert!(alone.1.contains_key(MODEL) && alone.1.len() > 1, "{:?}", alone.1);
    for (strategy, ranks) in cells {
        let found = trained(settings, strategy, *ranks);
        for (found, alone) in found.0.iter().zip(&alone.0) {
            assert_eq!(found, alone, "{strategy} on {ranks}: {settings}");
        }
        assert_eq!(found, alone, "{strategy} on {ranks}: {settings}");
    }
}

/// Mixed images and labels, and the norms of whole parameters, whose parts lie on several ranks.
const MIXED: &str = "model.kind=mlp model.mlp_width=24 model.mlp_depth=1 model.image_size=12 data.mixup=0.4 data.cutmix=1 \
    data.rand_augment_ops=2 data.random_erasing=0.5 optim.kind=lamb optim.lr=0.02 optim.weight_decay=0.05 train.steps=5";

#[test]
fn mixed_images_and_lamb_end_in_the_same_bits() {
    check(MIXED, &[("ddp", 2), ("dp", 3), ("zero1", 3), ("zero2", 2), ("fsdp", 4), ("hsdp", 4)]);
}

#[test]
fn a_cvae_ends_in_the_same_bits_by_ddp_and_dp() {
    check(CVAE, &[("ddp", 2), ("ddp", 3), ("ddp", 4), ("dp", 3)]);
}

#[test]
fn a_cvae_ends_in_the_same_bits_where_state_is_sharded() {
    check(CVAE, &[("zero1", 3), ("zero2", 2), ("fsdp", 2), ("fsdp", 3), ("fsdp", 4), ("hsdp", 4)]);
}

#[test]
fn micro_batches_recomputation_and_threads_change_nothing_either() {
    let settings = format!("{CVAE} train.accumulate=2 train.recompute=1");
    check(&format!("{settings} train.threads=2"), &[("fsdp", 3)]);
    let (two, one) = (trained(&format!("{CVAE} train.threads=2"), "ddp", 1), trained(CVAE, "ddp", 1));
    assert_eq!(two, one);
}

#[test]
fn batch_norm_over_all_logical_ranks_ends_in_the_same_bits() {
    check(
        &format!("{RESNET} model.sync_batch_norm=true"),
        &[("ddp", 2), ("ddp", 3), ("ddp", 4), ("fsdp", 2), ("fsdp", 3), ("fsdp", 4)],
    );
}

#[test]
fn batch_norm_within_each_logical_rank_ends_in_the_same_bits() {
    check(&format!("{RESNET} model.sync_batch_norm=false"), &[("ddp", 3), ("fsdp", 2)]);
}

#[test]
fn runs_that_changed_their_world_end_in_the_bits_of_one_that_did_not() {
    let resnet = format!("{RESNET} model.sync_batch_norm=true");
    for (model, strategies) in
        [(resnet.as_str(), [["ddp"; 4], ["fsdp", "ddp", "zero2", "ddp"]]), (CVAE, [["ddp"; 4], ["fsdp"; 4]])]
    {
        let settings = format!("{model} train.steps=8 train.ema=0.9");
        let undisturbed = trained(&settings, "ddp", 3);
        for strategies in strategies {
            let place = Place::new();
            let folder = run_in(&place.path("run"));
            let mut curve = Vec::new();
            for ((stop, ranks), strategy) in [(2, 4), (4, 2), (6, 3), (8, 1)].into_iter().zip(strategies) {
                // One rank has nothing to share.
                let strategy = if ranks == 1 { "ddp" } else { strategy };
                let own = format!(
                    "{COMMON} {settings} train.stop_step={stop} train.strategy={strategy} train.ranks={ranks}"
                );
                curve.extend(train_in(&folder, &own));
            }
            let moved = (curve, hashes(&folder));
            assert_eq!(moved.0.len(), 8);
            assert_eq!(moved, *undisturbed, "{strategies:?}: {settings}");
        }
    }
}

/// Which way bytes go adds nothing up in another order.
#[test]
fn the_way_that_messages_go_changes_nothing() {
    for algorithm in ["ring", "tree", "halving-doubling"] {
        let settings = format!("{CVAE} comm.algorithm={algorithm}");
        let cells: &[(&str, usize)] =
            if algorithm == "ring" { &[("ddp", 3), ("fsdp", 3)] } else { &[("ddp", 4)] };
        let alone = trained(CVAE, "ddp", 1);
        for (strategy, ranks) in cells {
            assert_eq!(trained(&settings, strategy, *ranks), alone, "{strategy} on {ranks}: {settings}");
        }
    }
}

#[test]
fn without_logical_ranks_bits_depend_on_how_many_ranks_there_are() {
    let free = format!("{CVAE} train.logical_ranks=0");
    let (two, four) = (trained(&free, "ddp", 2), trained(&free, "ddp", 4));
    assert_ne!(two.1[MODEL], four.1[MODEL]);
    // And with as many as there are ranks the losses are those that there would be without, but for rounding.
    let bound = trained(CVAE, "ddp", 4);
    assert_eq!(bound.0.len(), four.0.len());
    for (bound, four) in bound.0.iter().zip(&four.0) {
        let (bound, four) = (f64::from_bits(bound.1[0]), f64::from_bits(four.1[0]));
        assert!((bound - four).abs() < 1e-5 * four, "{bound} {four}");
    }
}

#[test]
fn what_cannot_be_is_refused_by_name() {
    for (settings, words) in [
        ("train.ranks=5", "at most as many ranks as logical ones"),
        ("train.strategy=local-sgd", "logical ranks are for dp, ddp"),
        ("train.strategy=ps-bsp train.ranks=2", "logical ranks are for dp, ddp"),
        ("codec.kind=int8 train.ranks=2", "codecs round"),
        ("codec.kind=lossless train.ranks=2", "add up in the order of ranks"),
        ("train.strategy=fsdp codec.weights=bf16 train.ranks=2", "set both to none"),
        ("train.device=cuda train.graphs=true", "set train.graphs = false"),
        ("train.logical_ranks=12", "is not at least train.logical_ranks 12"),
    ] {
        let said = refusal(&[COMMON, CVAE, settings]);
        assert!(said.contains("train.logical_ranks") && said.contains(words), "{settings}: {said}");
    }
}

#[test]
fn the_program_says_the_hash() {
    let place = Place::new();
    let set = "--set train.logical_ranks=3 --set train.global_batch=6 --set data.images=12 --set data.test_images=4 \
        --set eval.enabled=false --set checkpoint.every=2 --set checkpoint.keep=9 --set train.steps=4 --set train.threads=1 --set train.seed=5";
    for (name, ranks, strategy) in [("one", 1, "ddp"), ("two", 2, "fsdp")] {
        place.succeed(&format!("train tiny --out {name} --ranks {ranks} --strategy {strategy} {set}"));
    }
    let (one, two) = (place.succeed("hash one --verify"), place.succeed("hash two --verify"));
    assert_eq!(one, two);
    assert!(one.contains("  step 4  model\n") && one.find("  ") == Some(64), "{one}");
    let history = place.succeed("hash two --history");
    assert_eq!(history.lines().count(), 2);
    assert!(
        history.starts_with(&place.succeed("hash two/checkpoints/step-00000002")) && history.ends_with(&two)
    );
    let state = place.succeed("hash one --state");
    assert!(state.starts_with(&one) && state.lines().count() > 1, "{state}");
}
