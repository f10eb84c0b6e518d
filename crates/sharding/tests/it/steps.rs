//! The step's protocol, codecs that keep errors to make good, and the ways that bytes can go.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex};

use candle_core::{Device, Tensor};
use half::bf16;
use phalanx_collectives::{Algorithm, Communicator, threads};
use phalanx_sharding::{
    Bucket, CodecBytes, CodecError, CodecSettings, CodecState, CodecWhen, DataParallel, FlatSlice, GradCodec,
    Observed as _, Options, ParallelStrategy, Peers, Residency as _, Resumable as _, STRATEGIES, Strategy,
    SumGroup, SumPlacement,
};
use phalanx_tensor::optim::{Optimizer as _, Sgd};
use phalanx_tensor::{
    BuildOptions, Context, GradState, Key, ParamStore, Session, StoreBuilder, Tape, Value, loss, nn,
};

type AnyError = Box<dyn std::error::Error + Send + Sync>;

/// bf16 with error feedback (Seide et al. 2014): what rounding has taken from gradients is added to the next ones.
#[derive(Debug, Default)]
struct Feedback(Mutex<BTreeMap<usize, Vec<f32>>>);

impl GradCodec for Feedback {
    fn name(&self) -> &'static str {
        "feedback"
    }

    fn reduce(
        &self,
        bucket: &Bucket,
        gradients: FlatSlice<'_>,
        keeps: SumPlacement,
        peers: &mut Peers<'_>,
    ) -> Result<(), CodecError> {
        let gradients = gradients.on_host(self.name())?;
        let mut kept = self.0.lock().expect("no panic");
        let residual = kept.entry(bucket.slot).or_insert_with(|| vec![0.0; gradients.len()]);
        if residual.len() != gradients.len() {
            let problem = format!("keeps {} numbers for {}", residual.len(), gradients.len());
            return Err(CodecError::codec(self.name(), problem));
        }
        for (gradient, residual) in gradients.iter_mut().zip(residual) {
            let wanted = *gradient + *residual;
            *gradient = bf16::from_f32(wanted).to_f32();
            *residual = wanted - *gradient;
        }
        phalanx_sharding::Bf16.reduce(bucket, gradients.into(), keeps, peers)
    }

    fn flush(&self, bucket: &Bucket, _: &SumGroup, gradients: FlatSlice<'_>) -> Result<(), CodecError> {
        let gradients = gradients.on_host(self.name())?;
        let kept = self.0.lock().expect("no panic").remove(&bucket.slot);
        gradients.iter_mut().zip(kept.into_iter().flatten()).for_each(|(gradient, kept)| *gradient += kept);
        Ok(())
    }

    fn state(&self) -> Result<CodecState, CodecError> {
        let kept = self.0.lock().expect("no panic");
        Ok(kept.iter().map(|(slot, residual)| (slot.to_string(), residual.clone())).collect())
    }

    fn load_state(&self, state: CodecState) -> Result<(), CodecError> {
        let read = |(slot, residual): (String, Vec<f32>)| (slot.parse().expect("a slot"), residual);
        *self.0.lock().expect("no panic") = state.into_iter().map(read).collect();
        Ok(())
    }

    fn bytes(&self, bucket: &Bucket, among: &SumGroup) -> CodecBytes {
        CodecBytes { state: 4 * bucket.len as u64, ..phalanx_sharding::Bf16.bytes(bucket, among) }
    }
}

/// Two layers in memories of their own.
fn model() -> Result<(Layers, ParamStore), AnyError> {
    let builder = StoreBuilder::new(BuildOptions { key: Key::new(2), bucket_bytes: 0, ..Default::default() });
    let layer = |name: &str, from, to| {
        let linear = nn::Linear::new(&builder.root().pp(name).block(), from, to)?;
        let layer: Arc<dyn phalanx_tensor::Block> = Arc::new(Layer { name: name.to_owned(), linear });
        Ok::<_, AnyError>(layer)
    };
    let layers = [layer("hidden", 5, 7)?, layer("out", 7, 3)?];
    Ok((layers, builder.build()?))
}

