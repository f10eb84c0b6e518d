//! Ranks × batch gives the loss curve of one rank with the whole batch.

use std::net::TcpListener;
use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use phalanx_collectives::{Communicator, WorldConfig, connect_with_listener, threads};
use phalanx_models::{ClipTextConfig, CvaeConfig, ResNet, ResNetConfig, ResNetVariant, TextToImage};
use phalanx_sharding::{
    CodecKind, CodecScope, CodecSettings, DataParallel, Observed as _, Options, Overlap,
    RankCollectives as _, ShardingError, Strategy, WeightRounding,
};
use phalanx_tensor::loss::{self, LossDivisor};
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

/// The model: one with batch norm, which must be synchronised, or one without, with noise drawn by sample.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Subject {
    ResNet,
    Cvae,
}

enum Model {
    ResNet(ResNet),
    Cvae(TextToImage),
}

fn build(subject: Subject, fill: bool, bucket_bytes: usize) -> Result<(Model, ParamStore), AnyError> {
    let options = BuildOptions { key: Key::new(3), fill, bucket_bytes, ..Default::default() };
    let builder = StoreBuilder::new(options);
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
            let text = ClipTextConfig {
                context: 8,
                vocab: 12,
                width: 8,
                heads: 2,
                layers: 1,
                embed: 6,
                causal: true,
            };
            let cvae = CvaeConfig { image_size: 8, widths: vec![4, 6], latent: 5, text_dim: 6 };
            Model::Cvae(TextToImage::new(&builder.root(), &text, &cvae, false)?)
        }
    };
    Ok((model, builder.build()?))
}

/// Trains one rank on samples `range` of every global batch; the global losses.
fn train(subject: Subject, comm: Communicator, recompute: Recompute) -> Result<Vec<f64>, AnyError> {
    train_by("ddp", subject, comm, (recompute, Precision::F32), (1 << 20, Options::default()))
}

/// Trains one rank by a strategy, with messages of these bytes; the global losses.
fn train_by(
    strategy: &str,
    subject: Subject,
    comm: Communicator,
    (recompute, precision): (Recompute, Precision),
    (bucket_bytes, options): (usize, Options),
) -> Result<Vec<f64>, AnyError> {
    // Shards are filled where they are held.
    let (model, store) = build(subject, strategy == "ddp", bucket_bytes)?;
    let (rank, world) = (comm.rank(), comm.world_size());
    let range = rank * GLOBAL / world..(rank + 1) * GLOBAL / world;
    let (ahead, bound) = (options.prefetch, options.gathered_bytes);
    let alone = bucket_bytes == 0;
    let row = Strategy::named(strategy)?;
    let parallel = DataParallel::with_options(
        &store,
        phalanx_sharding::ProcessMesh::suiting(comm, &row, 0)?,
        row,
        options,
    )?;
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
            batch_group: Some(parallel.batch_group(world)?),
            sample_offset: range.start,
            recompute,
            precision,
            ..Session::training(context.clone(), Key::new(9).step(step))
        };
        let tape = Tape::recording(session);
        let under_way = parallel.begin_step()?;
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
                    LossDivisor::Count(GLOBAL),
                )?
            }
            Model::Cvae(model) => {
                let row = |i: usize| [10, 1 + (i % 3) as u32, 4 + (i % 5) as u32, 11];
                let ids: Vec<u32> = (0..GLOBAL).flat_map(row).collect();
                let ids = Tensor::from_vec(ids, (GLOBAL, 4), &Device::Cpu)?;
                let out = model.forward(&tape, &images, &part(ids)?)?;
                out.loss(&tape, &images, (0.1, 0.1), LossDivisor::Count(GLOBAL))?.total
            }
        };
        tape.backward(&loss)?;
        let reduced = under_way.reduce()?;
        let mut global = [f64::from(loss.tensor()?.to_scalar::<f32>()?)];
        parallel.sum(&mut global)?;
        losses.push(global[0]);
        reduced.update(|params| optimizer.step(params, 0.01, &context))?;
        check_bytes(strategy, &parallel, &store);
    }
    if sharded && alone {
        // In passing at most the block that is used, the one that it follows and those gathered ahead were whole.
        let mut blocks = std::collections::BTreeMap::<&str, u64>::new();
        for param in store.buckets() {
            *blocks.entry(param.blocks().next().unwrap_or("")).or_default() += param.bytes() as u64;
        }
        let mut sizes: Vec<u64> = blocks.into_values().collect();
        sizes.sort_unstable_by(|a, b| b.cmp(a));
        let most =
            sizes.iter().take(2).sum::<u64>() + sizes.iter().take(ahead).sum::<u64>().min(bound as u64);
        let peak = parallel.peak_gathered_bytes();
        assert!(peak > 0 && peak <= most, "{peak} bytes of {sizes:?}, {ahead} ahead, at most {bound}");
    }
    Ok(losses)
}

