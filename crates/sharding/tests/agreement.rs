//! Ranks × batch gives the loss curve of one rank with the whole batch.

use std::net::TcpListener;
use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use phalanx_collectives::{Communicator, WorldConfig, connect_with_listener, threads};
use phalanx_models::{ClipTextConfig, CvaeConfig, ResNet, ResNetConfig, ResNetVariant, TextToImage};
use phalanx_sharding::{DataParallel, Options, Overlap, ShardingError, Strategy};
use phalanx_tensor::loss::{self, Over};
use phalanx_tensor::optim::{Adam, Optimizer, Sgd};
use phalanx_tensor::{
    BuildOptions, CandleModule, Context, Init, Key, ParamStore, Precision, Recompute, Session, StoreBuilder,
    Tape, Value,
};

type AnyError = Box<dyn std::error::Error + Send + Sync>;

const GLOBAL: usize = 8;
const STEPS: u64 = 10;

fn draw(name: &str, step: u64, dims: &[usize]) -> Tensor {
    let mut values = vec![0.0; dims.iter().product()];
    Key::new(5).stream(name).step(step).normal(0, &mut values);
    Tensor::from_vec(values, dims, &Device::Cpu).and_then(|t| t.to_dtype(DType::F32)).expect("a constant")
}

/// What is trained: with batch norm, which must be synchronised, or without, with noise drawn by sample.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Subject {
    ResNet,
    Cvae,
}

enum Model {
    ResNet(ResNet),
    Cvae(TextToImage),
}

fn build(subject: Subject, fill: bool) -> Result<(Model, ParamStore), AnyError> {
    let builder = StoreBuilder::new(BuildOptions { key: Key::new(3), fill, ..Default::default() });
    let model = match subject {
        Subject::ResNet => {
            let config = ResNetConfig {
                width: 4,
                cifar_stem: true,
                sync_batch_norm: true,
                ..ResNetConfig::new(ResNetVariant::R18, 4)
            };
            Model::ResNet(ResNet::new(&builder.root(), &config)?)
        }
        Subject::Cvae => {
            let text = ClipTextConfig { context: 8, vocab: 12, width: 8, heads: 2, layers: 1, embed: 6 };
            let cvae = CvaeConfig { image_size: 8, widths: vec![4, 6], latent: 5, text_dim: 6 };
            Model::Cvae(TextToImage::new(&builder.root(), &text, &cvae, false)?)
        }
    };
    Ok((model, builder.build()?))
}

/// Trains one rank on samples `range` of every global batch; the global losses.
fn train(subject: Subject, comm: Communicator, recompute: Recompute) -> Result<Vec<f64>, AnyError> {
    train_by("ddp", subject, comm, (recompute, Precision::F32), Options::default())
}

