//! Ranks with a GPU each.

use std::fs;

use super::place::{DEVICES, Place, agree_on, agree_on_also_by_graphs, goes_on_bit_for_bit};
use crate::harness::Running;
use crate::harness::processes::kill;

#[test]
fn a_lost_rank_is_named_by_ranks_on_gpus() {
    let Some(place) = Place::new() else { return };
    let line = "train tiny --steps 100000 --ranks 2 --set train.ranks=2 --set train.device=cuda --set log.every=1 --out lost";
    let mut command = place.command(line);
    command.env(DEVICES, "2");
    let mut running = Running::spawn(place.path("lost"), command);
    running.wait_for_step(3);
    kill(*running.ranks().last().expect("a rank"));
    let error = running.fail();
    assert!(error.contains("rank "), "{error}");
    assert!(error.contains("signal 9") || error.contains("killed"), "{error}");
    // The other one has seen it too, unless it was ended before it could say so.
    let logs = fs::read_dir(place.path("lost/logs")).expect("logs").flatten();
    let said: String = logs.filter_map(|log| fs::read_to_string(log.path()).ok()).collect();
    assert!(said.contains("was lost") || said.contains("a rank is gone"), "{said}");
}

#[test]
fn ranks_with_a_gpu_each_train_as_on_the_processor() {
    let Some(place) = Place::anywhere() else { return };
    for strategy in ["ddp", "fsdp"] {
        agree_on(&place, 2, &format!("tiny --steps 5 --strategy {strategy} --set train.clip_norm=1"), 1e-4);
    }
    // Groups of ranks.
    agree_on(&place, 4, "tiny --steps 5 --strategy hsdp --set train.ema=0.9", 1e-4);
    // Statistics of batch norm over all ranks; the last batch of an epoch has a sample for one of them only.
    let uneven = "--steps 5 --set data.kind=shapes --set data.images=9 --set data.test_images=8 --set data.tail=ragged \
                  --set model.image_size=16 --set model.width=8 --set train.global_batch=4 --set model.sync_batch_norm=true";
    agree_on(&place, 2, &format!("cifar10-resnet18 {uneven} --strategy fsdp"), 3e-2);
}

#[test]
#[ignore = "further trainings take minutes in fibres: cargo xtask test --full"]
fn ranks_with_a_gpu_each_train_by_further_strategies() {
    let Some(place) = Place::anywhere() else { return };
    agree_on(&place, 2, "tiny --steps 5 --strategy zero2 --set train.clip_norm=1", 1e-4);
    // Ranks of `dp` are threads of one process.
    for strategy in ["dp", "zero1"] {
        agree_on(&place, 4, &format!("tiny --steps 5 --strategy {strategy} --set train.ema=0.9"), 1e-4);
    }
    agree_on(&place, 2, "tiny --steps 5 --strategy fsdp --set train.precision=bf16", 2e-2);
}

#[test]
fn gradients_rounded_by_gpus_train_as_those_rounded_on_the_cpu() {
    let Some(place) = Place::anywhere() else { return };
    let rounded = "tiny --set codec.kind=bf16 --set codec.when=always";
    let half = agree_on(&place, 2, &format!("{rounded} --steps 5 --strategy ddp"), 5e-4);
    let whole = agree_on(&place, 2, "tiny --steps 5 --strategy ddp", 1e-4);
    assert!(half <= 0.6 * whole, "{half} and {whole} bytes");
}

#[test]
#[ignore = "further trainings take minutes in fibres: cargo xtask test --full"]
fn gradients_rounded_by_gpus_train_by_further_strategies() {
    let Some(place) = Place::anywhere() else { return };
    let rounded = "tiny --set codec.kind=bf16 --set codec.when=always";
    agree_on_also_by_graphs(&place, 2, &format!("{rounded} --steps 6 --strategy zero2"), 5e-4);
    agree_on(&place, 2, &format!("{rounded} --steps 5 --strategy fsdp"), 5e-4);
    // Sums in several steps, each of which is rounded: in another order.
    for strategy in ["dp", "hsdp"] {
        agree_on(&place, 4, &format!("{rounded} --steps 5 --strategy {strategy}"), 2e-3);
    }
}

#[test]
fn ranks_with_a_gpu_each_go_on_bit_for_bit() {
    let Some(place) = Place::anywhere() else { return };
    if !place.has(2) {
        return;
    }
    let common = "train tiny --set train.ranks=2 --set log.every=1 --set train.device=cuda --strategy fsdp";
    goes_on_bit_for_bit(&place, common);
}