/// Between steps a rank holds of parameters and gradients what the strategy's name says: all, or its share. Counted in bytes,
/// with what parts may be larger than their share by.
fn check_bytes(strategy: &str, parallel: &DataParallel, store: &ParamStore) {
    let role = parallel.role();
    let whole: u64 = store.buckets().iter().map(|param| param.bytes() as u64).sum();
    let outside = store.buckets().iter().filter(|param| param.is_outside());
    let outside: u64 = outside.map(|param| param.bytes() as u64).sum();
    let (share, slack) = (whole / role.shards as u64, 8 * store.buckets().len() as u64);
    let held = parallel.bytes();
    let near = |bytes: u64, expected: u64| bytes.abs_diff(expected) <= slack;
    let [parameters, gradients] = match strategy {
        "dp" => [held.parameters == whole, held.gradients == if role.shard == 0 { whole } else { 0 }],
        "ddp" | "zero1" => [held.parameters == whole, held.gradients == whole],
        "zero2" => [held.parameters == whole, near(held.gradients, share)],
        "fsdp" | "hsdp" => {
            let resident = if role.shards == 1 { 0 } else { outside - outside / role.shards as u64 };
            [near(held.parameters, share + resident), near(held.gradients, share)]
        }
        other => panic!("unknown strategy {other}"),
    };
    assert!(parameters && gradients && held.wire == 0, "{strategy}: {held:?} of {whole}, shares of {share}");
}

/// Sizes of messages, buckets ahead, bytes ahead, and whether communication overlaps with computing.
const OPTIONS: [(usize, usize, usize, Overlap); 5] = [
    (1 << 20, 1, usize::MAX, Overlap::Auto),
    (0, 1, usize::MAX, Overlap::Always),
    (1500, 2, usize::MAX, Overlap::Always),
    (0, 3, 0, Overlap::Always),
    (1500, 2, usize::MAX, Overlap::Never),
];

