//! Running a schedule: one rank's passes of a step, with messages between chunks.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use candle_core::DType;
use phalanx_collectives::Communicator;
use phalanx_tensor::{
    ComputeDevice, LossFactor, SentOut, StageRole, StageRun, StageShare, Tape, Value, WeightWork,
};
use tracing::Span;

use super::division::DividedPass;
use super::links::{ForwardMessages, PipelineOptions, StageLinks, StageTraffic};
use super::message::MessageTag;
use super::play::SentValue;
use super::schedule::{PipelineSchedule, StagePass, StageWork};
use super::sharing::played_blocks;
use crate::{Result, ShardingError};

/// The computation of the loss, as a pipeline calls it.
pub trait StagePasses {
    /// The error of the computation.
    type Error: From<ShardingError> + From<phalanx_tensor::TensorError> + std::fmt::Display;

    /// Computes the loss of a micro-batch on a new tape whose session has this role. Other chunks' loss is an outline.
    ///
    /// # Errors
    /// Errors of the computation.
    fn forward(&mut self, micro: usize, role: StageRole) -> Result<StageForward, Self::Error>;

    /// Is called before each backward pass: `more` says whether others follow on this rank.
    fn before_backward(&mut self, micro: usize, more: bool);

    /// The factor of the loss.
    fn loss_factor(&self) -> LossFactor {
        LossFactor::default()
    }
}

/// A forward pass of a chunk.
#[derive(Debug)]
pub struct StageForward {
    /// The tape that recorded it.
    pub tape: Tape,
    /// The loss.
    pub loss: Value,
}

/// A forward pass whose backward pass follows.
#[derive(Debug)]
struct LivePass {
    forward: StageForward,
    sent: Vec<SentOut>,
}

/// A backward pass whose second part follows.
#[derive(Debug)]
struct WeightPass {
    tape: Tape,
    work: WeightWork,
}

/// Returns the trace span of a pass.
fn span_of(StageWork { pass, chunk, micro }: StageWork) -> Span {
    let (chunk, micro_batch) = (chunk as u64, micro as u64);
    match pass {
        StagePass::Forward => {
            tracing::trace_span!(target: "phalanx_trace::compute", "forward of a stage", chunk, micro_batch)
        }
        StagePass::Backward => {
            tracing::trace_span!(target: "phalanx_trace::compute", "backward of a stage", chunk, micro_batch)
        }
        StagePass::BackwardInput => {
            tracing::trace_span!(target: "phalanx_trace::compute", "backward of inputs", chunk, micro_batch)
        }
        StagePass::BackwardWeight => {
            tracing::trace_span!(target: "phalanx_trace::compute", "backward of weights", chunk, micro_batch)
        }
    }
}

/// The passes of a kind over a chunk so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PassTotal {
    /// The chunk.
    pub chunk: usize,
    /// The kind.
    pub pass: StagePass,
    /// Their number.
    pub passes: u64,
    /// Their time, without the waiting for messages.
    pub time: Duration,
}

/// Checks that a schedule can run a pass on this number of ranks. Returns the rank of each chunk.
fn checked_places(schedule: &PipelineSchedule, pass: &DividedPass, there: usize) -> Result<Vec<usize>> {
    let places = schedule.ranks_of_chunks()?;
    let (ranks, chunks) = (schedule.ranks.len(), pass.plans.len());
    if ranks != there || places.len() != chunks {
        let problem = format!("{} chunks on {ranks} ranks", places.len());
        return Err(schedule.wrong(format!("{problem}, and there are {chunks} on {there}")));
    }
    let buffers = schedule.needed_buffers(&pass.sent)?;
    schedule.check(&pass.sent, super::ScheduleLimits { buffers, kept: None })?;
    Ok(places)
}

/// A pass that is not over.
#[derive(Debug)]
enum OpenPass {
    Forward(LivePass),
    Weights(WeightPass),
}

/// One rank of a pipeline.
#[derive(Debug)]
pub struct Pipeline {
    schedule: PipelineSchedule,
    pass: DividedPass,
    links: Arc<StageLinks>,
    from: Arc<BTreeMap<usize, usize>>,
    rank: usize,
    dtype: DType,
    shared: Option<Arc<StageShare>>,
    totals: Mutex<BTreeMap<(usize, StagePass), PassTotal>>,
}

