//! Files of weights: round trips, damaged files, and atomic writes.

use std::fs;
use std::io::Write as _;
use std::path::Path;

use candle_core::{CpuStorage, DType, Device, Storage, Tensor};
use phalanx_tensor::io::{
    TensorFile, WeightFile, atomic_write, load_into, load_safetensors, save_safetensors,
};
use phalanx_tensor::optim::{Adam, Ema, Optimizer, Sgd};
use phalanx_tensor::{BuildOptions, Context, FlatStorage, Init, Key, ParamStore, StoreBuilder, TensorError};

fn store(seed: u64) -> ParamStore {
    let builder = StoreBuilder::new(BuildOptions { key: Key::new(seed), ..Default::default() });
    let root = builder.root();
    let (a, b) = (root.pp("a").block(), root.pp("b").block());
    a.param("weight", (3, 4), Init::TorchDefault).expect("new");
    a.param("bias", 3, Init::TorchBias { fan_in: 4 }).expect("new");
    a.buffer("running_mean", 3, 0.5).expect("new");
    a.counter("num_batches_tracked").expect("new");
    b.param("weight", (2, 3), Init::KAIMING_FAN_OUT).expect("new");
    builder.build().expect("small")
}

fn values(store: &ParamStore) -> Vec<Vec<f64>> {
    let all = store.state_dict().expect("resident");
    all.iter()
        .map(|(_, t)| t.flatten_all().and_then(|t| t.to_dtype(DType::F64)?.to_vec1()).expect("numbers"))
        .collect()
}

#[test]
fn a_state_dict_survives_the_round_trip() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("model.safetensors");
    let (from, to) = (store(1), store(2));
    save_safetensors(&path, &from.state_dict().expect("resident"), &[("step", "7".into())])
        .expect("writable");
    assert_ne!(values(&from), values(&to));
    let report = load_into(&to, &path, true).expect("the same model");
    assert!(report.missing.is_empty() && report.unexpected.is_empty());
    assert_eq!(values(&from), values(&to));
    assert_eq!(fs::read_dir(folder.path()).expect("readable").count(), 1, "no temporary file is left");
    assert!(matches!(WeightFile::open(&folder.path().join("x.npz")), Err(TensorError::Io { .. })));
}

#[test]
fn files_that_do_not_fit_say_how() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("model.safetensors");
    let all = store(1).state_dict().expect("resident");
    let mut renamed = all.clone();
    renamed[0].0 = "a.wieght".into();
    save_safetensors(&path, &renamed, &[]).expect("writable");
    let error = load_into(&store(2), &path, true).expect_err("names differ").to_string();
    assert!(
        error.contains("model.safetensors") && error.contains("`a.weight`") && error.contains("`a.wieght`"),
        "{error}"
    );
    assert!(load_into(&store(2), &path, false).is_ok());
    let mut reshaped = all;
    reshaped[0].1 = Tensor::zeros((4, 3), DType::F32, &Device::Cpu).expect("small");
    save_safetensors(&path, &reshaped, &[]).expect("writable");
    let target = store(2);
    let before = values(&target);
    let error = load_into(&target, &path, false).expect_err("shapes differ").to_string();
    assert!(error.contains("a.weight") && error.contains("[4, 3]") && error.contains("[3, 4]"), "{error}");
    assert_eq!(values(&target), before, "nothing is written unless everything fits");
}

#[test]
fn damaged_files_are_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("model.safetensors");
    save_safetensors(&path, &store(1).state_dict().expect("resident"), &[]).expect("writable");
    let whole = fs::read(&path).expect("readable");
    for len in [0, 4, 40, whole.len() - 1] {
        fs::write(&path, &whole[..len]).expect("writable");
        let error = load_safetensors(&path).expect_err("truncated").to_string();
        assert!(error.contains("model.safetensors") && error.contains(&len.to_string()), "{error}");
    }
    let mut noise = whole;
    noise[..8].fill(0xff);
    fs::write(&path, &noise).expect("writable");
    assert!(load_safetensors(&path).is_err());
    let missing = folder.path().join("none.safetensors");
    assert!(matches!(load_safetensors(&missing), Err(TensorError::Io { action: "read", .. })));
    let pth = folder.path().join("model.pth");
    fs::write(&pth, b"not a zip").expect("writable");
    assert!(WeightFile::open(&pth).expect_err("not a PyTorch file").to_string().contains("model.pth"));
}

