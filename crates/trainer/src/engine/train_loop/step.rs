//! One step of the training loop.

use phalanx_sharding::StepGuard;

use super::environment::Environment;
use super::faults::Faults;
use super::meter::{StepCost, timed};
use super::schedule::{MicroBatchSchedule, PhasePass, schedule};
use super::state::{PendingUpdate, TrainState};
use crate::engine::data::{Feed, StepSamples};
use crate::engine::distributed::{Distributed, Network, Traffic};
use crate::engine::graphs::GraphCapture;
use crate::engine::observer::UpdateReport;
use crate::engine::training::Measure;
use crate::engine::{StepReport, TrainError};
use phalanx_config::StallPlace;
use phalanx_run::resident_memory;

/// A step whose losses have not been read: a device may still compute them.
pub(super) struct UnreadStep {
    pub(super) report: StepReport,
    /// The phases of the step, by index.
    pub(super) phases: Vec<usize>,
    /// The loss and the measures of all phases, in order: of each number the parts of all micro-batches.
    pub(super) parts: Vec<Vec<Measure>>,
    /// Results of updates that the device has not delivered.
    pub(super) updates: Vec<LateUpdate>,
    /// The cost of the step on the host.
    pub(super) cost: StepCost,
    /// The communication of this rank so far.
    pub(super) traffic: Traffic,
}

/// A result of an update that arrives after its report.
pub(super) struct LateUpdate {
    /// The index of the update in the report.
    pub(super) at: usize,
    pub(super) update: PendingUpdate,
}

/// Runs steps: data, forward and backward, reduction, update.
pub(super) struct StepRunner {
    schedule: Box<dyn MicroBatchSchedule>,
    /// The recorded work of each phase.
    graphs: Vec<GraphCapture>,
    faults: Faults,
}

impl StepRunner {
    /// Creates the runner of a rank for steps with this number of phases.
    pub(super) fn new(
        env: &Environment<'_>,
        distributed: &Distributed,
        phases: usize,
    ) -> Result<Self, TrainError> {
        let graph = || GraphCapture::new(distributed.device(), env.config.train.graphs);
        Ok(Self {
            schedule: schedule(env, distributed)?,
            graphs: std::iter::repeat_with(graph).take(phases).collect(),
            faults: Faults::of(env.config, distributed.rank()),
        })
    }

    /// Adapts to a world that has changed.
    pub(super) fn enter_world(
        &mut self,
        env: &Environment<'_>,
        distributed: &Distributed,
    ) -> Result<(), TrainError> {
        self.schedule = schedule(env, distributed)?;
        Ok(())
    }

    /// Runs the next step.
    pub(super) fn run(
        &mut self,
        env: &Environment<'_>,
        distributed: &Distributed,
        state: &mut TrainState,
        feed: &mut Feed,
    ) -> Result<UnreadStep, TrainError> {
        let clock = env.clock();
        let (begun, step) = (clock.now(), state.step);
        let mut cost = StepCost::default();
        let samples = self.next_samples(env, feed, step, &mut cost)?;
        // Batches that come from another rank count as data.
        let traffic_before = distributed.traffic(state.networks()) + self.schedule.traffic();
        let mut unread = UnreadStep::new(env, step, state.due());
        for phase in unread.phases.clone() {
            self.run_phase(phase, env, distributed, state, &samples, &mut unread)?;
        }
        self.faults.hold_up(clock, step, clock.now().saturating_sub(begun));
        self.faults.stall(StallPlace::Compute, step + 1);
        state.step += 1;
        self.faults.flip(state)?;
        cost.steps = clock.now().saturating_sub(begun);
        // The communicator counts all waiting, also that of batch norms in the middle of the model.
        unread.traffic = distributed.traffic(state.networks()) + self.schedule.traffic();
        let traffic = unread.traffic - traffic_before;
        (cost.communication, cost.busy) = (traffic.exposed, traffic.busy);
        // Answers are counted apart, because they do not keep to this rank's steps.
        cost.sent = traffic.bytes_sent.saturating_sub(traffic.bytes_answered);
        (cost.samples, cost.weight) = (samples.global_samples, samples.global_weight);
        cost.operations = env.arithmetic.take();
        unread.cost = cost;
        unread.report.memory_bytes = measured_memory();
        Ok(unread)
    }

