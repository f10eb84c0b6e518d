//! The time in which ranks of a pipeline wait, by simulated clocks and over links that take time.
#![cfg(target_os = "linux")]

use std::sync::Arc;
use std::time::Duration;

use candle_core::{DType, Device, Tensor};
use phalanx_collectives::{Clock, Communicator, ReduceOp, SimulatedLink, threads_over};
use phalanx_sharding::pipeline::{PipelineSchedule, PipelineSizes, StageCut};
use phalanx_tensor::{Block, Init, Param, Recompute, Scope, Tape, TensorPlan, Value, ops};

use crate::cut_case::{Case, Loss, case};
use crate::pipeline::{session, staged};

/// The simulated milliseconds of a stage's passes: forward, and the gradients of inputs and of weights. They are long, so that the CPU
/// time of the test itself counts for nothing.
const FORWARD: u64 = 2_000;
const INPUT: u64 = 2_400;
const WEIGHT: u64 = 1_600;

/// A block that computes for a part of a stage's time.
#[derive(Debug)]
struct Slow {
    name: String,
    weight: Param,
    /// The blocks of a stage.
    of_stage: u32,
}

impl Slow {
    fn compute(&self, milliseconds: u64) -> impl Fn() + use<> {
        let time = Duration::from_millis(milliseconds) / self.of_stage;
        move || Clock::Cpu.sleep(time)
    }
}

impl Block for Slow {
    fn name(&self) -> &str {
        &self.name
    }

    fn forward(&self, tape: &Tape, inputs: &[Value]) -> phalanx_tensor::Result<Vec<Value>> {
        let (x, weight) = (&inputs[0], tape.param(&self.weight)?);
        let array = x.array()?;
        if array.has_numbers() {
            self.compute(FORWARD)();
        }
        let (input, of_weight) = (self.compute(INPUT), self.compute(WEIGHT));
        let y = tape.push("slow", &[x, &weight], array, move |_, grad, grads| {
            input();
            grads.share(0, grad.clone())?;
            grads.later(move |_, grads| {
                of_weight();
                grads.add(1, Tensor::ones(1, DType::F64, &Device::Cpu)?)
            });
            Ok(())
        })?;
        Ok(vec![y])
    }
}

/// A chain of blocks.
fn chain(scope: &Scope, blocks: usize, of_stage: u32) -> phalanx_tensor::Result<Loss> {
    let slow = |at: usize| {
        let scope = scope.pp(format!("slow.{at}")).block();
        let weight = scope.param("weight", 1, Init::ZEROS)?;
        Ok(Arc::new(Slow { name: scope.block_name().to_owned(), weight, of_stage }) as Arc<dyn Block>)
    };
    let blocks = (0..blocks).map(slow).collect::<phalanx_tensor::Result<Vec<_>>>()?;
    Ok(Box::new(move |tape| {
        let x = Tensor::ones((1, 4), DType::F64, &Device::Cpu)?;
        ops::mean(tape, &tape.run_sequence(&blocks, &Value::constant(x))?)
    }))
}

fn slow(ranks: usize, chunks: usize) -> Case {
    let build: fn(&Scope) -> phalanx_tensor::Result<Loss> = match (ranks, chunks) {
        (4, 1) => |scope| chain(scope, 4, 1),
        (8, 1) => |scope| chain(scope, 8, 1),
        (4, _) => |scope| chain(scope, 8, 2),
        _ => |scope| chain(scope, 16, 2),
    };
    case("slow", Ok(TensorPlan::default()), &[], build)
}

/// The begin and end of a step of a rank, and the time in which it computes, in seconds.
struct RankStep {
    begun: f64,
    ended: f64,
    busy: f64,
}

fn step(comm: &Communicator, schedule: PipelineSchedule) -> RankStep {
    let sizes = (schedule.ranks.len(), schedule.num_chunks() / schedule.ranks.len());
    let plan = (schedule, StageCut::Operations);
    let model = staged(comm, &slow(sizes.0, sizes.1), plan, Recompute::Never).expect("stages");
    let mut begun = [comm.clock().now().as_secs_f64()];
    comm.all_reduce(&mut begun, ReduceOp::Max).expect("sound");
    model.gradients(|micro| session(micro, Recompute::Never), 1.0.into()).expect("gradients");
    let ended = comm.clock().now().as_secs_f64();
    let busy = model.pipeline().pass_totals().iter().map(|total| total.time.as_secs_f64()).sum();
    RankStep { begun: begun[0], ended, busy }
}

/// For p ranks (p − 1)(F + B + W), over the number of chunks that take turns, and (p − 1)(F + B − W) for a backward in two parts
/// (Narayanan et al. 2021, Qi et al. 2024).
#[test]
fn ranks_wait_as_long_as_the_formulas_say() {
    let link = SimulatedLink { clock: Clock::Cpu, .."100Gbit,5us".parse().expect("a link") };
    for (ranks, micros) in [(4, 8), (8, 16)] {
        let all = (ranks - 1) as f64 * 1e-3;
        let [forward, input, weight] = [FORWARD, INPUT, WEIGHT].map(|milliseconds| milliseconds as f64);
        for (name, chunks, formula) in [
            ("1f1b", 1, all * (forward + input + weight)),
            ("interleaved", 2, all * (forward + input + weight) / 2.0),
            ("zero-bubble", 1, all * (forward + input - weight)),
        ] {
            let schedule =
                PipelineSchedule::named(name, PipelineSizes { ranks, chunks, micros }).expect("fits");
            let running: Vec<_> = threads_over(ranks, link)
                .expect("threads")
                .into_iter()
                .map(|comm| {
                    let schedule = schedule.clone();
                    std::thread::spawn(move || step(&comm, schedule))
                })
                .collect();
            let steps: Vec<RankStep> =
                running.into_iter().map(|rank| rank.join().expect("no panic")).collect();
            let most = |of: fn(&RankStep) -> f64| steps.iter().map(of).fold(0.0, f64::max);
            let bubble = most(|step| step.ended - step.begun) - most(|step| step.busy);
            let part = bubble / formula;
            assert!((0.9..1.1).contains(&part), "{name} on {ranks}: {bubble} s, by the formula {formula} s");
        }
    }
}
