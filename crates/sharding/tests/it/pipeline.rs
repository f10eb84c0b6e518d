//! Models whose depth is cut over ranks, against one rank with as many micro-batches.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use candle_core::{DType, Device, Tensor};
use phalanx_collectives::Communicator;
use phalanx_sharding::ShardingError;
use phalanx_sharding::pipeline::{
    BlockOrder, BuiltModel, CutCosts, PipelineSchedule, PipelineSizes, StageCut, StageForward, StageParams,
    StagedModel, StagedSetup, TimedPasses, time_blocks,
};
use phalanx_tensor::backend::Outlines;
use phalanx_tensor::nn::Linear;
use phalanx_tensor::{
    Block, BuildOptions, ComputeDevice, Context, Key, ParamLayout, ParamStore, Recompute, Session, StageRole,
    StoreBuilder, Tape, TensorError, TensorPlan, TracedPass, Value, ValueTrace, ops,
};

use crate::common::on_ranks;
use crate::cut_case::{Case, Loss, case};
use crate::tensor_parallel::cases;

/// A model of a case.
struct Model {
    store: ParamStore,
    loss: Loss,
}

fn build(case: &Case, device: ComputeDevice, layout: Option<Arc<dyn ParamLayout>>) -> Model {
    let key = Key::new(7);
    let options = BuildOptions { key, dtype: DType::F64, device, layout, ..BuildOptions::default() };
    let builder = StoreBuilder::new(options);
    let loss = (case.build)(&builder.root()).expect("a model");
    Model { store: builder.build().expect("memory"), loss }
}

pub(crate) fn session(micro: usize, recompute: Recompute) -> Session {
    let key = Key::new(1).index(micro as u64);
    Session { recompute, ..Session::training(Arc::new(Context::new(1)), key) }
}

/// Finds the calls and values of the loss.
fn trace(case: &Case, recompute: Recompute) -> TracedPass {
    let device = Outlines::new().device();
    let model = build(case, device.clone(), None);
    let trace = ValueTrace::new();
    let stage = Some(StageRole::Trace(trace.clone()));
    let tape = Tape::recording(Session { device, stage, ..session(0, recompute) });
    (model.loss)(&tape).expect("a loss");
    trace.take()
}

/// Gradients by parameter, and the losses of micro-batches.
#[derive(Debug, PartialEq)]
struct Outcome {
    gradients: BTreeMap<String, Vec<f64>>,
    losses: Vec<f64>,
}

fn numbers(tensor: &Tensor) -> Vec<f64> {
    tensor.flatten_all().and_then(|flat| flat.to_vec1()).expect("f64")
}

fn gradients(store: &ParamStore) -> BTreeMap<String, Vec<f64>> {
    let gradient = |param: &phalanx_tensor::Param| {
        let gradient = param.grad().expect("there").map(|gradient| numbers(&gradient));
        Some((param.name().to_owned(), gradient?))
    };
    store.params().iter().filter_map(gradient).collect()
}

/// Trains on one rank.
fn alone(case: &Case, micros: usize, recompute: Recompute) -> Outcome {
    let model = build(case, ComputeDevice::host(), None);
    let mut losses = Vec::new();
    for micro in 0..micros {
        let tape = Tape::recording(session(micro, recompute));
        let loss = (model.loss)(&tape).expect("a loss");
        losses.extend(numbers(&loss.tensor().expect("a number")));
        tape.backward(&loss).expect("gradients");
    }
    Outcome { gradients: gradients(&model.store), losses }
}

