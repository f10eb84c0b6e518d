//! Trainings that begin with weights: their forms, another head, runs that go on.

use std::fs;

use candle_core::{Device, Tensor};
use phalanx_checkpoint::{Checkpoint, EMA, MODEL};
use phalanx_tensor::io::save_safetensors;
use serde_json::{Value, json};

use super::{in_file, setting, train, weights};
use crate::harness::results::{bits, checkpoint, contents, json};
use crate::harness::{MLP, Place, side_by_side};

/// Writes a folder of two classes with six pictures each for both splits.
fn pictures(place: &Place) {
    for (split, class, shade) in
        [("train", "dark", 20), ("train", "light", 220), ("test", "dark", 20), ("test", "light", 220)]
    {
        let folder = place.path(&format!("images/{split}/{class}"));
        fs::create_dir_all(&folder).expect("creates");
        for at in 0..6 {
            let picture = image::RgbImage::from_pixel(8, 8, image::Rgb([shade, shade + at, shade]));
            picture.save(folder.join(format!("{at}.png"))).expect("saves");
        }
    }
}

#[test]
fn a_head_of_other_classes_is_replaced_and_all_of_it_is_reported() {
    side_by_side([1, 2], |ranks| {
        let place = Place::new();
        pictures(&place);
        let file = weights(&place, "w.safetensors", 7);
        let line = format!(
            "train tiny {MLP} --data folder=images --set train.global_batch=4 --set checkpoint.every=1 --set optim.lr=0 --ranks {ranks} \
             --weights w.safetensors --out run"
        );
        let said = place.succeed_with_errors(&format!("{line} --steps 2"));
        let loaded = format!(
            "weights {}: 2 tensors loaded, head 2.weight and 2.bias made new (2 classes, the file has 7)",
            file.display()
        );
        assert_eq!(said.matches(&loaded).count(), 1, "{said}");
        let run = place.path("run");
        let record = json(&run.join("weights.json"));
        assert_eq!(record["loaded"], json!(["0.bias", "0.weight"]));
        assert_eq!(record["new"][0], json!({ "name": "2.weight", "shape": [2, 24], "found": [7, 24] }));
        assert_eq!(record["left"], json!([]));
        let summary = json(&run.join("summary.json"));
        assert_eq!(summary["weights"]["new"], json!(["2.weight", "2.bias"]));
        assert_eq!(summary["weights"]["loaded"], 2);
        // At a rate of 0 the weights stay those of the file, and the head that of a new training.
        let (given, after) = (in_file(&file), contents(&checkpoint(&run, 1)));
        for name in ["model 0.weight", "model 0.bias"] {
            assert!(given[name] == after[name], "{name}");
        }
        place.succeed(&line.replace("--weights w.safetensors --out run", "--steps 1 --out new"));
        let new = contents(&checkpoint(&place.path("new"), 1));
        assert!(
            new["model 2.weight"] == after["model 2.weight"]
                && new["model 0.weight"] != after["model 0.weight"]
        );
        // A resumption needs no file, and refuses another one without a change of the run.
        fs::remove_file(&file).expect("removes");
        let said = place.succeed_with_errors("train --resume --out run --steps 3");
        assert!(said.contains("resumed after step 2") && !said.contains("tensors loaded"), "{said}");
        assert_eq!(json(&run.join("summary.json"))["weights"]["loaded"], 2, "the summary still tells it");
        let before = fs::read(run.join("config.toml")).expect("reads");
        let said = place.fail("train --resume --out run --steps 4 --weights other.safetensors");
        assert!(said.contains("a run reads weights before step 1 only"), "{said}");
        assert_eq!(fs::read(run.join("config.toml")).expect("reads"), before);
        // A restart reads it again, and is refused before the record moves.
        let said = place.fail("train --restart --out run --steps 1");
        assert!(said.contains("model.weights") && said.contains("w.safetensors"), "{said}");
        assert!(run.join("summary.json").is_file());
    });
}

