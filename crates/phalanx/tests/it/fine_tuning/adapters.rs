//! Adapters of low rank: training under each strategy, exports in both forms, and mistakes.

use std::path::Path;

use serde_json::{Value, json};

use super::{in_file, setting, train, weights};
use crate::harness::Place;
use crate::harness::engine::words;
use crate::harness::results::{assert_close, checkpoint, contents, json, losses};

/// Adapters on both layers.
const LORA: &str = "lora.rank=3 lora.alpha=6";

#[test]
fn adapters_are_trained_and_weights_stay_to_the_bit_on_any_ranks() {
    let place = Place::new();
    let file = weights(&place, "w.safetensors", 7);
    let (from, given) = (setting("model.weights", &file), in_file(&file));
    let run = |name: &str, own: &str| {
        let common = "train.steps=4 train.ema=0.5 train.clip_norm=1 sync.every=2 checkpoint.every=2";
        train(&place, name, &[common, &from, LORA, own])
    };
    let alone = run("alone", "train.ranks=1");
    let expected = losses(&alone);
    for (strategy, ranks, is_exact) in [
        ("dp", 2, true),
        ("zero1", 3, true),
        ("zero2", 2, true),
        ("fsdp", 3, true),
        ("hsdp", 4, true),
        ("ps-bsp", 2, true),
        ("ps-asp", 2, false),
        ("local-sgd", 2, false),
        ("sgp", 2, false),
    ] {
        let name = format!("{strategy}-{ranks}");
        let run = run(&name, &format!("train.ranks={ranks} train.strategy={strategy}"));
        if is_exact {
            assert_close(&name, &losses(&run), &expected, 1e-5);
        }
        let kept = contents(&checkpoint(&run, 4));
        assert!(given.iter().all(|(key, bits)| kept[key] == *bits), "{name}: the weights have changed");
        let is_state = |key: &&String| key.starts_with("exp_avg") || key.starts_with("ema");
        let others = kept.keys().filter(is_state).find(|key| !key.contains(".lora_"));
        assert!(others.is_none(), "{name}: {others:?}");
        let begun = contents(&checkpoint(&run, 2));
        for key in ["model 0.lora_A.weight", "model 0.lora_B.weight", "model 2.lora_B.weight"] {
            assert!(begun[key] != kept[key], "{name}: {key}");
        }
    }
    assert!(expected[3].1 < expected[0].1, "{expected:?}");
    // A run that goes on has the same bits.
    let stopped = "train.ranks=2 train.strategy=fsdp train.stop_step=2";
    run("parts", stopped);
    let parts = run("parts", "train.ranks=2 train.strategy=fsdp");
    let whole = run("whole", "train.ranks=2 train.strategy=fsdp");
    assert!(contents(&checkpoint(&parts, 4)) == contents(&checkpoint(&whole, 4)));
}

/// The loss of a model that `eval` finds.
fn loss(place: &Place, model: &str) -> f64 {
    let report: Value = serde_json::from_str(&place.succeed(&format!("eval {model} --json"))).expect("JSON");
    report["loss"].as_f64().expect("a loss")
}

#[test]
fn exports_have_adapters_in_the_weights_or_alone() {
    let place = Place::new();
    let from = setting("model.weights", &weights(&place, "w.safetensors", 7));
    let run = train(&place, "run", &[&from, LORA, "train.steps=4 train.ranks=2 train.strategy=fsdp"]);
    place.succeed("export run --out merged/");
    place.succeed("export run --out merged.safetensors");
    let (before, own) = (loss(&place, "run"), |model: &str| loss(&place, model));
    for model in ["merged/", "merged.safetensors"] {
        assert!((own(model) - before).abs() < 1e-6, "{model}: {} and {before}", own(model));
    }
    let names: Vec<String> = in_file(&place.path("merged/model.safetensors")).into_keys().collect();
    assert_eq!(names, ["model 0.bias", "model 0.weight", "model 2.bias", "model 2.weight"]);
    // The form of peft, from which another training begins, on another number of ranks.
    let said = place.succeed("export run --out adapters/ --adapters");
    assert!(said.contains("adapters/ (4 tensors, after step 4)"), "{said}");
    let config = json(&place.path("adapters/adapter_config.json"));
    assert_eq!(
        [&config["r"], &config["lora_alpha"], &config["peft_type"]],
        [&json!(3), &json!(6.0), &json!("LORA")]
    );
    assert_eq!(config["target_modules"], json!(["0", "2"]));
    let there = phalanx_tensor::io::load_safetensors(&place.path("adapters/adapter_model.safetensors"));
    let there: Vec<String> = there.expect("reads").into_iter().map(|(name, _)| name).collect();
    assert!(there.contains(&"base_model.model.0.lora_A.weight".to_owned()), "{there:?}");
    let begin = setting("lora.from", &place.path("adapters"));
    let again = "train.steps=1 train.ranks=3 train.strategy=fsdp optim.lr=0 train.seed=9";
    let again = train(&place, "again", &[&from, LORA, &begin, again]);
    let saved = |run: &Path, step| contents(&checkpoint(run, step));
    for name in ["model 0.lora_A.weight", "model 0.lora_B.weight", "model 2.lora_B.weight"] {
        assert!(saved(&again, 1)[name] == saved(&run, 4)[name], "{name}");
    }
    assert_eq!(json(&again.join("weights.json"))["adapters"]["layers"], json!(["0", "2"]));
}

