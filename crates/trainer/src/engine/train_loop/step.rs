//! One step of the training loop.

use phalanx_collectives::Clock;
use phalanx_tensor::{Session, Tape};

use super::Run;
use super::losses::{Told, reports};
use super::meter::{Spent, timed};
use super::state::Later;
use crate::config::StallPlace;
use crate::engine::data::{Feed, MicroBatch, StepSamples};
use crate::engine::distributed::{Network, StopReason, Traffic};
use crate::engine::observer::UpdateReport;
use crate::engine::training::{Measure, Phase, Step};
use crate::engine::{StepReport, TrainError, precision};
use phalanx_run::resident_memory;

/// A step that was taken, whose losses nobody has read yet: a device may still be computing them.
pub(super) struct Taken {
    report: StepReport,
    /// The phases that it had.
    phases: Vec<usize>,
    /// What they measured, one after the other: of each number the parts of all micro-batches.
    sums: Vec<Vec<Measure>>,
    /// What was not known yet of updates, by their place in the report.
    later: Vec<(usize, Later)>,
    /// What it took until the host had gone through it.
    spent: Spent,
    /// What communication had cost by then.
    traffic: Traffic,
}

/// Of the loss and each measure of a phase the parts of all micro-batches; its updates, and what comes later of them.
type PhaseDone = (Vec<Vec<Measure>>, Vec<(UpdateReport, Option<Later>)>);