/// Makes one of the ranks of a pipeline.
pub(crate) fn staged(
    comm: &Communicator,
    case: &Case,
    (schedule, cut): (PipelineSchedule, StageCut<'_>),
    recompute: Recompute,
) -> phalanx_sharding::Result<StagedModel> {
    let setup = StagedSetup { comm, schedule, cut, session: &session(0, recompute) };
    StagedModel::new(setup, |device, layout| {
        let Model { store, loss } = build(case, device.clone(), layout);
        Ok(BuiltModel { store, loss: Box::new(move |tape, _| loss(tape)) })
    })
}

/// Trains on one of the ranks. Gradients are those of the parameters that it reads.
fn on_rank(
    comm: &Communicator,
    case: &Case,
    plan: (PipelineSchedule, StageCut<'_>),
    recompute: Recompute,
) -> phalanx_sharding::Result<Outcome> {
    let model = staged(comm, case, plan, recompute)?;
    let losses = model.gradients(|micro| session(micro, recompute), 1.0.into())?;
    let losses = losses.iter().flat_map(|loss| numbers(&loss.to_host().expect("a number"))).collect();
    Ok(Outcome { gradients: gradients(model.store()), losses })
}

/// A linear layer that also passes its input on.
#[derive(Debug)]
struct PassesOn {
    name: String,
    layer: Linear,
}

impl Block for PassesOn {
    fn name(&self) -> &str {
        &self.name
    }

    fn forward(&self, tape: &Tape, inputs: &[Value]) -> phalanx_tensor::Result<Vec<Value>> {
        Ok(vec![self.layer.forward(tape, &inputs[0])?, inputs[0].clone()])
    }
}

/// Two blocks; between them and the loss, a value that the second one passes on is used where it was made.
fn passed_on() -> Case {
    case("passed on", Ok(TensorPlan::default()), &[2], |scope| {
        let block = |name: &str| {
            let layer = Linear::new(&scope.pp(name).block(), 6, 6)?;
            Ok::<_, TensorError>(Arc::new(PassesOn { name: name.to_owned(), layer }) as Arc<dyn Block>)
        };
        let (first, second) = (block("first")?, block("second")?);
        Ok(Box::new(move |tape| {
            let x = Tensor::arange(0.0, 12.0, &Device::Cpu)?.reshape((2, 6))?;
            let made = tape.run(&first, &[Value::constant(x)])?;
            let [far, near] = tape.run(&second, &made[..1])?.try_into().expect("two outputs");
            let near = ops::tanh(tape, &near)?;
            let loss = ops::mean(tape, &ops::mul(tape, &far, &near)?)?;
            // A measure of the first stage, after the loss.
            ops::mean(tape, &near)?;
            Ok(loss)
        }))
    })
}

/// All models.
fn all_cases() -> Vec<Case> {
    cases().into_iter().chain([passed_on()]).collect()
}

/// Trains on ranks, and adds up the gradients of parameters that several of them read.
fn together(
    name: &'static str,
    (schedule, cut): (&PipelineSchedule, StageCut<'static>),
    recompute: Recompute,
) -> phalanx_sharding::Result<Outcome> {
    let schedule = schedule.clone();
    let ranks = on_ranks(schedule.ranks.len(), move |comm| {
        let case = all_cases().into_iter().find(|case| case.name == name).expect("a case");
        on_rank(&comm, &case, (schedule.clone(), cut), recompute)
    });
    let mut all = Outcome { gradients: BTreeMap::new(), losses: Vec::new() };
    for rank in ranks {
        let Outcome { gradients, losses } = rank?;
        all.losses.extend(losses);
        for (name, gradient) in gradients {
            let sum = all.gradients.entry(name).or_insert_with(|| vec![0.0; gradient.len()]);
            sum.iter_mut().zip(gradient).for_each(|(sum, part)| *sum += part);
        }
    }
    Ok(all)
}

/// The largest difference of gradients, relative to the largest element of each; 0 for equal bits.
fn difference(one: &Outcome, other: &Outcome) -> f64 {
    let names = |outcome: &Outcome| outcome.gradients.keys().cloned().collect::<Vec<_>>();
    if one.losses != other.losses || names(one) != names(other) {
        return f64::INFINITY;
    }
    let pairs = one.gradients.values().zip(other.gradients.values());
    let off = pairs.map(|(one, other)| {
        let largest = one.iter().fold(1e-3_f64, |most, number| most.max(number.abs()));
        one.iter().zip(other).map(|(a, b)| (a - b).abs() / largest).fold(0.0, f64::max)
    });
    off.fold(0.0, f64::max)
}

#[test]
fn models_in_stages_have_the_gradients_of_one_rank() {
    const MICROS: usize = 4;
    /// Name, ranks, and chunks of a rank.
    const SCHEDULES: [(&str, usize, usize); 4] =
        [("gpipe", 2, 1), ("1f1b", 3, 1), ("interleaved", 2, 2), ("zero-bubble", 3, 1)];
    /// Models without parameters or values that a stage uses twice, whose gradients would be added up in another order.
    const EQUAL_BITS: [&str; 11] = [
        "passed on",
        "qwen2",
        "transformer",
        "mlp",
        "resnet18",
        "resnet50",
        "mobilenetv2",
        "autoencoder",
        "stage I",
        "discriminator I",
        "discriminator II",
    ];
    let mut wrong = Vec::new();
    for Case { name, .. } in all_cases() {
        for recompute in [Recompute::Never, Recompute::Every(1)] {
            let case = all_cases().into_iter().find(|case| case.name == name).expect("a case");
            let expected = alone(&case, MICROS, recompute);
            let calls = trace(&case, recompute).calls.len();
            for (kind, ranks, chunks) in
                SCHEDULES.into_iter().filter(|(_, ranks, chunks)| ranks * chunks <= calls)
            {
                let sizes = PipelineSizes { ranks, chunks, micros: MICROS };
                let schedule = PipelineSchedule::named(kind, sizes).expect("fits");
                match together(name, (&schedule, StageCut::Operations), recompute) {
                    Ok(outcome) => {
                        let off = difference(&expected, &outcome);
                        if off > if EQUAL_BITS.contains(&name) { 0.0 } else { 1e-14 } {
                            wrong.push(format!("{name} {kind} {recompute:?}: {off:e}"));
                        }
                    }
                    Err(told) => wrong.push(format!("{name} {kind} {recompute:?}: {told}")),
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Of all ways to cut a model into chunks, none has a cheaper dearest chunk.
#[test]
fn chunks_cost_as_little_as_they_can() {
    let case = all_cases().into_iter().find(|case| case.name == "transformer").expect("a case");
    let traced = trace(&case, Recompute::Never);
    let order = BlockOrder::of(&[&traced]).expect("an order");
    let blocks = order.len();
    let bytes = |first: usize| match first {
        0 => 0,
        first if first == blocks => 0,
        first => order.divide(0, &traced, &[0, first]).expect("forward").bytes,
    };
    let crossing: Vec<f64> = (0..=blocks).map(|first| bytes(first) as f64).collect();
    for draw in 0..20 {
        let mut drawn = vec![0.0; blocks];
        Key::new(draw).uniform(0, &mut drawn);
        let costs = CutCosts { blocks: drawn, byte: if draw % 2 == 0 { 0.0 } else { 1e-3 } };
        let dearest = |first: &[usize]| {
            let ends = first[1..].iter().chain([&blocks]);
            let of_chunk = |(from, to): (&usize, &usize)| {
                costs.blocks[*from..*to].iter().sum::<f64>() + costs.byte * (crossing[*from] + crossing[*to])
            };
            first.iter().zip(ends).map(of_chunk).fold(0.0, f64::max)
        };
        for chunks in [2, 3] {
            let found = dearest(&order.balanced(&[&traced], &costs, chunks).expect("enough blocks"));
            let least = match chunks {
                2 => (1..blocks).map(|at| dearest(&[0, at])).fold(f64::INFINITY, f64::min),
                _ => (1..blocks)
                    .flat_map(|at| (at + 1..blocks).map(move |next| [0, at, next]))
                    .map(|first| dearest(&first))
                    .fold(f64::INFINITY, f64::min),
            };
            assert!((found - least).abs() < 1e-9, "draw {draw}, {chunks} chunks: {found}, not {least}");
        }
    }
}

/// A case, a block at a time.
struct TimedCase<'a>(&'a Case);

impl TimedPasses for TimedCase<'_> {
    type Error = ShardingError;
    type Model = Model;

    fn build(&mut self, params: &Arc<StageParams>, rank: usize) -> phalanx_sharding::Result<Model> {
        Ok(build(self.0, ComputeDevice::host(), Some(params.layout(rank, None))))
    }

    fn forward(
        &mut self,
        model: &Model,
        _: usize,
        role: StageRole,
    ) -> phalanx_sharding::Result<StageForward> {
        let tape = Tape::recording(Session { stage: Some(role), ..session(0, Recompute::Never) });
        let loss = (model.loss)(&tape)?;
        Ok(StageForward { tape, loss })
    }
}

/// Every block of every model runs by itself, with values and gradients that are made up; blocks of the same shapes are measured once.
#[test]
fn blocks_are_measured_one_at_a_time() {
    for case in all_cases() {
        let traced = trace(&case, Recompute::Never);
        let passes = [&traced];
        let order = BlockOrder::of(&passes).expect("an order");
        let seconds =
            time_blocks(&mut TimedCase(&case), (&order, &passes), (&ComputeDevice::host(), DType::F64));
        let seconds = seconds.unwrap_or_else(|error| panic!("{}: {error}", case.name));
        assert_eq!(seconds.len(), order.len(), "{}", case.name);
        assert!(seconds.iter().all(|seconds| seconds.forward > 0.0), "{}: {seconds:?}", case.name);
        if case.name == "gpt2" {
            let layer = |name: &str| order.blocks().position(|block| block == name).expect("a layer");
            assert_eq!(seconds[layer("transformer.h.0")], seconds[layer("transformer.h.1")]);
        }
    }
}

/// Each way to cut a model has the gradients of one rank.
#[test]
fn models_are_cut_in_each_way() {
    static FIRST: LazyLock<[String; 1]> = LazyLock::new(|| ["transformer.h.1".to_owned()]);
    let (name, sizes) = ("gpt2", PipelineSizes { ranks: 2, chunks: 1, micros: 4 });
    let case = all_cases().into_iter().find(|case| case.name == name).expect("a case");
    let expected = alone(&case, sizes.micros, Recompute::Never);
    let schedule = PipelineSchedule::named("1f1b", sizes).expect("fits");
    for cut in [StageCut::Operations, StageCut::Time, StageCut::Blocks(FIRST.as_slice())] {
        let found = together(name, (&schedule, cut), Recompute::Never).expect("two stages");
        let off = difference(&expected, &found);
        assert!(off <= 1e-14, "{cut:?}: {off:e}");
    }
}
