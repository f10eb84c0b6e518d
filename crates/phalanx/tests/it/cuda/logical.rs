//! With logical ranks any number of GPUs, by any strategy whose ranks take every step together, ends in the same bits.

use std::fs;

use super::place::{Place, column, losses};

/// Small noise, clipping, averages; batches that fall unevenly on logical ranks, of which the last step of an epoch leaves one without.
const CVAE: &str = "tiny --steps 4 --set train.clip_norm=0.5 --set train.ema=0.8 --set data.images=25 --set data.test_images=4 \
                    --set data.tail=ragged --set train.global_batch=11 --set train.bucket_kib=32";

/// Batch norm, and activations whose kinks make much of any rounding.
const RESNET: &str = "tiny --steps 4 --set model.kind=resnet18 --set model.width=8 --set model.image_size=16 --set optim.kind=sgd \
                      --set optim.lr=0.05 --set optim.momentum=0.9 --set train.clip_norm=2 --set data.images=24 \
                      --set data.test_images=4 --set train.global_batch=8 --set train.bucket_kib=64";

/// The outcome of a training on the given number of GPUs: the hashes of weights, averages and optimizer state, its
/// losses and its norms.
fn outcome(place: &Place, line: &str, (strategy, ranks): (&str, usize)) -> (String, Vec<f64>, Vec<f64>) {
    let common = "--set train.threads=1 --set train.device=cuda --set log.every=1 --set eval.enabled=false \
                  --set sample.rows=1 --set sample.columns=1";
    let text = place
        .succeed(&format!("train {line} {common} --strategy {strategy} --set train.ranks={ranks} --out run"));
    assert!(text.contains("GPU 0, "), "{text}");
    let run = place.path("run");
    let found = (place.succeed("hash run --state"), losses(&run), column(&run, "grad_norm"));
    assert!(found.0.lines().count() > 1 && found.1.len() >= 4 && found.2.len() == 4, "{found:?}");
    fs::remove_dir_all(run).expect("removes");
    found
}

/// Every cell comes to what one GPU comes to.
fn check(line: &str, cells: &[(&str, usize)]) {
    let Some(place) = Place::anywhere() else { return };
    let line = &format!("{line} --set train.logical_ranks=4");
    let alone = outcome(&place, line, ("ddp", 1));
    for (strategy, ranks) in cells.iter().filter(|(_, ranks)| place.has(*ranks)) {
        assert_eq!(outcome(&place, line, (strategy, *ranks)), alone, "{strategy} on {ranks}: {line}");
    }
}

#[test]
fn an_autoencoder_ends_in_the_same_bits_on_any_number_of_gpus() {
    check(CVAE, &[("ddp", 3), ("fsdp", 2), ("fsdp", 4), ("hsdp", 4)]);
    check(&format!("{CVAE} --set train.accumulate=2 --set train.recompute=1"), &[("zero1", 2)]);
}

#[test]
fn a_network_with_batch_norm_ends_in_the_same_bits_on_any_number_of_gpus() {
    check(&format!("{RESNET} --set model.sync_batch_norm=true"), &[("ddp", 2), ("fsdp", 3)]);
}

#[test]
fn without_logical_ranks_bits_depend_on_how_many_gpus_there_are() {
    let Some(place) = Place::anywhere().filter(|place| place.has(2)) else { return };
    let [one, two] = [1, 2].map(|ranks| outcome(&place, CVAE, ("ddp", ranks)).0);
    assert_ne!(one, two);
}

#[test]
#[ignore = "four GPUs in fibres take minutes: cargo xtask test --full"]
fn networks_end_in_the_same_bits_by_further_strategies() {
    check(CVAE, &[("dp", 3), ("ddp", 2), ("ddp", 4), ("zero1", 3), ("zero2", 2), ("fsdp", 3)]);
    for precision in ["bf16", "f16"] {
        check(&format!("{CVAE} --set train.precision={precision}"), &[("ddp", 2), ("fsdp", 3)]);
    }
    check(&format!("{RESNET} --set model.sync_batch_norm=true"), &[("ddp", 3), ("ddp", 4), ("fsdp", 4)]);
    check(&format!("{RESNET} --set model.sync_batch_norm=false"), &[("ddp", 3), ("fsdp", 2)]);
}

/// State on the host is updated there, and gradients are summed where they are computed.
#[test]
#[ignore = "further trainings take minutes in fibres: cargo xtask test --full"]
fn networks_whose_state_is_on_the_host_end_in_the_same_bits() {
    for kept in ["optimizer", "parameters"] {
        check(&format!("{CVAE} --set train.offload={kept}"), &[("fsdp", 2), ("fsdp", 3)]);
    }
}