fn backward(layers: &Layers, parallel: &Arc<DataParallel>, step: u64) -> Result<(), AnyError> {
    let session = Session::training(Arc::new(Context::new(1)), Key::new(3).step(step));
    let tape = Tape::recording(Session { listener: Some(parallel.clone()), ..session });
    let mut draw = vec![0.0; 5];
    Key::new(4).step(step).normal(5 * parallel.communicator().rank(), &mut draw);
    let draw: Vec<f32> = draw.into_iter().map(|value| value as f32).collect();
    let mut x = Value::constant(Tensor::from_vec(draw, (1, 5), &Device::Cpu)?);
    for layer in layers {
        x = tape.run1(layer, &x)?;
    }
    let loss = loss::cross_entropy(&tape, &x, &[1], 0.0, loss::LossDivisor::Count(4))?;
    Ok(tape.backward(&loss)?)
}

/// A layer as a block.
#[derive(Debug)]
struct Layer {
    name: String,
    linear: nn::Linear,
}

type Layers = [Arc<dyn phalanx_tensor::Block>; 2];

impl phalanx_tensor::Block for Layer {
    fn name(&self) -> &str {
        &self.name
    }

    fn forward(&self, tape: &Tape, inputs: &[Value]) -> phalanx_tensor::Result<Vec<Value>> {
        Ok(vec![self.linear.forward(tape, &inputs[0])?])
    }
}

fn on_ranks<R: Send + 'static>(
    world: usize,
    run: impl Fn(Communicator) -> Result<R, AnyError> + Copy + Send + 'static,
) -> Vec<Result<R, String>> {
    let start = |comm| std::thread::spawn(move || run(comm).map_err(|error| error.to_string()));
    let ranks: Vec<_> = threads(world).expect("threads").into_iter().map(start).collect();
    ranks.into_iter().map(|rank| rank.join().expect("no panic")).collect()
}

/// All parameters as numbers.
fn weights(parallel: &DataParallel, store: &ParamStore) -> Result<Vec<f32>, AnyError> {
    parallel.unshard()?;
    let mut all = Vec::new();
    for param in store.params() {
        all.extend(param.tensor()?.flatten_all()?.to_vec1::<f32>()?);
    }
    parallel.reshard()?;
    Ok(all)
}

/// A codec that has kept nothing: this file's own, or one by its name.
fn fresh(name: &str) -> Arc<dyn GradCodec> {
    if name == "feedback" {
        return Arc::new(Feedback::default());
    }
    let kind = name.parse().expect("known");
    let settings = CodecSettings { kind, density: 0.1, rank: 1, chunk: 8, warm_up: 6, ..Default::default() };
    settings.codec().expect("sound").expect("a codec")
}

#[test]
fn errors_that_a_codec_keeps_go_on_to_the_bit() {
    for codec in ["feedback", "qsgd", "sign", "topk", "topk-int8", "randomk", "dgc", "powersgd"] {
        for strategy in ["dp", "ddp", "zero1", "zero2", "fsdp", "hsdp"] {
            goes_on_to_the_bit(codec, strategy);
        }
    }
}

