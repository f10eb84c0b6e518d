//! The time in which the ranks of a pipeline wait, by simulated clocks, compared with the formulas.

use anyhow::{Context as _, Result, anyhow};
use clap::Args;
use phalanx_collectives::{Clock, Communicator, ReduceOp, SimulatedLink, threads_over};
use phalanx_models::Gpt2Config;
use phalanx_sharding::pipeline::{
    PassTotal, PipelineSchedule, PipelineSizes, StageCut, StagePass, StagedModel, StagedSetup,
};
use phalanx_tensor::{Context, Key, Session};
use serde_json::{Value as Json, json};

use crate::rounds::median;
use crate::train::next_tokens;
use crate::write;

/// The arguments of a measurement of pipelines.
#[derive(Debug, Clone, Args)]
pub(crate) struct BubblesArgs {
    /// Ranks along the pipeline, as threads of this process, each by a clock of its CPU time
    #[arg(long, default_value = "4,8", value_delimiter = ',')]
    ranks: Vec<usize>,
    /// Micro-batches of a step for each rank
    #[arg(long, default_value_t = 2)]
    micro_batches: usize,
    /// Layers of a rank, of GPT-2; of even number, so that two chunks have equally many
    #[arg(long, default_value_t = 2)]
    layers: usize,
    /// Width of the layers
    #[arg(long, default_value_t = 256)]
    width: usize,
    /// Tokens of a micro-batch, which is one text
    #[arg(long, default_value_t = 128)]
    tokens: usize,
    /// The simulated link of each rank
    #[arg(long, default_value = "100Gbit,5us")]
    link: SimulatedLink,
    /// Steps, for the medians
    #[arg(long, default_value_t = 9)]
    steps: usize,
    /// Also write the results to this file
    #[arg(long, value_name = "FILE")]
    json: Option<std::path::PathBuf>,
}

/// The schedules, each with the chunks of a rank.
const SCHEDULES: [(&str, usize); 4] = [("gpipe", 1), ("1f1b", 1), ("interleaved", 2), ("zero-bubble", 1)];

/// A step of a rank, in seconds.
#[derive(Debug, Clone)]
struct RankStep {
    begun: f64,
    ended: f64,
    /// The passes of this step.
    passes: Vec<PassTotal>,
}

impl RankStep {
    fn busy(&self) -> f64 {
        self.passes.iter().map(|total| total.time.as_secs_f64()).sum()
    }

    /// The seconds of a kind of pass over a micro-batch, of all chunks.
    fn of(&self, pass: StagePass, micros: usize) -> f64 {
        let own = self.passes.iter().filter(|total| total.pass == pass);
        own.map(|total| total.time.as_secs_f64()).sum::<f64>() / micros as f64
    }
}

/// The measured times of a schedule, in seconds.
struct Measured {
    schedule: &'static str,
    chunks: usize,
    ranks: usize,
    /// Forward and backward of a rank over a micro-batch.
    forward: f64,
    backward: f64,
    /// The part of backward for the gradients of weights, if it is one of its own.
    weight: Option<f64>,
    bubble: f64,
    step: f64,
}

impl Measured {
    /// The bubble by the formula, with the measured seconds of passes.
    fn formula(&self) -> f64 {
        let passes = self.forward + self.backward - 2.0 * self.weight.unwrap_or(0.0);
        (self.ranks - 1) as f64 * passes / self.chunks as f64
    }
}

pub(crate) fn run(args: &BubblesArgs) -> Result<()> {
    anyhow::ensure!(Clock::Cpu.now() > std::time::Duration::ZERO, "clocks of CPU time need Linux");
    let mut all = Vec::new();
    println!("schedule      ranks  forward  backward  of weights      step    bubble   formula  ratio");
    for &ranks in &args.ranks {
        for (schedule, chunks) in SCHEDULES {
            let measured = measure(args, ranks, schedule, chunks)
                .with_context(|| format!("{schedule} on {ranks} ranks"))?;
            all.push(print(&measured));
        }
    }
    println!("milliseconds; passes over one micro-batch, medians of {} steps", args.steps);
    write(
        args.json.as_deref(),
        &json!({ "layers": args.layers, "width": args.width, "tokens": args.tokens, "bubbles": all }),
    )
}

