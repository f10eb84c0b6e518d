//! Files of `torch.save` and their state dicts. `tests/fixtures/torch_files.py` has written them.

use std::fs;
use std::path::{Path, PathBuf};

use candle_core::{DType, Device, Tensor};
use phalanx_tensor::io::{WeightFile, load_into, save_safetensors};
use phalanx_tensor::{BuildOptions, Init, Key, ParamStore, StoreBuilder};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

fn store() -> ParamStore {
    let builder = StoreBuilder::new(BuildOptions { key: Key::new(1), ..Default::default() });
    let root = builder.root();
    let (a, b) = (root.pp("a").block(), root.pp("b").block());
    a.param("weight", (3, 4), Init::TorchDefault).expect("new");
    a.param("bias", 3, Init::TorchBias { fan_in: 4 }).expect("new");
    a.buffer("running_mean", 3, 0.0).expect("new");
    a.counter("num_batches_tracked").expect("new");
    b.param("weight", (2, 3), Init::KAIMING_FAN_OUT).expect("new");
    builder.build().expect("small")
}

fn values(store: &ParamStore, name: &str) -> Vec<f64> {
    let all = store.state_dict().expect("resident");
    let (_, tensor) = all.iter().find(|(own, _)| own == name).expect("named");
    tensor.flatten_all().and_then(|t| t.to_dtype(DType::F64)?.to_vec1()).expect("numbers")
}

/// The values of the fixtures: a transposed view, and a part of a larger storage.
fn has_fixture_values(store: &ParamStore, file: &str) {
    let transposed: Vec<f64> = (0..12).map(|at| f64::from(at / 4 + 3 * (at % 4))).collect();
    let part: Vec<f64> = (0..6).map(|at| f64::from(102 + 6 * (at / 3) + 2 * (at % 3))).collect();
    assert_eq!(values(store, "a.weight"), transposed, "{file}");
    assert_eq!(values(store, "a.bias"), [1.0, 2.0, 3.0], "{file}");
    assert_eq!(values(store, "a.running_mean"), [0.5; 3], "{file}");
    assert_eq!(values(store, "a.num_batches_tracked"), [7.0], "{file}");
    assert_eq!(values(store, "b.weight"), part, "{file}");
}

#[test]
fn state_dicts_are_found_among_other_entries_in_both_containers() {
    // Under `model`, `state_dict` with two wrappers, `model_state_dict`, and in whole modules.
    for name in ["training.pth", "prefixed.pth", "legacy.pth", "module.pth", "legacy-module.pth"] {
        let store = store();
        // A mask of booleans is no weight, so that it does not stop a strict load.
        let report = load_into(&store, &fixture(name), true).unwrap_or_else(|error| panic!("{error}"));
        assert!(report.missing.is_empty() && report.unexpected.is_empty(), "{name}: {report:?}");
        has_fixture_values(&store, name);
    }
}

