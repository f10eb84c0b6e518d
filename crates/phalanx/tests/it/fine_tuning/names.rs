//! Weights under the names of other libraries, and batch norms that are frozen.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use candle_core::{Device, Tensor};
use phalanx_checkpoint::{Checkpoint, MODEL};
use phalanx_models::{ResNet, ResNetConfig, ResNetVariant};
use phalanx_tensor::io::save_safetensors;
use phalanx_tensor::{BuildOptions, Key, StoreBuilder};
use serde_json::json;

use super::{setting, train_by};
use crate::harness::Place;
use crate::harness::results::{bits, checkpoint, contents, json};

/// A small ResNet-18 with seven classes, and its tensors by name.
fn resnet(cifar_stem: bool) -> Vec<(String, Tensor)> {
    let builder = StoreBuilder::new(BuildOptions { key: Key::new(9), ..BuildOptions::default() });
    let config = ResNetConfig { width: 8, cifar_stem, ..ResNetConfig::new(ResNetVariant::R18, 7) };
    ResNet::new(&builder.root(), &config).expect("new names");
    let store = builder.build().expect("small");
    for buffer in store.buffers().iter().filter(|buffer| buffer.name().ends_with("running_mean")) {
        let mean = Tensor::full(0.25_f32, buffer.shape(), &Device::Cpu).expect("small");
        buffer.set(&mean).expect("fits");
    }
    store.state_dict().expect("here")
}

/// The name that Hugging Face's ResNet has for a tensor.
fn name_there(name: &str) -> String {
    let parts: Vec<&str> = name.split('.').collect();
    let kind = |layer: &str| if layer.starts_with("conv") { "convolution" } else { "normalization" };
    match parts.as_slice() {
        ["fc", tensor] => format!("classifier.1.{tensor}"),
        [stem @ ("conv1" | "bn1"), tensor] => format!("resnet.embedder.embedder.{}.{tensor}", kind(stem)),
        [stage, block, rest @ ..] => {
            let stage = stage.trim_start_matches("layer").parse::<usize>().expect("a number") - 1;
            let place = format!("resnet.encoder.stages.{stage}.layers.{block}");
            match rest {
                ["downsample", "0", tensor] => format!("{place}.shortcut.convolution.{tensor}"),
                ["downsample", _, tensor] => format!("{place}.shortcut.normalization.{tensor}"),
                [layer, tensor] => {
                    let number = layer.chars().last().and_then(|digit| digit.to_digit(10)).expect("a digit");
                    format!("{place}.layer.{}.{}.{tensor}", number - 1, kind(layer))
                }
                _ => panic!("{name}"),
            }
        }
        _ => panic!("{name}"),
    }
}

/// A ResNet-18 whose steps take milliseconds.
const RESNET: &str = "model.kind=resnet18 model.width=8 model.image_size=16 train.global_batch=12 train.threads=1 \
    log.every=1 data.images=60 data.test_images=12 eval.enabled=false optim.kind=sgd schedule.kind=constant optim.lr=0.01";

/// Trains the small ResNet-18 in this process. Returns the run's folder.
///
/// # Errors
/// If the training fails.
fn train(place: &Place, out: &str, settings: &[&str]) -> Result<PathBuf, String> {
    train_by(place, out, &[&[RESNET], settings].concat())
}

#[test]
fn names_of_hugging_face_are_translated_and_statistics_of_frozen_norms_stay() {
    let place = Place::new();
    let given = resnet(true);
    let there: Vec<(String, Tensor)> =
        given.iter().map(|(name, tensor)| (name_there(name), tensor.clone())).collect();
    fs::create_dir(place.path("hub")).expect("creates");
    save_safetensors(&place.path("hub/model.safetensors"), &there, &[]).expect("writes");
    let from = setting("model.weights", &place.path("hub"));
    let given: BTreeMap<String, _> =
        given.iter().map(|(name, tensor)| (name.clone(), bits(tensor))).collect();
    for (ranks, strategy) in [(1, "ddp"), (2, "fsdp")] {
        let own = format!("train.steps=2 train.ranks={ranks} train.strategy={strategy} checkpoint.every=1");
        let run =
            train(&place, strategy, &[&own, &from, "optim.freeze=[\"stem\",\"layer1\"]"]).expect("trains");
        assert_eq!(json(&run.join("weights.json"))["left"], json!([]));
        let after = contents(&checkpoint(&run, 2));
        for (name, tensor) in &given {
            let is_frozen = ["conv1.", "bn1.", "layer1."].iter().any(|start| name.starts_with(start));
            let stays = after[&format!("model {name}")] == *tensor;
            assert_eq!(stays, is_frozen, "{strategy}: {name}");
        }
    }
    // A body without a head.
    let body: Vec<(String, Tensor)> =
        there.into_iter().filter(|(name, _)| !name.starts_with("classifier")).collect();
    save_safetensors(&place.path("body.safetensors"), &body, &[]).expect("writes");
    let own = "train.steps=1 train.ranks=1";
    let run = train(&place, "body", &[own, &setting("model.weights", &place.path("body.safetensors"))])
        .expect("trains");
    let record = json(&run.join("weights.json"));
    assert_eq!(record["new"][0], json!({ "name": "fc.weight", "shape": [7, 64], "found": null }));
    // A stem of another kernel.
    save_safetensors(&place.path("imagenet.safetensors"), &resnet(false), &[]).expect("writes");
    let from = setting("model.weights", &place.path("imagenet.safetensors"));
    let said = train(&place, "stem", &[own, &from]).expect_err("another stem");
    for words in [
        "model.weights: ",
        "imagenet.safetensors: does not fit this model: `conv1.weight` has shape [8, 3, 7, 7], here it has [8, 3, 3, 3]",
        "a kernel of 7x7 in place of 3x3",
        "model.cifar_stem = false",
        "it holds 122 tensors: ",
    ] {
        assert!(said.contains(words), "{words}: {said}");
    }
    let stem = "model.cifar_stem=false model.image_size=32";
    train(&place, "imagenet", &[own, &from, stem]).expect("trains");
}

#[test]
fn a_run_gives_its_batch_norms_with_their_counters() {
    let place = Place::new();
    let first = train(&place, "first", &["train.steps=2 train.ranks=1"]).expect("trains");
    let from = setting("model.weights", &first);
    let before = contents(&checkpoint(&first, 2));
    for (ranks, strategy) in [(1, "ddp"), (2, "fsdp")] {
        let own = format!("train.steps=1 train.ranks={ranks} train.strategy={strategy} optim.lr=0");
        let run = train(&place, strategy, &[&own, &from, "optim.freeze=[\"bn1\"]"]).expect("trains");
        let record = json(&run.join("weights.json"));
        assert_eq!((&record["new"], &record["left"]), (&json!([]), &json!([])), "{strategy}");
        let saved = Checkpoint::open(&checkpoint(&run, 1)).expect("complete");
        let count = saved.reader().read(MODEL, "layer2.0.bn1.num_batches_tracked").expect("reads");
        assert_eq!(count.to_scalar::<i64>().expect("a counter"), 3, "{strategy}");
        let after = contents(&checkpoint(&run, 1));
        for name in ["model bn1.running_mean", "model bn1.num_batches_tracked", "model layer4.1.conv2.weight"]
        {
            assert!(after[name] == before[name], "{strategy}: {name}");
        }
    }
}
