//! Worlds that follow each other while training goes on: those who are left of one meet in the next, and newcomers with them.

use phalanx_collectives::{Communicator, Newcomers, Regrouped, WorldConfig, regroup_with};

use super::left::{Before, Dead};
use super::{Cores, Distributed, Interlude, Job};
use crate::config::Config;
use crate::engine::device::{Device, HOST};
use crate::engine::error::TrainError;
use phalanx_run::Hearing;
use phalanx_run::host_name;

/// How long newcomers are waited for that have said a moment ago that they are there.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(5);

/// A world that is over. It is left when this is dropped, beside what comes next: those who are still in it are not waited for.
pub(in crate::engine) struct Old(Option<Communicator>);

impl Drop for Old {
    fn drop(&mut self) {
        let Some(world) = self.0.take() else { return };
        // Should there be no thread, it is left here and now.
        let leaving = std::thread::Builder::new().name("phalanx-leaving".to_owned());
        let _ = leaving.spawn(move || drop(world));
    }
}

impl Distributed {
    /// Whether the run may go on in other worlds.
    pub(in crate::engine) fn is_elastic(&self) -> bool {
        self.roster.as_ref().is_some_and(|roster| roster.elastic.is_some())
    }

    /// Whether this rank came when the others had begun.
    pub(in crate::engine) fn has_joined(&self) -> bool {
        self.roster.as_ref().is_some_and(|roster| roster.has_joined)
    }

    /// The number that this rank had when the run began, or when it came.
    pub(in crate::engine) fn number(&self) -> usize {
        self.roster.as_ref().map_or_else(|| self.rank(), |roster| roster.number)
    }

    /// The numbers of all ranks, by rank.
    pub(in crate::engine) fn numbers(&self) -> Vec<usize> {
        self.roster.as_ref().map_or_else(|| (0..self.size()).collect(), |roster| roster.members.clone())
    }

    /// The host of the rank of a number.
    pub(in crate::engine) fn host_of(&self, number: usize) -> String {
        self.roster.as_ref().and_then(|roster| roster.hosts.get(&number)).cloned().unwrap_or_default()
    }

    /// For how many more ranks there is room.
    pub(in crate::engine) fn room(&self) -> usize {
        let most =
            self.roster.as_ref().and_then(|roster| roster.elastic.as_ref()).map(|bounds| *bounds.end());
        most.map_or(0, |most| most.saturating_sub(self.data_size()))
    }

    /// With how many ranks at least the run goes on.
    pub(in crate::engine) fn least(&self) -> usize {
        let bounds = self.roster.as_ref().and_then(|roster| roster.elastic.as_ref());
        bounds.map_or(0, |bounds| *bounds.start())
    }

    /// Has all ranks know each other's numbers and hosts. Every rank calls this at the same place.
    pub(super) fn introduce(&mut self) -> Result<(), TrainError> {
        let told = self.gather_text(&format!("{} {} {}", self.number(), host_name(), self.device.told()))?;
        let Some(roster) = &mut self.roster else { return Ok(()) };
        roster.members.clear();
        roster.devices.clear();
        for told in told {
            let garbled = || TrainError::Setup(format!("a rank says that it is `{told}`"));
            let (number, rest) = told.split_once(' ').ok_or_else(garbled)?;
            let (host, device) = rest.split_once(' ').ok_or_else(garbled)?;
            let number = number.parse().map_err(|_| garbled())?;
            roster.members.push(number);
            roster.hosts.insert(number, host.to_owned());
            roster.devices.push(device.to_owned());
        }
        Ok(())
    }

