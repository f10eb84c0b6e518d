//! Trainings whose layers are cut over ranks: the curve of one rank, and checkpoints that any mesh reads from any other.

use std::path::Path;

use crate::curves::{
    assert_near, assert_within, codecs_go_on, curve, follows_one_rank, losses, tiny_gpt as resolved,
};
use crate::harness::engine::{Recorder, resolve, run_in, try_train, words};
use crate::harness::results::{checkpoint, contents, json};
use crate::harness::{Place, side_by_side};
use crate::mesh_pairs::MESHES_OF_SIX_HEADS;

#[test]
fn ranks_that_share_layers_follow_one_rank() {
    let place = Place::new();
    let one = curve(&place.path("one"), &resolved(1, "ddp", 5, ""));
    let meshes = [
        ("checks", 1, "ddp", "parallel.tensor=1"),
        ("two", 2, "ddp", "parallel.tensor=2"),
        ("three", 3, "ddp", "parallel.tensor=3"),
        ("uneven", 4, "ddp", "parallel.tensor=4"),
        ("ddp", 4, "ddp", "parallel.tensor=2"),
        ("dp", 4, "dp", "parallel.tensor=2"),
        ("zero1", 4, "zero1", "parallel.tensor=2"),
        ("zero2", 4, "zero2", "parallel.tensor=2"),
        ("fsdp", 4, "fsdp", "parallel.shard=2 parallel.tensor=2"),
        ("hsdp", 4, "hsdp", "parallel.replicate=2 parallel.shard=1 parallel.tensor=2"),
        ("uneven-shards", 8, "fsdp", "parallel.shard=2 parallel.tensor=4 train.check_replicas=1"),
        ("six", 6, "zero2", "parallel.tensor=3"),
        ("six-shards", 6, "fsdp", "parallel.shard=3 parallel.tensor=2"),
        ("eight", 8, "ddp", "parallel.tensor=4"),
        ("eight-shards", 8, "hsdp", "parallel.replicate=2 parallel.shard=2 parallel.tensor=2"),
        ("again", 2, "ddp", "parallel.tensor=2 train.recompute=1 train.accumulate=2 train.check_replicas=2"),
        ("waiting", 2, "ddp", "parallel.tensor=2 train.overlap=never"),
        ("under-way", 2, "ddp", "parallel.tensor=2 train.overlap=always train.offload=parameters"),
        ("sequence", 2, "ddp", "parallel.tensor=2 tensor.sequence=true"),
        ("uneven-sequence", 3, "ddp", "parallel.tensor=3 tensor.sequence=true train.check_replicas=2"),
        (
            "shared-sequence",
            4,
            "fsdp",
            "parallel.shard=2 parallel.tensor=2 tensor.sequence=true train.recompute=1",
        ),
    ];
    side_by_side(meshes, |(name, ranks, strategy, further)| {
        assert_near(name, &curve(&place.path(name), &resolved(ranks, strategy, 5, further)), &one);
    });
    // Where a strategy keeps parameters changes no bit.
    let expected = contents(&checkpoint(&place.path("ddp"), 5));
    for name in ["dp", "zero1", "zero2", "fsdp", "hsdp"] {
        assert!(contents(&checkpoint(&place.path(name), 5)) == expected, "{name}: the checkpoints differ");
    }
    let [under_way, waiting] =
        ["under-way", "waiting"].map(|name| contents(&checkpoint(&place.path(name), 5)));
    assert!(under_way == waiting, "sums that are under way while products are computed have other bits");
}

#[test]
fn checkpoints_go_from_any_mesh_to_any_other() {
    let place = Place::new();
    follows_one_rank((&place.path("one"), &place.path("moved")), &MESHES_OF_SIX_HEADS, resolved);
}