#[test]
fn files_are_known_by_their_content() {
    let place = tempfile::tempdir().expect("a folder");
    for (from, to) in [("training.pth", "model.ckpt"), ("legacy.pth", "checkpoint.pth.tar")] {
        let path = place.path().join(to);
        fs::copy(fixture(from), &path).expect("copies");
        let store = store();
        load_into(&store, &path, true).expect("fits");
        has_fixture_values(&store, to);
    }
    for (content, words) in [
        (&b""[..], "the file is empty; expected safetensors, or a file of torch.save"),
        (b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
        (b"<!doctype html>", "the download failed"),
        (b"\x80\x02}q\x00.", "a pickle that torch.save did not write"),
        (b"PK\x03\x04", "cannot read this PyTorch file"),
        (b"other", "unknown kind of file"),
    ] {
        let path = place.path().join("weights.bin");
        fs::write(&path, content).expect("writes");
        let error = WeightFile::open(&path).expect_err(words).to_string();
        assert!(error.contains("weights.bin: ") && error.contains(words), "{error}");
    }
}

#[test]
fn errors_name_tensor_reason_and_content() {
    for (name, words) in [
        ("two.pth", &["its entries `first` and `second` each fits this model", "in a file of its own"][..]),
        ("int.pth", &["`a.bias` has element type int32, which is not read", "`tensor.float()`"]),
        ("expanded.pth", &["`a.weight` has shape [3000, 4000], more than the file holds", ".clone()"]),
        ("beyond.pth", &["`a.bias` has shape [3] and strides [1], more than its storage of 2 elements"]),
        ("big.pth", &["big-endian", "convert it to safetensors"]),
        ("empty.pth", &["it has no tensors with names; it holds `epoch` (3), `note` (a string)"]),
        ("lone.pth", &["it has no tensors with names; it holds a tensor"]),
    ] {
        let store = store();
        let before = values(&store, "a.weight");
        let error = load_into(&store, &fixture(name), true).expect_err(name).to_string();
        for words in words {
            assert!(error.contains(name) && error.contains(words), "{error}");
        }
        assert_eq!(values(&store, "a.weight"), before, "nothing is written unless everything fits");
    }
    let other = StoreBuilder::new(BuildOptions::default());
    other.root().pp("c").block().param("weight", 3, Init::Constant(0.0)).expect("new");
    let error = load_into(&other.build().expect("small"), &fixture("training.pth"), true);
    let error = error.expect_err("another model").to_string();
    for words in ["it has no tensor of this model", "`epoch` (3)", "`optimizer` (a dict of 2)", "`a.bias`"] {
        assert!(error.contains(words), "{error}");
    }
}

#[test]
fn damage_is_an_error_and_never_other_values() {
    let place = tempfile::tempdir().expect("a folder");
    let path = place.path().join("damaged.pth");
    for name in ["training.pth", "legacy.pth"] {
        let whole = fs::read(fixture(name)).expect("reads");
        for len in (0..whole.len()).step_by(7) {
            fs::write(&path, &whole[..len]).expect("writes");
            load_into(&store(), &path, true).expect_err("cut off");
        }
    }
    // The storages of an archive have checksums.
    let mut whole = fs::read(fixture("training.pth")).expect("reads");
    let three = 3.0_f32.to_le_bytes();
    let at = whole.windows(4).position(|bytes| bytes == three).expect("a storage has it");
    whole[at] ^= 1;
    fs::write(&path, &whole).expect("writes");
    let error = load_into(&store(), &path, true).expect_err("damaged").to_string();
    assert!(error.contains("archive/data/0") && error.contains("checksum"), "{error}");
}

#[test]
fn safetensors_may_hold_more_than_is_needed() {
    let place = tempfile::tempdir().expect("a folder");
    let path = place.path().join("model.safetensors");
    let saved = store().state_dict().expect("resident");
    let wrapped = |name: &str| format!("model._orig_mod.{name}");
    let mut tensors: Vec<_> = saved.iter().map(|(name, tensor)| (wrapped(name), tensor.clone())).collect();
    tensors.push(("position_ids".to_owned(), Tensor::zeros(4, DType::I64, &Device::Cpu).expect("small")));
    save_safetensors(&path, &tensors, &[]).expect("writable");
    let retyped = |name: &str, from: &str, to: &str| {
        let bytes = fs::read(&path).expect("reads");
        let length = u64::from_le_bytes(bytes[..8].try_into().expect("eight")) as usize;
        let header = String::from_utf8(bytes[8..8 + length].to_vec()).expect("text");
        let entry = format!("\"{name}\":{{\"dtype\":\"{from}\"");
        assert!(header.contains(&entry), "{header}");
        let header = header.replace(&entry, &format!("\"{name}\":{{\"dtype\":\"{to}\""));
        let parts = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &bytes[8 + length..]];
        fs::write(&path, parts.concat()).expect("writes");
    };
    // Another type of as many bits.
    retyped("position_ids", "I64", "C64");
    let target = store();
    load_into(&target, &path, true).expect("the same model");
    assert_eq!(values(&target, "a.weight"), values(&store(), "a.weight"));
    retyped(&wrapped("a.bias"), "F32", "I32");
    let error = load_into(&store(), &path, true).expect_err("needed").to_string();
    let words = "`model._orig_mod.a.bias` has element type I32, which is not read";
    assert!(error.contains(words) && error.contains("`tensor.float()`"), "{error}");
}