fn goes_on_to_the_bit(codec: &'static str, strategy: &'static str) {
    let ranks = on_ranks(4, move |comm| {
        let start = |codec: Arc<dyn GradCodec>, comm: Communicator| {
            let (layers, store) = model()?;
            let options = Options { codec: Some(codec), ..Options::default() };
            let row = Strategy::named(strategy)?;
            let parallel = DataParallel::with_options(
                &store,
                phalanx_sharding::ProcessMesh::suiting(comm, &row, 0)?,
                row,
                options,
            )?;
            Ok::<_, AnyError>((layers, store, parallel))
        };
        let train = |layers: &Layers, parallel: &Arc<DataParallel>, steps: Range<u64>| {
            let mut sgd = Sgd::new(0.0, false, 0.0);
            for at in steps {
                let step = parallel.begin_step()?;
                backward(layers, parallel, at)?;
                step.finish(|params| sgd.step(params, 0.3, &Context::new(1)))?;
            }
            Ok::<_, AnyError>(())
        };
        let (layers, store, parallel) = start(fresh(codec), comm.clone())?;
        train(&layers, &parallel, 0..4)?;
        let (kept, values) = (parallel.codec_state().expect("kept"), weights(&parallel, &store)?);
        let any = kept.iter().flat_map(|(_, residual)| residual).any(|error| *error != 0.0);
        assert!(any, "{strategy}, {codec}");
        let bytes: u64 = kept.iter().map(|(_, residual)| 4 * residual.len() as u64).sum();
        assert_eq!(parallel.bytes().codec, bytes, "{strategy}, {codec}");
        train(&layers, &parallel, 4..8)?;
        let uninterrupted = weights(&parallel, &store)?;
        let again = |state: Vec<(String, Vec<f32>)>| {
            let (layers, store, parallel) = start(fresh(codec), comm.clone())?;
            parallel.unshard()?;
            let mut rest = values.as_slice();
            for param in store.params() {
                let (own, later) = rest.split_at(param.elem_count());
                rest = later;
                param.set(&Tensor::from_slice(own, param.shape(), &Device::Cpu)?)?;
            }
            parallel.broadcast_state(&store)?;
            parallel.load_codec_state(state)?;
            train(&layers, &parallel, 4..8)?;
            weights(&parallel, &store)
        };
        Ok((uninterrupted, again(kept)?, again(Vec::new())?))
    });
    for rank in ranks {
        let (uninterrupted, resumed, forgotten) = rank.expect("trains");
        assert_eq!(resumed, uninterrupted, "{strategy}, {codec}");
        assert_ne!(forgotten, uninterrupted, "{strategy}, {codec}: what was kept matters");
    }
}

#[test]
fn whether_a_codec_pays_is_decided_once_and_by_all() {
    for strategy in ["ddp", "fsdp", "hsdp"] {
        let ranks = on_ranks(4, move |comm| {
            let (layers, store) = model()?;
            let options =
                Options { codec: Some(fresh("topk")), codec_when: CodecWhen::Auto, ..Options::default() };
            let row = Strategy::named(strategy)?;
            let parallel = DataParallel::with_options(
                &store,
                phalanx_sharding::ProcessMesh::suiting(comm, &row, 0)?,
                row,
                options,
            )?;
            let mut told = Vec::new();
            for at in 0..12 {
                let step = parallel.begin_step()?;
                backward(&layers, &parallel, at)?;
                step.finish(|params| Sgd::new(0.0, false, 0.0).step(params, 0.3, &Context::new(1)))?;
                let news = parallel.codec_verdicts();
                // After four steps with and four without, before the next.
                assert_eq!(!news.is_empty(), at == 8, "{strategy}: step {at}");
                told.extend(news);
            }
            let kept = parallel.codec_state().expect("kept");
            let decided = kept.iter().find(|(name, _)| name == "when").map(|(_, decided)| decided.clone());
            let pays = told.iter().map(|verdict| f32::from(u8::from(verdict.pays))).collect::<Vec<_>>();
            assert_eq!(decided, Some(pays), "{strategy}");
            let parts = told.iter().all(|verdict| verdict.seconds.iter().all(|seconds| *seconds > 0.0));
            assert!(parts && told.iter().all(|verdict| verdict.bytes[1] > 0), "{strategy}: {told:?}");
            Ok((
                told.iter().map(|verdict| (verdict.pays, verdict.seconds)).collect::<Vec<_>>(),
                weights(&parallel, &store)?,
            ))
        });
        let ranks: Vec<_> = ranks.into_iter().map(|rank| rank.expect("trains")).collect();
        assert!(ranks.iter().all(|rank| *rank == ranks[0]), "{strategy}: {ranks:?}");
        assert_eq!(ranks[0].0.len(), 2, "{strategy}: both buckets");
    }
}

