//! One rank on a GPU trains as on the CPU, and resumes bit for bit.

use std::fs;

use super::place::{Place, agree, column, goes_on_bit_for_bit, json};

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
fn language_models_train_as_on_the_processor() {
    let Some(place) = Place::anywhere() else { return };
    let small = "--steps 5 --set model.layers=2 --set model.width=16 --set model.heads=2 --set model.context=12 \
                 --set train.global_batch=6 --set model.texts=40 --set eval.limit=5 --set sample.tokens=4";
    let gpt = format!("tiny-gpt {small} --set model.dropout=0.1");
    let decoder = format!("tiny-llama {small} --set model.key_heads=1 --set schedule.warmup_steps=0");
    agree(&place, &gpt, 1e-4);
    agree(&place, &format!("{decoder} --set model.head_norms=true"), 1e-4);
    agree(&place, &format!("{decoder} --set model.experts=3 --set model.balance_weight=0.1"), 1e-4);
    // Adapters on the weights of a run.
    place.succeed(&format!("train {decoder} --set train.device=cpu --set train.ranks=1 --out base"));
    let adapters = "--set model.weights=base --set lora.rank=2 --set lora.dropout=0.1";
    agree(&place, &format!("{decoder} {adapters}"), 1e-4);
    let said =
        place.fail(&format!("train {decoder} --set model.experts=3 --set train.graphs=true --out graphs"));
    assert!(said.contains("tokens choose their experts"), "{said}");
}

#[test]
fn a_run_on_a_gpu_goes_on_bit_for_bit() {
    let Some(place) = Place::new() else { return };
    let common =
        "train tiny --set train.ranks=1 --set log.every=1 --set train.device=cuda --set train.ema=0.9";
    goes_on_bit_for_bit(&place, common);
    let energy = column(&place.path("whole"), "gpu_energy_joules");
    assert!(energy.len() == 5 && energy.is_sorted() && energy[4] > energy[0], "{energy:?}");
    assert_eq!(column(&place.path("whole"), "gpu_power_watts"), [123.456; 5]);
    let summary = json(&place.path("whole").join("summary.json"));
    let peak = |kind: &str| summary["metrics"][format!("gpu_peak_{kind}_bytes")].as_u64().expect("a number");
    // Of 143,467 parameters: weights; two moments and the averages, which the optimizer's kind has too.
    assert_eq!((peak("gradients"), peak("optimizer")), (143_467 * 4, 143_467 * 12));
    assert!(peak("parameters") >= 143_467 * 4 && peak("activations") > 0, "{summary}");
    place.succeed("sample whole --prompt red --out red.png");
}

#[test]
fn losses_are_read_a_step_late_and_are_the_same() {
    let Some(place) = Place::anywhere() else { return };
    let common = "train tiny --steps 7 --set train.ranks=1 --set train.device=cuda --set train.clip_norm=0.5";
    place.succeed(&format!("{common} --set log.every=1 --out each"));
    place.succeed(&format!("{common} --set log.every=3 --out some"));
    for name in ["loss", "grad_norm"] {
        let [each, some] = ["each", "some"].map(|run| column(&place.path(run), name));
        assert_eq!(each.len(), 7, "{name}");
        assert_eq!(some, [0, 2, 5, 6].map(|step| each[step]), "{name}");
    }
    // A loss that is not finite is noticed when the next step is queued, before anything is saved or told of a later one.
    let broken = "--set optim.lr=1e30 --set checkpoint.every=3 --set log.every=1000 --set train.clip_norm=0";
    let error = place.fail(&format!(
        "train tiny --steps 9 --set train.ranks=1 --set train.device=cuda {broken} --out broken"
    ));
    assert!(error.contains("is not finite") || error.contains("NaN") || error.contains("inf"), "{error}");
    let saved = fs::read_dir(place.path("broken").join("checkpoints")).map_or(0, Iterator::count);
    assert_eq!(saved, 0, "{error}");
}
