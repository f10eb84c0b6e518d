//! Reads the results of a step and gathers its losses.

use super::pending::{CompleteReport, PartialReport};
use super::{REMEMBERED, Reporter, RunView};
use crate::engine::distributed::{Distributed, StopReason};
use crate::engine::train_loop::rank_report::{RankReport, phase_reports};
use crate::engine::train_loop::state::TrainState;
use crate::engine::train_loop::step::UnreadStep;
use crate::engine::{StepReport, TrainError};

impl From<PartialReport> for CompleteReport {
    fn from(open: PartialReport) -> Self {
        Self { report: open.report, is_logged: open.is_logged }
    }
}

impl Reporter {
    /// Waits for the results of a step and sends this rank's losses to rank 0. In lockstep, rank 0 waits for all losses; otherwise the
    /// report has none yet.
    pub(super) fn read(
        &mut self,
        unread: UnreadStep,
        view: &mut RunView<'_, '_>,
        is_logged: bool,
    ) -> Result<PartialReport, TrainError> {
        let clock = view.env.clock();
        let begun = clock.now();
        let UnreadStep { mut report, phases, parts, updates, mut cost, traffic } = unread;
        for late in updates {
            view.state.complete(&mut report.updates[late.at], late.update, report.step, view.distributed)?;
        }
        let sums = view.schedule.sums(parts)?;
        // If a rank is lost, a GPU ends the reduction of gradients early. Where ranks do not step together, the step counts all the
        // same and the loss is noticed before the next step. Where ranks may join or leave, the end of the step was waited for.
        if view.distributed.mixes_unseen() && !view.env.is_elastic() {
            view.distributed.check()?;
        }
        let elapsed = cost.steps + clock.now().saturating_sub(begun);
        let own = RankReport {
            rank: view.distributed.roster().number_of(view.distributed.rank()),
            step: report.step,
            seconds: (self.meter.whole().steps + elapsed).as_secs_f64(),
            shards: view.schedule.virtual_ranks(),
            sums,
        };
        self.remember_own(&own);
        let sent = self.losses.send(view.distributed, own);
        if view.state.is_lockstep() {
            sent?;
            // Ranks send their losses after backward, so rank 0 does not wait longer than its own next step would.
            let reports = self.gather_losses(report.step, true, view.distributed)?;
            self.fill_in_losses(&mut report, &phases, reports.as_deref(), view.state, view.distributed)?;
        }
        // If a device computes, this is where the host waits for it.
        cost.steps += clock.now().saturating_sub(begun);
        self.meter.add(&cost, traffic.bytes_answered);
        self.resources.update(report.step, &self.meter, &traffic, view.state);
        report.samples_per_second = cost.rate();
        report.units = cost.unit_rate(view.state.training.outline().weight_unit);
        report.arithmetic = cost.arithmetic_rate(view.env.peak());
        report.data_share = cost.share(cost.data);
        report.communication_share = view.env.device.is_host().then(|| cost.share(cost.communication));
        Ok(PartialReport { report, phases, is_logged })
    }

    fn remember_own(&mut self, own: &RankReport) {
        let Some(recent) = &mut self.recent else { return };
        recent.own.push_back(own.clone());
        while recent.own.len() > REMEMBERED {
            recent.own.pop_front();
        }
    }

    /// Gathers the losses of a step on rank 0; see [`super::losses::LossGatherer::gather`].
    pub(super) fn gather_losses(
        &mut self,
        step: u64,
        wait: bool,
        distributed: &Distributed,
    ) -> Result<Option<Vec<RankReport>>, TrainError> {
        let _waiting = tracing::trace_span!(target: "phalanx_trace::waiting", "wait for losses").entered();
        self.losses.gather(distributed, step, wait)
    }

    /// Fills in the losses gathered from all ranks. Only rank 0 has them.
    pub(in crate::engine::train_loop) fn fill_in_losses(
        &mut self,
        report: &mut StepReport,
        phases: &[usize],
        reports: Option<&[RankReport]>,
        state: &TrainState,
        distributed: &Distributed,
    ) -> Result<(), TrainError> {
        let Some(reports) = reports else { return Ok(()) };
        let RankReport { seconds, sums, .. } = RankReport::total(reports)?;
        report.seconds = self.meter.seconds_before() + seconds;
        report.phases = phase_reports(&state.phases_at(phases), &sums);
        match self.range_test.as_mut().map(|test| test.is_over(report)) {
            None => self.check_finite(report, distributed),
            Some(true) => distributed.job().request_stop(&StopReason::RangeTested),
            Some(false) => Ok(()),
        }
    }

    /// Stops all ranks if a loss is not finite. Nothing is saved from this step on.
    fn check_finite(&mut self, report: &StepReport, distributed: &Distributed) -> Result<(), TrainError> {
        let Some(broken) = report.phases.iter().find(|phase| !phase.loss.is_finite()) else { return Ok(()) };
        if self.broken.is_some() {
            return Ok(());
        }
        let (step, phase, loss) = (report.step, broken.name.clone(), broken.loss);
        let reason = StopReason::NotFinite { step, phase: phase.clone(), loss: loss.to_string() };
        self.broken = Some(TrainError::NotFinite { step, phase, loss, saved: None, elsewhere: false });
        distributed.job().request_stop(&reason)
    }
}