impl Pipeline {
    /// Makes one rank of a pipeline; `comm` has the ranks along it.
    ///
    /// # Errors
    /// [`ShardingError::Schedule`] if the schedule cannot run, or has other chunks or ranks than there are.
    pub fn new(
        comm: Communicator,
        schedule: PipelineSchedule,
        pass: DividedPass,
        options: PipelineOptions,
    ) -> Result<Self> {
        let places = checked_places(&schedule, &pass, comm.world_size())?;
        let (rank, dtype, shared) = (comm.rank(), options.dtype, options.shared.clone());
        let links = StageLinks::new(comm, places, options);
        Ok(Self::over(links, (schedule, pass), rank, (dtype, shared)))
    }

    /// Makes one rank of a pipeline to which the others are played, for passes without numbers on this device.
    ///
    /// # Errors
    /// As [`Pipeline::new`].
    pub fn played(
        schedule: PipelineSchedule,
        pass: DividedPass,
        rank: usize,
        (device, dtype): (&ComputeDevice, DType),
    ) -> Result<Self> {
        let places = checked_places(&schedule, &pass, schedule.ranks.len())?;
        let links = StageLinks::played(rank, places, device);
        Ok(Self::over(links, (schedule, pass), rank, (dtype, Some(played_blocks(dtype)))))
    }

    fn over(
        links: StageLinks,
        (schedule, pass): (PipelineSchedule, DividedPass),
        rank: usize,
        (dtype, shared): (DType, Option<Arc<StageShare>>),
    ) -> Self {
        let from = Arc::new(pass.sent.iter().map(|sent| (sent.value, sent.from)).collect());
        Self { schedule, pass, links: Arc::new(links), from, rank, dtype, shared, totals: Mutex::default() }
    }

    /// The messages to other stages so far.
    pub fn traffic(&self) -> StageTraffic {
        self.links.traffic()
    }

    /// The time of this rank's passes so far, without the waiting for messages, by chunk.
    pub fn pass_totals(&self) -> Vec<PassTotal> {
        self.totals().values().copied().collect()
    }

    fn totals(&self) -> MutexGuard<'_, BTreeMap<(usize, StagePass), PassTotal>> {
        self.totals.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs one pass and adds up its time.
    fn timed<P: StagePasses>(
        &self,
        passes: &mut P,
        (work, more): (StageWork, bool),
        live: &mut BTreeMap<(usize, usize), OpenPass>,
    ) -> Result<(), P::Error> {
        let StageWork { pass, chunk, .. } = work;
        let span = span_of(work);
        let (begun, waited) = (self.links.now(), self.traffic().waited);
        span.in_scope(|| self.work(passes, (work, more), live))?;
        let time = self.links.now().saturating_sub(begun);
        let waited = self.traffic().waited.saturating_sub(waited);
        let mut totals = self.totals();
        let total =
            totals.entry((chunk, pass)).or_insert(PassTotal { chunk, pass, passes: 0, time: Duration::ZERO });
        total.passes += 1;
        total.time += time.saturating_sub(waited);
        Ok(())
    }

    /// Runs this rank's forward and backward passes of a step.
    ///
    /// # Errors
    /// Errors of the passes, and [`ShardingError::Pipeline`] naming the message that cannot come or go.
    pub fn run<P: StagePasses>(&self, passes: &mut P) -> Result<(), P::Error> {
        let mut live = BTreeMap::new();
        let works = &self.schedule.ranks[self.rank];
        let last = works.iter().rposition(|work| work.pass != StagePass::Forward);
        for (at, work) in works.iter().enumerate() {
            self.timed(passes, (*work, Some(at) != last), &mut live)
                .inspect_err(|error| self.links.abort(&format!("{work}: {error}")))?;
        }
        self.links.finish().map_err(P::Error::from)
    }

    /// Runs one pass; `more` says whether other backward passes follow.
    fn work<P: StagePasses>(
        &self,
        passes: &mut P,
        (work, more): (StageWork, bool),
        live: &mut BTreeMap<(usize, usize), OpenPass>,
    ) -> Result<(), P::Error> {
        let StageWork { pass, chunk, micro } = work;
        match pass {
            StagePass::Forward => {
                let forward = self.forward(passes, chunk, micro)?;
                live.insert((chunk, micro), OpenPass::Forward(forward));
            }
            StagePass::Backward | StagePass::BackwardInput => {
                let Some(OpenPass::Forward(open)) = live.remove(&(chunk, micro)) else {
                    return Err(self.schedule.wrong(format!("{work} comes before its forward pass")).into());
                };
                if pass == StagePass::Backward {
                    passes.before_backward(micro, more);
                }
                if let Some(weights) = self.backward(passes, open, work)? {
                    live.insert((chunk, micro), OpenPass::Weights(weights));
                }
            }
            StagePass::BackwardWeight => {
                let Some(OpenPass::Weights(WeightPass { tape, work: left })) = live.remove(&(chunk, micro))
                else {
                    return Err(self.schedule.wrong(format!("{work} comes before its first part")).into());
                };
                passes.before_backward(micro, more);
                left.run(&tape)?;
            }
        }
        Ok(())
    }