#[test]
fn files_folders_runs_and_checkpoints_give_the_same_weights() {
    let place = Place::new();
    let first =
        train(&place, "first", &["train.steps=3 train.ranks=2 train.strategy=fsdp checkpoint.every=3"]);
    place.succeed("export first --out whole.safetensors");
    let expected = in_file(&place.path("whole.safetensors"));
    let tensors = phalanx_tensor::io::load_safetensors(&place.path("whole.safetensors")).expect("reads");
    // Wrapped names, another precision of a tensor that is not used, and a copy of averages.
    let wrapped: Vec<(String, Tensor)> =
        tensors.iter().map(|(name, tensor)| (format!("module.{name}"), tensor.clone())).collect();
    let further = [("module.steps".to_owned(), Tensor::new(7_i64, &Device::Cpu).expect("small"))];
    save_safetensors(&place.path("wrapped.safetensors"), &[wrapped, further.to_vec()].concat(), &[])
        .expect("writes");
    // A folder of Hugging Face's libraries, whole and in parts.
    for folder in ["hub", "parts"] {
        fs::create_dir(place.path(folder)).expect("creates");
    }
    save_safetensors(&place.path("hub/model.safetensors"), &tensors, &[]).expect("writes");
    let mut map = serde_json::Map::new();
    for (at, part) in tensors.chunks(2).enumerate() {
        let file = format!("model-{at}.safetensors");
        save_safetensors(&place.path("parts").join(&file), part, &[]).expect("writes");
        map.extend(part.iter().map(|(name, _)| (name.clone(), Value::from(file.clone()))));
    }
    place.write("parts/model.safetensors.index.json", json!({ "weight_map": map }).to_string());
    let step = checkpoint(&first, 3);
    let forms =
        ["whole.safetensors", "wrapped.safetensors", "hub", "parts", "first"].map(|form| place.path(form));
    for (at, form) in forms.into_iter().chain([step]).enumerate() {
        for (ranks, strategy) in [(1, "ddp"), (3, "zero1"), (3, "fsdp")] {
            let own = format!(
                "optim.lr=0 train.steps=1 train.seed=5 train.ranks={ranks} train.strategy={strategy}"
            );
            let out = format!("{at}-{strategy}");
            let run = train(&place, &out, &[&own, &setting("model.weights", &form)]);
            let mut found = contents(&checkpoint(&run, 1));
            found.retain(|name, _| name.starts_with(MODEL));
            assert!(found == expected, "{} under {strategy}", form.display());
        }
    }
    let record = json(&place.path("1-ddp").join("weights.json"));
    assert_eq!(record["left"], json!(["steps"]));
    let record = json(&place.path("4-ddp").join("weights.json"));
    assert_eq!((&record["step"], &record["averages"]), (&json!(3), &json!(false)));
    // The head is made new although it fits.
    let own = "optim.lr=0 train.steps=1 train.seed=5 model.new_head=true train.ranks=1";
    let run = train(&place, "new-head", &[own, &setting("model.weights", &place.path("hub"))]);
    let found = contents(&checkpoint(&run, 1));
    assert!(found["model 0.weight"] == expected["model 0.weight"]);
    assert!(found["model 2.weight"] != expected["model 2.weight"]);
    // The same way evaluates them.
    let both = ["hub", "first"].map(|weights| {
        let line = format!(
            "eval --json --model mlp --data shapes --set model.mlp_width=24 --set model.mlp_depth=1 --set model.image_size=8 \
             --set data.test_images=12 --weights {weights}"
        );
        let report: Value = serde_json::from_str(&place.succeed(&line)).expect("is JSON");
        report["loss"].as_f64().expect("a loss")
    });
    assert!((both[0] - both[1]).abs() < 1e-12, "{both:?}");
}

#[test]
fn averages_of_a_run_are_taken() {
    let place = Place::new();
    let averaged = train(&place, "averaged", &["train.steps=4 train.ema=0.5 train.ranks=1"]);
    let saved = Checkpoint::open(&checkpoint(&averaged, 4)).expect("complete");
    let average = bits(&saved.reader().read(EMA, "0.weight").expect("reads"));
    let own = "optim.lr=0 train.steps=1 train.ranks=2 train.strategy=fsdp";
    let run = train(&place, "run", &[own, &setting("model.weights", &averaged)]);
    assert!(contents(&checkpoint(&run, 1))["model 0.weight"] == average);
    assert_eq!(json(&run.join("weights.json"))["averages"], true);
}
