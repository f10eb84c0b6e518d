//! The ranks by their numbers in the run, and how the survivors of a loss rejoin under new ranks.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use phalanx_collectives::{Communicator, Control, RebuiltWorld, WorldConfig};

use super::exchange::Exchange;
use super::world::World;
use super::{Distributed, Job};
use crate::engine::error::TrainError;
use phalanx_config::Config;
use phalanx_run::StopFlag;
use phalanx_run::host_name;

/// The ranks of the present world by their numbers. A rank's number is its rank when the run began, or the number that it joined under.
pub(in crate::engine) struct Roster {
    /// The number of this rank.
    number: usize,
    /// This rank's place in the present world; none if ranks are threads.
    pub(super) place: Option<WorldConfig>,
    pub(super) stop: StopFlag,
    /// Raised when this rank alone is to leave.
    leave: StopFlag,
    /// The numbers of the ranks of the present world, by rank.
    pub(super) members: Vec<usize>,
    /// The hosts of ranks, by number.
    pub(super) hosts: BTreeMap<usize, String>,
    /// The devices of the ranks of the present world, by rank; see [`Device::identity_or_host`](crate::engine::device::Device::identity_or_host).
    pub(super) devices: Vec<String>,
    /// The number of ranks that began as workers: the first.
    workers: usize,
    /// The least number of workers without which the run ends; 0 if it ends with the first loss (`sync.min_workers`).
    min_workers: usize,
    /// The numbers of ranks that an elastic run may have.
    elastic: Option<RangeInclusive<usize>>,
    has_joined: bool,
    /// The number of worlds after the first.
    pub(super) meetings: u64,
    /// The step after which a world last broke without a loss.
    broke_after: Option<u64>,
}

impl Roster {
    /// The roster of ranks that are threads of this process, and of the only rank.
    pub(super) fn of_threads(rank: usize, ranks: usize) -> Self {
        Self {
            number: rank,
            place: None,
            stop: StopFlag::default(),
            leave: StopFlag::default(),
            members: (0..ranks).collect(),
            hosts: BTreeMap::new(),
            devices: Vec::new(),
            workers: ranks,
            min_workers: 0,
            elastic: None,
            has_joined: false,
            meetings: 0,
            broke_after: None,
        }
    }

    /// The roster of ranks that are processes.
    pub(super) fn of_processes(place: WorldConfig, world: &World, config: &Config, stop: &StopFlag) -> Self {
        Self {
            stop: stop.clone(),
            leave: world.leave.clone(),
            workers: place.world_size - config.sync.servers,
            min_workers: config.sync.min_workers,
            elastic: config.elastic(),
            has_joined: world.joins.is_some(),
            ..Self::of_threads(world.joins.unwrap_or(place.rank), place.world_size)
        }
        .at(place)
    }

    fn at(self, place: WorldConfig) -> Self {
        Self { place: Some(place), ..self }
    }

    /// The number of this rank.
    pub(in crate::engine) fn number(&self) -> usize {
        self.number
    }

    /// The number of a rank of the present world.
    pub(in crate::engine) fn number_of(&self, rank: usize) -> usize {
        self.members.get(rank).copied().unwrap_or(rank)
    }

    /// The numbers of all ranks, by rank.
    pub(in crate::engine) fn numbers(&self) -> &[usize] {
        &self.members
    }

    /// The host of the rank of a number; empty if it is not known.
    pub(in crate::engine) fn host_of(&self, number: usize) -> String {
        self.hosts.get(&number).cloned().unwrap_or_default()
    }

    /// The number of worlds after the first.
    pub(in crate::engine) fn meetings(&self) -> u64 {
        self.meetings
    }

    /// True if the run continues without ranks that die, as long as enough are left.
    pub(in crate::engine) fn may_outlive_a_death(&self) -> bool {
        self.min_workers > 0
    }

    /// The least number of workers (`sync.min_workers`).
    pub(super) fn min_workers(&self) -> usize {
        self.min_workers
    }

    /// True if ranks may join and leave.
    pub(in crate::engine) fn is_elastic(&self) -> bool {
        self.elastic.is_some()
    }

    /// The least number of ranks of an elastic run (`elastic.min`); 0 for others.
    pub(in crate::engine) fn min_ranks(&self) -> usize {
        self.elastic.as_ref().map_or(0, |bounds| *bounds.start())
    }

    /// The largest number of ranks of an elastic run (`elastic.max`); 0 for others.
    pub(super) fn max_ranks(&self) -> usize {
        self.elastic.as_ref().map_or(0, |bounds| *bounds.end())
    }

    /// True if this rank joined a run that had begun.
    pub(in crate::engine) fn has_joined(&self) -> bool {
        self.has_joined
    }

    /// Raised when this rank alone is to leave.
    pub(super) fn leave_flag(&self) -> &StopFlag {
        &self.leave
    }

    /// The ranks that are missing in the next world, whose survivors had these ranks.
    pub(super) fn lost(&self, survivors: &[usize]) -> Vec<LostRank> {
        let missing = (0..self.members.len()).filter(|rank| !survivors.contains(rank));
        let lost = missing.map(|rank| {
            let number = self.members[rank];
            LostRank { rank: number, host: self.host_of(number) }
        });
        lost.collect()
    }

