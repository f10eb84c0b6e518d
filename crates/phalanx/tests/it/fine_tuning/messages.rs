//! Messages about fine-tuning: mistakes, plans, dry runs.

use std::fs;

use candle_core::{Device, Tensor};
use phalanx_tensor::io::save_safetensors;
use serde_json::{Value, json};

use super::weights;
use crate::harness::{MLP, Place, results};

#[test]
fn mistakes_are_named_before_anything_is_written() {
    let place = Place::new();
    weights(&place, "w.safetensors", 7);
    place.write("text.pth", "no weights");
    let whole = fs::read(place.path("w.safetensors")).expect("reads");
    place.write("cut.safetensors", &whole[..whole.len() - 9]);
    fs::create_dir(place.path("empty")).expect("creates");
    place.write("other/notes.txt", "no weights");
    let mut tensors = phalanx_tensor::io::load_safetensors(&place.path("w.safetensors")).expect("reads");
    save_safetensors(&place.path("lacks.safetensors"), &tensors[1..], &[]).expect("writes");
    tensors[0].1 = Tensor::full(f32::NAN, 24, &Device::Cpu).expect("small");
    save_safetensors(&place.path("nan.safetensors"), &tensors, &[]).expect("writes");
    let train = |more: &str| format!("train tiny {MLP} --ranks 1 --steps 1 --out run {more}");
    for (more, words) in [
        (
            "--weights gone.safetensors",
            &["--weights gone.safetensors: model.weights ", "gone.safetensors: No such file"][..],
        ),
        ("--weights text.pth", &["model.weights: ", "text.pth: unknown kind of file"]),
        ("--weights cut.safetensors", &["cut.safetensors: not a whole safetensors file"]),
        ("--weights empty", &["the folder has no weights: none of model.safetensors", "it holds nothing"]),
        ("--weights other", &["it holds notes.txt"]),
        ("--weights lacks.safetensors", &["it lacks `0.bias`", "it holds 3 tensors: "]),
        ("--weights nan.safetensors", &["`0.bias` has numbers that are not finite"]),
        (
            "--weights w.safetensors --set model.mlp_width=32",
            &["`0.weight` has shape [24, 192], here it has [32, 192]; 1 more tensors have other shapes"],
        ),
        ("--set model.new_head=true", &["model.new_head = true needs model.weights"]),
        ("--set optim.freeze=[\"stem\"]", &["`stem` matches no parameter; there is: `0`, `2`"]),
        ("--set optim.freeze=[\"*\"]", &["optim.freeze freezes all parameters"]),
        ("--set optim.freeze=[\"\"]", &["optim.freeze: "]),
        ("--set optim.unfreeze_step=3", &["optim.unfreeze_step = 3 needs optim.freeze"]),
        (
            "--set optim.freeze=[\"0\"] --set optim.unfreeze_step=3 --set optim.unfreeze_epoch=1",
            &["optim.unfreeze_step and optim.unfreeze_epoch are both set"],
        ),
        ("--set optim.rates=[\"2\"]", &["optim.rates: `2` is not a pattern and a factor"]),
        ("--set optim.rates=[\"fc=2\"]", &["`fc` matches no parameter"]),
    ] {
        let said = place.fail(&train(more));
        assert!(words.iter().all(|words| said.contains(words)), "{more}: {said}");
        // The same folder can be used once the cause is mended.
        assert!(!place.path("run/config.toml").exists(), "{more}");
        let _ = fs::remove_dir_all(place.path("run"));
    }
}

#[test]
fn plans_and_dry_runs_tell_what_is_trained() {
    let place = Place::new();
    weights(&place, "w.safetensors", 9);
    let settings =
        "--set model.kind=mlp --set model.mlp_width=24 --set model.mlp_depth=1 --set model.image_size=8";
    let freeze = "--set optim.freeze=[\"0\"]";
    let plan: Value =
        serde_json::from_str(&place.succeed(&format!("plan tiny {settings} {freeze} --ranks 2 --json")))
            .expect("is JSON");
    assert_eq!((&plan["parameters"], &plan["trainable_parameters"]), (&json!(4807), &json!(175)));
    let rows = plan["strategies"].as_array().expect("rows");
    let ddp = rows.iter().find(|row| row["strategy"] == "ddp").expect("a row");
    assert_eq!((&ddp["gradient_bytes"], &ddp["optimizer_bytes"]), (&json!(4 * 175), &json!(8 * 175)));
    assert_eq!(ddp["parameter_bytes"], 4 * 4807);
    assert_eq!(ddp["bytes_sent_per_step"].as_u64().expect("bytes") / 8, 4 * 175 / 8);
    let line = format!(
        "train tiny {MLP} --dry-run --verbose --weights w.safetensors {freeze} --set optim.unfreeze_epoch=2 --set optim.rates=[\"2=10\"]"
    );
    let said = place.succeed(&line);
    for words in [
        "freeze = [\"0\"]",
        "unfreeze_epoch = 2",
        "rates = [\"2=10\"]",
        "w.safetensors: 2 tensors loaded, head 2.weight and 2.bias made new (7 classes, the file has 9)",
        "frozen: 2 tensors of 4632 elements until step 10",
        "rate: 10 x optim.lr for 175 elements",
    ] {
        assert!(said.contains(words), "{words}: {said}");
    }
    let shown = place.succeed(&format!("config show tiny {settings} {freeze}"));
    assert!(shown.contains("freeze = [\"0\"]") && shown.contains("new_head"), "{shown}");
    assert!(!results::saved(place.folder()).contains(&1), "a dry run trains nothing");
}
