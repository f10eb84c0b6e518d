//! Ranks with a GPU each whose gradients and parameters go by codecs.

use std::fs;

use serde_json::Value;

use crate::graphs::graphs_change_nothing;
use crate::place::{Place, agree_on, column, goes_on_bit_for_bit};

const ALWAYS: &str = "--set codec.when=always";

#[test]
fn integers_with_scales_train_as_those_of_processors() {
    let Some(place) = Place::anywhere() else { return };
    for strategy in ["ddp", "zero2", "fsdp"] {
        let line = format!("tiny --steps 5 --strategy {strategy} --set codec.kind=int8 {ALWAYS}");
        agree_on(&place, 2, &line, 1e-4);
    }
    // A leader, parts of the optimizer, groups; chunks that are not full.
    for strategy in ["dp", "zero1", "hsdp"] {
        let line = format!(
            "tiny --steps 5 --strategy {strategy} --set codec.kind=int8 --set codec.chunk=200 {ALWAYS}"
        );
        agree_on(&place, 4, &line, 1e-4);
    }
    agree_on(&place, 2, &format!("tiny --steps 5 --strategy zero3 --set codec.kind=int4 {ALWAYS}"), 5e-3);
}

#[test]
fn levels_at_random_and_signs_train_as_those_of_processors() {
    let Some(place) = Place::anywhere() else { return };
    agree_on(&place, 2, &format!("tiny --steps 5 --strategy ddp --set codec.kind=qsgd {ALWAYS}"), 1e-3);
    agree_on(&place, 2, &format!("tiny --steps 5 --strategy zero2 --set codec.kind=qsgd {ALWAYS}"), 1e-3);
    // Which sign a number near 0 has is not what two processors agree about.
    let sign = format!("tiny --steps 5 --set optim.lr=0.001 --set codec.kind=sign {ALWAYS}");
    agree_on(&place, 2, &format!("{sign} --strategy ddp"), 5e-3);
    agree_on(&place, 2, &format!("{sign} --strategy fsdp"), 5e-3);
}

#[test]
fn entries_train_as_those_of_processors() {
    let Some(place) = Place::anywhere() else { return };
    let sparse =
        |kind: &str| format!("tiny --steps 6 --set codec.kind={kind} --set codec.density=0.05 {ALWAYS}");
    // Numbers of nearly the same magnitude may be taken the one for the other.
    for (kind, strategy) in [("topk", "ddp"), ("topk", "zero2"), ("topk-int8", "ddp"), ("topk-int8", "fsdp")]
    {
        agree_on(&place, 2, &format!("{} --strategy {strategy}", sparse(kind)), 2e-3);
    }
    for strategy in ["ddp", "fsdp"] {
        agree_on(&place, 2, &format!("{} --strategy {strategy}", sparse("randomk")), 1e-4);
    }
    let dgc = "--set optim.kind=sgd --set optim.momentum=0 --set codec.warmup_steps=4";
    agree_on(&place, 2, &format!("{} {dgc}", sparse("dgc")), 2e-3);
    agree_on(&place, 4, &format!("{} --strategy dp", sparse("topk")), 2e-3);
    agree_on(&place, 4, &format!("{} --strategy hsdp", sparse("topk")), 2e-3);
}

#[test]
fn parameters_gathered_as_integers_train_as_those_of_processors() {
    let Some(place) = Place::anywhere() else { return };
    let rounded = "--set codec.weights=int8";
    agree_on(&place, 2, &format!("tiny --steps 5 --strategy fsdp {rounded}"), 1e-3);
    agree_on(
        &place,
        4,
        &format!("tiny --steps 5 --strategy hsdp {rounded} --set codec.kind=int8 {ALWAYS}"),
        2e-3,
    );
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

#[test]
fn codecs_between_groups_alone_train_as_on_processors() {
    let Some(place) = Place::anywhere() else { return };
    let between = format!("--set codec.scope=inter-host --set codec.kind=int8 {ALWAYS}");
    for strategy in ["ddp", "zero2", "hsdp"] {
        agree_on(&place, 4, &format!("tiny --steps 5 --strategy {strategy} {between}"), 1e-4);
    }
}

#[test]
fn what_is_held_back_goes_on_bit_for_bit() {
    let Some(place) = Place::anywhere() else { return };
    if !place.has(2) {
        return;
    }
    let common = "train tiny --set train.ranks=2 --set train.threads=1 --set log.every=1";
    let sign = format!("{common} --set codec.kind=sign {ALWAYS}");
    goes_on_bit_for_bit(&place, &format!("{sign} --set train.device=cuda --strategy zero2"));
    fs::remove_dir_all(place.run("whole")).expect("removes");
    // What processors have kept is a GPU's, too: the same numbers under the same names.
    place.succeed(&format!("{sign} --set train.device=cpu --steps 5 --out whole"));
    place.succeed(&format!("{sign} --set train.device=cpu --steps 3 --out moved"));
    place.succeed(&format!("{sign} --set train.device=cuda --steps 5 --out moved --resume"));
    let [whole, moved] = ["whole", "moved"].map(|run| column(&place.run(run), "loss"));
    assert_eq!(whole.len(), moved.len());
    for (a, b) in whole.iter().zip(&moved) {
        assert!((a - b).abs() <= 5e-3 * a.abs(), "{whole:?} and {moved:?}");
    }
    graphs_change_nothing(&place, 2, &format!("tiny --strategy zero2 --set codec.kind=sign {ALWAYS}"));
    graphs_change_nothing(&place, 2, &format!("tiny --strategy ddp --set codec.kind=qsgd {ALWAYS}"));
    for kind in ["topk-int8", "randomk"] {
        graphs_change_nothing(&place, 2, &format!("tiny --strategy zero2 --set codec.kind={kind} {ALWAYS}"));
    }
    fs::remove_dir_all(place.run("whole")).expect("removes");
    fs::remove_dir_all(place.run("parts")).expect("removes");
    let dgc = format!("{common} --set codec.kind=dgc --set optim.kind=sgd --set optim.momentum=0 {ALWAYS}");
    goes_on_bit_for_bit(&place, &format!("{dgc} --set train.device=cuda --strategy ddp"));
}

#[test]
fn fewer_bytes_travel() {
    let Some(place) = Place::anywhere() else { return };
    if !place.has(2) {
        return;
    }
    let common = "train tiny --steps 3 --set train.ranks=2 --set train.device=cuda --strategy ddp";
    let sent = |kind: &str| {
        place.succeed(&format!("{common} --set codec.kind={kind} {ALWAYS} --out {kind}"));
        let summary = fs::read(place.run(kind).join("summary.json")).expect("reads");
        let summary: Value = serde_json::from_slice(&summary).expect("is JSON");
        summary["ranks"][0]["step_bytes_sent"].as_f64().expect("a number")
    };
    let plain = sent("none");
    for (kind, part) in [("int8", 0.3), ("int4", 0.17), ("sign", 0.1)] {
        let coded = sent(kind);
        assert!(coded < part * plain, "{kind}: {coded} of {plain} bytes");
    }
}
