//! Trainings whose model is in stages: the curve of one rank with as many micro-batches, and checkpoints of any mesh.

use std::collections::BTreeMap;
use std::fs;

use serde_json::Value;

use crate::curves::{
    assert_near, assert_within, codecs_go_on, curve, follows_one_rank, losses, tiny_gpt as resolved,
};
use crate::harness::engine::{Recorder, resolve, run_in, words};
use crate::harness::results::{checkpoint, contents, summary};
use crate::harness::{Place, side_by_side};

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
        ("named", 2, "ddp", "parallel.pipeline=2 pipeline.stages=[\"transformer.h.1\"]"),
        ("replicas", 4, "ddp", "parallel.pipeline=2 parallel.replicate=2 train.check_replicas=2"),
        ("dp", 4, "dp", "parallel.pipeline=2 pipeline.micro_batches=2"),
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
    for name in ["dp", "zero2", "fsdp", "fsdp-zero-bubble"] {
        assert!(contents(&checkpoint(&place.path(name), 5)) == expected, "{name}: the checkpoints differ");
    }
}

/// Optimizers that look at whole parameters, parameters that are frozen at first or for good, and adapters: stages know of all
/// parameters whether they are trained, also if their own are not.
#[test]
fn stages_follow_one_rank_by_every_rule_of_parameters() {
    let place = Place::new();
    let trained = place.path("trained");
    curve(&trained, &resolved(1, "ddp", 2, ""));
    let adapters = format!("lora.rank=2 optim.lr=0.01 model.weights={}", trained.display());
    let rules = [
        ("lamb", "optim.kind=lamb"),
        ("muon", "optim.kind=muon optim.lr=0.002"),
        ("frozen", "optim.freeze=[\"transformer.embeddings\",\"transformer.h.0\"]"),
        ("frozen-head", "optim.freeze=[\"transformer.h.1\",\"transformer.ln_f\"]"),
        ("later", "optim.freeze=[\"transformer.embeddings\",\"transformer.h.1\"] optim.unfreeze_step=2"),
        ("adapters", &adapters),
    ];
    side_by_side(rules, |(name, rule)| {
        let run = |mesh: &str, ranks: usize, strategy: &str, further: &str| {
            let place = place.path(&format!("{name}-{mesh}"));
            curve(&place, &resolved(ranks, strategy, 5, &format!("{rule} {further}")))
        };
        let one = run("one", 1, "ddp", "train.accumulate=4");
        let near = |mesh: &str, ranks: usize, strategy: &str, further: &str| {
            assert_near(name, &run(mesh, ranks, strategy, further), &one);
        };
        near("two", 2, "ddp", "parallel.pipeline=2 train.accumulate=4");
        let zero_bubble = "parallel.pipeline=3 pipeline.schedule=zero-bubble train.accumulate=4";
        near("three", 3, "ddp", zero_bubble);
        match name {
            "muon" => near("four", 4, "ddp", "parallel.pipeline=2 parallel.replicate=2"),
            _ => near("four", 4, "fsdp", "parallel.pipeline=2 parallel.shard=2 train.accumulate=2"),
        }
    });
}

/// Codecs encode what ranks of a stage with other samples exchange; the errors that they keep are those of a stage, and runs go on to the
/// bit.
#[test]
fn codecs_go_with_stages() {
    let place = Place::new();
    let one = curve(&place.path("one"), &resolved(1, "ddp", 4, "train.accumulate=2"));
    let two = "parallel.pipeline=2 train.accumulate=2 codec.when=always codec.density=0.2 codec.chunk=24";
    let subjects = [
        ("ddp", "codec.kind=topk train.check_replicas=1"),
        ("zero2", "codec.kind=qsgd"),
        ("ddp", "codec.kind=powersgd pipeline.schedule=zero-bubble train.check_replicas=1"),
        ("fsdp", "codec.kind=int8 codec.weights=int8"),
        ("ddp", "codec.kind=sign codec.when=auto"),
        ("ddp", "codec.kind=dgc optim.kind=sgd optim.momentum=0"),
    ];
    codecs_go_on(
        &place,
        &subjects,
        (one[0][0], "codec-00003-of-00004-stage-00002"),
        |strategy, codec, steps| resolved(4, strategy, steps, &format!("{two} {codec}")),
    );
}