#[test]
fn parameters_that_are_trained_themselves_have_no_adapter() {
    let place = Place::new();
    let from = setting("model.weights", &weights(&place, "w.safetensors", 3));
    let own = "lora.trained=[\"2\"] lora.layers=[\"?\"] train.steps=2 train.ranks=2 train.strategy=fsdp checkpoint.every=1";
    let run = train(&place, "run", &[&from, LORA, own]);
    let [begun, kept] = [1, 2].map(|step| contents(&checkpoint(&run, step)));
    assert!(begun["model 2.weight"] != kept["model 2.weight"] && !kept.contains_key("model 2.lora_A.weight"));
    place.succeed("export run --out adapters/ --adapters");
    let config = json(&place.path("adapters/adapter_config.json"));
    assert_eq!([&config["target_modules"], &config["modules_to_save"]], [&json!(["0"]), &json!(["2"])]);
    let begin = setting("lora.from", &place.path("adapters"));
    let again = train(&place, "again", &[&from, LORA, own, &begin, "optim.lr=0", "train.steps=1"]);
    assert!(contents(&checkpoint(&again, 1))["model 2.weight"] == kept["model 2.weight"]);
}

#[test]
fn mistakes_about_adapters_are_named() {
    let place = Place::new();
    let from = setting("model.weights", &weights(&place, "w.safetensors", 7));
    let other = setting("model.weights", &weights(&place, "other.safetensors", 5));
    let short = "train.steps=1 train.ranks=1";
    train(&place, "run", &[&from, LORA, short, "lora.layers=[\"0\"]"]);
    train(&place, "plain", &[&from, short]);
    place.succeed("export run --out adapters/ --adapters");
    let of_run = setting("model.weights", &place.path("run"));
    let begin = setting("lora.from", &place.path("adapters"));
    let damaged = setting("lora.from", &place.path("damaged"));
    place.write("damaged/adapter_config.json", "{\"peft_type\": \"LORA\", \"r\": 3, \"use_dora\": true}");
    for (settings, expected) in [
        (&[LORA][..], "lora.rank = 3 needs model.weights"),
        (&[&from, "lora.layers=[\"0\"]"], "lora.layers is for adapters: set lora.rank"),
        (&[&from, LORA, "lora.alpha=0"], "lora.alpha = 0 is not above 0"),
        (&[&from, LORA, "lora.dropout=1"], "lora.dropout = 1 is not in [0, 1)"),
        (
            &[&from, LORA, "lora.layers=[\"q\"]"],
            "lora.rank: the model has no linear layer that lora.layers names; there is: `0`, `2`",
        ),
        (
            &[&from, LORA, "lora.layers=[\"0\",\"q\"]"],
            "lora.layers: `q` matches no linear layer; there is: `0`, `2`",
        ),
        (&[&from, LORA, "lora.trained=[\"q\"]"], "lora.trained: `q` matches no parameter"),
        (
            &[&other, LORA],
            "`2.weight`, `2.bias` would be made new and never trained: name the head in lora.trained",
        ),
        (
            &[&of_run],
            "`0.lora_A.weight`, `0.lora_B.weight` which the model does not (set lora.rank, or export",
        ),
        (&[&from, LORA, &begin], "adapters of 1 layers, and the model of 2; set lora.layers=[\"0\"]"),
        (
            &[&from, "lora.rank=2", &begin],
            "adapters of rank 3 and alpha 6, and the configuration of 2 and 16; set lora.rank=3 lora.alpha=6",
        ),
        (&[&from, LORA, &damaged], "adapter_config.json: use_dora = true is not supported"),
    ] {
        let all = words(&[&[super::SMALL, short], settings].concat());
        let sets: Vec<String> = all.iter().map(|setting| format!("--set {setting}")).collect();
        let said = place.fail(&format!("train tiny {} --out wrong", sets.join(" ")));
        assert!(said.contains(expected), "{said}");
        let _ = std::fs::remove_dir_all(place.path("wrong"));
    }
    let said = place.fail("train --resume --out run --set lora.from=elsewhere --steps 0");
    assert!(
        said.contains("lora.from = \"elsewhere\" (was \"\"): a run reads weights before step 1 only"),
        "{said}"
    );
    let said = place.fail("train --resume --out run --set lora.rank=2 --steps 2");
    assert!(said.contains("lora_A.weight"), "{said}");
    let said = place.fail("export plain --out x/ --adapters");
    assert!(said.contains("this one was trained with lora.rank = 0"), "{said}");
    let said = place.fail("export run --out x.safetensors --adapters");
    assert!(said.contains("use --out FOLDER/"), "{said}");
}