/// Trains by any strategy.
fn train_by(
    strategy: &str,
    subject: Subject,
    comm: Communicator,
    (recompute, precision): (Recompute, Precision),
    options: Options,
) -> Result<Vec<f64>, AnyError> {
    // Parts are filled where they are held.
    let (model, store) = build(subject, strategy == "ddp")?;
    let (rank, world) = (comm.rank(), comm.world_size());
    let range = rank * GLOBAL / world..(rank + 1) * GLOBAL / world;
    let (ahead, bound) = (options.prefetch, options.gathered_bytes);
    let alone = options.bucket_bytes == 0;
    let parallel = DataParallel::with_options(&store, comm, Strategy::named(strategy)?, options)?;
    let sharded = world > 1 && strategy == "fsdp";
    let context = Arc::new(Context::new(1).with_products(precision.products()));
    let mut optimizer: Box<dyn Optimizer> = match subject {
        Subject::ResNet => Box::new(Sgd::new(0.9, false, 5e-4)),
        Subject::Cvae => Box::new(Adam::new((0.9, 0.999), 1e-8, 0.0)),
    };
    let mut losses = Vec::new();
    for step in 0..STEPS {
        let session = Session {
            listener: Some(parallel.clone()),
            batch_group: Some(parallel.batch_group()),
            sample_offset: range.start,
            recompute,
            precision,
            ..Session::training(context.clone(), Key::new(9).step(step))
        };
        let tape = Tape::recording(session);
        store.zero_grads();
        let part = |tensor: Tensor| tensor.narrow(0, range.start, range.len())?.contiguous();
        let images = Value::constant(part(draw("images", step % 3, &[GLOBAL, 3, 8, 8]))?);
        let loss = match &model {
            Model::ResNet(model) => {
                let labels: Vec<u32> = range.clone().map(|i| (i % 4) as u32).collect();
                loss::cross_entropy(
                    &tape,
                    &model.forward(&tape, &images)?,
                    &labels,
                    0.1,
                    Over::Count(GLOBAL),
                )?
            }
            Model::Cvae(model) => {
                let row = |i: usize| [10, 1 + (i % 3) as u32, 4 + (i % 5) as u32, 11];
                let ids: Vec<u32> = (0..GLOBAL).flat_map(row).collect();
                let ids = Tensor::from_vec(ids, (GLOBAL, 4), &Device::Cpu)?;
                let out = model.forward(&tape, &images, &part(ids)?)?;
                out.loss(&tape, &images, (0.1, 0.1), Over::Count(GLOBAL))?.total
            }
        };
        tape.backward(&loss)?;
        parallel.finish_gradients()?;
        let mut global = [f64::from(loss.tensor()?.to_scalar::<f32>()?)];
        parallel.sum_scalars(&mut global)?;
        losses.push(global[0]);
        optimizer.step(&parallel.units(), 0.01, &context)?;
        parallel.finish_update()?;
        if sharded {
            // Between steps nothing but this rank's parts is there.
            let whole: u64 = store.units().iter().map(|unit| unit.bytes() as u64).sum();
            let slack = 8 * store.units().len() as u64;
            assert!(parallel.bytes()[0] <= whole / world as u64 + slack, "{:?} of {whole}", parallel.bytes());
        }
    }
    if sharded && alone {
        // In passing at most the block that is used, the one that it follows and those gathered ahead were whole.
        let blocks: std::collections::BTreeSet<&str> =
            store.units().iter().map(phalanx_tensor::Unit::block).collect();
        let of_block =
            |block: &&str| store.units_of_block(block).map(|unit| unit.bytes() as u64).sum::<u64>();
        let mut sizes: Vec<u64> = blocks.iter().map(of_block).collect();
        sizes.sort_unstable_by(|a, b| b.cmp(a));
        let most =
            sizes.iter().take(2).sum::<u64>() + sizes.iter().take(ahead).sum::<u64>().min(bound as u64);
        let peak = parallel.peak_gathered_bytes();
        assert!(peak > 0 && peak <= most, "{peak} bytes of {sizes:?}, {ahead} ahead, at most {bound}");
    }
    Ok(losses)
}

/// Sizes of messages, buckets ahead, bytes ahead, and whether communication runs beside computing.
const OPTIONS: [(usize, usize, usize, Overlap); 5] = [
    (1 << 20, 1, usize::MAX, Overlap::Auto),
    (0, 1, usize::MAX, Overlap::Always),
    (1500, 2, usize::MAX, Overlap::Always),
    (0, 3, 0, Overlap::Always),
    (1500, 2, usize::MAX, Overlap::Never),
];

fn options((bucket_bytes, prefetch, gathered_bytes, overlap): (usize, usize, usize, Overlap)) -> Options {
    Options { bucket_bytes, prefetch, gathered_bytes, overlap, ..Options::default() }
}