#[test]
fn a_failed_write_leaves_the_old_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("state");
    atomic_write(&path, |out| out.write_all(b"old")).expect("writable");
    let failed = atomic_write(&path, |out| {
        out.write_all(b"half of the n")?;
        Err(std::io::Error::other("no space left"))
    });
    let error = failed.expect_err("the writer failed").to_string();
    assert!(error.contains("state") && error.contains("no space left"), "{error}");
    assert_eq!(fs::read(&path).expect("readable"), b"old");
    assert_eq!(fs::read_dir(folder.path()).expect("readable").count(), 1);
    let nowhere = folder.path().join("missing/state");
    assert!(matches!(atomic_write(&nowhere, |_| Ok(())), Err(TensorError::Io { action: "create", .. })));
    // A device that is full, where the system has one: every write to it fails.
    if Path::new("/dev/full").exists() {
        let mut full = fs::OpenOptions::new().write(true).open("/dev/full").expect("it opens");
        let failed = atomic_write(&path, |out| {
            out.write_all(b"new")?;
            full.write_all(b"new")
        });
        assert!(failed.expect_err("full").to_string().contains("No space left"));
        assert_eq!(fs::read(&path).expect("readable"), b"old");
    }
}

#[test]
fn optimizers_resume_by_name_bit_for_bit() {
    let context = Context::new(1);
    let grads = |store: &ParamStore, step: u64| {
        for param in store.buckets() {
            let mut values = vec![0.0; param.len()];
            Key::new(9).index(param.index() as u64).step(step).normal(0, &mut values);
            let flat =
                Tensor::from_vec(values, param.len(), &Device::Cpu).and_then(|t| t.to_dtype(DType::F32));
            let flat = FlatStorage::new(flat.expect("small")).expect("flat");
            param.set_grads(&flat).expect("fits");
        }
    };
    let makes: [fn() -> Box<dyn Optimizer>; 3] = [
        || Box::new(Sgd::new(0.9, true, 0.01)),
        || Box::new(Adam::new((0.9, 0.999), 1e-8, 0.01)),
        || Box::new(Adam::decoupled((0.9, 0.95), 1e-8, 0.1)),
    ];
    for make in makes {
        let (whole, mut optimizer, mut ema) = (store(1), make(), Ema::new(0.9));
        let mut saved = None;
        for step in 0..6 {
            if step == 3 {
                let dict = whole.state_dict().expect("resident");
                let state = optimizer.state(whole.buckets()).expect("small");
                saved = Some((dict, state, ema.state(whole.buckets()).expect("small")));
            }
            grads(&whole, step);
            optimizer.step(whole.buckets(), 0.1, &context).expect("sound");
            ema.update(whole.buckets(), &context).expect("sound");
        }
        let (dict, (steps, tensors), (updates, averages)) = saved.expect("step 3 came");
        assert!(tensors.iter().any(|(name, _)| name.ends_with(".a.weight")), "named by parameter");
        let (again, mut optimizer, mut ema2) = (store(5), make(), Ema::new(0.9));
        again.load_state_dict(dict.iter().map(|(n, t)| (n.as_str(), t))).expect("the same model");
        optimizer.load_state(again.buckets(), steps, &tensors).expect("fits");
        ema2.load_state(again.buckets(), updates, &averages).expect("fits");
        for step in 3..6 {
            grads(&again, step);
            optimizer.step(again.buckets(), 0.1, &context).expect("sound");
            ema2.update(again.buckets(), &context).expect("sound");
        }
        assert_eq!(values(&again), values(&whole), "{optimizer:?}");
        let before = values(&again);
        ema.swap(whole.buckets()).expect("sound");
        ema2.swap(again.buckets()).expect("sound");
        assert_eq!(values(&again), values(&whole));
        assert_ne!(values(&again), before, "the averages are others than the weights");
        ema2.swap(again.buckets()).expect("sound");
        assert_eq!(values(&again), before);
    }
}