/// Codecs encode what ranks with other samples exchange: whole parameters stay equal on ranks that share layers, errors that codecs keep
/// are those of portions, and runs go on to the bit.
#[test]
fn codecs_go_with_cut_layers() {
    let place = Place::new();
    let one = curve(&place.path("one"), &resolved(1, "ddp", 4, "model.heads=3"));
    let two = "parallel.tensor=2 model.heads=3 train.check_replicas=1 codec.when=always codec.density=0.2 codec.chunk=24";
    let subjects = [
        ("ddp", "codec.kind=topk"),
        ("zero2", "codec.kind=qsgd"),
        ("ddp", "codec.kind=powersgd"),
        ("fsdp", "codec.kind=int8 codec.weights=int8"),
        ("zero1", "codec.kind=randomk"),
        ("ddp", "codec.kind=sign codec.when=auto"),
        ("hsdp", "codec.kind=topk-int8"),
        ("ddp", "codec.kind=dgc optim.kind=sgd optim.momentum=0"),
    ];
    codecs_go_on(
        &place,
        &subjects,
        (one[0][0], "codec-00003-of-00004-tensor-00002"),
        |strategy, codec, steps| {
            let groups = if strategy == "hsdp" { "parallel.replicate=2 parallel.shard=1" } else { "" };
            resolved(4, strategy, steps, &format!("{two} {groups} {codec}"))
        },
    );
    // Errors that codecs keep cannot go to another mesh.
    let other = resolved(2, "ddp", 6, "parallel.tensor=2 model.heads=3 codec.kind=topk codec.density=0.2");
    let whole = run_in(&place.path("ddp-codec.kind=topk-whole"));
    let told = try_train(&whole, &other, Box::new(Recorder::of_steps(|_| ()))).expect_err("another mesh");
    assert!(told.contains("resume with as many ranks, not with 2 of which 2 share layers each"), "{told}");
}

/// Fails unless the tensors of these kinds of two checkpoints are near each other.
fn assert_near_contents(what: &str, kinds: &[&str], found: &Path, expected: &Path) {
    let (found, expected) = (contents(found), contents(expected));
    assert_eq!(found.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>(), "{what}");
    let of_kinds = |name: &&String| kinds.iter().any(|kind| name.starts_with(kind));
    assert!(kinds.iter().all(|kind| expected.keys().any(|name| name.starts_with(kind))), "{what}");
    for name in expected.keys().filter(of_kinds) {
        let (shape, values) = &expected[name];
        let (own_shape, own) = &found[name];
        assert_eq!(own_shape, shape, "{what}: {name}");
        // Elements near the corner of a ReLU turn rounding errors into other gradients.
        let numbers = |bits: &[u64]| bits.iter().map(|bits| f64::from_bits(*bits)).collect::<Vec<_>>();
        let (own, values) = (numbers(own), numbers(values));
        let size = values.iter().fold(0.1_f64, |most, value| most.max(value.abs()));
        let off = own.iter().zip(&values).fold(0.0_f64, |most, (a, b)| most.max((a - b).abs()));
        assert!(off <= 2e-2 * size, "{what}: {name} is off by {off}");
    }
}

/// Networks of images: convolutions, batch norms with their running statistics, and several networks in a step.
#[test]
fn networks_of_images_go_from_mesh_to_mesh() {
    let place = Place::new();
    let gan = "model.kind=stackgan model.image_size=32 model.upscale=2 model.gf_dim=4 model.df_dim=3 model.stage2_gf_dim=4 \
        model.stage2_df_dim=3 model.residual_blocks=1 model.condition=6 model.noise=4";
    let subjects = [
        ("resnet", "model.kind=resnet18 model.width=4", &["model", "ema", "momentum_buffer"][..]),
        // Gradients through 52 norms of few elements are as sensitive as to the number of threads.
        ("mobile", "model.kind=mobilenetv2 model.dropout=0", &["model", "ema"]),
        (
            "vit",
            "model.kind=vit model.width=12 model.layers=2 model.heads=4",
            &["model", "ema", "momentum_buffer"],
        ),
        ("gan", gan, &["model", "ema", "momentum_buffer"]),
        ("cvae", "model.widths=[16,16]", &["model", "ema", "momentum_buffer"]),
    ];
    side_by_side(subjects, |(name, subject, kinds)| {
        let common = "train.global_batch=8 train.threads=1 train.ema=0.9 data.images=16 data.test_images=4 eval.every=0 log.every=1 \
            sample.rows=1 sample.columns=1 train.steps=8 schedule.warmup_steps=0 optim.kind=sgd optim.lr=0.000001";
        let resolved = |ranks: usize, steps: u64, further: &str| {
            let own = format!("train.ranks={ranks} train.stop_step={steps}");
            resolve(&[subject, common, &own, further])
        };
        let [one, moved] = ["one", "moved"].map(|run| place.path(&format!("{name}-{run}")));
        let expected = losses(&one, &resolved(1, 6, ""));
        let meshes = [
            (2, "parallel.tensor=2"),
            (2, "parallel.pipeline=2 pipeline.micro_batches=1 eval.enabled=false"),
            (2, "parallel.tensor=2 train.recompute=1"),
        ];
        let mut found = Vec::new();
        for (at, (ranks, further)) in meshes.into_iter().enumerate() {
            found.extend(losses(&moved, &resolved(ranks, 2 * (at as u64 + 1), further)));
        }
        assert_within(1e-3, name, &found, &expected);
        assert_near_contents(name, kinds, &checkpoint(&moved, 6), &checkpoint(&one, 6));
    });
}