impl Run<'_> {
    /// By which steps are timed.
    fn clock(&self) -> Clock {
        self.config.comm.clock
    }

    /// Takes a step.
    pub(super) fn step(&mut self, feed: &mut Feed) -> Result<Taken, TrainError> {
        let clock = self.clock();
        let begun = clock.now();
        let mut spent = Spent::default();
        let step = self.state.step;
        let waiting = tracing::trace_span!(target: "phalanx_trace::data", "wait for a batch");
        let share = waiting.in_scope(|| {
            timed(clock, &mut spent.data, || {
                self.faults.stall(StallPlace::Data, step + 1);
                feed.next()
            })
        })?;
        // Batches that come from another rank count as data.
        let before = self.distributed.traffic(self.state.networks());
        let due = self.state.due();
        let mut report = StepReport {
            step: step + 1,
            total: self.plan.stop,
            epoch: self.plan.place(step).0,
            ..StepReport::default()
        };
        let (mut sums, mut later) = (Vec::new(), Vec::new());
        for phase in due.iter().copied() {
            let mut repeated = std::mem::take(&mut self.repeated[phase]);
            let done = repeated.run(|| share.shape(), || self.phase(phase, &share));
            self.repeated[phase] = repeated;
            let (measured, updates) = done?;
            sums.extend(measured);
            for (update, coming) in updates {
                later.extend(coming.map(|coming| (report.updates.len(), coming)));
                report.updates.push(update);
            }
        }
        if let Some(delay) = &self.delay {
            let span = tracing::trace_span!(target: "phalanx_trace::compute", "hold up on purpose");
            span.in_scope(|| delay.hold_up(clock, step, clock.now().saturating_sub(begun)));
        }
        self.faults.stall(StallPlace::Compute, step + 1);
        self.state.step += 1;
        self.faults.flip(&self.state)?;
        spent.steps = clock.now().saturating_sub(begun);
        // The communicator counts all waiting, also that of batch norms in the middle of the model.
        let so_far = self.distributed.traffic(self.state.networks());
        let traffic = so_far - before;
        (spent.communication, spent.busy, spent.sent) = (traffic.exposed, traffic.busy, traffic.bytes_sent);
        spent.images = share.global_samples;
        report.memory_bytes = resident_memory();
        if let Some(bytes) = report.memory_bytes {
            tracing::trace!(target: "phalanx_trace::counter", resident = bytes, "memory");
        }
        Ok(Taken { report, phases: due, sums, later, spent, traffic: so_far })
    }

    /// Runs a phase: what it measures, and what its updates were.
    fn phase(&mut self, phase: usize, share: &StepSamples) -> Result<PhaseDone, TrainError> {
        let strategies = self.state.strategies(phase)?;
        let steps = strategies.iter().map(|parallel| Ok(parallel.begin_step()?));
        let mut steps = steps.collect::<Result<Vec<_>, TrainError>>()?;
        let sums = self.gradients(phase, share, &mut steps)?;
        let reduced = steps.into_iter().map(|step| Ok(step.reduce()?));
        let reduced = reduced.collect::<Result<Vec<_>, TrainError>>()?;
        self.agree_on_buffers()?;
        let updating = tracing::trace_span!(target: "phalanx_trace::compute", "update");
        Ok((sums, updating.in_scope(|| self.state.update(phase, reduced, &self.distributed))?))
    }

    /// Reads what a step has measured, for which this waits where a device computes it: its report, on ranks other than 0
    /// without losses, and so on rank 0 where others may be behind; and the phases that the step had.
    pub(super) fn read(&mut self, taken: Taken) -> Result<(StepReport, Vec<usize>), TrainError> {
        let clock = self.clock();
        let begun = clock.now();
        let Taken { mut report, phases: due, sums, later, mut spent, traffic } = taken;
        for (at, later) in later {
            self.state.complete(&mut report.updates[at], later, report.step, &self.distributed)?;
        }
        let shards = self.own_shards()?;
        let sums = match &shards {
            // There is one part for each logical rank.
            Some(own) => by_shard(sums, own.len())?,
            None => {
                let sum = |parts: Vec<Measure>| parts.into_iter().map(Measure::take).sum::<Result<f64, _>>();
                sums.into_iter().map(sum).collect::<Result<Vec<_>, TrainError>>()?
            }
        };
        // Where a rank is lost, what a GPU was to compute of its gradients ends early. Where ranks do not take every step together
        // the step counts all the same, and the loss is noticed before the next; where the world may change its end was waited for.
        if self.distributed.mixes_unseen() && self.elastic.is_none() {
            self.distributed.check()?;
        }
        let seconds =
            (self.meter.whole().steps + spent.steps + clock.now().saturating_sub(begun)).as_secs_f64();
        let rank = self.distributed.first_number(self.distributed.rank());
        let told = Told { rank, step: report.step, seconds, shards: shards.unwrap_or_default(), sums };
        self.keep_told(&told);
        let told = self.losses.tell(&self.distributed, told);
        if self.state.is_lockstep() {
            told?;
            // Ranks tell theirs after backward, so rank 0 never waits for computing that its own next step would not wait for.
            let told = self.hear_losses(report.step, true)?;
            self.take_losses(&mut report, &due, told.as_deref())?;
        }
        // Where a device computes, this is where the host waits for it.
        spent.steps += clock.now().saturating_sub(begun);
        self.meter.add(&spent);
        self.tell_usage(report.step, &traffic);
        report.images_per_second = spent.rate();
        report.data_share = spent.share(spent.data);
        report.communication_share = self.place.is_host().then(|| spent.share(spent.communication));
        Ok((report, due))
    }

    /// Completes the report of a step that had these phases by what all ranks have measured; on ranks other than 0 nobody knows.
    pub(super) fn take_losses(
        &mut self,
        report: &mut StepReport,
        due: &[usize],
        told: Option<&[Told]>,
    ) -> Result<(), TrainError> {
        let Some(told) = told else { return Ok(()) };
        let Told { seconds, sums, .. } = Told::whole(told)?;
        report.seconds = self.seconds_before + seconds;
        let phases = self.state.training.phases();
        let phases: Vec<&Phase> = due.iter().map(|phase| phases[*phase]).collect();
        report.phases = reports(&phases, &sums);
        self.check_finite(report)
    }

    /// Runs a phase forward and backward on this rank's share of a step: of its loss and of each measure the parts of all
    /// micro-batches, while the gradients that it has led to are summed over the ranks.
    fn gradients(
        &self,
        phase: usize,
        share: &StepSamples,
        steps: &mut [phalanx_sharding::StepGuard<'_>],
    ) -> Result<Vec<Vec<Measure>>, TrainError> {
        if let Some(placed) = self.placed()? {
            return self.shard_gradients(placed, phase, share);
        }
        let (state, distributed) = (&self.state, &self.distributed);
        let training = &state.training;
        let phases = training.phases();
        let mut key = self.key.stream("train");
        if phases.len() > 1 {
            key = key.stream(&phases[phase].name);
        }
        let mut sums: Vec<Vec<Measure>> = Vec::new();
        sums.resize_with(1 + phases[phase].measures.len(), Vec::new);
        let last = share.micro_batches.len().saturating_sub(1);
        // The last batch of an epoch may leave ranks without samples in some micro-batch; they then cannot gather parameters
        // block by block together.
        let uneven =
            share.micro_batches.iter().any(|micro_batch| micro_batch.ranks < distributed.data_size());
        let gathered = || state.networks().filter(|network| uneven && network.gathers());
        gathered().try_for_each(Network::unshard)?;
        // Nor can they know in which order the others come to reduce gradients of different networks: then that comes last.
        let together = !uneven || state.updated(phase).count() == 1;
        for (index, MicroBatch { batch, offset, ranks }) in share.micro_batches.iter().enumerate() {
            if *ranks == 0 {
                continue;
            }
            // Those who have samples of it normalise and contrast them together; the others wait at what comes after.
            let groups = state.updated(phase).next().map(Network::batch_groups).unwrap_or_default();
            let batch_group = groups.first(*ranks)?;
            if batch.is_empty() {
                continue;
            }
            let session = Session {
                sample_offset: *offset,
                listener: state.listener(),
                batch_group,
                recompute: precision::recompute(self.config),
                precision: self.config.train.precision,
                device: self.place.clone(),
                frozen: state.constants(phase),
                ..Session::training(self.context.clone(), key.step(self.state.step))
            };
            // Gradients travel once they are complete, with the last micro-batch: on all ranks the same, also those that have
            // no sample of it.
            steps.iter_mut().for_each(|step| step.micro_batch(index != last || !together));
            let tape = Tape::recording(session);
            let shared = self.key.stream("train").step(state.step);
            let step = Step::new(&tape, batch, share.global_weight, state.step, shared);
            let forward = tracing::trace_span!(target: "phalanx_trace::compute", "forward");
            let loss = forward.in_scope(|| training.loss(phase, &step))?;
            let measured = std::iter::once(Measure::of(&loss.value)?).chain(loss.measures);
            sums.iter_mut().zip(measured).for_each(|(parts, part)| parts.push(part));
            let backward = tracing::trace_span!(target: "phalanx_trace::compute", "backward");
            backward.in_scope(|| tape.backward_scaled(&loss.value, state.loss_factor(phase)?))?;
        }
        gathered().try_for_each(Network::reshard)?;
        Ok(sums)
    }

    /// Has all ranks stop if a loss is not finite, and remembers why. Nothing is saved from this step on.
    fn check_finite(&mut self, report: &StepReport) -> Result<(), TrainError> {
        let Some(broken) = report.phases.iter().find(|phase| !phase.loss.is_finite()) else { return Ok(()) };
        if self.broken.is_some() {
            return Ok(());
        }
        let (step, phase, loss) = (report.step, broken.name.clone(), broken.loss);
        let reason = StopReason::NotFinite { step, phase: phase.clone(), loss: loss.to_string() };
        self.broken = Some(TrainError::NotFinite { step, phase, loss, elsewhere: false });
        self.distributed.job().request_stop(&reason)
    }
}

/// The numbers that each of `shards` logical ranks has measured, one's after the other's.
fn by_shard(numbers: Vec<Vec<Measure>>, shards: usize) -> Result<Vec<f64>, TrainError> {
    let mut by_shard = vec![Vec::with_capacity(numbers.len()); shards];
    for parts in numbers {
        for (of_shard, part) in by_shard.iter_mut().zip(parts) {
            of_shard.push(part.take()?);
        }
    }
    Ok(by_shard.concat())
}