/// Skips go over stages, and conditions to all of them; with other axes on four and eight ranks.
#[test]
fn a_diffusion_network_in_stages_follows_one_rank() {
    let place = Place::new();
    let unet = |ranks: usize, further: &str| {
        let common = "data.images=24 data.test_images=8 model.kind=diffusion model.image_size=16 model.widths=[8,16] \
            model.attention=[false,true] model.groups=4 model.heads=4 model.text_width=16 model.text_layers=1 model.text_heads=4 \
            model.text_context=12 model.sample_steps=2 model.drop_text=0.3 model.dropout=0.1 train.global_batch=8 train.threads=1 \
            train.clip_norm=0.5 train.ema=0.9 eval.enabled=false log.every=1 sample.rows=1 sample.columns=1 train.steps=3";
        resolve(&[common, &format!("train.ranks={ranks}"), further])
    };
    let one = curve(&place.path("one"), &unet(1, "train.accumulate=4"));
    let meshes = [
        ("two", 2, "parallel.pipeline=2 train.accumulate=4 pipeline.schedule=zero-bubble train.recompute=1"),
        ("four", 4, "parallel.pipeline=4 train.accumulate=4"),
        (
            "turns",
            2,
            "parallel.pipeline=2 train.accumulate=4 pipeline.schedule=interleaved pipeline.chunks=2",
        ),
        ("fsdp", 4, "parallel.pipeline=2 parallel.shard=2 train.strategy=fsdp train.accumulate=2"),
        ("tensor", 4, "parallel.pipeline=2 parallel.tensor=2 train.accumulate=4"),
        ("all", 8, "parallel.pipeline=2 parallel.tensor=2 parallel.replicate=2 train.accumulate=2"),
    ];
    side_by_side(meshes, |(name, ranks, further)| {
        assert_within(1e-4, name, &curve(&place.path(name), &unet(ranks, further)), &one);
    });
}

#[test]
fn checkpoints_of_stages_go_from_any_mesh_to_any_other() {
    let place = Place::new();
    let meshes = [
        (2, "ddp", "parallel.pipeline=2"),
        (1, "ddp", ""),
        (4, "zero1", "parallel.pipeline=2 parallel.tensor=2"),
        (3, "ddp", "parallel.pipeline=-1"),
        (4, "fsdp", "parallel.pipeline=2 parallel.shard=2"),
        (2, "fsdp", ""),
        (4, "zero2", "parallel.pipeline=2"),
        (2, "ddp", "parallel.tensor=2"),
    ];
    follows_one_rank((&place.path("one"), &place.path("moved")), &meshes, resolved);
}

/// Weights of 16 bits go from stage to stage as they are, and all ranks agree about steps whose gradients overflow.
#[test]
fn stages_of_half_precision_follow_one_rank() {
    let place = Place::new();
    side_by_side(["bf16", "f16"], |precision| {
        let run = |name: &str, ranks: usize, further: &str| {
            let further = format!("train.precision={precision} {further}");
            curve(&place.path(&format!("{precision}-{name}")), &resolved(ranks, "ddp", 4, &further))
        };
        let one = run("one", 1, "train.accumulate=4");
        // A table of both stages is the sum of other parts, which rounds to other weights of 16 bits.
        let near = |found: Vec<Vec<f64>>| assert_within(1e-4, precision, &found, &one);
        near(run("two", 2, "parallel.pipeline=2 train.accumulate=4"));
        let zero_bubble = "parallel.pipeline=2 pipeline.schedule=zero-bubble train.accumulate=4";
        near(run("zero-bubble", 2, zero_bubble));
    });
}

/// Each phase of a GAN has the losses and the gradients of one rank, also if measures follow the loss.
#[test]
fn phases_of_several_networks_go_through_the_stages() {
    let place = Place::new();
    let norms = |name: &str, ranks: usize, further: &str| {
        let gan = "model.kind=stackgan model.image_size=32 model.upscale=2 model.gf_dim=4 model.df_dim=3 model.stage2_gf_dim=4 \
            model.stage2_df_dim=3 model.residual_blocks=1 model.condition=6 model.noise=4";
        let common = "train.global_batch=8 train.threads=1 train.clip_norm=1000000 data.images=16 data.test_images=4 eval.enabled=false \
            log.every=1 sample.rows=1 sample.columns=1 train.steps=2 schedule.warmup_steps=0 optim.kind=sgd optim.lr=0.000001";
        let resolved = resolve(&[gan, common, &format!("train.ranks={ranks}"), further]);
        let recorder = Recorder::of_steps(|report| {
            let norms = report.updates.iter().map(|update| update.gradient_norm.expect("clips"));
            report.phases.iter().map(|phase| phase.loss).chain(norms).collect::<Vec<f64>>()
        });
        recorder.train(&run_in(&place.path(name)), &resolved)
    };
    let one = norms("one", 1, "");
    assert!(one[0].len() >= 4 && one[0].iter().all(|number| *number != 0.0), "{one:?}");
    for (name, ranks) in [("two", 2), ("three", 3)] {
        let found = norms(name, ranks, &format!("parallel.pipeline={ranks} pipeline.micro_batches=1"));
        assert_near(name, &found, &one);
    }
}

