//! One rank on a GPU trains as on the processor, and goes on bit for bit.

use std::fs;

use serde_json::Value;

use crate::place::{Place, agree, column, goes_on_bit_for_bit};

#[test]
fn an_autoencoder_trains_as_on_the_processor() {
    let Some(place) = Place::anywhere() else { return };
    agree(&place, "tiny --steps 5 --set train.clip_norm=1 --set train.ema=0.9", 1e-4);
    agree(&place, "tiny --steps 5 --set train.precision=bf16", 2e-2);
    agree(&place, "tiny --steps 5 --set train.precision=f16 --set train.recompute=2", 4e-3);
    // Of six test images more are asked for than there are.
    let latent = "shapes-autoencoder --steps 5 --set model.image_size=16 --set model.widths=[8,16] \
                  --set model.groups=4 --set data.images=16 --set data.test_images=6 --set train.global_batch=4 \
                  --set train.threads=1 --set eval.batch=4 --set sample.rows=8";
    agree(&place, latent, 1e-3);
}

#[test]
fn a_run_on_a_gpu_goes_on_bit_for_bit() {
    let Some(place) = Place::new() else { return };
    let common =
        "train tiny --set train.ranks=1 --set log.every=1 --set train.device=cuda --set train.ema=0.9";
    goes_on_bit_for_bit(&place, common);
    let energy = column(&place.run("whole"), "gpu_energy_joules");
    assert!(energy.len() == 5 && energy.is_sorted() && energy[4] > energy[0], "{energy:?}");
    assert_eq!(column(&place.run("whole"), "gpu_power_watts"), [123.456; 5]);
    let summary = fs::read(place.run("whole").join("summary.json")).expect("reads");
    let summary: Value = serde_json::from_slice(&summary).expect("is JSON");
    let peak = |kind: &str| summary["metrics"][format!("gpu_peak_{kind}_bytes")].as_u64().expect("a number");
    // Of 143,467 parameters: weights; two moments and the averages, which the optimizer's kind has too.
    assert_eq!((peak("gradients"), peak("optimizer")), (143_467 * 4, 143_467 * 12));
    assert!(peak("parameters") >= 143_467 * 4 && peak("activations") > 0, "{summary}");
    place.succeed("sample --run whole --prompt red --out red.png");
}

/// Classifiers of small pictures, each in f32 and in bf16, which lies channels-last.
fn classifiers_agree(presets: &[&str]) {
    let Some(place) = Place::anywhere() else { return };
    let small = "--steps 5 --set data.kind=shapes --set data.images=64 --set data.test_images=8 \
                 --set model.image_size=16 --set train.global_batch=4 --set train.accumulate=1";
    for preset in presets {
        // Roundings grow at every ReLU of a deep network with batch norm.
        agree(&place, &format!("{preset} {small}"), 3e-2);
        agree(&place, &format!("{preset} {small} --set train.precision=bf16"), 0.1);
    }
}

#[test]
fn classifiers_train_as_on_the_processor() {
    classifiers_agree(&["cifar10-resnet18 --set model.width=16"]);
}

#[test]
#[ignore = "whole networks take minutes in fibres: cargo xtask test --full"]
fn whole_classifiers_train_as_on_the_processor() {
    classifiers_agree(&["cifar10-resnet18", "cifar10-mobilenetv2"]);
}

#[test]
fn what_learns_pictures_with_texts_trains_as_on_the_processor() {
    let Some(place) = Place::anywhere() else { return };
    let common =
        "--steps 5 --set train.threads=1 --set data.images=24 --set data.test_images=8 --set eval.batch=4";
    let clip = "--set model.image_size=8 --set model.widths=[4] --set model.embed=8 --set model.text_width=8 \
                --set model.text_heads=2 --set model.text_layers=1 --set train.global_batch=8";
    agree(&place, &format!("shapes-clip {common} {clip}"), 1e-3);
    let diffusion = "--set model.kind=diffusion --set model.image_size=16 --set model.widths=[8,16] \
                     --set model.attention=[false,true] --set model.groups=4 --set model.heads=2 \
                     --set model.text_width=16 --set model.text_layers=1 --set model.text_heads=2 \
                     --set model.text_context=12 --set model.sample_steps=2 --set model.drop_text=0.3 \
                     --set model.dropout=0.1 --set train.global_batch=4 --set sample.rows=1 --set sample.columns=1";
    agree(&place, &format!("tiny {common} {diffusion}"), 1e-3);
    agree(&place, &format!("tiny {common} {diffusion} --set train.precision=bf16"), 3e-2);
}

#[test]
fn networks_against_each_other_train_as_on_the_processor() {
    let Some(place) = Place::anywhere() else { return };
    let gan = "--steps 5 --set model.kind=stackgan --set model.image_size=32 --set model.upscale=2 \
               --set model.condition=8 --set model.noise=4 --set model.gf_dim=4 --set model.df_dim=4 \
               --set model.residual_blocks=1 --set model.embed=16 --set model.text_part=0.2 \
               --set model.stage1_part=0.4 --set train.steps=5 --set train.global_batch=12 --set train.threads=1 \
               --set data.images=24 --set data.test_images=9 --set eval.batch=2 --set sample.rows=2 \
               --set sample.columns=1 --set optim.kind=adam --set optim.lr=2e-4 --set optim.betas=[0.5,0.999] \
               --set optim.eps=1e-4 --set schedule.kind=constant";
    agree(&place, &format!("tiny {gan}"), 1e-3);
}

#[test]
fn losses_are_read_a_step_late_and_are_the_same() {
    let Some(place) = Place::anywhere() else { return };
    let common = "train tiny --steps 7 --set train.ranks=1 --set train.device=cuda --set train.clip_norm=0.5";
    place.succeed(&format!("{common} --set log.every=1 --out each"));
    place.succeed(&format!("{common} --set log.every=3 --out some"));
    for name in ["loss", "grad_norm"] {
        let [each, some] = ["each", "some"].map(|run| column(&place.run(run), name));
        assert_eq!(each.len(), 7, "{name}");
        assert_eq!(some, [0, 2, 5, 6].map(|step| each[step]), "{name}");
    }
    // A loss that is not finite is noticed when the next step is queued, before anything is saved or told of a later one.
    let broken = "--set optim.lr=1e30 --set checkpoint.every=3 --set log.every=1000 --set train.clip_norm=0";
    let error = place.fail(&format!(
        "train tiny --steps 9 --set train.ranks=1 --set train.device=cuda {broken} --out broken"
    ));
    assert!(error.contains("is not finite") || error.contains("NaN") || error.contains("inf"), "{error}");
    let saved = fs::read_dir(place.run("broken").join("checkpoints")).map_or(0, Iterator::count);
    assert_eq!(saved, 0, "{error}");
}
