//! Losses and measures of a step, gathered on rank 0, which writes them.
//!
//! If a run survives the loss of ranks, each rank keeps its reports until rank 0 has announced that they are written. A rank that
//! takes over from rank 0 then receives them again.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use phalanx_collectives::{Control, Notice};

use crate::engine::TrainError;
use crate::engine::distributed::{Distributed, Job, PreviousWorld};
use crate::engine::train_loop::rank_report::RankReport;

/// The notice that carries a report, and the notice of the last step that is written.
const NAME: &str = "losses";
const WRITTEN: &str = "written";

/// The shortest time between two announcements of rank 0.
const ANNOUNCEMENTS: Duration = Duration::from_millis(100);

/// Gathers the reports of all ranks on rank 0.
#[derive(Debug, Default)]
pub(in crate::engine::train_loop) struct LossGatherer {
    /// Received reports, by rank, the oldest first.
    received: BTreeMap<usize, VecDeque<RankReport>>,
    /// Reports of ranks that were lost.
    departed: Vec<DepartedRank>,
    /// Reports of this rank that were not sent yet.
    unsent: VecDeque<RankReport>,
    /// Reports of this rank that may not be written yet.
    unconfirmed: VecDeque<RankReport>,
    /// The last step that is written, as far as this rank knows.
    written: u64,
    /// The time of rank 0's last announcement.
    announced: Option<Instant>,
}

/// A rank that was lost, while there are steps that it had a part in.
#[derive(Debug)]
struct DepartedRank {
    reports: VecDeque<RankReport>,
    /// The last step that it had a part in, once the others have agreed on it.
    until: Option<u64>,
}

impl LossGatherer {
    /// Sends this rank's report to rank 0. If the world breaks, [`LossGatherer::resend_from`] sends it again.
    pub(in crate::engine::train_loop) fn send(
        &mut self,
        distributed: &Distributed,
        own: RankReport,
    ) -> Result<(), TrainError> {
        // Servers have no losses, and those of duplicates are sent by another rank.
        if distributed.is_server() || distributed.repeats_results() {
            return Ok(());
        }
        if distributed.rank() == 0 {
            self.received.entry(0).or_default().push_back(own);
            return Ok(());
        }
        if distributed.roster().may_outlive_a_death() {
            self.unconfirmed.push_back(own.clone());
        }
        self.unsent.push_back(own);
        self.send_rest(distributed)
    }

    fn send_rest(&mut self, distributed: &Distributed) -> Result<(), TrainError> {
        while let Some(own) = self.unsent.front() {
            distributed.job().post(NAME, &own.to_bytes())?;
            self.unsent.pop_front();
        }
        Ok(())
    }

    /// Announces, on rank 0, that all steps up to `step` are written, so that the others may forget their reports.
    pub(in crate::engine::train_loop) fn announce_written(&mut self, distributed: &Distributed, step: u64) {
        self.written = step;
        let is_recent = self.announced.is_some_and(|when| when.elapsed() < ANNOUNCEMENTS);
        if is_recent || !distributed.roster().may_outlive_a_death() {
            return;
        }
        self.announced = Some(Instant::now());
        // A broken world is noticed before the next step, and this is agreed on then.
        let _ = distributed.job().announce(WRITTEN, &step.to_le_bytes());
    }

    /// The last step that is written, as far as this rank knows.
    pub(in crate::engine::train_loop) fn written(&self) -> u64 {
        self.written
    }

    /// Receives rank 0's announcements and forgets the reports that are written. Returns the last step that is.
    pub(in crate::engine::train_loop) fn receive_written(
        &mut self,
        distributed: &Distributed,
    ) -> Result<u64, TrainError> {
        while distributed.rank() > 0
            && let Some(notice) = distributed.job().poll(WRITTEN)?
        {
            self.written =
                notice.payload.first_chunk().map_or(self.written, |step| u64::from_le_bytes(*step));
        }
        self.forget(self.written);
        Ok(self.written)
    }

    /// Sets the last step that is written.
    pub(in crate::engine::train_loop) fn begin_after(&mut self, step: u64) {
        self.written = step;
    }

    fn forget(&mut self, written: u64) {
        forget_before(&mut self.unconfirmed, written + 1);
    }

