//! Ranks with a GPU each whose gradients and parameters go by codecs.

use std::fs;

use super::graphs::graphs_change_nothing;
use super::place::{Place, agree_on, agree_on_also_by_graphs, column, goes_on_bit_for_bit};

const ALWAYS: &str = "--set codec.when=always";

#[test]
fn integers_with_scales_train_as_on_the_cpu() {
    let Some(place) = Place::anywhere() else { return };
    let whole = agree_on(&place, 2, "tiny --steps 5 --strategy ddp", 1e-4);
    let line = |strategy: &str, kind: &str| {
        format!("tiny --steps 5 --strategy {strategy} --set codec.kind={kind} {ALWAYS}")
    };
    let of_int8 = agree_on(&place, 2, &line("ddp", "int8"), 1e-4);
    let of_int4 = agree_on(&place, 2, &line("ddp", "int4"), 5e-3);
    assert!(of_int8 <= 0.3 * whole && of_int4 <= 0.17 * whole, "{of_int8} and {of_int4} of {whole} bytes");
    agree_on(&place, 2, &line("fsdp", "int8"), 1e-4);
}

/// A leader, parts of the optimizer, groups; chunks that are not full.
#[test]
#[ignore = "further strategies take minutes: cargo xtask test --full"]
fn integers_with_scales_train_by_further_strategies() {
    let Some(place) = Place::anywhere() else { return };
    for strategy in ["dp", "zero1", "hsdp"] {
        let line = format!(
            "tiny --steps 5 --strategy {strategy} --set codec.kind=int8 --set codec.chunk=200 {ALWAYS}"
        );
        agree_on(&place, 4, &line, 1e-4);
    }
}

#[test]
#[ignore = "further codecs take minutes in fibres: cargo xtask test --full"]
fn levels_at_random_and_signs_train_as_on_the_cpu() {
    let Some(place) = Place::anywhere() else { return };
    let qsgd = format!("tiny --steps 6 --strategy ddp --set codec.kind=qsgd {ALWAYS}");
    agree_on_also_by_graphs(&place, 2, &qsgd, 1e-3);
    agree_on(&place, 2, &format!("tiny --steps 5 --strategy zero2 --set codec.kind=qsgd {ALWAYS}"), 1e-3);
    // CPU and GPU may disagree about the sign of a number near 0.
    let sign = format!("tiny --steps 6 --set optim.lr=0.001 --set codec.kind=sign {ALWAYS}");
    agree_on(&place, 2, &format!("{sign} --strategy ddp"), 5e-3);
    agree_on_also_by_graphs(&place, 2, &format!("{sign} --strategy zero2"), 5e-3);
}

/// Few entries of each gradient. CPU and GPU may choose different ones among those of nearly the same magnitude, hence
/// the bounds of 2e-3.
fn sparse(kind: &str) -> String {
    format!("tiny --steps 6 --set codec.kind={kind} --set codec.density=0.05 {ALWAYS}")
}

#[test]
#[ignore = "further codecs take minutes in fibres: cargo xtask test --full"]
fn entries_train_as_on_the_cpu() {
    let Some(place) = Place::anywhere() else { return };
    agree_on(&place, 2, &format!("{} --strategy zero2", sparse("topk")), 2e-3);
    agree_on_also_by_graphs(&place, 2, &format!("{} --strategy fsdp", sparse("topk-int8")), 2e-3);
    agree_on(&place, 2, &format!("{} --strategy ddp", sparse("randomk")), 1e-4);
    let dgc = "--set optim.kind=sgd --set optim.momentum=0 --set codec.warmup_steps=4";
    agree_on(&place, 2, &format!("{} {dgc}", sparse("dgc")), 2e-3);
}

#[test]
#[ignore = "further strategies take minutes: cargo xtask test --full"]
fn entries_train_by_further_strategies() {
    let Some(place) = Place::anywhere() else { return };
    agree_on(&place, 2, &format!("{} --strategy ddp", sparse("topk")), 2e-3);
    agree_on(&place, 2, &format!("{} --strategy ddp", sparse("topk-int8")), 2e-3);
    agree_on_also_by_graphs(&place, 2, &format!("{} --strategy fsdp", sparse("randomk")), 1e-4);
    agree_on(&place, 4, &format!("{} --strategy dp", sparse("topk")), 2e-3);
    agree_on(&place, 4, &format!("{} --strategy hsdp", sparse("topk")), 2e-3);
}

#[test]
fn parameters_gathered_rounded_train_as_on_the_cpu() {
    let Some(place) = Place::anywhere() else { return };
    agree_on(&place, 2, "tiny --steps 5 --strategy fsdp --set codec.weights=int8", 1e-3);
}

#[test]
#[ignore = "further trainings take minutes in fibres: cargo xtask test --full"]
fn parameters_gathered_rounded_train_by_further_strategies() {
    let Some(place) = Place::anywhere() else { return };
    let rounded = "--set codec.weights=int8";
    agree_on(
        &place,
        4,
        &format!("tiny --steps 5 --strategy hsdp {rounded} --set codec.kind=int8 {ALWAYS}"),
        2e-3,
    );
    agree_on(&place, 2, "tiny --steps 5 --strategy fsdp --set codec.weights=bf16", 1e-3);
    // Of shards that are kept on the host.
    agree_on(
        &place,
        2,
        &format!("tiny --steps 5 --strategy fsdp {rounded} --set train.offload=parameters"),
        1e-3,
    );
    graphs_change_nothing(
        &place,
        2,
        &format!("tiny --strategy fsdp {rounded} --set codec.kind=int4 {ALWAYS}"),
    );
}

