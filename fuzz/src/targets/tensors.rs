//! Files of tensors.

use candle_core::{DType, Device, Tensor};
use phalanx_fuzz_harness::files::folder;
use phalanx_fuzz_harness::{Random, json};
use phalanx_tensor::io::{TensorFile, WeightFile, save_safetensors};

use super::{Target, no_form};

fn safetensors() -> Vec<Vec<u8>> {
    let place = folder();
    let path = place.path().join("a.safetensors");
    let zeros = |shape: &[usize], dtype| Tensor::zeros(shape, dtype, &Device::Cpu);
    let tensors = [
        ("weight", zeros(&[3, 2], DType::F32)),
        ("bias", zeros(&[4], DType::BF16)),
        ("n", zeros(&[], DType::I64)),
    ];
    let tensors: Vec<(String, Tensor)> =
        tensors.into_iter().filter_map(|(name, tensor)| Some((name.to_owned(), tensor.ok()?))).collect();
    let metadata = [("by", "the fuzzer".to_owned())];
    let mut all = Vec::new();
    for tensors in [&tensors[..], &tensors[..1], &[]] {
        if save_safetensors(&path, tensors, &metadata).is_ok() {
            all.extend(std::fs::read(&path));
        }
    }
    all
}

/// Changes the header, and updates its length.
pub(super) fn header(input: &mut Vec<u8>, random: &mut Random) -> bool {
    let Some((length, rest)) = input.split_first_chunk::<8>() else { return false };
    let Some(header) =
        usize::try_from(u64::from_le_bytes(*length)).ok().and_then(|length| rest.get(..length))
    else {
        return false;
    };
    let (mut text, data) = (header.to_vec(), rest[header.len()..].to_vec());
    if !json::change(&mut text, random) {
        return false;
    }
    let length = (text.len() as u64).to_le_bytes();
    *input = [&length[..], &text, &data].concat();
    true
}

fn load(bytes: &[u8], name: &str) {
    let place = folder();
    let path = place.path().join(name);
    if std::fs::write(&path, bytes).is_ok()
        && let Ok(file) = WeightFile::open(&path)
        && let Ok(found) = file.state_dict(|_| true)
    {
        let _ = found.read_all(|_| true);
        // Each tensor, also after one that cannot be read.
        for name in found.names() {
            let _ = found.read(name);
        }
    }
}

pub(super) const SAFETENSORS: Target = Target {
    name: "safetensors",
    about: "weights in safetensors, read as a whole",
    seeds: safetensors,
    words: &["F32", "BF16", "I64", "\"data_offsets\":[0,0]", "\"shape\":[]"],
    change: header,
    read: |bytes| load(bytes, "a.safetensors"),
    cases: 250,
    memory: 48 << 20,
};

fn ranges(bytes: &[u8]) {
    let place = folder();
    let path = place.path().join("a.safetensors");
    if std::fs::write(&path, bytes).is_err() {
        return;
    }
    let Ok(file) = TensorFile::open(&path) else { return };
    for tensor in file.tensors() {
        let mut read = 0;
        let whole = tensor.shape.iter().product::<usize>();
        let all = file.read_bytes(&tensor.name, 0..whole, |_, bytes| {
            read += bytes.len();
            Ok(())
        });
        assert!(all.is_err() || read as u64 <= bytes.len() as u64, "more was read than there is");
        let _ = file.read_bytes(&tensor.name, 1..2, |_, _| Ok(()));
    }
}

pub(super) const TENSOR_RANGES: Target = Target {
    name: "tensor_ranges",
    about: "weights in safetensors, read by ranges of elements",
    seeds: safetensors,
    words: &["F32", "BF16", "I64", "\"data_offsets\":[0,0]", "\"shape\":[]"],
    change: header,
    read: ranges,
    cases: 250,
    memory: 48 << 20,
};

/// A small PyTorch file, `torch.save({"w": torch.zeros(2, 3)}, ...)`, and checkpoints and modules in both containers.
fn pickle() -> Vec<Vec<u8>> {
    vec![
        include_bytes!("seeds/small.pth").to_vec(),
        include_bytes!("../../../crates/tensor/tests/fixtures/training.pth").to_vec(),
        include_bytes!("../../../crates/tensor/tests/fixtures/legacy.pth").to_vec(),
        include_bytes!("../../../crates/tensor/tests/fixtures/legacy-module.pth").to_vec(),
    ]
}

pub(super) const PICKLE: Target = Target {
    name: "pickle",
    about: "weights in PyTorch's files",
    seeds: pickle,
    words: &["FloatStorage", "_rebuild_tensor_v2", "OrderedDict", "state_dict", "_modules", "PK\x03\x04"],
    change: no_form,
    read: |bytes| load(bytes, "a.pth"),
    cases: 250,
    memory: 48 << 20,
};