#[test]
fn ranges_are_read_and_nothing_else() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("ranges.safetensors");
    // Longer than one piece, and of every element type that is saved.
    let long: Vec<f32> = (0..600_000).map(|i| i as f32).collect();
    let long = Tensor::from_vec(long, (600, 1000), &Device::Cpu).expect("a tensor");
    let mut all = vec![("long".to_owned(), long)];
    for dtype in [DType::F64, DType::BF16, DType::F16, DType::I64, DType::U32, DType::U8] {
        let tensor =
            Tensor::arange(0_f64, 20.0, &Device::Cpu).and_then(|t| t.to_dtype(dtype)).expect("numbers");
        all.push((dtype.as_str().to_owned(), tensor));
    }
    save_safetensors(&path, &all, &[]).expect("writable");
    let file = TensorFile::open(&path).expect("opens");
    let header = file.bytes_read();
    assert!(header < 1000 && file.tensors().count() == 7);
    for range in [0..0, 0..1, 5..6, 262_143..262_145, 1..600_000, 599_999..600_000] {
        let before = file.bytes_read();
        let target = Tensor::zeros(range.len(), DType::F64, &Device::Cpu).expect("zeros");
        file.read_into("long", range.clone(), &target).expect("reads");
        let expected: Vec<f64> = range.clone().map(|i| i as f64).collect();
        assert!(target.to_vec1::<f64>().expect("numbers") == expected, "{range:?}");
        assert_eq!(file.bytes_read() - before, 4 * range.len() as u64);
    }
    for (name, tensor) in &all[1..] {
        let found = file.read(name, 3..17).expect("reads");
        assert_eq!(found.dtype(), tensor.dtype());
        let numbers =
            |tensor: &Tensor| tensor.to_dtype(DType::F64).and_then(|t| t.to_vec1::<f64>()).expect("numbers");
        assert_eq!(numbers(&found), (3..17).map(f64::from).collect::<Vec<_>>(), "{name}");
        let target = Tensor::zeros(14, DType::F32, &Device::Cpu).expect("zeros");
        file.read_into(name, 3..17, &target).expect("reads");
        assert_eq!(numbers(&target), numbers(&found), "{name}");
    }
    for (name, range, words) in [
        ("short", 0..1, "ranges.safetensors: it has no tensor `short`"),
        ("u8", 19..21, "`u8` has 20 elements; asked for 19..21"),
    ] {
        assert!(file.read(name, range).expect_err("absent").to_string().contains(words));
    }
    let bool = Tensor::zeros(2, DType::I16, &Device::Cpu).expect("zeros");
    let error = save_safetensors(&path, &[("x".to_owned(), bool)], &[]).expect_err("not saved").to_string();
    assert!(error.contains("`x` has element type i16"), "{error}");
    assert!(TensorFile::open(&path).is_ok(), "the old file is still there");
}

#[test]
fn headers_that_lie_are_told_before_anything_is_allocated() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("x.safetensors");
    let header = |text: &str, data: usize| {
        let mut bytes = (text.len() as u64).to_le_bytes().to_vec();
        bytes.extend(text.as_bytes());
        bytes.resize(bytes.len() + data, 0);
        bytes
    };
    let tensor = |dtype: &str, shape: &str, end: usize| {
        format!("{{\"w\":{{\"dtype\":\"{dtype}\",\"shape\":{shape},\"data_offsets\":[0,{end}]}}}}")
    };
    for (bytes, words) in [
        (Vec::new(), "its header is cut off"),
        (vec![9, 0, 0], "its header is cut off"),
        (u64::MAX.to_le_bytes().to_vec(), "its header is cut off"),
        (header("{\"w\": ", 0), "not a safetensors file"),
        (header(&tensor("F32", "[2]", 8), 7), "bytes instead of"),
        (header(&tensor("F32", "[2]", 8), 9), "bytes instead of"),
        (header(&tensor("F32", "[3]", 8), 8), "not a safetensors file"),
        (header(&tensor("F32", "[4611686018427387904, 4]", 8), 8), "not a safetensors file"),
    ] {
        fs::write(&path, bytes).expect("writes");
        let error = TensorFile::open(&path).expect_err(words).to_string();
        assert!(error.contains("x.safetensors: ") && error.contains(words), "{error}");
    }
    // A type that is not read is an error only where it is needed.
    fs::write(&path, header(&tensor("BOOL", "[8]", 8), 8)).expect("writes");
    let file = TensorFile::open(&path).expect("sound");
    assert_eq!((file.names().collect::<Vec<_>>(), file.tensors().count()), (vec!["w"], 0));
    let error = file.read("w", 0..8).expect_err("booleans").to_string();
    assert!(error.contains("x.safetensors: `w` has element type BOOL, which is not read"), "{error}");
}

#[test]
fn copies_of_parameters_are_no_larger_than_they() {
    // candle's copy of a view keeps a copy of the whole storage.
    let store = store(1);
    let mut adam = Adam::new((0.9, 0.999), 1e-8, 0.0);
    for param in store.buckets() {
        let zeros = FlatStorage::zeros(param.len(), param.dtype(), param.device()).expect("small");
        param.set_grads(&zeros).expect("fits");
    }
    adam.step(store.buckets(), 0.1, &Context::new(1)).expect("resident");
    let (_, state) = adam.state(store.buckets()).expect("small");
    for (name, tensor) in store.state_dict().expect("resident").into_iter().chain(state) {
        let held = match &*tensor.storage_and_layout().0 {
            Storage::Cpu(CpuStorage::F32(values)) => values.len(),
            _ => tensor.elem_count(),
        };
        assert_eq!(held, tensor.elem_count(), "{name}");
    }
}
