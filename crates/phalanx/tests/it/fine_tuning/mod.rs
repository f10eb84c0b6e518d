//! Fine-tuning: trainings that begin with weights, adapters, frozen parameters, parameters that are trained later, and rates by name.

mod adapters;
mod freezing;
mod messages;
mod names;
mod published;
mod weights;

use std::path::{Path, PathBuf};

use candle_core::{Device, Tensor};
use phalanx_checkpoint::MODEL;
use phalanx_tensor::io::save_safetensors;
use phalanx_trainer::engine::NoopObserver;

use crate::harness::Place;
use crate::harness::engine::{resolve, run_in, try_train};
use crate::harness::results::{Tensors, bits};

/// A multilayer perceptron whose steps take milliseconds: `0` is its first layer, `2` its head.
const SMALL: &str = "model.kind=mlp model.mlp_width=24 model.mlp_depth=1 model.image_size=8 train.global_batch=12 \
    train.threads=1 log.every=1 data.images=60 data.test_images=12 eval.batch=4 eval.enabled=false optim.kind=adamw \
    optim.weight_decay=0.01 schedule.kind=constant optim.lr=0.01";

/// Trains the small network in this process. Returns the run's folder.
fn train(place: &Place, out: &str, settings: &[&str]) -> PathBuf {
    train_by(place, out, &[&[SMALL], settings].concat()).unwrap_or_else(|error| panic!("{out}: {error}"))
}

/// Trains in this process by settings of the preset `tiny`. Returns the run's folder.
///
/// # Errors
/// If the training fails.
fn train_by(place: &Place, out: &str, settings: &[&str]) -> Result<PathBuf, String> {
    let run = place.path(out);
    try_train(&run_in(&run), &resolve(settings), Box::new(NoopObserver)).map(|()| run)
}

/// Writes weights of the small model with another seed, and `classes` classes. Returns its path.
fn weights(place: &Place, name: &str, classes: usize) -> PathBuf {
    let make = |dims: &[usize], start: f32| {
        let count: usize = dims.iter().product();
        let values: Vec<f32> = (0..count).map(|at| ((at as f32 + start) * 0.37).sin() * 0.1).collect();
        Tensor::from_vec(values, dims, &Device::Cpu).expect("small")
    };
    let tensors = [
        ("0.weight", make(&[24, 192], 0.0)),
        ("0.bias", make(&[24], 5.0)),
        ("2.weight", make(&[classes, 24], 9.0)),
        ("2.bias", make(&[classes], 11.0)),
    ];
    let path = place.path(name);
    save_safetensors(&path, &tensors.map(|(name, tensor)| (name.to_owned(), tensor)), &[]).expect("writes");
    path
}

/// The tensors of a file, named as those of a checkpoint.
fn in_file(path: &Path) -> Tensors {
    let all = phalanx_tensor::io::load_safetensors(path).expect("a safetensors file");
    all.iter().map(|(name, tensor)| (format!("{MODEL} {name}"), bits(tensor))).collect()
}

fn setting(key: &str, path: &Path) -> String {
    format!("{key}={}", path.display())
}
