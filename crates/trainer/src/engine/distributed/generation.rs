//! Worlds that follow each other in elastic runs: the survivors of one meet in the next, and newcomers with them.

use std::time::Duration;

use phalanx_collectives::{Communicator, Newcomers, RebuiltWorld, WorldConfig, rejoin_with};

use super::exchange::Exchange;
use super::roster::PreviousWorld;
use super::{Distributed, Job};
use crate::engine::device::{Device, HOST};
use crate::engine::error::TrainError;
use phalanx_config::Config;

/// The wait for newcomers that have just announced themselves.
const NEWCOMER_TIMEOUT: Duration = Duration::from_secs(5);

/// The next world of an elastic run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::engine) struct NextWorld {
    /// True if all ranks have agreed on it, false if ranks were lost.
    planned: bool,
    /// The numbers of the ranks that join.
    pub(in crate::engine) newcomers: Vec<usize>,
}

impl NextWorld {
    /// The world after ranks were lost.
    pub(in crate::engine) fn after_a_loss() -> Self {
        Self { planned: false, newcomers: Vec::new() }
    }

    /// The world that all ranks have agreed on, with ranks of these numbers that join.
    pub(in crate::engine) fn planned(newcomers: Vec<usize>) -> Self {
        Self { planned: true, newcomers }
    }
}

/// A world that is over. Dropping it leaves it on a thread, without waiting for the ranks that are still in it.
pub(in crate::engine) struct RetiredWorld(Option<Communicator>);

impl Drop for RetiredWorld {
    fn drop(&mut self) {
        let Some(world) = self.0.take() else { return };
        // Without a thread, it is left here.
        let leaving = std::thread::Builder::new().name("phalanx-leaving".to_owned());
        let _ = leaving.spawn(move || drop(world));
    }
}

impl Distributed {
    /// Chooses the device of a rank that joins: the kind that the others compute on. Ranks that join together choose in the order of
    /// their ranks.
    pub(super) fn choose_device(&mut self, config: &Config) -> Result<(), TrainError> {
        // There is no mesh before all devices are known: ranks are those of the world.
        let Some(world) = self.exchange.world() else { return Ok(()) };
        let (own, roster) = (world.rank(), &self.roster);
        let host_of = |rank: usize| roster.hosts.get(&roster.members[rank]);
        let here: Vec<usize> =
            (0..world.world_size()).filter(|rank| host_of(*rank) == host_of(own)).collect();
        // Ranks without a device are those that join, unless no rank has one.
        let before = here.iter().filter(|rank| **rank < own && roster.devices[**rank] == HOST).count();
        let neighbours: Vec<String> = here.iter().map(|rank| roster.devices[*rank].clone()).collect();
        let device = Device::for_newcomer(config, [&roster.devices, &neighbours], before)?;
        tracing::info!("rank {} computes on: {}", roster.number(), device.describe());
        self.devices.set_device(device);
        Ok(())
    }

    /// Takes over the number of worlds from ranks that know of more.
    pub(in crate::engine) fn have_met(&mut self, meetings: u64) {
        self.roster.meetings = self.roster.meetings.max(meetings);
    }

    /// Enters the next world with the survivors of the present one and with newcomers, which `announce` invites. Without losses and
    /// newcomers it has the same ranks. Drop everything of the old world before the returned handle.
    ///
    /// # Errors
    /// [`TrainError::Comm`] if the survivors do not meet; and if the world was not planned and no rank was lost, twice after one `step`.
    pub(in crate::engine) fn begin_world(
        &mut self,
        config: &Config,
        next: &NextWorld,
        step: u64,
        announce: &dyn Fn(&WorldConfig),
    ) -> Result<(PreviousWorld, RetiredWorld), TrainError> {
        let (Some(world), Some(place)) = (self.exchange.world().cloned(), self.roster.place.clone()) else {
            return Err(TrainError::Setup("this rank has no others to meet".to_owned()));
        };
        let control = world.control()?;
        let ranks = self.roster.members.len();
        // Longer by the same factor as all other times (`WorldConfig::with_timeout`).
        let timeout = NEWCOMER_TIMEOUT.mul_f64((config.comm.timeout / 600.0).max(1.0));
        let coming = Newcomers { count: next.newcomers.len(), timeout, announce };
        let coming = (!next.newcomers.is_empty()).then_some(&coming);
        let RebuiltWorld { communicator, config: place, members: places } =
            rejoin_with(&world, &place, coming)?;
        let lost = self.roster.lost(&places);
        if lost.is_empty() && !next.planned {
            self.roster.break_without_loss(&world, step)?;
        }
        self.roster.enter(place, &places, &next.newcomers);
        self.control.set_job(Job::shared(&communicator)?);
        self.devices.update_cores(config, &communicator)?;
        self.exchange = Exchange::among(communicator);
        self.introduce()?;
        self.connect_devices()?;
        self.control.stop_on(&self.roster.stop);
        self.subscribe_to_leave();
        Ok((PreviousWorld { control, places, ranks, lost }, RetiredWorld(Some(world))))
    }

    /// Leaves the others, which know that this rank goes and notice when its process has ended.
    pub(in crate::engine) fn leave_silently(mut self) {
        self.control.unsubscribe();
        if let Some(control) = self.exchange.world().and_then(|world| world.control().ok()) {
            control.depart();
        }
        // If this rank is the coordinator of the control plane, its goodbye would end it for all.
        let _kept = std::mem::ManuallyDrop::new(self);
    }
}