#[test]
fn parts_of_tensors_are_those_of_whole_tensors() {
    let place = tempfile::tempdir().expect("a folder");
    let saved = place.path().join("model.safetensors");
    let reference = store();
    load_into(&reference, &fixture("training.pth"), true).expect("fits");
    save_safetensors(&saved, &reference.state_dict().expect("resident"), &[]).expect("writable");
    for path in [saved, fixture("training.pth"), fixture("legacy.pth")] {
        let file = WeightFile::open(&path).expect("opens");
        let dict = file.state_dict(|name| name == "a.weight").expect("has it");
        assert_eq!(dict.shape("b.weight").expect("there"), [2, 3], "{}", path.display());
        for name in ["a.weight", "b.weight"] {
            let whole = values(&reference, name);
            for (start, end) in [(0, whole.len()), (1, 5), (3, 3), (whole.len() - 1, whole.len())] {
                let part = dict.read_part(name, start..end).expect("inside");
                let part: Vec<f64> = part.to_dtype(DType::F64).and_then(|part| part.to_vec1()).expect("flat");
                assert_eq!(part, whole[start..end], "{} {name} {start}..{end}", path.display());
            }
            let error = dict.read_part(name, 1..whole.len() + 1).expect_err("outside").to_string();
            assert!(error.contains(&format!("{name}` has {} elements", whole.len())), "{error}");
        }
        let error = dict.shape("c").expect_err("another").to_string();
        assert!(error.contains("it has no tensor `c`"), "{error}");
    }
}

#[test]
fn folders_hold_one_file_or_an_index_of_several() {
    let place = tempfile::tempdir().expect("a folder");
    let folder = |name: &str| {
        let path = place.path().join(name);
        fs::create_dir_all(&path).expect("new");
        path
    };
    let reference = store();
    load_into(&reference, &fixture("training.pth"), true).expect("fits");
    let tensors = reference.state_dict().expect("resident");
    save_safetensors(&folder("whole").join("model.safetensors"), &tensors, &[]).expect("writable");
    fs::copy(fixture("training.pth"), folder("torch").join("pytorch_model.bin")).expect("copies");
    let mut map = serde_json::Map::new();
    for (at, part) in tensors.chunks(2).enumerate() {
        let name = format!("model-{at}.safetensors");
        save_safetensors(&folder("parts").join(&name), part, &[]).expect("writable");
        map.extend(part.iter().map(|(tensor, _)| (tensor.clone(), name.clone().into())));
    }
    let index = folder("parts").join("model.safetensors.index.json");
    let write = |map: &serde_json::Map<String, serde_json::Value>| {
        fs::write(&index, serde_json::json!({ "weight_map": map }).to_string()).expect("writes");
    };
    write(&map);
    for name in ["whole", "torch", "parts"] {
        let store = store();
        load_into(&store, &folder(name), true).unwrap_or_else(|error| panic!("{name}: {error}"));
        has_fixture_values(&store, name);
    }
    let refused = |path: &Path, words: &[&str]| {
        let error = WeightFile::open(path).expect_err("damaged").to_string();
        assert!(words.iter().all(|words| error.contains(words)), "{error}");
    };
    refused(&folder("none"), &["none: the folder has no weights", "it holds nothing"]);
    for (tensor, file, words) in [
        ("more", "model-0.safetensors", "model-0.safetensors: it has no tensor `more`, which the index"),
        ("more", "model-9.safetensors", "model-9.safetensors, which is missing"),
        ("more", "../whole/model.safetensors", "which is not one of the folder"),
        ("more", "..", "which is not one of the folder"),
    ] {
        let mut other = map.clone();
        other.insert(tensor.to_owned(), file.into());
        write(&other);
        refused(&folder("parts"), &[words]);
    }
    for text in ["{", "{}", "{\"weight_map\": 1}"] {
        fs::write(&index, text).expect("writes");
        refused(&folder("parts"), &["model.safetensors.index.json: not an index of weights"]);
    }
}

#[cfg(unix)]
#[test]
fn a_fifo_in_place_of_weights_is_named_and_not_waited_for() {
    let place = tempfile::tempdir().expect("a folder");
    let fifo = place.path().join("weights.safetensors");
    assert!(std::process::Command::new("mkfifo").arg(&fifo).status().expect("mkfifo runs").success());
    let said = WeightFile::open(&fifo).expect_err("no file").to_string();
    assert!(said.contains("weights.safetensors") && said.contains("no regular file"), "{said}");
}
