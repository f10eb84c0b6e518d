//! Recipes of image classifiers: augmentation, mixed labels, optimizers and schedules, on any number of ranks.

use crate::harness::Place;
use crate::harness::engine::{Recorder, refusal, resolve, run_in, try_train};

/// A perceptron on augmented and mixed images. Eleven images are no multiple of two, three or four ranks, and the last step of
/// an epoch has three.
const RECIPE: &str = "model.kind=mlp model.mlp_width=24 model.mlp_depth=1 model.image_size=12 model.label_smoothing=0.1 \
    data.images=25 data.test_images=6 data.tail=ragged data.crop_padding=1 data.flip=true data.rand_augment_ops=2 \
    data.color_jitter=[0.4,0.4,0.4,0.1] data.random_erasing=0.5 data.mixup=0.4 data.cutmix=1 train.global_batch=11 \
    train.threads=1 train.bucket_kib=1 sample.rows=1 sample.columns=1 eval.enabled=false";

/// Optimizers, each with a schedule.
const OPTIMIZERS: [&str; 2] = [
    "optim.kind=lamb optim.lr=0.02 optim.weight_decay=0.05 optim.eps=1e-6 schedule.kind=one-cycle \
     schedule.momentum=[0.85,0.95] train.clip_norm=1",
    "optim.kind=lion optim.lr=0.002 optim.weight_decay=0.1 schedule.kind=warmup-stable-decay schedule.decay_fraction=0.5",
];

/// Trains in a folder, or resumes there. Returns of each step the loss, the accuracy and the learning rate.
fn train_in(place: &Place, name: &str, settings: &[&str]) -> Vec<[f64; 3]> {
    let recorder = Recorder::of_steps(|report| {
        [report.phases[0].loss, report.phases[0].measures[0].1, report.updates[0].learning_rate]
    });
    recorder.train(&run_in(&place.path(name)), &resolve(settings))
}

#[test]
fn a_recipe_has_one_curve_on_any_number_of_ranks() {
    for optimizer in OPTIMIZERS {
        let run = |strategy: &str, ranks: usize, further: &str| {
            let own = format!("train.steps=7 train.strategy={strategy} train.ranks={ranks} {further}");
            train_in(&Place::new(), "run", &[RECIPE, optimizer, &own])
        };
        let alone = run("ddp", 1, "");
        assert_eq!(alone.len(), 7);
        for (strategy, ranks, further) in [
            ("ddp", 2, "train.accumulate=2 data.workers=2"),
            ("dp", 3, ""),
            ("zero1", 3, ""),
            ("zero2", 2, ""),
            ("fsdp", 4, ""),
            ("hsdp", 4, ""),
            ("fsdp", 2, "train.offload=disk"),
        ] {
            for (step, (found, alone)) in run(strategy, ranks, further).iter().zip(&alone).enumerate() {
                let off = (found[0] - alone[0]).abs();
                let equal = (1..3).all(|at| (found[at] - alone[at]).abs() < 1e-12);
                assert!(
                    off < 2e-5 * alone[0] && equal,
                    "{strategy} {ranks}, step {step}: {found:?}, not {alone:?}"
                );
            }
        }
    }
}

#[test]
fn a_resumed_recipe_goes_on_with_the_same_bits() {
    for optimizer in OPTIMIZERS {
        let place = Place::new();
        let settings = [RECIPE, optimizer, "train.steps=8 train.strategy=zero1 train.ranks=2"];
        let whole = train_in(&place, "whole", &settings);
        let mut parts = train_in(&place, "parts", &[&settings[..], &["train.stop_step=3"]].concat());
        parts.extend(train_in(&place, "parts", &settings));
        assert_eq!(parts, whole);
    }
}

#[test]
fn optimizers_of_other_state_do_not_go_on() {
    let (place, settings) = (Place::new(), "train.steps=4 train.ranks=1");
    train_in(&place, "run", &[RECIPE, OPTIMIZERS[0], settings, "train.stop_step=2"]);
    let observer = Box::new(Recorder::of_steps(|_| ()));
    let other = resolve(&[RECIPE, OPTIMIZERS[1], settings]);
    let error = try_train(&run_in(&place.path("run")), &other, observer).expect_err("other state");
    assert!(error.contains("exp_avg_sq") && error.contains("exp_avg"), "{error}");
}

#[test]
fn settings_that_exclude_each_other_are_refused() {
    for (settings, words) in [
        ("model.kind=cvae data.mixup=0.2", &["data.mixup", "cvae"][..]),
        ("model.kind=attributes data.cutmix=1", &["data.cutmix", "attributes"]),
        ("optim.kind=lamb train.strategy=ps-bsp", &["optim.kind = lamb", "ps-bsp"]),
        ("data.rand_augment_magnitude=31", &["data.rand_augment_magnitude", "0 to 30"]),
        ("data.rand_augment_fill=[0,300,0]", &["data.rand_augment_fill"]),
        ("data.color_jitter=[0.4,0.4,0.4]", &["data.color_jitter", "four"]),
        ("data.color_jitter=[0.4,0.4,0.4,0.6]", &["data.color_jitter", "0.5"]),
        ("data.random_erasing=1.5", &["data.random_erasing"]),
        ("data.random_erasing_area=[0.3,0.2]", &["data.random_erasing_area"]),
        ("schedule.kind=one-cycle schedule.warmup_steps=5", &["schedule.warmup_steps", "pct_start"]),
        ("schedule.momentum=[0.85,0.95]", &["schedule.momentum", "one-cycle"]),
        ("schedule.kind=one-cycle schedule.momentum=[0.95,0.85]", &["schedule.momentum", "rising"]),
        ("schedule.kind=one-cycle schedule.div_factor=0.5", &["schedule.div_factor"]),
        ("schedule.decay_fraction=0", &["schedule.decay_fraction"]),
    ] {
        let error = refusal(&[settings]);
        assert!(words.iter().all(|word| error.contains(word)), "{settings}: {error}");
    }
}
