//! Going on without ranks that have died: who is left meets again, under new numbers.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use phalanx_collectives::{Communicator, Control, Regrouped, WorldConfig, regroup};

use super::{Distributed, Job};
use crate::config::Config;
use crate::engine::error::TrainError;
use phalanx_run::StopFlag;

/// What a rank knows of the processes that the run began with.
pub(super) struct Roster {
    /// The number of this rank when the run began, or when it came.
    pub(super) number: usize,
    /// This rank's place in the present world.
    pub(super) config: WorldConfig,
    pub(super) stop: StopFlag,
    /// Raised when this rank alone is to leave.
    pub(super) leave: StopFlag,
    /// By rank of the present world: its number when the run began, or when it came.
    pub(super) members: Vec<usize>,
    /// By this number: the host's name.
    pub(super) hosts: BTreeMap<usize, String>,
    /// By rank of the present world: what it computes on, by [`Device::told`](crate::engine::device::Device::told).
    pub(super) devices: Vec<String>,
    /// How many of them are workers: the first.
    pub(super) workers: usize,
    /// With how many workers the run goes on.
    pub(super) least: usize,
    /// How many ranks there may be in worlds that change.
    pub(super) elastic: Option<RangeInclusive<usize>>,
    /// Whether this rank came when the others had begun.
    pub(super) has_joined: bool,
    /// How often those who are left have met.
    pub(super) meetings: u64,
    /// After which step a world broke last of which nobody was missing.
    pub(super) broke_after: Option<u64>,
}

impl Roster {
    /// Judges that a world broke after a step and nobody is missing: a connection was cut, which the next world has anew. What breaks
    /// that too before another step is done would go on for ever.
    ///
    /// # Errors
    /// The second time, why it broke.
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
        tracing::warn!("nobody is missing; the world had broken: {why}");
        Ok(())
    }
}

/// A rank that has died.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::engine) struct Dead {
    /// Its number when the run began.
    pub(in crate::engine) rank: usize,
    pub(in crate::engine) host: String,
}

/// What there was before those who are left met again.
pub(in crate::engine) struct Before {
    /// What had been told in the world that broke, and was not heard.
    pub(in crate::engine) control: Control,
    /// By rank of the present world: its number in that world.
    pub(in crate::engine) places: Vec<usize>,
    /// How many ranks it had.
    pub(in crate::engine) ranks: usize,
    /// Who has died.
    pub(in crate::engine) dead: Vec<Dead>,
}

impl Distributed {
    /// The number that this run's rank `rank` had when the run began.
    pub(in crate::engine) fn first_number(&self, rank: usize) -> usize {
        self.roster.as_ref().and_then(|roster| roster.members.get(rank).copied()).unwrap_or(rank)
    }

    /// How often those who were left have met again.
    pub(in crate::engine) fn meetings(&self) -> u64 {
        self.roster.as_ref().map_or(0, |roster| roster.meetings)
    }

    /// Whether the run goes on without ranks that die, as long as enough are left.
    pub(in crate::engine) fn may_outlive_a_death(&self) -> bool {
        self.roster.as_ref().is_some_and(|roster| roster.least > 0)
    }

    /// Whether the run would go on if a worker died now.
    pub(in crate::engine) fn outlives_a_death(&self) -> bool {
        self.roster.as_ref().is_some_and(|roster| roster.least > 0 && self.data_size() > roster.least)
    }

    /// Meets those who are left of a world that has lost ranks after a step, and takes their numbers.
    ///
    /// # Errors
    /// [`TrainError::Died`] if they cannot go on without those who are lost; [`TrainError::Comm`] if they do not meet; and if nobody
    /// was lost, twice after one step.
    pub(in crate::engine) fn go_on_with_those_left(
        &mut self,
        config: &Config,
        step: u64,
    ) -> Result<Before, TrainError> {
        let (Some(roster), Some(world)) = (&mut self.roster, &self.world) else {
            return Err(TrainError::Setup("this rank has no others to meet".to_owned()));
        };
        let control = world.control()?;
        let ranks = roster.members.len();
        let Regrouped { communicator, config: place, members: places } = regroup(world, &roster.config)?;
        let gone = (0..ranks).filter(|rank| !places.contains(rank)).map(|rank| roster.members[rank]);
        let dead: Vec<Dead> = gone
            .map(|rank| Dead { rank, host: roster.hosts.get(&rank).cloned().unwrap_or_default() })
            .collect();
        if dead.is_empty() {
            roster.break_without_loss(world, step)?;
        }
        roster.members = places.iter().map(|place| roster.members[*place]).collect();
        roster.config = place;
        roster.meetings += 1;
        let (workers, least, stop) = (roster.workers, roster.least, roster.stop.clone());
        self.job = Job::shared(&communicator)?;
        let strategy = config.train.strategy;
        let connected = self.device.connected(&communicator, strategy)?;
        self.mesh = Some(phalanx_sharding::ProcessMesh::suiting(connected, &strategy, 0)?);
        self.world = Some(communicator);
        self.told = Some(self.asks_when(&stop));
        let died = || dead.iter().map(ToString::to_string).collect();
        if dead.iter().any(|dead| dead.rank >= workers) {
            return Err(TrainError::ServerDied { dead: died() });
        }
        let left = self.data_size();
        if left < least {
            return Err(TrainError::Died { dead: died(), left, least });
        }
        Ok(Before { control, places, ranks, dead })
    }
}

impl std::fmt::Display for Dead {
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
        let mut roster = Roster {
            number: 0,
            config: WorldConfig::local(0, 1, 1),
            stop: StopFlag::default(),
            leave: StopFlag::default(),
            members: vec![0],
            hosts: BTreeMap::new(),
            devices: Vec::new(),
            workers: 1,
            least: 1,
            elastic: None,
            has_joined: false,
            meetings: 0,
            broke_after: None,
        };
        let world = threads(1).expect("a world").remove(0);
        for (step, goes_on) in [(4, true), (5, true), (5, false), (6, true)] {
            let judged = roster.break_without_loss(&world, step);
            assert_eq!(judged.is_ok(), goes_on, "{step}: {judged:?}");
            assert!(judged.is_ok() || !judged.expect_err("it ends").is_loss(), "nobody meets again for ever");
        }
    }
}
