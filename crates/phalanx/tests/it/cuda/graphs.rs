//! Steps as CUDA graphs have the bits of those without.

use std::fs;

use super::place::{Place, losses};
use crate::harness::results::log;

/// The losses of a training by graphs are those of one without, to the last bit; how many pieces of work graphs have.
pub(crate) fn graphs_change_nothing(place: &Place, ranks: usize, line: &str) -> usize {
    if !place.has(ranks) {
        return 0;
    }
    let common = format!(
        "--steps 6 --set train.ranks={ranks} --set train.threads=1 --set log.every=1 --set train.device=cuda"
    );
    for graphs in [false, true] {
        place.succeed(&format!("train {line} {common} --set train.graphs={graphs} --out {graphs}"));
    }
    let [without, with] = ["false", "true"].map(|run| losses(&place.path(run)));
    assert_eq!(with, without, "{line}");
    assert!(with.len() >= 6);
    let log = log(&place.path("true"), 0);
    let recorded = log
        .lines()
        .filter_map(|line| line.split(" pieces of work are recorded as").next()?.rsplit(' ').next());
    let most = recorded.filter_map(|count| count.parse().ok()).max();
    for run in ["false", "true"] {
        fs::remove_dir_all(place.path(run)).expect("removes");
    }
    most.unwrap_or_else(|| panic!("{line}: nothing was recorded: {log}"))
}

/// A training of which some steps overflow, by a scale of the loss.
fn overflowing(scale: u32) -> String {
    format!(
        "tiny --set train.precision=f16 --set train.loss_scale={scale} --set optim.lr=0.01 --set train.ema=0.9 --set train.clip_norm=1"
    )
}

#[test]
fn steps_launched_as_graphs_have_the_same_bits() {
    let Some(place) = Place::anywhere() else { return };
    // Random numbers, weights of losses that change from step to step, averages, clipping, checkpoints and evaluations between.
    let tiny = "tiny --set train.clip_norm=1 --set train.ema=0.9 --set eval.every=2 --set checkpoint.every=3";
    assert!(graphs_change_nothing(&place, 1, tiny) > 100);
    // Some steps overflow after one that was recorded with its update.
    graphs_change_nothing(&place, 1, &overflowing(1_400_000));
}

#[test]
#[ignore = "further trainings take minutes in fibres: cargo xtask test --full"]
fn steps_of_further_trainings_have_the_same_bits_as_graphs() {
    let Some(place) = Place::anywhere() else { return };
    // A scale of the loss that is too large at first: steps that leave their update out.
    graphs_change_nothing(
        &place,
        1,
        "tiny --set train.precision=f16 --set train.recompute=2 --set train.accumulate=2",
    );
    // Some steps overflow before any had averages.
    graphs_change_nothing(&place, 1, &overflowing(1_700_000));
    // The last batch of an epoch is smaller than the others.
    let small = "--set data.kind=shapes --set data.images=18 --set data.test_images=8 --set data.tail=ragged \
                 --set model.image_size=16 --set model.width=8 --set train.global_batch=4";
    graphs_change_nothing(&place, 1, &format!("cifar10-resnet18 {small} --set train.precision=bf16"));
    let diffusion = "tiny --set model.kind=diffusion --set model.image_size=16 --set model.widths=[8,16] \
                     --set model.attention=[false,true] --set model.groups=4 --set model.heads=2 \
                     --set model.text_width=16 --set model.text_layers=1 --set model.text_heads=2 \
                     --set model.text_context=12 --set model.sample_steps=2 --set model.drop_text=0.3 \
                     --set train.global_batch=4 --set sample.rows=1 --set sample.columns=1";
    graphs_change_nothing(&place, 1, diffusion);
}

#[test]
fn graphs_lie_between_what_ranks_send_each_other() {
    let Some(place) = Place::anywhere() else { return };
    graphs_change_nothing(&place, 2, "tiny --strategy fsdp --set train.clip_norm=1 --set eval.every=3");
}

#[test]
#[ignore = "further trainings take minutes in fibres: cargo xtask test --full"]
fn graphs_lie_between_what_ranks_send_by_further_strategies() {
    let Some(place) = Place::anywhere() else { return };
    for strategy in ["ddp", "zero2"] {
        // Evaluations gather parameters in another order.
        graphs_change_nothing(
            &place,
            2,
            &format!("tiny --strategy {strategy} --set train.clip_norm=1 --set eval.every=3"),
        );
    }
    let synchronised = "--set data.kind=shapes --set data.images=24 --set data.test_images=8 \
                        --set model.image_size=16 --set model.width=8 --set train.global_batch=4 \
                        --set model.sync_batch_norm=true";
    graphs_change_nothing(&place, 2, &format!("cifar10-resnet18 {synchronised} --strategy zero1"));
}