    /// Waits for this rank's samples of a step.
    fn next_samples(
        &self,
        env: &Environment<'_>,
        feed: &mut Feed,
        step: u64,
        cost: &mut StepCost,
    ) -> Result<StepSamples, TrainError> {
        let waiting = tracing::trace_span!(target: "phalanx_trace::data", "wait for a batch");
        waiting.in_scope(|| {
            timed(env.clock(), &mut cost.data, || {
                self.faults.stall(StallPlace::Data, step + 1);
                feed.next()
            })
        })
    }

    /// Runs a phase and adds its measures and updates to the step.
    fn run_phase(
        &mut self,
        phase: usize,
        env: &Environment<'_>,
        distributed: &Distributed,
        state: &mut TrainState,
        samples: &StepSamples,
        unread: &mut UnreadStep,
    ) -> Result<(), TrainError> {
        let schedule = &*self.schedule;
        // Other operations run while parameters are frozen.
        let frozen = state.is_frozen();
        let shape = || samples.shape(frozen);
        let (parts, updates) = self.graphs[phase].run(shape, || {
            let strategies = state.strategies(phase)?;
            let guards = strategies.iter().map(|parallel| Ok(parallel.begin_step()?));
            let mut guards = guards.collect::<Result<Vec<StepGuard<'_>>, TrainError>>()?;
            let parts = schedule.run(&PhasePass { env, distributed, state, samples, phase }, &mut guards)?;
            let reduced = guards.into_iter().map(|guard| Ok(guard.reduce()?));
            let reduced = reduced.collect::<Result<Vec<_>, TrainError>>()?;
            schedule.complete(&reduced)?;
            if env.is_elastic() {
                share_buffers(state)?;
            }
            let updating = tracing::trace_span!(target: "phalanx_trace::compute", "update");
            Ok((parts, updating.in_scope(|| state.update(phase, reduced, distributed))?))
        })?;
        unread.parts.extend(parts);
        updates.into_iter().for_each(|(report, late)| unread.add_update(report, late));
        Ok(())
    }

    /// The schedule of micro-batches.
    pub(super) fn schedule(&self) -> &dyn MicroBatchSchedule {
        &*self.schedule
    }
}

impl UnreadStep {
    /// Creates the record of a step, counted from 0, with these phases.
    fn new(env: &Environment<'_>, step: u64, phases: Vec<usize>) -> Self {
        let report = StepReport {
            step: step + 1,
            total: env.plan.stop,
            epoch: env.plan.place(step).0,
            ..StepReport::default()
        };
        Self {
            report,
            phases,
            parts: Vec::new(),
            updates: Vec::new(),
            cost: StepCost::default(),
            traffic: Traffic::default(),
        }
    }

    fn add_update(&mut self, report: UpdateReport, late: Option<PendingUpdate>) {
        let at = self.report.updates.len();
        self.updates.extend(late.map(|update| LateUpdate { at, update }));
        self.report.updates.push(report);
    }
}

/// Gives all ranks the buffers of rank 0. Buffers then outlive rank 0 if it is lost during the update.
fn share_buffers(state: &TrainState) -> Result<(), TrainError> {
    let mut with_buffers = state.networks().filter(|network| !network.store().buffers().is_empty());
    with_buffers.try_for_each(Network::broadcast_buffers)
}

/// Resident memory of this process, in bytes; also a counter of the trace.
fn measured_memory() -> Option<u64> {
    let bytes = resident_memory()?;
    tracing::trace!(target: "phalanx_trace::counter", resident = bytes, "memory");
    Some(bytes)
}