#[test]
fn a_vision_transformer_follows_one_rank() {
    let place = Place::new();
    let steps = |name: &str, ranks: usize, further: &str| {
        let common = "model.kind=vit model.width=24 model.layers=2 model.heads=4 model.inner=40 model.dropout=0.1 model.attention_dropout=0.1 \
            train.global_batch=12 train.threads=1 train.clip_norm=1 data.images=24 data.test_images=4 eval.every=0 log.every=1 \
            train.steps=10";
        curve(&place.path(name), &resolve(&[common, &format!("train.ranks={ranks}"), further]))
    };
    let one = steps("one", 1, "");
    let meshes = [
        ("two", 2, "parallel.tensor=2"),
        ("three", 3, "parallel.tensor=3 train.recompute=1"),
        ("four", 4, "parallel.tensor=4"),
        ("positions", 2, "parallel.tensor=2 tensor.sequence=true"),
        ("fsdp", 4, "parallel.tensor=2 parallel.shard=2 train.strategy=fsdp"),
        ("stages", 4, "parallel.tensor=2 parallel.pipeline=2 pipeline.micro_batches=1"),
    ];
    side_by_side(meshes, |(name, ranks, further)| assert_near(name, &steps(name, ranks, further), &one));
}

#[test]
fn perceptrons_on_six_and_eight_ranks_follow_one_rank() {
    let place = Place::new();
    let steps = |name: &str, ranks: usize, further: &str| {
        let common = "model.kind=mlp model.mlp_width=20 train.global_batch=12 train.threads=1 data.images=24 data.test_images=4 eval.every=0 \
            log.every=1 train.steps=4";
        losses(&place.path(name), &resolve(&[common, &format!("train.ranks={ranks}"), further]))
    };
    let one = steps("one", 1, "");
    let meshes = [
        ("six", 6, "train.strategy=zero2 parallel.tensor=3"),
        ("eight", 8, "train.strategy=fsdp parallel.shard=2 parallel.tensor=4"),
        (
            "eight-groups",
            8,
            "train.strategy=hsdp parallel.replicate=2 parallel.shard=2 parallel.tensor=2 train.global_batch=12",
        ),
    ];
    side_by_side(meshes, |(name, ranks, further)| assert_near(name, &steps(name, ranks, further), &one));
}

#[test]
fn settings_that_do_not_go_with_cut_layers_are_refused() {
    let refused = |further: &str| {
        let words = words(&["train.ranks=2 parallel.tensor=2", further]);
        let resolved = phalanx::program().resolve("tiny-gpt", &words).expect("known settings");
        resolved.validate().expect_err(further).to_string()
    };
    for (further, told) in [
        ("train.strategy=local-sgd", "take every step together; choose ddp, zero1, zero2, fsdp or hsdp"),
        ("train.logical_ranks=2", "logical ranks are parts of the data on one rank each"),
        ("elastic.min=1", "a rank that leaves takes its portions of the layers along"),
        ("optim.kind=muon", "it turns whole matrices"),
    ] {
        let error = refused(further);
        assert!(error.contains("parallel.tensor = 2 does not go with") && error.contains(told), "{error}");
    }
}