    /// Returns the reports of other ranks that were not used, those of the broken world included.
    pub(in crate::engine::train_loop) fn unused(&mut self, control: &Control) -> Vec<RankReport> {
        while let Some(notice) = control.left_behind(NAME) {
            keep(&mut self.received, &notice);
        }
        self.received.values().flatten().cloned().collect()
    }

    /// Renumbers the reports for the world of the surviving ranks, and sets those of lost ranks apart.
    pub(in crate::engine::train_loop) fn enter_world(
        &mut self,
        distributed: &Distributed,
        before: &PreviousWorld,
    ) {
        let mut received = std::mem::take(&mut self.received);
        if distributed.rank() == 0 {
            // All reports that a rank sent before it met the others again have arrived.
            while let Some(notice) = before.control.left_behind(NAME) {
                keep(&mut received, &notice);
            }
        }
        for rank in (0..before.ranks).filter(|rank| !before.places.contains(rank)) {
            let reports = received.remove(&rank).unwrap_or_default();
            self.departed.push(DepartedRank { reports, until: None });
        }
        if distributed.rank() > 0 {
            return;
        }
        for (rank, place) in before.places.iter().enumerate() {
            self.received.insert(rank, received.remove(place).unwrap_or_default());
        }
        // A rank that takes over had sent these to the old rank 0; rank 0 itself has none.
        self.received.entry(0).or_default().extend(self.unconfirmed.drain(..));
        self.unsent.clear();
    }

    /// Continues with the surviving ranks, which split the work anew after step `until`. Sends rank 0 the reports that it may lack:
    /// all steps up to `written` are written.
    pub(in crate::engine::train_loop) fn resend_from(
        &mut self,
        distributed: &Distributed,
        until: u64,
        written: u64,
    ) -> Result<(), TrainError> {
        for departed in &mut self.departed {
            departed.until.get_or_insert(until);
        }
        self.written = written;
        self.forget(written);
        if distributed.rank() > 0 {
            self.unsent = self.unconfirmed.clone();
        }
        self.send_rest(distributed)
    }

    /// Returns, on rank 0, the reports of a step in the order of ranks, lost ranks last. Waits for missing reports if `wait` is set,
    /// otherwise returns `None`. Steps are asked for in order.
    pub(in crate::engine::train_loop) fn gather(
        &mut self,
        distributed: &Distributed,
        step: u64,
        wait: bool,
    ) -> Result<Option<Vec<RankReport>>, TrainError> {
        if distributed.rank() > 0 {
            return Ok(None);
        }
        let ranks = distributed.loss_ranks();
        for rank in &ranks {
            forget_before(self.received.entry(*rank).or_default(), step);
        }
        while ranks.iter().any(|rank| self.received.get(rank).is_none_or(VecDeque::is_empty)) {
            if !self.receive(distributed.job(), step, wait)? {
                return Ok(None);
            }
        }
        Ok(Some(self.take(&ranks, step)))
    }

    /// Takes the reports of a step, which have arrived.
    fn take(&mut self, ranks: &[usize], step: u64) -> Vec<RankReport> {
        self.departed.retain(|departed| departed.until.is_none_or(|until| step <= until));
        let mut all = Vec::with_capacity(ranks.len());
        let mut missing = 0;
        // A rank that has forgotten the step knew that it was written.
        for rank in ranks {
            match self.received.get_mut(rank).and_then(|reports| of_step(reports, step)) {
                Some(report) => all.push(report),
                None => missing += 1,
            }
        }
        for departed in &mut self.departed {
            forget_before(&mut departed.reports, step);
            match of_step(&mut departed.reports, step) {
                Some(report) => all.push(report),
                None => missing += 1,
            }
        }
        if missing > 0 {
            // A rank that died before the end of the step contributes nothing: the mean is over the others.
            let factor = (all.len() + missing) as f64 / all.len().max(1) as f64;
            all.iter_mut().flat_map(|report| &mut report.sums).for_each(|sum| *sum *= factor);
        }
        all
    }

    /// Receives one report, waiting for it if `wait` is set. Returns false if there was none.
    fn receive(&mut self, job: &Job, step: u64, wait: bool) -> Result<bool, TrainError> {
        let notice = if wait { job.wait(NAME)? } else { job.poll(NAME)? };
        let Some(notice) = notice else { return Ok(false) };
        keep(&mut self.received, &notice);
        // Reports of written steps may arrive twice.
        forget_before(self.received.entry(notice.from).or_default(), step);
        Ok(true)
    }
}

