//! Vectors of captions in safetensors.

use candle_core::{Device, Tensor};
use phalanx::fuzzing;
use phalanx_fuzz_harness::files::folder;
use phalanx_tensor::io::save_safetensors;

use super::{Target, tensors};

/// Vectors of the captions of two pictures.
fn embeddings() -> Vec<Vec<u8>> {
    let place = folder();
    let path = place.path().join("vectors.safetensors");
    let write = || -> Option<Vec<u8>> {
        let rows = |count: usize| {
            let values: Vec<f32> = (0..3 * count).map(|value| value as f32).collect();
            Tensor::from_vec(values, (count, 3), &Device::Cpu).ok()
        };
        let tensors = [("a".to_owned(), rows(2)?), ("b".to_owned(), rows(1)?)];
        let captions = [("a", "A small bird .\nit is  red\n".to_owned()), ("b", "a bird".to_owned())];
        save_safetensors(&path, &tensors, &captions).ok()?;
        std::fs::read(&path).ok()
    };
    let written = write();
    assert!(written.is_some(), "vectors are written");
    written.into_iter().collect()
}

/// Reads vectors.
fn read_embeddings(bytes: &[u8]) {
    let place = folder();
    let path = place.path().join("vectors.safetensors");
    if std::fs::write(&path, bytes).is_ok() {
        fuzzing::embeddings(&path);
    }
}

pub(super) const EMBEDDINGS: Target = Target {
    name: "embeddings",
    about: "vectors of captions in safetensors",
    seeds: embeddings,
    words: &["__metadata__", "\\n", "\"shape\":[2,3]", "\"shape\":[0,3]", "F32", "a bird"],
    change: tensors::header,
    read: read_embeddings,
    cases: 200,
    memory: 48 << 20,
};