/// The last batch of an epoch has fewer samples than micro-batches, and a part of the data none of some.
#[test]
fn batches_that_are_not_full_go_through_the_stages() {
    let place = Place::new();
    let run = |name: &str, ranks: usize, further: &str| {
        let common = "model.kind=mlp model.mlp_width=20 train.global_batch=16 train.threads=1 data.images=19 data.test_images=4 eval.every=0 \
            data.tail=ragged log.every=1 train.epochs=3";
        losses(&place.path(name), &resolve(&[common, &format!("train.ranks={ranks}"), further]))
    };
    let one = run("one", 1, "");
    assert!(one.len() > 4, "{} steps", one.len());
    for (name, ranks, further) in [
        ("two", 2, "parallel.pipeline=2 pipeline.micro_batches=8"),
        ("four", 4, "parallel.pipeline=2 pipeline.micro_batches=8"),
        ("zero-bubble", 2, "parallel.pipeline=2 pipeline.schedule=zero-bubble pipeline.micro_batches=4"),
        ("fsdp", 4, "parallel.pipeline=2 parallel.shard=2 train.strategy=fsdp pipeline.micro_batches=8"),
    ] {
        assert_near(name, &run(name, ranks, further), &one);
    }
}

#[test]
fn weights_are_read_into_stages() {
    let place = Place::new();
    curve(&place.path("first"), &resolved(1, "ddp", 2, ""));
    let weights = format!("model.weights={}", place.path("first").display());
    let one = curve(&place.path("one"), &resolved(1, "ddp", 2, &format!("{weights} train.accumulate=4")));
    let two = format!("{weights} parallel.pipeline=2 pipeline.micro_batches=4");
    assert_near("weights", &curve(&place.path("two"), &resolved(2, "ddp", 2, &two)), &one);
}