#[test]
fn a_step_that_is_dropped_leaves_parameters_and_no_gradients() {
    for strategy in STRATEGIES.iter().filter(|row| row.is_bulk_synchronous()).map(|row| row.name) {
        let ranks = on_ranks(2, move |comm| {
            let (layers, store) = model()?;
            let parallel = DataParallel::new(&store, comm, Strategy::named(strategy)?)?;
            let error = backward(&layers, &parallel, 0).expect_err("no step is under way").to_string();
            assert!(error.contains("gradients came outside of any"), "{error}");
            parallel.params().iter().for_each(phalanx_tensor::ParamBucket::discard_grads);
            let before = weights(&parallel, &store)?;
            let mut sgd = Sgd::new(0.0, false, 0.0);
            let context = Context::new(1);
            // Dropped while gradients are added up, on their way, and summed; the ranks drop alike.
            for dropped in 0..3 {
                let mut step = parallel.begin_step()?;
                assert!(parallel.begin_step().is_err(), "one at a time");
                step.micro_batch(dropped == 0);
                backward(&layers, &parallel, 1)?;
                if dropped < 2 {
                    drop(step);
                } else {
                    drop(step.reduce()?);
                }
                assert!(parallel.params().iter().all(|param| param.grad_state() == GradState::Empty));
                assert_eq!(weights(&parallel, &store)?, before, "{strategy}");
            }
            // Two micro-batches are one step, and the next begins anew.
            let mut step = parallel.begin_step()?;
            for (at, more) in [(1, true), (2, false)] {
                step.micro_batch(more);
                backward(&layers, &parallel, at)?;
            }
            step.finish(|params| sgd.step(params, 0.3, &context))?;
            let together = weights(&parallel, &store)?;
            assert_ne!(together, before, "{strategy}");
            Ok(together)
        });
        let ranks: Vec<_> = ranks.into_iter().map(|rank| rank.expect("trains")).collect();
        assert_eq!(ranks[0], ranks[1], "{strategy}");
    }
}

#[test]
fn the_only_rank_has_the_same_protocol() {
    let (_, store) = model().expect("small");
    let alone = DataParallel::alone(&store).expect("a world of one");
    let parallel: &dyn ParallelStrategy = &*alone;
    let step = parallel.begin_step().expect("none is under way");
    assert!(parallel.begin_step().is_err(), "one at a time");
    drop(step);
    let step = parallel.begin_step().expect("the other was dropped");
    let mut called = 0;
    step.finish(|params| {
        called += params.len();
        Ok(())
    })
    .expect("one rank");
    assert_eq!(called, 2, "a memory for each layer");
}

#[test]
fn bytes_go_the_way_that_is_asked_for_or_the_run_does_not_begin() {
    for row in STRATEGIES.iter().filter(|row| row.is_bulk_synchronous()) {
        for algorithm in Algorithm::ALL {
            let ranks = on_ranks(4, move |comm| {
                let (layers, store) = model()?;
                let options = Options { algorithm, ..Options::default() };
                let parallel = match DataParallel::with_options(
                    &store,
                    phalanx_sharding::ProcessMesh::suiting(comm, row, 0)?,
                    *row,
                    options,
                ) {
                    Err(error @ phalanx_sharding::ShardingError::Strategy { .. }) => {
                        return Ok(Err(error.to_string()));
                    }
                    parallel => parallel?,
                };
                let step = parallel.begin_step()?;
                backward(&layers, &parallel, 0)?;
                step.finish(|params| Sgd::new(0.0, false, 0.0).step(params, 0.1, &Context::new(1)))?;
                Ok(Ok(weights(&parallel, &store)?))
            });
            let goes = row.goes_by(algorithm);
            for rank in ranks {
                let rank = rank.unwrap_or_else(|error| panic!("{} by {algorithm}: {error}", row.name));
                assert_eq!(rank.err(), goes.as_ref().err().map(ToString::to_string));
            }
        }
    }
    let error =
        Strategy::named("fsdp").expect("a row").goes_by(Algorithm::Tree).expect_err("no way").to_string();
    assert_eq!(error, "strategy `fsdp` cannot go by `tree`: it has no reduce-scatter");
}