    /// Enters the next world: its survivors had these ranks, and ranks of the numbers `newcomers` join.
    pub(super) fn enter(&mut self, place: WorldConfig, survivors: &[usize], newcomers: &[usize]) {
        let members = survivors.iter().map(|rank| self.members[*rank]);
        self.members = members.chain(newcomers.iter().copied()).take(place.world_size).collect();
        self.place = Some(place);
        self.meetings += 1;
    }

    /// Records that a world broke after a step although no rank is missing: a connection was cut, and the next world has new ones.
    ///
    /// # Errors
    /// The second time after the same step, why it broke: it would go on for ever.
    pub(super) fn break_without_loss(&mut self, world: &Communicator, step: u64) -> Result<(), TrainError> {
        let why = match world.check() {
            Ok(()) => "for a reason that is not known".to_owned(),
            Err(error) => error.to_string(),
        };
        if self.broke_after.replace(step) == Some(step) {
            return Err(TrainError::Setup(format!(
                "ranks that all live have lost each other twice after step {step}: {why}; what is between them cuts connections"
            )));
        }
        tracing::warn!("no rank is missing; the world had broken: {why}");
        Ok(())
    }
}

/// A rank that was lost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::engine) struct LostRank {
    /// Its number.
    pub(in crate::engine) rank: usize,
    pub(in crate::engine) host: String,
}

/// The world before the survivors met again.
pub(in crate::engine) struct PreviousWorld {
    /// Its control plane, with notices that were not received.
    pub(in crate::engine) control: Control,
    /// The ranks that the ranks of the present world had in it.
    pub(in crate::engine) places: Vec<usize>,
    /// The number of its ranks.
    pub(in crate::engine) ranks: usize,
    /// The ranks that were lost.
    pub(in crate::engine) lost: Vec<LostRank>,
}

impl Distributed {
    /// Exchanges the numbers, hosts and devices of ranks that are processes. All ranks call this together.
    pub(super) fn introduce(&mut self) -> Result<(), TrainError> {
        if self.roster.place.is_none() {
            return Ok(());
        }
        let own =
            format!("{} {} {}", self.roster.number, host_name(), self.devices.device().identity_or_host());
        let all = self.exchange.gather_text(&own)?;
        self.roster.members.clear();
        self.roster.devices.clear();
        for text in all {
            let malformed = || TrainError::Setup(format!("malformed introduction of a rank: `{text}`"));
            let (number, rest) = text.split_once(' ').ok_or_else(malformed)?;
            let (host, device) = rest.split_once(' ').ok_or_else(malformed)?;
            let number = number.parse().map_err(|_| malformed())?;
            self.roster.members.push(number);
            self.roster.hosts.insert(number, host.to_owned());
            self.roster.devices.push(device.to_owned());
        }
        Ok(())
    }

    /// Meets the survivors of a world that has lost ranks after a step, under new ranks.
    ///
    /// # Errors
    /// [`TrainError::Died`] and [`TrainError::ServerDied`] if they cannot continue without the lost ranks; [`TrainError::Comm`] if they
    /// do not meet; and if no rank was lost, twice after one step.
    pub(in crate::engine) fn rejoin(&mut self, step: u64) -> Result<PreviousWorld, TrainError> {
        let (Some(world), Some(place)) = (self.exchange.world(), self.roster.place.clone()) else {
            return Err(TrainError::Setup("this rank has no others to meet".to_owned()));
        };
        let control = world.control()?;
        let ranks = self.roster.members.len();
        let RebuiltWorld { communicator, config: place, members: places } =
            phalanx_collectives::rejoin(world, &place)?;
        let lost = self.roster.lost(&places);
        if lost.is_empty() {
            self.roster.break_without_loss(world, step)?;
        }
        self.roster.enter(place, &places, &[]);
        self.control.set_job(Job::shared(&communicator)?);
        self.devices.connect(&communicator)?;
        self.exchange = Exchange::among(communicator);
        self.control.stop_on(&self.roster.stop);
        let dead = || lost.iter().map(ToString::to_string).collect();
        if lost.iter().any(|lost| lost.rank >= self.roster.workers) {
            return Err(TrainError::ServerDied { dead: dead() });
        }
        let (left, least) = (self.data_size(), self.roster.min_workers);
        if left < least {
            return Err(TrainError::Died { dead: dead(), left, least });
        }
        Ok(PreviousWorld { control, places, ranks, lost })
    }
}

impl std::fmt::Display for LostRank {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "rank {} on {}", self.rank, self.host)
    }
}

#[cfg(test)]
mod tests {
    use phalanx_collectives::threads;

    use super::*;

    #[test]
    fn ranks_that_all_live_may_lose_each_other_once_after_a_step() {
        let mut roster = Roster::of_threads(0, 1);
        let world = threads(1).expect("a world").remove(0);
        for (step, goes_on) in [(4, true), (5, true), (5, false), (6, true)] {
            let outcome = roster.break_without_loss(&world, step);
            assert_eq!(outcome.is_ok(), goes_on, "{step}: {outcome:?}");
            assert!(
                outcome.is_ok() || !outcome.expect_err("it ends").is_loss(),
                "ranks do not meet again for ever"
            );
        }
    }
}