    /// Has a rank that comes compute on what the others compute on. Those who come with it choose in the order of their ranks.
    pub(super) fn choose_device(&mut self, config: &Config) -> Result<(), TrainError> {
        // Nobody shares networks before all know what they are computed on: the ranks are those of the world.
        let (Some(world), Some(roster)) = (&self.world, &self.roster) else { return Ok(()) };
        let own = world.rank();
        let host_of = |rank: &usize| &roster.hosts[&roster.members[*rank]];
        let here: Vec<usize> =
            (0..world.world_size()).filter(|rank| host_of(rank) == host_of(&own)).collect();
        // Ranks without a device are those who come, unless nobody has one.
        let before = here.iter().filter(|rank| **rank < own && roster.devices[**rank] == HOST).count();
        let beside: Vec<String> = here.iter().map(|rank| roster.devices[*rank].clone()).collect();
        self.device = Device::beside(config, [&roster.devices, &beside], before)?;
        tracing::info!("rank {} computes on: {}", roster.number, self.device.describe());
        Ok(())
    }

    /// Takes over how often the others have met, where they know more than this rank.
    pub(in crate::engine) fn have_met(&mut self, meetings: u64) {
        if let Some(roster) = &mut self.roster {
            roster.meetings = roster.meetings.max(meetings);
        }
    }

    /// Asks the others to go on without this rank when it is told to leave, where they can.
    pub(super) fn leaves_when(&self) -> Option<Hearing> {
        let roster = self.roster.as_ref().filter(|roster| roster.elastic.is_some())?;
        let (asking, number) = (self.job.clone(), roster.number);
        Some(roster.leave.hear(move || {
            // A world that is broken or left is not left by asking.
            let _ = asking.request(Interlude::Leave(number));
        }))
    }

    /// Begins the next world, with those who are left of the present one and newcomers of these numbers, whom `announce` lets know
    /// where they come as which rank. Where nobody has died and none come after all it is the same ranks once more. What this rank had
    /// in the old world has to go before that does.
    ///
    /// # Errors
    /// [`TrainError::Comm`] if those who are left do not meet; and if it was not `planned` and nobody was lost, twice after one `step`.
    pub(in crate::engine) fn begin_epoch(
        &mut self,
        config: &Config,
        (planned, newcomers, step): (bool, &[usize], u64),
        announce: &dyn Fn(&WorldConfig),
    ) -> Result<(Before, Old), TrainError> {
        let (Some(roster), Some(world)) = (&mut self.roster, self.world.clone()) else {
            return Err(TrainError::Setup("this rank has no others to meet".to_owned()));
        };
        let control = world.control()?;
        let ranks = roster.members.len();
        // As much longer as all other times are (`WorldConfig::with_timeout`).
        let patience = PATIENCE.mul_f64((config.comm.timeout / 600.0).max(1.0));
        let coming = Newcomers { count: newcomers.len(), patience, announce };
        let coming = (!newcomers.is_empty()).then_some(&coming);
        let Regrouped { communicator, config: place, members: places } =
            regroup_with(&world, &roster.config, coming)?;
        let gone = (0..ranks).filter(|rank| !places.contains(rank)).map(|rank| roster.members[rank]);
        let dead: Vec<Dead> = gone
            .map(|rank| Dead { rank, host: roster.hosts.get(&rank).cloned().unwrap_or_default() })
            .collect();
        if dead.is_empty() && !planned {
            roster.break_without_loss(&world, step)?;
        }
        let members = places.iter().map(|place| roster.members[*place]);
        roster.members = members.chain(newcomers.iter().copied()).take(place.world_size).collect();
        roster.config = place;
        roster.meetings += 1;
        let stop = roster.stop.clone();
        self.job = Job::shared(&communicator)?;
        let strategy = config.train.strategy;
        self.cores = Cores::look(config, &self.device, Some(&communicator))?;
        self.world = Some(communicator);
        self.introduce()?;
        self.connect_devices(strategy)?;
        self.told = Some(self.asks_when(&stop));
        self.leaving = self.leaves_when();
        Ok((Before { control, places, ranks, dead }, Old(Some(world))))
    }

    /// Leaves the others to themselves, who know that this rank goes: they notice when this process has ended, and not before.
    pub(in crate::engine) fn leave_silently(mut self) {
        (self.told, self.leaving) = (None, None);
        if let Some(control) = self.world.as_ref().and_then(|world| world.control().ok()) {
            control.depart();
        }
        // A goodbye of the rank that the control plane goes through would end it for all.
        let _kept = std::mem::ManuallyDrop::new(self);
    }
}