/// Prints a row. Returns it as JSON.
fn print(measured: &Measured) -> Json {
    let Measured { schedule, chunks, ranks, forward, backward, weight, bubble, step } = measured;
    let ms = |seconds: f64| format!("{:.2}", seconds * 1e3);
    let formula = measured.formula();
    println!(
        "{schedule:12} {ranks:6} {:>8} {:>9} {:>11} {:>9} {:>9} {:>9} {:6.2}",
        ms(*forward),
        ms(*backward),
        weight.map_or_else(String::new, ms),
        ms(*step),
        ms(*bubble),
        ms(formula),
        bubble / formula
    );
    json!({
        "schedule": schedule, "chunks": chunks, "ranks": ranks, "forward_seconds": forward, "backward_seconds": backward,
        "weight_seconds": weight, "step_seconds": step, "bubble_seconds": bubble, "formula_seconds": formula,
    })
}

fn measure(args: &BubblesArgs, ranks: usize, schedule: &'static str, chunks: usize) -> Result<Measured> {
    let micros = args.micro_batches * ranks;
    let link = SimulatedLink { clock: Clock::Cpu, ..args.link };
    let sizes = PipelineSizes { ranks, chunks, micros };
    let running: Vec<_> = threads_over(ranks, link)?
        .into_iter()
        .map(|comm| {
            let args = args.clone();
            std::thread::spawn(move || steps(&args, &comm, PipelineSchedule::named(schedule, sizes)?))
        })
        .collect();
    let of_ranks = running
        .into_iter()
        .map(|rank| rank.join().map_err(|_| anyhow!("a rank panicked"))?)
        .collect::<Result<Vec<Vec<RankStep>>>>()?;
    let of_steps = |of: &dyn Fn(&[&RankStep]) -> f64| {
        let step = |at: usize| of(&of_ranks.iter().map(|steps| &steps[at]).collect::<Vec<_>>());
        // The first step fills caches.
        median((1..=args.steps).map(step).collect())
    };
    let most =
        |ranks: &[&RankStep], of: fn(&RankStep) -> f64| ranks.iter().map(|step| of(step)).fold(0.0, f64::max);
    let mean = |pass: StagePass| {
        of_steps(&|steps| steps.iter().map(|step| step.of(pass, micros)).sum::<f64>() / ranks as f64)
    };
    let is_split = schedule == "zero-bubble";
    let weight = is_split.then(|| mean(StagePass::BackwardWeight));
    Ok(Measured {
        schedule,
        chunks,
        ranks,
        forward: mean(StagePass::Forward),
        backward: match weight {
            Some(weight) => mean(StagePass::BackwardInput) + weight,
            None => mean(StagePass::Backward),
        },
        weight,
        bubble: of_steps(&|ranks| most(ranks, |step| step.ended - step.begun) - most(ranks, RankStep::busy)),
        step: of_steps(&|ranks| most(ranks, |step| step.ended - step.begun)),
    })
}

/// Takes the steps of a rank.
fn steps(args: &BubblesArgs, comm: &Communicator, schedule: PipelineSchedule) -> Result<Vec<RankStep>> {
    let ranks = comm.world_size();
    let (layers, chunks) = (args.layers * ranks, schedule.num_chunks());
    // The table and the head are those of few tokens, so that all chunks have equal work.
    let config = Gpt2Config {
        vocab: 64,
        context: args.tokens,
        layers,
        width: args.width,
        heads: (args.width / 32).max(1),
        inner: 4 * args.width,
        ..Gpt2Config::default().with_dropout(0.0)
    };
    let first: Vec<String> =
        (1..chunks).map(|chunk| format!("transformer.h.{}", chunk * layers / chunks)).collect();
    let session = Session::training(Context::new(1).into(), Key::new(0));
    let setup = StagedSetup { comm, schedule, cut: StageCut::Blocks(&first), session: &session };
    let model = StagedModel::new(setup, |device, layout| next_tokens(&config, args.tokens, device, layout))?;
    let mut before: Vec<PassTotal> = Vec::new();
    let mut steps = Vec::with_capacity(args.steps + 1);
    for _ in 0..=args.steps {
        let mut begun = [comm.clock().now().as_secs_f64()];
        comm.all_reduce(&mut begun, ReduceOp::Max)?;
        model.gradients(|_| session.clone(), 1.0.into())?;
        let ended = comm.clock().now().as_secs_f64();
        let after = model.pipeline().pass_totals();
        steps.push(RankStep { begun: begun[0], ended, passes: since(&before, &after) });
        before = after;
    }
    Ok(steps)
}

/// Returns the passes since `before`.
fn since(before: &[PassTotal], after: &[PassTotal]) -> Vec<PassTotal> {
    let earlier = |total: &PassTotal| {
        before.iter().find(|before| (before.chunk, before.pass) == (total.chunk, total.pass))
    };
    let since = |total: &PassTotal| match earlier(total) {
        Some(earlier) => {
            PassTotal { passes: total.passes - earlier.passes, time: total.time - earlier.time, ..*total }
        }
        None => *total,
    };
    after.iter().map(since).collect()
}