/// Groups whose ranks share what lies between them, and shards that are taken as matrices.
#[test]
#[ignore = "four GPUs in fibres take minutes: cargo xtask test --full"]
fn codecs_between_groups_train_by_further_strategies() {
    let Some(place) = Place::anywhere() else { return };
    let between = format!("--set codec.scope=inter-host --set codec.kind=int8 {ALWAYS}");
    for strategy in ["zero2", "hsdp"] {
        agree_on(&place, 4, &format!("tiny --steps 5 --strategy {strategy} {between}"), 1e-4);
    }
    let power = format!("--set codec.kind=powersgd --set codec.rank=2 {ALWAYS}");
    agree_on(&place, 4, &format!("tiny --steps 5 --strategy hsdp {power}"), 5e-3);
}

#[test]
fn codecs_between_groups_alone_train_as_on_the_cpu() {
    let Some(place) = Place::anywhere() else { return };
    let between = format!("--set codec.scope=inter-host --set codec.kind=int8 {ALWAYS}");
    agree_on(&place, 4, &format!("tiny --steps 5 --strategy ddp {between}"), 1e-4);
    let rounded = format!("--set codec.scope=inter-host --set codec.kind=bf16 {ALWAYS}");
    agree_on(&place, 4, &format!("tiny --steps 5 --strategy zero2 {rounded}"), 5e-4);
}

#[test]
#[ignore = "further codecs take minutes in fibres: cargo xtask test --full"]
fn products_of_thin_matrices_train_as_on_the_cpu() {
    let Some(place) = Place::anywhere() else { return };
    let power = format!("--set codec.kind=powersgd --set codec.rank=2 {ALWAYS}");
    agree_on_also_by_graphs(&place, 2, &format!("tiny --steps 6 --strategy zero2 {power}"), 5e-3);
    if place.has(2) {
        let common =
            "train tiny --set train.ranks=2 --set train.device=cuda --strategy ddp --set log.every=1";
        goes_on_bit_for_bit(&place, &format!("{common} {power}"));
    }
}

#[test]
#[ignore = "further trainings take minutes in fibres: cargo xtask test --full"]
fn gpus_measure_where_a_codec_pays() {
    let Some(place) = Place::anywhere() else { return };
    // Four steps by the codec, and four without, which begin with what was held back; what is decided then depends on the machine.
    let tried = "--set codec.kind=topk --set codec.density=0.05 --set codec.when=auto";
    agree_on_also_by_graphs(&place, 2, &format!("tiny --steps 8 --strategy zero2 {tried}"), 2e-3);
    agree_on(&place, 2, "tiny --steps 8 --set codec.kind=bf16 --set codec.when=auto", 5e-4);
    if !place.has(2) {
        return;
    }
    let line = format!("train tiny --steps 12 --set train.ranks=2 --set train.device=cuda {tried}");
    let text = place.succeed(&format!("{line} --set train.graphs=true --set log.every=1 --out told"));
    let told: Vec<&str> = text.lines().filter(|line| line.contains(" for bucket ")).collect();
    for (bucket, line) in told.iter().enumerate() {
        assert!(line.contains(&format!(" for bucket {bucket} of ")), "each once: {told:?}");
        assert!(line.contains("codec on ") || line.contains("codec off "), "{line}");
        assert!(!line.contains(" 0.000 MB"), "{line}");
    }
    assert!(!told.is_empty(), "{text}");
    assert!(column(&place.path("told"), "loss").iter().all(|loss| loss.is_finite()));
}

#[test]
#[ignore = "further trainings take minutes in fibres: cargo xtask test --full"]
fn what_is_held_back_goes_on_bit_for_bit() {
    let Some(place) = Place::anywhere() else { return };
    if !place.has(2) {
        return;
    }
    let common = "train tiny --set train.ranks=2 --set train.threads=1 --set log.every=1";
    let sign = format!("{common} --set codec.kind=sign {ALWAYS}");
    goes_on_bit_for_bit(&place, &format!("{sign} --set train.device=cuda --strategy zero2"));
    fs::remove_dir_all(place.path("whole")).expect("removes");
    // State kept by a CPU continues on a GPU: the same numbers under the same names.
    place.succeed(&format!("{sign} --set train.device=cpu --steps 5 --out whole"));
    place.succeed(&format!("{sign} --set train.device=cpu --steps 3 --out moved"));
    place.succeed(&format!("{sign} --set train.device=cuda --steps 5 --out moved --resume"));
    let [whole, moved] = ["whole", "moved"].map(|run| column(&place.path(run), "loss"));
    assert_eq!(whole.len(), moved.len());
    for (a, b) in whole.iter().zip(&moved) {
        assert!((a - b).abs() <= 5e-3 * a.abs(), "{whole:?} and {moved:?}");
    }
    fs::remove_dir_all(place.path("whole")).expect("removes");
    fs::remove_dir_all(place.path("parts")).expect("removes");
    let dgc = format!("{common} --set codec.kind=dgc --set optim.kind=sgd --set optim.momentum=0 {ALWAYS}");
    goes_on_bit_for_bit(&place, &format!("{dgc} --set train.device=cuda --strategy ddp"));
}