fn options(chosen: (usize, usize, usize, Overlap)) -> (usize, Options) {
    let (bucket_bytes, prefetch, gathered_bytes, overlap) = chosen;
    (bucket_bytes, Options { prefetch, gathered_bytes, overlap, ..Options::default() })
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
fn bf16_sends_half_the_bytes_under_every_strategy() {
    let run = |strategy: &'static str, codec: &'static str| {
        on_ranks(threads(4).expect("threads"), move |comm| {
            let (model, store) = build(Subject::Cvae, false, 1500)?;
            let options = Options {
                codec: CodecSettings::from(codec.parse::<CodecKind>()?).codec()?,
                ..Options::default()
            };
            let row = Strategy::named(strategy)?;
            let parallel = DataParallel::with_options(
                &store,
                phalanx_sharding::ProcessMesh::suiting(comm, &row, 0)?,
                row,
                options,
            )?;
            let Model::Cvae(model) = model else { unreachable!("asked for a CVAE") };
            let context = Arc::new(Context::new(1));
            let session = Session {
                listener: Some(parallel.clone()),
                ..Session::training(context.clone(), Key::new(9))
            };
            let tape = Tape::recording(session);
            let images = Value::constant(draw("images", 0, &[2, 3, 8, 8]));
            let ids = Tensor::new(&[[10_u32, 1, 4, 11], [10, 2, 5, 11]], &Device::Cpu)?;
            let out = model.forward(&tape, &images, &ids)?;
            let loss = out.loss(&tape, &images, (0.1, 0.1), LossDivisor::Count(GLOBAL))?.total;
            let step = parallel.begin_step()?;
            let before = parallel.stats().bytes_sent;
            tape.backward(&loss)?;
            let reduced = step.reduce()?;
            let sent = parallel.stats().bytes_sent - before;
            let context = Context::new(1);
            let squares = phalanx_tensor::optim::grad_sum_of_squares(reduced.params(), &context)?;
            reduced.sum(&squares)?;
            check_bytes(strategy, &parallel, &store);
            Ok(vec![squares.number()?, sent as f64])
        })
    };
    // Backward of sharded parameters gathers them too, so bytes are compared of the others and of gathering alone.
    let exact = run("ddp", "none")[0][0];
    for strategy in ["dp", "ddp", "zero1", "zero2", "fsdp", "hsdp"] {
        let (plain, encoded) = (run(strategy, "none"), run(strategy, "bf16"));
        let sum = |runs: &[Vec<f64>]| runs.iter().map(|run| run[1]).sum::<f64>();
        let (plain_bytes, bytes) = (sum(&plain), sum(&encoded));
        assert!((plain[0][0] - exact).abs() <= 1e-5 * exact, "{strategy}: {plain:?}");
        assert!(encoded[0][0] != plain[0][0], "{strategy}: gradients were rounded");
        assert!((encoded[0][0] - exact).abs() <= 1e-2 * exact, "{strategy}: {encoded:?} and {exact}");
        let least = if matches!(strategy, "fsdp" | "hsdp") { 0.9 } else { 0.6 };
        assert!(bytes < least * plain_bytes, "{strategy}: {bytes} bytes of {plain_bytes}");
    }
}

#[test]
fn codecs_train_as_well_as_they_promise() {
    let run = |strategy: &'static str, codec: &'static str, more: fn(&mut Options)| {
        on_ranks(threads(4).expect("threads"), move |comm| {
            let settings = CodecSettings {
                chunk: 64,
                density: 0.05,
                ..CodecSettings::from(codec.parse::<CodecKind>()?)
            };
            let mut options = Options { codec: settings.codec()?, ..Options::default() };
            more(&mut options);
            train_by(strategy, Subject::ResNet, comm, (Recompute::Never, Precision::F32), (1500, options))
        })
    };
    let dense = run("ddp", "none", |_| ());
    let off = |curve: &[Vec<f64>]| {
        // Later on a network as small as this amplifies any difference.
        let pairs = curve[0].iter().zip(&dense[0]).take(3);
        pairs.map(|(a, b)| (a - b).abs() / b).fold(0.0, f64::max)
    };
    for strategy in ["ddp", "zero1", "zero2", "fsdp"] {
        assert_eq!(run(strategy, "lossless", |_| ()), dense, "{strategy}: nothing is lost");
    }
    for (codec, allowed) in [("bf16", 2e-3), ("int8", 5e-3), ("qsgd", 5e-2), ("int4", 5e-2)] {
        for strategy in ["dp", "ddp", "fsdp"] {
            let curve = run(strategy, codec, |_| ());
            assert!(
                off(&curve) > 0.0 && off(&curve) < allowed,
                "{strategy}, {codec}: {curve:?} and {dense:?}"
            );
        }
    }
    for codec in ["sign", "topk", "topk-int8", "randomk", "dgc", "powersgd"] {
        let curve = run("ddp", codec, |_| ());
        assert!(off(&curve) > 0.0 && curve[0].iter().all(|loss| loss.is_finite()), "{codec}: {curve:?}");
        // Entries and products are chosen of whole buckets, in any partition of the sum.
        if !["sign", "topk-int8"].contains(&codec) {
            for strategy in ["zero1", "zero2", "fsdp"] {
                assert_eq!(run(strategy, codec, |_| ()), curve, "{strategy}, {codec}");
            }
        }
        let never = |options: &mut Options| options.overlap = Overlap::Never;
        assert_eq!(run("ddp", codec, never), curve, "{codec}: on the thread that trains");
    }
    // Between groups only, and weights as integers.
    fn inter_host(options: &mut Options) {
        options.codec_scope = CodecScope::InterHost;
    }
    for strategy in ["hsdp", "ddp", "zero2", "fsdp", "dp"] {
        let between = run(strategy, "int8", inter_host);
        assert!(off(&between) > 0.0 && off(&between) < 0.01, "{strategy}: {}", off(&between));
        // In groups sums are taken in another order.
        assert!(off(&run(strategy, "lossless", inter_host)) < 1e-4, "{strategy}");
    }
    for strategy in ["fsdp", "hsdp"] {
        let int8 =
            run(strategy, "none", |options| options.weights = Some(WeightRounding::Int8 { chunk: 64 }));
        assert!(off(&int8) > 0.0 && off(&int8) < 0.1, "{strategy}, int8: {}", off(&int8));
        let bf16 = run(strategy, "none", |options| options.weights = Some(WeightRounding::Bf16));
        assert!(off(&bf16) > 0.0 && off(&bf16) < 0.05, "{strategy}, bf16: {}", off(&bf16));
    }
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
    struct ReductionCounter(Arc<DataParallel>, std::sync::Mutex<Vec<u64>>);
    impl phalanx_tensor::Listener for ReductionCounter {
        fn gradients_ready(&self, param: &phalanx_tensor::ParamBucket) -> phalanx_tensor::HookResult {
            self.0.gradients_ready(param)?;
            // The single rank's operations finish at once, so those that were started are soon counted.
            std::thread::sleep(std::time::Duration::from_millis(20));
            self.1.lock().expect("no panic").push(self.0.communicator().stats().operations);
            Ok(())
        }
    }
    let comm = threads(1).expect("threads").remove(0);
    let (model, store) = build(Subject::ResNet, true, 0).expect("sound");
    let Model::ResNet(model) = model else { unreachable!("asked for a ResNet") };
    let row = Strategy::named("ddp").expect("a row");
    let parallel = DataParallel::new(&store, comm, row).expect("alone");
    let before = parallel.communicator().stats().operations;
    let both = Arc::new(ReductionCounter(parallel.clone(), std::sync::Mutex::default()));
    let session =
        Session { listener: Some(both.clone()), ..Session::training(Arc::new(Context::new(1)), Key::new(0)) };
    let tape = Tape::recording(session);
    let logits = model.forward(&tape, &Value::constant(draw("x", 0, &[2, 3, 8, 8]))).expect("sound");
    let step = parallel.begin_step().expect("none is under way");
    tape.backward(&loss::cross_entropy(&tape, &logits, &[0, 1], 0.0, LossDivisor::Batch).expect("sound"))
        .expect("sound");
    let seen = both.1.lock().expect("no panic").clone();
    let expected: Vec<u64> = (1..=store.buckets().len() as u64).map(|i| before + i).collect();
    assert_eq!(seen, expected);
    drop(step.reduce().expect("alone"));
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
                let loss = loss::mse(&tape, &output, &target, LossDivisor::Count(2 * world))?;
                let under_way = parallel.begin_step()?;
                tape.backward(&loss)?;
                under_way.finish(|params| adam.step(params, 0.05, &context))?;
                let mut global = [f64::from(loss.tensor()?.to_scalar::<f32>()?)];
                parallel.sum(&mut global)?;
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