/// A term of a loss may be known to an earlier stage alone, which computes it.
#[test]
fn measures_of_earlier_stages_are_told() {
    let place = Place::new();
    let measures = |name: &str, ranks: usize, further: &str| {
        let common = "model.widths=[16,16] train.global_batch=8 train.threads=1 data.images=16 data.test_images=4 eval.every=0 log.every=1 \
            sample.rows=1 sample.columns=1 train.steps=2";
        let resolved = resolve(&[common, &format!("train.ranks={ranks}"), further]);
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

/// Texts, pictures and evaluations that read numbers between passes go through the stages, and have the bits of one rank. Weights stay as
/// they are, since they would be added up in another order.
#[test]
fn samples_of_stages_are_those_of_one_rank() {
    let place = Place::new();
    let common = "train.threads=1 train.global_batch=8 train.steps=2 log.every=1 optim.lr=1e-30 optim.weight_decay=0 sample.every=1 \
        sample.rows=2 sample.columns=2 sample.tokens=12 data.images=16 data.test_images=8 eval.limit=8";
    let run = |preset: &str, name: &str, ranks: usize, further: &str| {
        let sets: Vec<String> =
            words(&[common, further]).iter().map(|setting| format!("--set {setting}")).collect();
        place.succeed(&format!("train {preset} --ranks {ranks} --out {name} {}", sets.join(" ")));
        let samples = place.path(name).join("samples");
        let sample =
            ["txt", "png"].map(|ending| fs::read(samples.join(format!("step-00000002.{ending}"))).ok());
        let metrics = fs::read_to_string(place.path(name).join("metrics.jsonl")).expect("reads");
        let last: BTreeMap<String, Value> =
            serde_json::from_str(metrics.lines().last().expect("a line")).expect("is JSON");
        let tested = last.into_iter().filter(|(key, _)| key.starts_with("test_"));
        let tested: BTreeMap<String, f64> =
            tested.map(|(key, number)| (key, number.as_f64().expect("a number"))).collect();
        assert!(!tested.is_empty(), "{name} was evaluated");
        (sample.into_iter().flatten().next(), tested)
    };
    // A generator and two discriminators, CLIP that looks at pictures, and two phases; its batch norms need two samples.
    let gan = "model.gf_dim=4 model.df_dim=3 model.stage2_gf_dim=4 model.stage2_df_dim=3 train.accumulate=2";
    let cases = [
        ("tiny-gpt", "", true, 2, "parallel.pipeline=2"),
        ("tiny-gpt", "", true, 3, "parallel.pipeline=3"),
        ("tiny-gpt", "", true, 4, "parallel.pipeline=2 parallel.shard=2 train.strategy=fsdp"),
        ("tiny", "model.widths=[16,16]", true, 3, "parallel.pipeline=3"),
        ("tiny-translation", "", false, 2, "parallel.pipeline=2"),
        ("shapes-stackgan", gan, true, 2, "parallel.pipeline=2"),
    ];
    side_by_side(cases.into_iter().enumerate(), |(at, (preset, further, has_samples, ranks, stages))| {
        let one = run(preset, &format!("one-{at}"), 1, further);
        let found = run(preset, &format!("stages-{at}"), ranks, &format!("{further} {stages}"));
        assert_eq!(one.0.is_some(), has_samples, "{preset}");
        assert!(found.0 == one.0, "{preset}, {stages}: other samples");
        assert!(found.1.keys().eq(one.1.keys()), "{preset}, {stages}: {found:?}");
        for ((name, found), expected) in found.1.iter().zip(one.1.values()) {
            let near = (found - expected).abs() <= 1e-5 * expected.abs().max(1e-3);
            assert!(near, "{preset}, {stages}: {name} is {found}, and {expected} of one rank");
        }
    });
}

/// `phalanx plan --measure` tells stages that a run takes; its picture has the measured times.
#[test]
fn measured_stages_are_those_of_a_run() {
    let place = Place::new();
    let small = "--set train.global_batch=8 --set train.threads=1 --set data.images=16 --set data.test_images=4 --set eval.enabled=false";
    side_by_side(
        ["tiny-gpt", "tiny", "tiny-translation", "cifar10-resnet18 --set model.width=16 --data shapes"],
        |preset| {
            let name = preset.split(' ').next().expect("a name");
            let plan = format!("plan {preset} --ranks 2 --parallel pipeline=2 {small} --measure");
            let told = place.succeed(&format!(
                "{plan} --json --schedule {}",
                place.path(&format!("{name}.svg")).display()
            ));
            let told: Value = serde_json::from_str(&told).expect("is JSON");
            let measured = &told["pipeline"]["measured"];
            let first = measured["first_blocks"].as_array().expect("names");
            assert_eq!(first.len(), 1, "{name}: {measured}");
            let blocks = measured["blocks"].as_array().expect("blocks");
            let seconds = |block: &Value| block["forward_seconds"].as_f64().expect("a number");
            assert!(
                blocks.len() > 2 && blocks.iter().all(|block| seconds(block) > 0.0),
                "{name}: {measured}"
            );
            let lines = place.succeed(&plan);
            assert!(lines.contains("--set 'pipeline.stages=[\""), "{lines}");
            place.succeed(&format!(
            "train {preset} --ranks 2 --parallel pipeline=2 {small} --steps 1 --out {name} --set pipeline.stages={}",
            measured["first_blocks"]
        ));
        },
    );
    let told = place.fail("plan tiny-gpt --measure");
    assert!(told.contains("--measure is for the stages of a model: give --parallel pipeline=N"), "{told}");
}

/// The summary of a run has the passes of each rank, and the time that it waited for other stages.
#[test]
fn runs_tell_their_passes_and_how_long_ranks_waited() {
    let place = Place::new();
    let line = "train tiny-gpt --ranks 2 --parallel pipeline=2 --steps 3 --out run --set pipeline.schedule=zero-bubble \
        --set pipeline.micro_batches=4 --set train.global_batch=8 --set train.threads=1 --set eval.enabled=false";
    let told = place.succeed(line);
    assert!(told.contains("; waited for other stages "), "{told}");
    for (rank, of) in summary(&place.path("run")).ranks.into_iter().enumerate() {
        let stages = of.stages.expect("stages");
        let passes: Vec<_> =
            stages.passes.iter().map(|pass| (pass.stage, pass.pass.as_str(), pass.passes)).collect();
        // Three steps of four micro-batches.
        let kinds = ["forward", "backward of inputs", "backward of weights"];
        assert_eq!(passes, kinds.map(|kind| (rank, kind, 12)), "rank {rank}");
        let busy: f64 = stages.passes.iter().map(|pass| pass.seconds).sum();
        assert!(busy > 0.0 && stages.waited_seconds >= 0.0, "rank {rank}: {stages:?}");
        assert!(
            busy + stages.waited_seconds <= of.step_seconds * 1.01,
            "rank {rank}: {stages:?} of {}",
            of.step_seconds
        );
    }
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
        ("train.offload=parameters", "several micro-batches use parameters in turn"),
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