#[test]
fn plans_are_checked_before_ranks_meet() {
    let place = Place::new();
    let fail = |preset: &str, further: &str| {
        place.fail(&format!("train {preset} --ranks 2 --parallel tensor=2 --steps 1 --out run {further}"))
    };
    let told = fail("tiny", "--set tensor.plan=[\"*=whole\"]");
    assert!(told.contains("no layer is cut: the model has no plan for it"), "{told}");
    let told = fail("tiny", "--set tensor.sequence=true");
    assert!(told.contains("this training has no sequences that ranks could share"), "{told}");
    let told = place.fail("train tiny-gpt --set tensor.sequence=true --steps 1 --out run");
    assert!(told.contains("give parallel.tensor, the number of ranks"), "{told}");
    let told = fail("tiny-gpt", "--set model.heads=1");
    assert!(told.contains("`transformer.h.0.attn.c_attn.weight` has 1 heads of keys"), "{told}");
    let told = fail("tiny-gpt", "--set tensor.plan=[\"h.9=column\"]");
    assert!(told.contains("tensor.plan: `h.9` names no parameter"), "{told}");
    let told = fail("tiny-gpt", "--set tensor.plan=[\"transformer.h.1=diagonal\"]");
    assert!(told.contains("`diagonal` is no rule; there is: column,"), "{told}");
    // A layer that is cut by its outputs, and no layer behind it by its inputs.
    let told = fail("tiny-gpt", "--set tensor.plan=[\"transformer.h.1.mlp.c_proj=whole\"]");
    assert!(
        told.contains(
            "block `transformer.h.1`: linear: `transformer.h.1.mlp.c_proj.weight` has all elements"
        ),
        "{told}"
    );
}

#[test]
fn the_plan_has_the_memory_of_the_rank_that_holds_most() {
    let place = Place::new();
    let gpt = "tiny-gpt --ranks 4 --parallel tensor=4 --set model.layers=1 --set model.width=24 --set model.heads=6 \
               --set model.context=16";
    let told: serde_json::Value =
        serde_json::from_str(&place.succeed(&format!("plan {gpt} --json"))).expect("JSON");
    let rows = told["strategies"].as_array().expect("rows");
    let ddp = rows.iter().find(|row| row["strategy"] == "ddp").expect("a row");
    place.succeed(&format!(
        "train {gpt} --set train.global_batch=4 --steps 2 --set eval.every=0 --set sample.rows=1 --set sample.tokens=2 --out run"
    ));
    let summary = json(&place.path("run/summary.json"));
    let ranks = summary["ranks"].as_array().expect("ranks");
    for kind in ["parameter_bytes", "gradient_bytes", "optimizer_bytes"] {
        let held = |rank: &serde_json::Value| rank[kind].as_u64();
        let (most, least) = (ranks.iter().map(held).max(), ranks.iter().map(held).min());
        assert_eq!(most.flatten(), ddp[kind].as_u64(), "{kind}");
        assert_ne!(most, least, "six heads on four ranks are uneven");
    }
    // The words of the vocabulary aside, four ranks hold a quarter each.
    let large =
        "tiny-gpt --set model.width=1280 --set model.layers=20 --set model.heads=20 --set model.context=1024";
    let held = |ranks: usize| {
        let line = format!("plan {large} --ranks {ranks} --parallel tensor={ranks} --json");
        let told: serde_json::Value = serde_json::from_str(&place.succeed(&line)).expect("JSON");
        let rows = told["strategies"].as_array().expect("rows");
        rows.iter()
            .find(|row| row["strategy"] == "ddp")
            .and_then(|row| row["held_bytes"].as_f64())
            .expect("bytes")
    };
    assert!(held(4) <= 0.27 * held(1), "{} of {}", held(4), held(1));
}