/// Removes reports of steps before `step`.
fn forget_before(reports: &mut VecDeque<RankReport>, step: u64) {
    let earlier = reports.iter().take_while(|report| report.step < step).count();
    reports.drain(..earlier);
}

/// Takes the next report if it is of this step.
fn of_step(reports: &mut VecDeque<RankReport>, step: u64) -> Option<RankReport> {
    if reports.front()?.step == step { reports.pop_front() } else { None }
}

/// Adds a report, unless it has arrived before.
fn keep(all: &mut BTreeMap<usize, VecDeque<RankReport>>, notice: &Notice) {
    let report = RankReport::from_bytes(&notice.payload);
    let of_rank = all.entry(notice.from).or_default();
    if of_rank.back().is_none_or(|last| last.step < report.step) {
        of_rank.push_back(report);
    }
}

#[cfg(test)]
mod tests {
    use phalanx_collectives::threads;

    use super::*;

    #[test]
    fn rank_0_adds_up_reports_of_ranks_that_are_ahead() {
        let ranks = threads(3).expect("threads").into_iter().map(|communicator| {
            std::thread::spawn(move || {
                let distributed = Distributed::among(communicator).expect("threads have a control plane");
                let mut losses = LossGatherer::default();
                let (own, rank) = (distributed.rank(), distributed.rank() as f64);
                let of_step = |step: f64| RankReport {
                    rank: own,
                    step: step as u64 + 1,
                    seconds: step + rank,
                    shards: 0..0,
                    sums: vec![step + rank, 0.25 * rank],
                };
                let sums = (0..5).map(|step| {
                    losses.send(&distributed, of_step(f64::from(step))).expect("sent");
                    let all = losses.gather(&distributed, step as u64 + 1, true).expect("sent");
                    all.map(|all| RankReport::total(&all).expect("equally many numbers"))
                });
                sums.collect::<Vec<_>>()
            })
        });
        let ranks: Vec<_> = ranks.collect::<Vec<_>>();
        let totals: Vec<_> = ranks.into_iter().map(|rank| rank.join().expect("no panic")).collect();
        let of_all = (0..5).map(|step| {
            let sums = vec![f64::from(3 * step + 3), 0.75];
            Some(RankReport {
                rank: 0,
                step: step as u64 + 1,
                seconds: f64::from(step + 2),
                shards: 0..0,
                sums,
            })
        });
        assert_eq!(totals[0], of_all.collect::<Vec<_>>());
        assert!(totals[1..].iter().flatten().all(Option::is_none));
    }

    #[test]
    fn rank_0_need_not_wait_for_ranks_that_are_behind() {
        let world: Vec<_> = threads(2).expect("threads").into_iter().map(Distributed::among).collect();
        let [first, second] = &world[..] else { panic!("two ranks") };
        let (first, second) = (first.as_ref().expect("a rank"), second.as_ref().expect("a rank"));
        let mut losses = LossGatherer::default();
        let mut other = LossGatherer::default();
        let report =
            |step, seconds, sum: f64| RankReport { rank: 0, step, seconds, shards: 0..0, sums: vec![sum] };
        for step in 0..3 {
            losses.send(first, report(step + 1, step as f64, step as f64)).expect("sent");
            assert_eq!(losses.gather(first, 1, false).expect("sound"), None, "the other has sent nothing");
        }
        for step in 0..2 {
            other.send(second, report(step + 1, 7.0, 10.0 * step as f64)).expect("sent");
        }
        assert_eq!(
            losses.gather(first, 1, false).expect("sound"),
            Some(vec![report(1, 0.0, 0.0), report(1, 7.0, 0.0)])
        );
        // A report that arrives twice counts once.
        other.send(second, report(2, 7.0, 10.0)).expect("sent");
        assert_eq!(
            losses.gather(first, 2, false).expect("sound"),
            Some(vec![report(2, 1.0, 1.0), report(2, 7.0, 10.0)])
        );
        assert_eq!(losses.gather(first, 3, false).expect("sound"), None);
        other.send(second, report(3, 7.0, 20.0)).expect("sent");
        assert_eq!(
            losses.gather(first, 3, false).expect("sound"),
            Some(vec![report(3, 2.0, 2.0), report(3, 7.0, 20.0)])
        );
    }
}
