//! The bytes that a rank reads and holds while it resumes: its shards, never the whole.

use candle_core::Tensor;
use phalanx_checkpoint::{Checkpoint, MODEL, NewFile, NewPiece, Region, StagingFolder};
use phalanx_collectives::{Communicator, threads};
use phalanx_models::{ResNet, ResNetConfig, ResNetVariant};
use phalanx_sharding::{DataParallel, Observed as _, ParallelStrategy as _, Residency as _, Strategy};
use phalanx_tensor::optim::{Adam, Optimizer};
use phalanx_tensor::{BuildOptions, Context, Key, ParamBucket, ParamStore, StoreBuilder};
use serde_json::Map;

fn model(seed: u64, fill: bool) -> ParamStore {
    let builder = StoreBuilder::new(BuildOptions { key: Key::new(seed), fill, ..Default::default() });
    let config = ResNetConfig { width: 8, cifar_stem: true, ..ResNetConfig::new(ResNetVariant::R18, 10) };
    ResNet::new(&builder.root(), &config).expect("a model");
    builder.build().expect("a store")
}

/// A checkpoint of a whole model and of an optimizer's state, in one file each.
fn saved(store: &ParamStore, optimizer: &Adam, folder: &std::path::Path) -> Checkpoint {
    let piece = |kind: &str, name: &str, key: &str, values: Tensor| NewPiece {
        kind: kind.to_owned(),
        name: name.to_owned(),
        shape: values.dims().to_vec(),
        region: Region::whole(values.dims()),
        key: key.to_owned(),
        values,
    };
    let model = store.state_dict().expect("resident");
    let model = model.into_iter().map(|(name, values)| piece(MODEL, &name, &name, values)).collect();
    let (_, state) = optimizer.state(store.buckets()).expect("a state");
    let of = |(key, values): (String, Tensor)| {
        let (kind, name) = key.split_once('.').expect("kind and name");
        piece(kind, name, &key, values)
    };
    let state = state.into_iter().map(of).collect();
    let file = |name: &str, pieces| NewFile { name: format!("{name}.safetensors"), pieces };
    let staging = StagingFolder::create(folder, 1, 1).expect("a folder");
    staging.write(0, vec![file("model", model), file("optimizer", state)]).expect("writes");
    staging.commit(1, Map::new(), 1).expect("completes")
}

/// An optimizer whose state is not zero.
fn stepped(store: &ParamStore) -> Adam {
    let mut optimizer = Adam::new((0.9, 0.999), 1e-8, 0.0);
    for param in store.buckets().iter().filter(|param| param.trainable()) {
        param.set_grads(&param.values().expect("resident")).expect("fits");
    }
    optimizer.step(store.buckets(), 0.1, &Context::new(1)).expect("steps");
    optimizer
}

fn flat(tensor: &Tensor) -> Vec<f32> {
    tensor.flatten_all().and_then(|flat| flat.to_vec1()).expect("f32")
}

/// Compares what a rank keeps with what was saved.
fn check(param: &ParamBucket, saved: &ParamStore) {
    let (values, entries) = param.kept().expect("values");
    for entry in entries {
        let whole = flat(&saved.param(&entry.name).expect("a parameter").tensor().expect("resident"));
        assert_eq!(
            flat(&values.tensor().expect("on the CPU"))[entry.range.clone()],
            whole[entry.part.clone()],
            "{}",
            entry.name
        );
    }
}

/// Loads as one rank of a strategy; bytes read of the model and of the optimizer's state.
fn load(strategy: &str, comm: Communicator, folder: &std::path::Path, expected: &ParamStore) -> [u64; 2] {
    let store = model(2, false);
    let world = comm.world_size();
    let parallel =
        DataParallel::new(&store, comm, Strategy::named(strategy).expect("a row")).expect("shares");
    let checkpoint = Checkpoint::open(&folder.join("step-00000001")).expect("complete");
    let reader = checkpoint.reader();
    let before = parallel.bytes();
    reader.read_model(&store).expect("reads");
    let of_model = reader.bytes_read();
    assert_eq!(parallel.bytes(), before, "no memory but what was there");
    let mut optimizer = Adam::new((0.9, 0.999), 1e-8, 0.0);
    for param in parallel.params() {
        for kind in ["exp_avg", "exp_avg_sq"] {
            let state = reader.state_of(kind, param).expect("reads");
            let bytes: usize = state.iter().map(|(_, part)| part.elem_count() * 4).sum();
            assert!(bytes <= 4 * param.owned().len(), "no more than what the rank owns");
            optimizer.load_state(std::slice::from_ref(param), 1, &state).expect("fits");
        }
    }
    let of_state = reader.bytes_read() - of_model;
    parallel.broadcast_state(&store).expect("equal");
    if strategy == "fsdp" && world > 1 {
        let mut inside = store.buckets().iter().filter(|param| !param.is_outside());
        assert!(inside.all(|param| param.values().is_none()), "nothing was gathered");
        let whole: u64 = store.buckets().iter().map(|param| param.bytes() as u64).sum();
        assert!(parallel.bytes().parameters <= whole / world as u64 + 8 * store.buckets().len() as u64);
    }
    store.buckets().iter().for_each(|param| check(param, expected));
    // And the whole is what was saved, buffers too.
    parallel.unshard().expect("gathers");
    for ((name, found), (_, expected)) in
        store.state_dict().expect("resident").iter().zip(expected.state_dict().expect("resident"))
    {
        assert!(flat_of(found) == flat_of(&expected), "{strategy} on {world}: {name}");
    }
    [of_model, of_state]
}

fn flat_of(tensor: &Tensor) -> Vec<f64> {
    let flat = tensor.flatten_all().and_then(|flat| flat.to_dtype(candle_core::DType::F64));
    flat.and_then(|flat| flat.to_vec1()).expect("numbers")
}

#[test]
fn a_rank_reads_and_holds_its_share() {
    let folder = tempfile::tempdir().expect("a folder");
    let first = model(1, true);
    let optimizer = stepped(&first);
    let checkpoint = saved(&first, &optimizer, folder.path());
    let bytes = |name: &str| {
        checkpoint.index().files.iter().find(|file| file.name.starts_with(name)).expect("a file").bytes
    };
    for (strategy, world) in [("ddp", 2), ("zero1", 3), ("fsdp", 3), ("fsdp", 4), ("hsdp", 4)] {
        let (sharded, sharers) = match strategy {
            "ddp" => (1, 1),
            "zero1" => (1, world),
            "fsdp" => (world, world),
            _ => (2, 2),
        };
        let running: Vec<_> = threads(world)
            .expect("threads")
            .into_iter()
            .map(|comm| {
                let folder = folder.path().to_owned();
                std::thread::spawn(move || {
                    // The same values as those saved, without sharing memory with them.
                    let expected = model(1, true);
                    stepped(&expected);
                    load(strategy, comm, &folder, &expected)
                })
            })
            .collect();
        for rank in running {
            let [of_model, of_state] = rank.join().expect("no panic");
            // Headers and buffers, which every rank reads, and the rounding of each shard.
            let slack = 24 << 10;
            assert!(of_model <= bytes("model") / sharded as u64 + slack, "{strategy}: {of_model}");
            assert!(of_state <= bytes("optimizer") / sharers as u64 + slack, "{strategy}: {of_state}");
        }
    }
    assert!(bytes("model") > 500 << 10, "large against the slack: {}", bytes("model"));
}
