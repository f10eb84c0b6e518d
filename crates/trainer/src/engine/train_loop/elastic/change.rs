//! From one world to the next.

use std::time::{Duration, Instant};

use phalanx_collectives::WorldConfig;

use super::super::Run;
use super::super::left::UNKNOWN;
use super::super::losses::Losses;
use super::super::state::TrainState;
use super::Undo;
use super::copies::Copies;
use super::standing::{Common, Standing, common, told_of};
use super::transfer::bring_together;
use crate::engine::TrainError;
use crate::engine::checkpoint::find_checkpoint;
use crate::engine::distributed::{Before, Interlude, Network, Shares};
use crate::engine::observer::{Event, Observer, StepReport};
use crate::engine::train_loop::RunEnd;
use crate::engine::training::Weights;
use phalanx_checkpoint::Held;
use phalanx_run::{DeadRank, Invitation, JoinTicket, WorldChange};

impl Run<'_> {
    /// Goes on in another world after ranks were lost, if that is what has ended the steps.
    ///
    /// # Errors
    /// `error`, if it has another cause; [`TrainError::TooFew`]; and those of meeting the others.
    pub(in crate::engine::train_loop) fn go_on_elsewhere(
        &mut self,
        error: TrainError,
        observer: &mut dyn Observer,
    ) -> Result<(), TrainError> {
        if !error.is_loss() || self.broken.is_some() {
            return Err(error);
        }
        tracing::warn!("{error}; those who are left meet again");
        self.begin_world(Instant::now(), (false, Vec::new()), observer)
    }

    /// Goes on in another world for a reason that all have agreed on.
    ///
    /// # Errors
    /// Those of meeting the others.
    pub(in crate::engine::train_loop) fn change_worlds(
        &mut self,
        reason: &Interlude,
        observer: &mut dyn Observer,
    ) -> Result<(), TrainError> {
        self.hand_over(reason)?;
        let newcomers = match reason {
            Interlude::Join(numbers) => numbers.clone(),
            Interlude::Asked(_) | Interlude::Leave(_) => Vec::new(),
        };
        tracing::info!("the world changes after step {}: {reason:?}", self.state.step);
        self.begin_world(Instant::now(), (true, newcomers), observer)
    }

    /// Takes part in the world that others have let this rank come to, or, if a rank is lost meanwhile, in the next one.
    ///
    /// # Errors
    /// Those of meeting the others, and what this rank cannot do.
    pub(in crate::engine::train_loop) fn take_part(
        &mut self,
        observer: &mut dyn Observer,
    ) -> Result<(), TrainError> {
        let since = Instant::now();
        match self.settle_in(since, None, observer) {
            Err(error) if error.is_loss() => {
                tracing::warn!("{error}, before this rank took part; those who are left meet again");
                self.begin_world(since, (false, Vec::new()), observer)
            }
            other => other,
        }
    }

    /// Leaves the others to themselves, who have agreed on it.
    ///
    /// # Errors
    /// If a rank is lost before the others have what this one held.
    pub(in crate::engine::train_loop) fn leave(
        &mut self,
        reason: &Interlude,
        observer: &mut dyn Observer,
    ) -> Result<RunEnd, TrainError> {
        self.hand_over(reason)?;
        let step = self.state.step;
        tracing::info!("this rank leaves after step {step}; the others go on");
        if let Some(desk) = self.desk.take() {
            observer.event(&Event::Note(format!("rank 0 leaves after step {step}; another rank takes over")));
            desk.hand_over();
        }
        Ok(RunEnd::Left)
    }

    /// Has ranks keep copies for each other before one of them leaves, where nobody else has its shard. Every rank calls this at the
    /// same place.
    fn hand_over(&mut self, reason: &Interlude) -> Result<(), TrainError> {
        let lone = self.config.has_lone_shards() && matches!(reason, Interlude::Leave(_));
        let Some(elastic) = self.elastic.as_mut().filter(|elastic| lone && !elastic.redundant) else {
            return Ok(());
        };
        let mut copies = Copies::default();
        copies.keep(self.state.held()?);
        copies.exchange(&self.distributed)?;
        match &mut elastic.copies {
            Some(own) => *own = copies,
            None => elastic.held = copies.versions(),
        }
        Ok(())
    }

    fn begin_world(
        &mut self,
        noticed: Instant,
        (mut planned, mut newcomers): (bool, Vec<usize>),
        observer: &mut dyn Observer,
    ) -> Result<(), TrainError> {
        self.hold()?;
        loop {
            let (joins, config) = (self.folder.joins(), self.config);
            let invite = |place: &WorldConfig| invite_to(place, &joins, &newcomers);
            let step = self.state.step;
            let begun = self.distributed.begin_epoch(config, (planned, &newcomers, step), &invite);
            let gone_on = begun.and_then(|(before, old)| {
                self.state.release();
                drop(old);
                self.build_again()?;
                self.settle_in(noticed, Some(&before), observer)
            });
            match gone_on {
                // Somebody else is lost meanwhile.
                Err(again) if again.is_loss() => {
                    tracing::warn!("{again}; those who are left meet once more");
                    (planned, newcomers) = (false, Vec::new());
                }
                other => return other,
            }
        }
    }

    /// Keeps what this rank has of the last steps that it has finished.
    fn hold(&mut self) -> Result<(), TrainError> {
        let Some(elastic) = &mut self.elastic else { return Ok(()) };
        if elastic.is_new {
            // What it was built with is nobody's state.
            elastic.members = self.distributed.numbers();
            return Ok(());
        }
        if !elastic.may_tear && !elastic.held.is_empty() {
            return Ok(());
        }
        elastic.members = self.distributed.numbers();
        elastic.reached = self.state.step;
        let in_step = std::mem::take(&mut elastic.in_step);
        match elastic.undo.take() {
            Some(Undo::All(held)) => {
                elastic.held = vec![held];
                return Ok(());
            }
            Some(Undo::Buffers(copies)) => self.state.set_buffers(&copies)?,
            None => {}
        }
        let mut versions = elastic.copies.as_ref().map(Copies::versions).unwrap_or_default();
        let is_known = |step: u64, versions: &[Held]| versions.iter().any(|held| held.step == step);
        // What came from the world before may be all that there is, if this one broke before its first step.
        for held in std::mem::take(&mut elastic.held) {
            if !is_known(held.step, &versions) {
                versions.push(held);
            }
        }
        // A step that is given up may have changed a part of a shard; of what is replicated it has changed nothing.
        if !(is_known(self.state.step, &versions) || elastic.may_tear && in_step) {
            versions.push(self.state.held()?);
        }
        elastic.held = versions;
        Ok(())
    }

    /// Builds everything for the present world that is shared in it.
    fn build_again(&mut self) -> Result<(), TrainError> {
        let Some(elastic) = &self.elastic else { return Ok(()) };
        let (config, distributed) = (self.config, &self.distributed);
        let classes = Some(self.data.num_classes());
        let built = elastic.task.build(config, classes, Weights::ByRanks, &self.place)?;
        let (context, folder) = (self.context.clone(), self.folder.path());
        self.state = TrainState::new(config, built, &self.plan, distributed, context, folder)?;
        Ok(())
    }

    /// Agrees with all ranks of a new world on where they go on, takes over what this rank lacks, and shares the work.
    fn settle_in(
        &mut self,
        noticed: Instant,
        before: Option<&Before>,
        observer: &mut dyn Observer,
    ) -> Result<(), TrainError> {
        self.asked.clear();
        let numbers = self.distributed.numbers();
        let members = self.elastic.as_ref().map(|elastic| elastic.members.clone()).unwrap_or_default();
        for rank in members.iter().copied().filter(|number| !numbers.contains(number)) {
            if self.dead.iter().all(|known| known.rank != rank) {
                let host = self.distributed.host_of(rank);
                self.dead.push(DeadRank { rank, host, from_step: UNKNOWN, cause: None });
            }
        }
        let all = self.tell_standings(before)?;
        let (common, bytes) = match common(&all, &self.state.names()) {
            Some(common) => {
                let own = self.elastic.as_ref().map_or(&[][..], |elastic| &elastic.held);
                let (held, bytes) = bring_together(&self.distributed, own, &all, &common)?;
                self.state.load_from(&self.distributed, &held.reader(), held.step, &held.state)?;
                (common, bytes)
            }
            None => (self.go_back(&all, observer)?, 0),
        };
        self.state.networks().try_for_each(Network::broadcast_state)?;
        self.shares = Shares::new(self.distributed.share());
        self.take_over_where_all_are(&all, &common, members.len())?;
        let first_written = all[0].written;
        if self.is_first() {
            self.keep_the_desk(first_written, observer)?;
        }
        self.tell_of_change(noticed, &all, bytes, observer);
        if let Some(reason) = &self.stops {
            self.distributed.job().request_stop(reason)?;
        }
        self.go_on_if_enough(observer)?;
        // Only now, as who is lost while the others save what is finished has them meet again, with what they held.
        if let Some(elastic) = &mut self.elastic {
            elastic.is_new = false;
            // What was held of shards is needed until there are copies for this world.
            if let Some(copies) = &mut elastic.copies {
                copies.clear();
            } else {
                elastic.held.clear();
            }
        }
        Ok(())
    }

    /// Goes back to the newest checkpoint, as nobody has what a lost rank held.
    fn go_back(&mut self, all: &[Standing], observer: &mut dyn Observer) -> Result<Common, TrainError> {
        let step = all.iter().map(|standing| standing.reached).max().unwrap_or(0);
        let lost = self.dead.last().map_or(0, |dead| dead.rank);
        let (newest, damaged) = find_checkpoint(&self.distributed, self.folder)?;
        for problem in damaged {
            observer.event(&Event::Note(format!("{problem}; an older checkpoint is used")));
        }
        let checkpoint = newest.ok_or(TrainError::StateLost { lost, step })?;
        self.state.load(&self.distributed, &checkpoint)?;
        let back = checkpoint.step();
        let text = format!(
            "nobody has what rank {lost} held after step {step}: all go back to the checkpoint of step {back}, and {} steps are taken \
             again (elastic.redundancy = 1 keeps copies)",
            step.saturating_sub(back)
        );
        tracing::warn!("{text}");
        observer.event(&Event::Note(text));
        Ok(Common { step: back, given: None })
    }

    /// Where all ranks are, by rank.
    fn tell_standings(&mut self, before: Option<&Before>) -> Result<Vec<Standing>, TrainError> {
        let garbled =
            |error: serde_json::Error| TrainError::Setup(format!("where ranks are is garbled: {error}"));
        let own = self.standing_in_new_world(before)?;
        let told = self.distributed.gather_text(&serde_json::to_string(&own).map_err(garbled)?)?;
        told.iter().map(|told| serde_json::from_str(told).map_err(garbled)).collect()
    }

    /// Takes over what follows from where all ranks are: what is still to be done after the step that they go on from, and what only
    /// some of them know.
    fn take_over_where_all_are(
        &mut self,
        all: &[Standing],
        common: &Common,
        ranks_before: usize,
    ) -> Result<(), TrainError> {
        let (step, first) = (common.step, &all[0]);
        // All have ended what they wrote, since all have come here.
        self.saver.clear(self.is_first());
        self.unsaved = first.unsaved;
        self.losses = Losses::default();
        self.losses.begin_after(first.written.min(step));
        let members = || all.iter().filter(|standing| !standing.is_new);
        if all[self.distributed.rank()].is_new {
            // A newcomer knows nothing of what was before.
            if let Some(known) = members().next() {
                (self.dead, self.stops) = (known.dead.clone(), known.stops.clone());
                self.distributed.have_met(known.meetings);
                self.seconds_before = known.seconds[0];
                self.meter.begin_after(Duration::from_secs_f64(known.seconds[1].max(0.0)));
                if let Some(elastic) = &mut self.elastic {
                    elastic.changes.clone_from(&known.changes);
                }
            }
        }
        self.stops = self.stops.take().or_else(|| members().find_map(|standing| standing.stops.clone()));
        self.met = members().map(|standing| standing.followed).max().unwrap_or(0).min(step);
        let newest =
            members().filter_map(|standing| standing.evaluated.as_ref()).max_by_key(|(step, _)| *step);
        self.evaluated = newest.filter(|(after, _)| *after > first.written && *after <= step).cloned();
        let last = step == self.plan.stop;
        let is_told = first.written >= step || !self.is_line_due(step, last);
        let is_followed = members().all(|standing| standing.followed >= step);
        (self.taken, self.untold) = (None, None);
        self.behind.clear();
        if first.lacks_samples && step > 0 {
            self.met = self.met.min(step - 1);
        }
        if step == 0 || (is_followed && is_told && !first.lacks_samples) {
            self.followed = step;
            return Ok(());
        }
        self.followed = step - 1;
        let mut report = self.report_of(step);
        if self.is_first() && report.phases.is_empty() {
            let told = told_of(all, step, ranks_before, self.config.logical_ranks());
            let due = self.state.due_in(step - 1);
            if !told.is_empty() {
                self.take_losses(&mut report, &due, Some(&told))?;
            }
        }
        let due = !report.phases.is_empty() || !self.is_first();
        self.untold = Some((report, due && self.is_line_due(step, last)));
        Ok(())
    }

    /// The report of a step that all have finished: this rank's own, if it has done it.
    fn report_of(&self, step: u64) -> StepReport {
        let own = self.elastic.as_ref().and_then(|elastic| elastic.report.clone());
        own.filter(|report| report.step == step).unwrap_or_else(|| StepReport {
            step,
            total: self.plan.stop,
            epoch: self.plan.place(step - 1).0,
            ..StepReport::default()
        })
    }

    /// Tells who is gone, who has come, and what that has cost so far.
    fn tell_of_change(
        &mut self,
        noticed: Instant,
        all: &[Standing],
        bytes: u64,
        observer: &mut dyn Observer,
    ) {
        let (after_step, ranks) = (self.state.step, self.distributed.data_size());
        let mut change = WorldChange { after_step, ranks, bytes, ..WorldChange::default() };
        for dead in self.dead.iter_mut().filter(|dead| dead.from_step == UNKNOWN) {
            dead.from_step = after_step + 1;
            change.left.push(dead.rank);
            let (rank, host, from_step) = (dead.rank, dead.host.clone(), after_step + 1);
            tracing::warn!(
                "rank {rank} on {host} died or left; {ranks} ranks share its work from step {from_step} on"
            );
            observer.event(&Event::Died { rank, host, from_step, left: ranks });
        }
        let numbers = self.distributed.numbers();
        let came = numbers.iter().zip(all).filter(|(_, standing)| standing.is_new);
        change.came = came.map(|(number, _)| *number).collect();
        for number in &change.came {
            let text = format!("rank {number} takes part from step {} on, one of {ranks}", after_step + 1);
            tracing::info!("{text}");
            observer.event(&Event::Note(text));
        }
        let Some(elastic) = &mut self.elastic else { return };
        // One that was followed by another before any step was done counts by itself.
        if let Some((_, before)) = elastic.under_way.take() {
            elastic.changes.push(before);
        }
        elastic.under_way = Some((noticed, change));
    }

    /// Ends the run, saved, if too few are left.
    fn go_on_if_enough(&mut self, observer: &mut dyn Observer) -> Result<(), TrainError> {
        let (left, least) = (self.distributed.data_size(), self.distributed.least());
        if left >= least {
            return Ok(());
        }
        let step = self.state.step;
        let saved = self.config.checkpoint.enabled;
        if step > 0 {
            self.save(step, observer)?;
            self.settle(observer)?;
        }
        let gone = self.dead.iter().map(|dead| format!("rank {} on {}", dead.rank, dead.host)).collect();
        Err(TrainError::TooFew { gone, left, least, step, saved: saved && step > 0 })
    }
}

/// Tells newcomers where they come as which rank, the first of them at this place.
fn invite_to(place: &WorldConfig, joins: &std::path::Path, newcomers: &[usize]) {
    for (more, number) in newcomers.iter().enumerate() {
        let invitation = Invitation {
            rank: place.rank + more,
            world_size: place.world_size,
            local_world_size: place.local_world_size,
            address: place.master_addr.clone(),
            port: place.master_port,
            job: place.job.clone(),
        };
        // Who is not told does not come, and is not waited for long.
        if let Err(error) = JoinTicket::invite(joins, *number, &invitation) {
            tracing::warn!("rank {number} cannot be told where to come: {error}");
        }
    }
}