#[test]
fn what_is_sharded_does_not_change_a_bit() {
    for subject in [Subject::ResNet, Subject::Cvae] {
        for world in [1, 2, 3, 4] {
            for how in [
                (Recompute::Never, Precision::F32),
                (Recompute::Every(1), Precision::F32),
                (Recompute::Every(2), Precision::Bf16),
            ] {
                let run = |strategy: &'static str, chosen| {
                    on_ranks(threads(world).expect("threads"), move |comm| {
                        train_by(strategy, subject, comm, how, options(chosen))
                    })
                };
                let expected = run("ddp", OPTIONS[0]);
                let what = format!("{subject:?} on {world}, {how:?}");
                for (at, strategy) in ["dp", "zero1", "zero2", "fsdp"].into_iter().enumerate() {
                    assert_eq!(
                        run(strategy, OPTIONS[(at + world) % OPTIONS.len()]),
                        expected,
                        "{strategy}: {what}"
                    );
                }
                if how.1 != Precision::F32 {
                    continue;
                }
                // Groups add in another order.
                for (rank, curve) in run("hsdp", OPTIONS[world % OPTIONS.len()]).iter().enumerate() {
                    close(curve, &expected[rank], &format!("hsdp: {what}"));
                }
                if how.0 == Recompute::Never {
                    for chosen in OPTIONS {
                        for strategy in ["ddp", "fsdp"] {
                            assert_eq!(run(strategy, chosen), expected, "{strategy}: {what}, {chosen:?}");
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn a_hook_sends_half_the_bytes_under_every_strategy() {
    let run = |strategy: &'static str, hook: &'static str| {
        on_ranks(threads(2).expect("threads"), move |comm| {
            let hook = phalanx_sharding::hook_named(hook)?;
            let sent = comm.clone();
            let options = Options { hook, ..Options::default() };
            let mut curve =
                train_by(strategy, Subject::Cvae, comm, (Recompute::Never, Precision::F32), options)?;
            curve.push(sent.stats().bytes_sent as f64);
            Ok(curve)
        })
        .remove(0)
    };
    let mut exact = run("ddp", "none");
    let exact_bytes = exact.pop().expect("bytes");
    for strategy in ["ddp", "zero2", "fsdp"] {
        let mut rounded = run(strategy, "bf16");
        let bytes = rounded.pop().expect("bytes");
        assert_ne!(rounded, exact, "{strategy}: gradients were rounded");
        for (a, b) in rounded.iter().zip(&exact) {
            assert!((a - b).abs() <= 1e-2 * b.abs(), "{strategy}: {rounded:?} and {exact:?}");
        }
        if strategy == "ddp" {
            assert!(bytes < 0.6 * exact_bytes, "{bytes} bytes of {exact_bytes}");
        }
    }
    let error = phalanx_sharding::hook_named("fp4").expect_err("no such hook").to_string();
    assert_eq!(error, "communication hook `fp4` is unknown; there is: none, bf16");
}

fn on_ranks(
    ranks: Vec<Communicator>,
    f: impl Fn(Communicator) -> Result<Vec<f64>, AnyError> + Clone + Send + 'static,
) -> Vec<Vec<f64>> {
    let running: Vec<_> = ranks
        .into_iter()
        .map(|comm| {
            let f = f.clone();
            std::thread::spawn(move || f(comm).map_err(|error| error.to_string()))
        })
        .collect();
    running.into_iter().map(|rank| rank.join().expect("no panic").expect("training works")).collect()
}

fn close(a: &[f64], b: &[f64], what: &str) {
    for (step, (a, b)) in a.iter().zip(b).enumerate() {
        assert!((a - b).abs() <= 1e-4 * b.abs(), "{what}, step {step}: {a} and {b}");
    }
}

#[test]
fn any_number_of_ranks_gives_the_curve_of_one() {
    for subject in [Subject::ResNet, Subject::Cvae] {
        let run = |world: usize, recompute| {
            on_ranks(threads(world).expect("threads"), move |comm| train(subject, comm, recompute))
        };
        let single = run(1, Recompute::Never).remove(0);
        assert!(single[9] < single[0], "{subject:?} learns: {single:?}");
        for world in [2, 3, 4] {
            for (rank, curve) in run(world, Recompute::Never).iter().enumerate() {
                close(curve, &single, &format!("{subject:?} on rank {rank} of {world}"));
            }
        }
        let recomputed = run(2, Recompute::Every(1));
        close(&recomputed[0], &single, &format!("{subject:?} recomputed on 2 ranks"));
    }
}

#[test]
fn processes_and_threads_give_the_same_bits() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = listener.local_addr().expect("bound").port();
    let mut listener = Some(listener);
    let joining: Vec<_> = (0..2)
        .map(|rank| {
            let listener = if rank == 0 { listener.take() } else { None };
            let config = WorldConfig::local(rank, 2, port);
            std::thread::spawn(move || connect_with_listener(&config, listener).expect("both come"))
        })
        .collect();
    let tcp = joining.into_iter().map(|rank| rank.join().expect("no panic")).collect();
    let over_tcp = on_ranks(tcp, |comm| train(Subject::ResNet, comm, Recompute::Never));
    let in_process =
        on_ranks(threads(2).expect("threads"), |comm| train(Subject::ResNet, comm, Recompute::Never));
    assert_eq!(over_tcp, in_process);
}

#[test]
fn gradients_travel_while_backward_still_runs() {
    // One block after the other reports; the reduction of the last starts before the first is differentiated.
    #[derive(Debug)]
    struct Both(Arc<DataParallel>, std::sync::Mutex<Vec<u64>>);
    impl phalanx_tensor::Listener for Both {
        fn gradients_ready(&self, unit: &phalanx_tensor::Unit) -> phalanx_tensor::HookResult {
            self.0.gradients_ready(unit)?;
            // The single rank's operations finish at once, so those that were started are soon counted.
            std::thread::sleep(std::time::Duration::from_millis(20));
            self.1.lock().expect("no panic").push(self.0.communicator().stats().operations);
            Ok(())
        }
    }
    let comm = threads(1).expect("threads").remove(0);
    let (model, store) = build(Subject::ResNet, true).expect("sound");
    let Model::ResNet(model) = model else { unreachable!("asked for a ResNet") };
    let options = Options { bucket_bytes: 0, ..Options::default() };
    let row = Strategy::named("ddp").expect("a row");
    let parallel = DataParallel::with_options(&store, comm, row, options).expect("alone");
    let before = parallel.communicator().stats().operations;
    let both = Arc::new(Both(parallel.clone(), std::sync::Mutex::default()));
    let session =
        Session { listener: Some(both.clone()), ..Session::training(Arc::new(Context::new(1)), Key::new(0)) };
    let tape = Tape::recording(session);
    let logits = model.forward(&tape, &Value::constant(draw("x", 0, &[2, 3, 8, 8]))).expect("sound");
    tape.backward(&loss::cross_entropy(&tape, &logits, &[0, 1], 0.0, Over::Batch).expect("sound"))
        .expect("sound");
    let seen = both.1.lock().expect("no panic").clone();
    let expected: Vec<u64> = (1..=store.units().len() as u64).map(|i| before + i).collect();
    assert_eq!(seen, expected);
    parallel.finish_gradients().expect("alone");
}

#[test]
fn different_models_are_told_apart() {
    let running: Vec<_> = threads(2)
        .expect("threads")
        .into_iter()
        .map(|comm| {
            std::thread::spawn(move || {
                let builder = StoreBuilder::new(BuildOptions::default());
                let width = 3 + comm.rank();
                builder.root().pp("fc").param("weight", (2, width), Init::ZEROS).expect("a new name");
                let store = builder.build().expect("small");
                DataParallel::new(&store, comm, Strategy::named("ddp").expect("a row")).map(drop)
            })
        })
        .collect();
    for rank in running {
        match rank.join().expect("no panic") {
            Err(ShardingError::ModelsDiffer { rank: 1, difference }) => {
                assert_eq!(
                    difference,
                    "`fc.weight [2, 4] (trainable)` where rank 0 has `fc.weight [2, 3] (trainable)`"
                );
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn parts_of_different_initial_values_are_told_apart() {
    let running: Vec<_> = threads(2)
        .expect("threads")
        .into_iter()
        .map(|comm| {
            std::thread::spawn(move || {
                let key = Key::new(comm.rank() as u64);
                let builder = StoreBuilder::new(BuildOptions { key, fill: false, ..Default::default() });
                builder
                    .root()
                    .pp("fc")
                    .block()
                    .param("weight", (2, 3), Init::TorchDefault)
                    .expect("a new name");
                let store = builder.build().expect("small");
                DataParallel::new(&store, comm, Strategy::named("fsdp").expect("a row")).map(drop)
            })
        })
        .collect();
    for rank in running {
        match rank.join().expect("no panic") {
            Err(ShardingError::ModelsDiffer { rank: 1, difference }) => {
                assert!(difference.contains("initial values"), "{difference}");
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_candle_model_trains_the_same_under_every_strategy() {
    use candle_nn::Module as _;
    let run = |strategy: &'static str| {
        on_ranks(threads(2).expect("threads"), move |comm| {
            let (rank, world) = (comm.rank(), comm.world_size());
            let builder = StoreBuilder::new(BuildOptions::default());
            let layer = |name: &str, from: usize, to: usize| {
                CandleModule::register(&builder.root().pp(name).block(), move |vb| {
                    candle_nn::linear(from, to, vb)
                })
            };
            let layers = [layer("hidden", 3, 7)?, layer("out", 7, 2)?];
            let store = builder.build()?;
            // candle draws from a generator without a seed.
            for param in store.params() {
                param.set(&draw(param.name(), 0, param.dims()))?;
            }
            let parallel = DataParallel::new(&store, comm, Strategy::named(strategy)?)?;
            let context = Arc::new(Context::new(1));
            let mut adam = Adam::new((0.9, 0.999), 1e-8, 0.01);
            let mut losses = Vec::new();
            for step in 0..5 {
                let session = Session::training(context.clone(), Key::new(1).step(step));
                let tape = Tape::recording(Session { listener: Some(parallel.clone()), ..session });
                let input =
                    Value::constant(draw("input", step, &[4, 3]).narrow(0, 2 * rank, 2)?.contiguous()?);
                let hidden = layers[0].forward(&tape, &[&input], |layer, x| layer.forward(&x[0])?.tanh())?;
                let output = layers[1].forward(&tape, &[&hidden], |layer, x| layer.forward(&x[0]))?;
                let target = Value::constant(Tensor::ones((2, 2), DType::F32, &Device::Cpu)?);
                let loss = loss::mse(&tape, &output, &target, Over::Count(2 * world))?;
                tape.backward(&loss)?;
                parallel.finish_gradients()?;
                adam.step(&parallel.units(), 0.05, &context)?;
                parallel.finish_update()?;
                store.zero_grads();
                let mut global = [f64::from(loss.tensor()?.to_scalar::<f32>()?)];
                parallel.sum_scalars(&mut global)?;
                losses.push(global[0]);
            }
            Ok(losses)
        })
    };
    let expected = run("ddp");
    assert!(expected[0][4] < expected[0][0], "it learns: {expected:?}");
    for strategy in ["zero1", "zero2", "fsdp"] {
        assert_eq!(run(strategy), expected, "{strategy}");
    }
}
