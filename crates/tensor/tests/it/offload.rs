//! Optimizer state in files: equal to state in memory to the bit, and errors that name their cause.

use std::path::Path;

use candle_core::{DType, Tensor};
use phalanx_tensor::optim::{
    Adam, Disk, Ema, Lamb, Lion, Muon, Optimizer, OptimizerState, Sgd, StateLocation,
};
use phalanx_tensor::{
    BuildOptions, ComputeDevice, Context, Init, Key, ParamBucket, ParamStore, Session, StoreBuilder, Tape,
    TensorError, ops,
};

/// Makes three matrices, each in a bucket of its own.
fn store() -> ParamStore {
    let options = BuildOptions { bucket_bytes: 1, ..BuildOptions::default() };
    let builder = StoreBuilder::new(options);
    let root = builder.root();
    for (at, rows) in [5, 2, 7].into_iter().enumerate() {
        let scope = root.pp(at).block();
        scope.param("weight", (rows, 3), Init::Normal { mean: 0.0, std: 1.0 }).expect("a name of its own");
    }
    builder.build().expect("builds")
}

/// Sets gradients that depend on the weights, as those of their sum of squares do.
fn differentiate(store: &ParamStore, step: u64) {
    let session = Session::training(Context::new(1).into(), Key::new(1).step(step));
    let tape = Tape::recording(session);
    let mut total = None;
    for param in store.params() {
        let value = tape.param(param).expect("is there");
        let squares = ops::sum(&tape, &ops::mul(&tape, &value, &value).expect("multiplies")).expect("sums");
        total = Some(match total {
            Some(total) => ops::add(&tape, &total, &squares).expect("adds"),
            None => squares,
        });
    }
    store.buckets().iter().for_each(ParamBucket::zero_grads);
    tape.backward(&total.expect("some")).expect("differentiates");
}

fn bits(tensors: &[(String, Tensor)]) -> Vec<(String, Vec<u32>)> {
    let numbers =
        |tensor: &Tensor| tensor.flatten_all().and_then(|flat| flat.to_vec1::<f32>()).expect("numbers");
    let bits = |(name, tensor): &(String, Tensor)| {
        (name.clone(), numbers(tensor).into_iter().map(f32::to_bits).collect())
    };
    tensors.iter().map(bits).collect()
}

type Make = fn(StateLocation) -> Box<dyn Optimizer>;

const OPTIMIZERS: &[(&str, Make)] = &[
    ("AdamW", |at| Box::new(Adam::decoupled((0.9, 0.99), 1e-8, 0.1).with_state_location(at))),
    ("Lion", |at| Box::new(Lion::new((0.9, 0.99), 0.1).with_state_location(at))),
    ("LAMB", |at| Box::new(Lamb::new((0.9, 0.999), 1e-6, 0.1).with_state_location(at))),
    ("Muon", |at| Box::new(Muon::new(0.95, (0.9, 0.99), 1e-8, 0.1).with_state_location(at))),
    ("SGD with momentum", |at| Box::new(Sgd::new(0.9, true, 0.1).with_state_location(at))),
    ("SGD", |at| Box::new(Sgd::new(0.0, false, 0.1).with_state_location(at))),
];

#[test]
fn state_in_files_has_the_numbers_of_state_in_memory() {
    let folder = tempfile::tempdir().expect("a folder");
    let context = Context::new(1);
    for (name, make) in OPTIMIZERS {
        let files = folder.path().join("state");
        let at_files = || StateLocation::Disk(Disk::new(&files).expect("a folder"));
        // Other processes have state there.
        let other = Disk::new(&files).expect("a folder");
        let mut ended = Vec::new();
        for at in [StateLocation::Parameters, at_files()] {
            let on_disk = matches!(at, StateLocation::Disk(_));
            let store = store();
            assert_eq!(store.buckets().len(), 3, "there is something to read ahead");
            let params = store.buckets();
            let (mut optimizer, mut ema) = (make(at.clone()), Ema::new(0.9).with_state_location(at));
            optimizer.reserve(params).expect("has room");
            for step in 0..6 {
                if step == 3 {
                    // Continues from a checkpoint.
                    let (steps, saved) = optimizer.state(params).expect("is read");
                    let (updates, averages) = ema.state(params).expect("is read");
                    let at =
                        if on_disk { at_files_in(folder.path(), "later") } else { StateLocation::Parameters };
                    (optimizer, ema) = (make(at.clone()), Ema::new(0.9).with_state_location(at));
                    optimizer.load_state(params, steps, &saved).expect("fits");
                    ema.load_state(params, updates, &averages).expect("fits");
                    let left = std::fs::read_dir(&files).expect("is there").count();
                    assert!(!on_disk || left == 1, "files go with what they are of, and no others");
                }
                differentiate(&store, step);
                optimizer.step(params, 0.1, &context).expect("steps");
                ema.update(params, &context).expect("updates");
                if step == 4 {
                    ema.swap(params).expect("exchanges");
                    ema.swap(params).expect("exchanges back");
                }
            }
            assert!(!on_disk || optimizer.state_bytes() + ema.bytes() == 0, "{name} holds nothing");
            let weights: Vec<_> = store
                .params()
                .iter()
                .map(|param| (param.name().to_owned(), param.tensor().expect("is there")))
                .collect();
            let (_, saved) = optimizer.state(params).expect("is read");
            let (_, averages) = ema.state(params).expect("is read");
            ended.push([bits(&weights), bits(&saved), bits(&averages)]);
        }
        assert_eq!(ended[0], ended[1], "{name}");
        assert!(other.folder().is_dir());
        drop(other);
        assert!(!files.exists(), "folders that were made go too");
    }
}

fn at_files_in(folder: &Path, name: &str) -> StateLocation {
    StateLocation::Disk(Disk::new(folder.join(name)).expect("a folder"))
}

#[test]
fn errors_of_files_name_them() {
    let folder = tempfile::tempdir().expect("a folder");
    let taken = folder.path().join("taken");
    std::fs::write(&taken, "a file").expect("writes");
    let error = Disk::new(taken.join("state")).expect_err("no folder can be there").to_string();
    assert!(error.contains("taken"), "{error}");

    let store = store();
    let param = &store.buckets()[0];
    let disk = Disk::new(folder.path().join("state")).expect("a folder");
    let file = disk.folder().join("moment-0");
    let mut state = OptimizerState::new("moment").kept_at(StateLocation::Disk(disk));
    let opened = state.open(param).expect("zeros");
    state.close(param, opened).expect("is written");
    assert_eq!(state.open(param).expect("is read").len(), param.owned().len());
    // Truncated, deleted, and blocked by a folder.
    std::fs::write(&file, [0; 8]).expect("writes");
    let error = state.open(param).map(drop).expect_err("is too short");
    assert!(matches!(&error, TensorError::Io { action: "read", path, .. } if *path == file), "{error}");
    std::fs::remove_file(&file).expect("removes");
    assert!(state.open(param).is_err());
    std::fs::create_dir(&file).expect("makes a folder");
    let zeros = phalanx_tensor::FlatStorage::zeros(param.owned().len(), DType::F32, &ComputeDevice::host())
        .expect("zeros");
    let failed = (0..100).find_map(|_| {
        std::thread::sleep(std::time::Duration::from_millis(10));
        state.close(param, zeros.clone()).err()
    });
    let error = failed.expect("it cannot be written");
    assert!(matches!(&error, TensorError::Io { action: "write", path, .. } if *path == file), "{error}");
}