    /// Runs the forward passes of this rank only, one micro-batch after the other: for evaluations.
    ///
    /// # Errors
    /// As [`Pipeline::run`].
    pub fn run_forward<P: StagePasses>(&self, passes: &mut P) -> Result<(), P::Error> {
        for work in self.schedule.ranks[self.rank].iter().filter(|work| work.pass == StagePass::Forward) {
            self.forward(passes, work.chunk, work.micro)?;
        }
        self.links.finish().map_err(P::Error::from)
    }

    /// Runs a forward pass, and sends the values that other chunks need.
    fn forward<P: StagePasses>(
        &self,
        passes: &mut P,
        chunk: usize,
        micro: usize,
    ) -> Result<LivePass, P::Error> {
        let messages =
            Arc::new(ForwardMessages { links: self.links.clone(), from: self.from.clone(), chunk, micro });
        let (plan, shared) = (self.pass.plans[chunk].clone(), self.shared.clone());
        let run = StageRun { plan, messages, dtype: self.dtype, shared };
        let forward = passes.forward(micro, StageRole::Run(Arc::new(run)))?;
        forward.tape.check_stage_end()?;
        let mut sent = forward.tape.take_sent_values();
        sent.sort_by_key(|out| out.number);
        for SentValue { value, to, .. } in self.made_by(chunk) {
            let out = sent.iter().find(|out| out.number == *value);
            let out = out.ok_or_else(|| {
                ShardingError::Pipeline(format!(
                    "stage {chunk} has not made value {value} of micro-batch {micro}"
                ))
            })?;
            let array = out.value.part()?;
            for to in to {
                self.links.send(MessageTag { from: chunk, to: *to, value: *value, micro }, &array)?;
            }
        }
        Ok(LivePass { forward, sent })
    }

    /// The values of a chunk that others need.
    fn made_by(&self, chunk: usize) -> impl Iterator<Item = &SentValue> {
        self.pass.sent.iter().filter(move |sent| sent.from == chunk)
    }

    /// Runs a backward pass from the gradients that later chunks send, and sends those of the values that came from earlier ones.
    fn backward<P: StagePasses>(
        &self,
        passes: &mut P,
        LivePass { forward: StageForward { tape, loss }, sent }: LivePass,
        StageWork { pass, chunk, micro }: StageWork,
    ) -> Result<Option<WeightPass>, P::Error> {
        let mut seeds = Vec::new();
        for out in sent.iter().filter(|out| out.value.needs_grad()) {
            let to =
                self.made_by(chunk).find(|sent| sent.value == out.number).map_or(&[][..], |sent| &sent.to);
            // Gradients are added up as without a pipeline: the latest use first.
            for from in to.iter().rev() {
                let tag = MessageTag { from: *from, to: chunk, value: out.number, micro };
                let grad = self.links.receive(tag, out.value.shape(), out.value.dtype()?)?;
                seeds.push((&out.value, grad));
            }
        }
        let work = match (tape.computes(&loss), pass) {
            (true, StagePass::BackwardInput) => {
                Some(tape.backward_inputs_scaled(&loss, passes.loss_factor())?)
            }
            (false, StagePass::BackwardInput) => Some(tape.backward_inputs(seeds)?),
            (true, _) => tape.backward_scaled(&loss, passes.loss_factor()).map(|()| None)?,
            (false, _) => tape.backward_from(seeds).map(|()| None)?,
        };
        for received in tape.take_received_grads()? {
            let to = self.from.get(&received.number).copied().unwrap_or_default();
            let tag = MessageTag { from: chunk, to, value: received.number, micro };
            self.links.send(tag, &received.grad)?;
        }
        Ok(work.map(|work| WeightPass { tape, work }))
    }
}
