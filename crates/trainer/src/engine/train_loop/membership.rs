//! Moves an elastic run from one world to the next when ranks die, leave or join.

use std::path::Path;
use std::time::{Duration, Instant};

use phalanx_collectives::WorldConfig;

use super::reporter::{LossGatherer, last_written};
use super::run::{Run, RunEnd};
use super::world::{
    CommonStep, Progress, RankStatus, exchange, gather_state, newest_common_step, reports_of,
};
use crate::engine::TrainError;
use crate::engine::checkpoint::find_checkpoint;
use crate::engine::distributed::{AgreedAction, BatchSplit, Network, NextWorld, PreviousWorld, StopReason};
use crate::engine::observer::{Event, StepReport};
use phalanx_run::{Invitation, JoinCandidates, JoinTicket, LeftRank, WorldChange};

impl Run<'_> {
    /// Continues in another world, if lost ranks have ended the steps.
    ///
    /// # Errors
    /// `error`, if it has another cause; [`TrainError::TooFew`]; and those of meeting the others.
    pub(super) fn rebuild_after(&mut self, error: TrainError) -> Result<(), TrainError> {
        if !error.is_loss() || self.reporter.broken.is_some() {
            return Err(error);
        }
        tracing::warn!("{error}; the surviving ranks meet again");
        self.enter_next_world(Instant::now(), NextWorld::after_a_loss())
    }

    /// Continues in another world after an action that all ranks have agreed on.
    ///
    /// # Errors
    /// Errors of meeting the others.
    pub(super) fn change_worlds(&mut self, action: &AgreedAction) -> Result<(), TrainError> {
        self.hand_over(action)?;
        let mut newcomers = Vec::new();
        match action {
            AgreedAction::Join(numbers) => newcomers.clone_from(numbers),
            AgreedAction::Leave(number) => self.changes.leaving.push(*number),
            AgreedAction::Asked(_) => {}
        }
        tracing::info!("the world changes after step {}: {action:?}", self.state.step);
        self.enter_next_world(Instant::now(), NextWorld::planned(newcomers))
    }

    /// Joins the world that this rank was invited to. If a rank is lost in that time, joins the next one.
    ///
    /// # Errors
    /// Errors of meeting the others, and if this rank cannot train.
    pub(super) fn join(&mut self) -> Result<(), TrainError> {
        let since = Instant::now();
        match self.settle_in(since, None) {
            Ok(spares) => self.take_in(since, spares),
            Err(error) if error.is_loss() => {
                tracing::warn!("{error}, before this rank joined; the surviving ranks meet again");
                self.enter_next_world(since, NextWorld::after_a_loss())
            }
            Err(error) => Err(error),
        }
    }

    /// Enters the next world with processes that were waiting to join. Without any, stays in this one.
    fn take_in(&mut self, noticed: Instant, spares: Vec<usize>) -> Result<(), TrainError> {
        if spares.is_empty() {
            return Ok(());
        }
        tracing::info!("waiting processes join in place of lost ranks: {spares:?}");
        self.enter_next_world(noticed, NextWorld::planned(spares))
    }

    /// Leaves the run, as all ranks have agreed.
    ///
    /// # Errors
    /// If a rank is lost before the others have the state of this one.
    pub(super) fn leave(&mut self, action: &AgreedAction) -> Result<RunEnd, TrainError> {
        self.hand_over(action)?;
        let step = self.state.step;
        tracing::info!("this rank leaves after step {step}; the others go on");
        if let Some(handler) = self.requests.take_handler() {
            let number = self.distributed.roster().number();
            self.reporter.note(format!("rank {number} leaves after step {step}; another rank takes over"));
            handler.hand_over();
        }
        Ok(RunEnd::Left)
    }

    /// Copies the shards of a rank that leaves to others. All ranks call this together.
    fn hand_over(&mut self, action: &AgreedAction) -> Result<(), TrainError> {
        match &mut self.changes.elastic {
            Some(elastic) => elastic.hand_over(action, self.env.config, &mut self.state, &self.distributed),
            None => Ok(()),
        }
    }

    fn enter_next_world(&mut self, noticed: Instant, mut next: NextWorld) -> Result<(), TrainError> {
        if let Some(elastic) = &mut self.changes.elastic {
            elastic.hold(&mut self.state, &self.distributed)?;
        }
        loop {
            let joins = self.env.folder.joins();
            let invite = |place: &WorldConfig| invite(place, &joins, &next.newcomers);
            let begun = self.distributed.begin_world(self.env.config, &next, self.state.step, &invite);
            let settled = begun.and_then(|(before, retired)| {
                self.state.release();
                drop(retired);
                self.rebuild()?;
                self.settle_in(noticed, Some(&before))
            });
            match settled {
                // Another rank was lost in that time.
                Err(again) if again.is_loss() => {
                    tracing::warn!("{again}; the surviving ranks meet once more");
                    next = NextWorld::after_a_loss();
                }
                Ok(spares) => return self.take_in(noticed, spares),
                Err(error) => return Err(error),
            }
        }
    }

    /// Builds the networks anew for the present world.
    fn rebuild(&mut self) -> Result<(), TrainError> {
        let Some(elastic) = &self.changes.elastic else { return Ok(()) };
        self.state = self.env.build_state(elastic.task(), self.data.num_classes(), &self.distributed)?;
        Ok(())
    }

    /// Agrees with all ranks of a new world on the step to continue from, receives the state that this rank lacks, and splits the work.
    /// Returns the numbers of waiting processes to continue with, if too few ranks are left without them.
    fn settle_in(
        &mut self,
        noticed: Instant,
        before: Option<&PreviousWorld>,
    ) -> Result<Vec<usize>, TrainError> {
        self.requests.clear_agreed();
        self.steps.enter_world(&self.env, &self.distributed)?;
        let ranks_before = self.add_missing();
        let own = self.status(before)?;
        let all = exchange(&self.distributed, &own)?;
        let (common, bytes) = self.take_over_state(&all)?;
        self.state.networks().try_for_each(Network::broadcast_state)?;
        self.changes.split = BatchSplit::new(self.distributed.rank_batch());
        self.take_over_knowledge(&all, common.step);
        self.share_selection()?;
        self.take_over_reports(&all, common.step, ranks_before)?;
        if self.is_first() {
            self.lead(all[0].progress.written)?;
        }
        self.report_change(noticed, &all, bytes);
        self.request_agreed_stop()?;
        let spares = self.continue_if_enough()?;
        // Only now: if a rank is lost while the others save, they meet again with these snapshots.
        if let Some(elastic) = &mut self.changes.elastic {
            elastic.enter_world();
        }
        Ok(spares)
    }

    /// Adds the ranks of the last world that are missing. Returns the number of its ranks.
    fn add_missing(&mut self) -> usize {
        let numbers = self.distributed.roster().numbers();
        let elastic = self.changes.elastic.as_ref();
        let members = elastic.map(|elastic| elastic.members().to_vec()).unwrap_or_default();
        for rank in members.iter().copied().filter(|number| !numbers.contains(number)) {
            self.changes.add_missing(rank, self.distributed.roster().host_of(rank));
        }
        members.len()
    }

    /// The status of this rank in a new world.
    fn status(&mut self, before: Option<&PreviousWorld>) -> Result<RankStatus, TrainError> {
        let (Some(before), false) = (before, self.changes.is_new()) else {
            return Ok(RankStatus::newcomer());
        };
        let step = self.changes.elastic.as_ref().map_or(0, super::world::Elastic::reached);
        let written = last_written(&self.env, step)?;
        let progress = self.progress(step, self.followed.min(step), written);
        let mut reports = self.reporter.own_reports();
        reports.extend(self.reporter.losses.unused(&before.control));
        self.changes.stops = self.changes.stops.take().or_else(|| StopReason::of_broken(&before.control));
        let status = RankStatus {
            progress,
            stops: self.changes.stops.clone(),
            meetings: self.distributed.roster().meetings(),
            dead: self.changes.dead.clone(),
            left: self.changes.left.clone(),
            changes: self.changes.log.past().to_vec(),
            seconds_before: self.reporter.meter.seconds_before(),
            seconds: self.reporter.meter.whole().steps.as_secs_f64(),
            ..RankStatus::default()
        };
        let snapshots = self.changes.elastic.as_ref().map_or(&[][..], |elastic| elastic.snapshots());
        Ok(status.with_state(snapshots, &reports))
    }

    /// Loads the newest state that all ranks can continue from. Returns its step, and the bytes that ranks sent each other.
    fn take_over_state(&mut self, all: &[RankStatus]) -> Result<(CommonStep, u64), TrainError> {
        let Some(common) = newest_common_step(all, &self.state.names()) else {
            return Ok((self.go_back(all)?, 0));
        };
        let own = self.changes.elastic.as_ref().map_or(&[][..], |elastic| elastic.snapshots());
        let gathered = gather_state(&self.distributed, own, all, &common)?;
        let snapshot = &gathered.snapshot;
        self.state.load_from(&self.distributed, &snapshot.reader(), snapshot.step, &snapshot.state)?;
        Ok((common, gathered.bytes))
    }

    /// Goes back to the newest checkpoint: no surviving rank has the state of a lost rank.
    fn go_back(&mut self, all: &[RankStatus]) -> Result<CommonStep, TrainError> {
        let step = all.iter().map(|status| status.progress.step).max().unwrap_or(0);
        let lost = self.changes.dead.last().map_or(0, |dead| dead.rank);
        let (newest, damaged) = find_checkpoint(&self.distributed, self.env.folder)?;
        for problem in damaged {
            self.reporter.note(format!("{problem}; an older checkpoint is used"));
        }
        let checkpoint = newest.ok_or(TrainError::StateLost { lost, step })?;
        self.state.load(&self.distributed, &checkpoint)?;
        self.restore_selection(&checkpoint)?;
        let back = checkpoint.step();
        let text = format!(
            "no rank has the state of rank {lost} after step {step}: all go back to the checkpoint of step {back} and repeat {} \
             steps (elastic.redundancy = 1 keeps copies)",
            step.saturating_sub(back)
        );
        tracing::warn!("{text}");
        self.reporter.note(text);
        Ok(CommonStep::of_all(back))
    }

    /// Takes over what only some ranks know, and sets what is to be done after the step that all continue from.
    fn take_over_knowledge(&mut self, all: &[RankStatus], step: u64) {
        let first = &all[0].progress;
        // All ranks have stopped to write checkpoints, since all are here.
        self.saving.clear(self.is_first(), first.unsaved);
        self.reporter.losses = LossGatherer::default();
        self.reporter.losses.begin_after(first.written.min(step));
        let members = || all.iter().filter(|status| !status.is_new);
        if let Some(known) = members().next().filter(|_| all[self.distributed.rank()].is_new) {
            self.take_over_past(known);
        }
        self.changes.stops =
            self.changes.stops.take().or_else(|| members().find_map(|status| status.stops.clone()));
        self.changes.met = members().map(|status| status.progress.followed).max().unwrap_or(0).min(step);
        if first.lacks_samples && step > 0 {
            self.changes.met = self.changes.met.min(step - 1);
        }
        let newest = Progress::newest_evaluation(members().map(|status| &status.progress));
        let is_open = |after: u64| after > first.written && after <= step;
        self.reporter.evaluated = newest.filter(|evaluation| is_open(evaluation.step)).cloned();
        self.reporter.pending.clear();
    }

    /// Takes over, on a rank that has joined, what happened before.
    fn take_over_past(&mut self, known: &RankStatus) {
        (self.changes.dead, self.changes.stops) = (known.dead.clone(), known.stops.clone());
        self.changes.left.clone_from(&known.left);
        self.distributed.have_met(known.meetings);
        self.reporter.meter.set_seconds_before(known.seconds_before);
        self.reporter.meter.begin_after(Duration::from_secs_f64(known.seconds.max(0.0)));
        if self.changes.elastic.is_some() {
            self.changes.log.take_over(&known.changes);
        }
    }

    /// Has the report of the step that all continue from written again, if it may be missing or if not all has followed the step.
    fn take_over_reports(
        &mut self,
        all: &[RankStatus],
        step: u64,
        ranks_before: usize,
    ) -> Result<(), TrainError> {
        let first = &all[0].progress;
        let is_written = first.written >= step || !self.env.is_logged(step);
        let mut members = all.iter().filter(|status| !status.is_new);
        let is_followed = members.all(|status| status.progress.followed >= step);
        if step == 0 || (is_followed && is_written && !first.lacks_samples) {
            self.followed = step;
            return Ok(());
        }
        self.followed = step - 1;
        let mut report = self.report_of(step);
        if self.is_first() && report.phases.is_empty() {
            let reports = reports_of(all, step, ranks_before, self.env.config.logical_ranks());
            if !reports.is_empty() {
                let phases = self.state.due_in(step - 1);
                let Self { reporter, state, distributed, .. } = self;
                reporter.fill_in_losses(&mut report, &phases, Some(&reports), state, distributed)?;
            }
        }
        let has_losses = !report.phases.is_empty() || !self.is_first();
        self.reporter.pending.push_complete(report, has_losses && self.env.is_logged(step));
        Ok(())
    }

    /// The report of a step that all have finished: this rank's own, if it has done it.
    fn report_of(&self, step: u64) -> StepReport {
        self.reporter.last_report(step).unwrap_or_else(|| StepReport {
            step,
            total: self.env.plan.stop,
            epoch: self.env.plan.place(step - 1).0,
            ..StepReport::default()
        })
    }

    /// Reports ranks that left or joined, and adds the change to the log.
    fn report_change(&mut self, noticed: Instant, all: &[RankStatus], bytes: u64) {
        let (after_step, ranks) = (self.state.step, self.distributed.data_size());
        let mut change = WorldChange { after_step, ranks, bytes, ..WorldChange::default() };
        for dead in self.changes.settle_dead(after_step + 1) {
            change.left.push(dead.rank);
            let (rank, host, from_step) = (dead.rank, dead.host, dead.from_step);
            tracing::warn!(
                "rank {rank} on {host} died; {ranks} ranks share its work from step {from_step} on"
            );
            self.reporter.event(&Event::Died { rank, host, from_step, left: ranks });
        }
        for LeftRank { rank, host, from_step } in self.changes.settle_left(after_step + 1) {
            change.left.push(rank);
            tracing::info!(
                "rank {rank} on {host} left; {ranks} ranks share its work from step {from_step} on"
            );
            self.reporter.event(&Event::Left { rank, host, from_step, ranks });
        }
        let numbers = self.distributed.roster().numbers();
        let came = numbers.iter().zip(all).filter(|(_, status)| status.is_new);
        change.came = came.map(|(number, _)| *number).collect();
        for number in &change.came {
            let (rank, from_step) = (*number, after_step + 1);
            tracing::info!("rank {rank} takes part from step {from_step} on, one of {ranks}");
            self.reporter.event(&Event::Joined { rank, from_step, ranks });
        }
        if self.changes.elastic.is_some() {
            self.changes.log.begin(noticed, change);
        }
    }

    /// Returns the numbers of waiting processes that make up for lost ranks, if too few are left. Saves and ends the run if there are
    /// not enough of them either.
    fn continue_if_enough(&mut self) -> Result<Vec<usize>, TrainError> {
        let (left, least) = (self.distributed.data_size(), self.distributed.roster().min_ranks());
        if left >= least {
            self.changes.invitations = 0;
            return Ok(Vec::new());
        }
        let spares = self.find_spares(least - left)?;
        if left + spares.len() >= least {
            return Ok(spares);
        }
        let step = self.state.step;
        if step > 0 {
            self.save()?;
            self.settle()?;
        }
        let saved = self.env.config.checkpoint.enabled && step > 0;
        let dead = self.changes.dead.iter().map(|dead| (dead.rank, &dead.host));
        let gone = dead.chain(self.changes.left.iter().map(|left| (left.rank, &left.host)));
        let gone = gone.map(|(rank, host)| format!("rank {rank} on {host}")).collect();
        Err(TrainError::TooFew { gone, left, least, step, saved })
    }

    /// Looks on rank 0 for processes that wait to join, until there are `needed` of them. Returns their numbers on all ranks, which call
    /// this together.
    fn find_spares(&mut self, needed: usize) -> Result<Vec<usize>, TrainError> {
        let is_wanted = self.is_first() && self.changes.stops.is_none();
        let mut found = Vec::new();
        if is_wanted && self.changes.invitations < INVITATIONS {
            self.changes.invitations += 1;
            let wait = if self.env.config.elastic.respawn > 0 { REPLACEMENTS } else { HEARTBEATS };
            // The others wait for the answer in an operation.
            let until =
                Instant::now() + wait.min(Duration::from_secs_f64(self.env.config.comm.timeout / 2.0));
            let mut candidates = JoinCandidates::at(&self.env.folder.joins());
            while found.len() < needed && Instant::now() < until {
                std::thread::sleep(LOOK);
                found = candidates.poll()?;
            }
            found.truncate(self.distributed.room());
        }
        let malformed = |error: serde_json::Error| TrainError::Setup(format!("malformed numbers: {error}"));
        let own = serde_json::to_string(&found).map_err(malformed)?;
        let all = self.distributed.exchange().gather_text(&own)?;
        all.first().map_or_else(|| Ok(Vec::new()), |first| serde_json::from_str(first).map_err(malformed))
    }
}

/// The number of times that waiting processes are invited in place of lost ranks before a step is done. One that does not come may still
/// look as if it waited.
const INVITATIONS: usize = 3;

/// The wait for the heartbeats of waiting processes.
const HEARTBEATS: Duration = Duration::from_millis(1500);

/// The wait for processes that the launcher starts in place of lost ranks.
const REPLACEMENTS: Duration = Duration::from_secs(30);

/// The pause between two looks for heartbeats.
const LOOK: Duration = Duration::from_millis(50);

/// Tells newcomers their ranks and where to meet; the first of them is at this place.
fn invite(place: &WorldConfig, joins: &Path, newcomers: &[usize]) {
    for (more, number) in newcomers.iter().enumerate() {
        let invitation = Invitation {
            rank: place.rank + more,
            world_size: place.world_size,
            local_world_size: place.local_world_size,
            address: place.meeting.address.clone(),
            port: place.meeting.port,
            job: place.job.clone(),
        };
        // A rank without an invitation does not come, and is not waited for long.
        if let Err(error) = JoinTicket::invite(joins, *number, &invitation) {
            tracing::warn!("rank {number} cannot be invited: {error}");
        }
    }
}
