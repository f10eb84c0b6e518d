//! The rendezvous of ranks.

use std::path::Path;
use std::time::Duration;

use phalanx_collectives::{Communicator, WorldConfig};

use super::control::ControlPlane;
use super::devices::Devices;
use super::exchange::Exchange;
use super::roster::Roster;
use super::world::{Link, World};
use super::{Distributed, Job};
use crate::engine::error::TrainError;
use phalanx_config::Config;
use phalanx_run::StopFlag;

/// Ranks that have met.
struct ConnectedRanks {
    /// All ranks; none for the only rank.
    communicator: Option<Communicator>,
    /// This rank's place, if ranks are processes.
    place: Option<WorldConfig>,
}

impl ConnectedRanks {
    /// Meets the other ranks, unless `stop` is raised before.
    fn of(world: &World, config: &Config, logs: &Path, stop: &StopFlag) -> Result<Self, TrainError> {
        world.check_secret(config)?;
        Ok(match &world.link {
            // A world that may grow has a communicator from the start.
            Link::Process(place) if place.world_size > 1 || config.elastic().is_some() => {
                let place = configured(place, config, logs)?;
                let communicator = world.meet(&place, stop)?;
                Self { communicator: Some(communicator), place: Some(place) }
            }
            Link::Thread(communicator) if communicator.world_size() > 1 => {
                Self { communicator: Some(communicator.clone()), place: None }
            }
            _ => Self { communicator: None, place: None },
        })
    }

    /// Fails if no rank would train.
    fn check_servers(&self, servers: usize) -> Result<(), TrainError> {
        let ranks = self.communicator.as_ref().map_or(1, Communicator::world_size);
        if servers < ranks {
            return Ok(());
        }
        Err(TrainError::Setup(format!(
            "sync.servers = {servers} of {ranks} ranks only serve; there must be at least one worker, and a launcher must \
             start train.ranks + sync.servers processes"
        )))
    }
}

/// A rank's place with the timeouts, links and encryption of a configuration.
fn configured(place: &WorldConfig, config: &Config, logs: &Path) -> Result<WorldConfig, TrainError> {
    let (link, host_link) = (config.comm.simulated()?, config.comm.simulated_inside()?);
    let hosts = if link.is_some() { config.comm.hosts } else { 1 };
    let mut configured = place.clone().with_timeout(Duration::from_secs_f64(config.comm.timeout));
    configured.flight_recorder.get_or_insert_with(|| logs.to_owned());
    configured.credentials.encryption = config.comm.encryption;
    (configured.transport.simulated, configured.transport.simulated_on_host) = (link, host_link);
    if hosts > 1 {
        configured.host = Some(format!("simulated host {}", place.rank * hosts / place.world_size));
    }
    Ok(configured)
}

impl Distributed {
    /// Meets the other ranks, unless `stop` is raised before. If an operation with them fails, the last operations are written to the
    /// folder of logs.
    pub(in crate::engine) fn connect(
        world: &World,
        config: &Config,
        logs: &Path,
        stop: &StopFlag,
    ) -> Result<Self, TrainError> {
        let meeting = ConnectedRanks::of(world, config, logs, stop)?;
        meeting.check_servers(config.sync.servers)?;
        let ConnectedRanks { communicator, place } = meeting;
        let job = communicator.as_ref().map_or_else(|| Ok(Job::alone()), Job::shared)?;
        let devices = Devices::choose(config, world, communicator.as_ref())?;
        let roster = match place {
            Some(place) => Roster::of_processes(place, world, config, stop),
            None => Roster::of_threads(world.rank(), world.size()),
        };
        let mut this = Self {
            devices,
            exchange: communicator.map_or_else(Exchange::alone, Exchange::among),
            control: ControlPlane::new(job),
            roster,
            servers: config.sync.servers,
            are_threads: world.is_thread(),
        };
        this.introduce()?;
        if world.joins.is_some() {
            this.choose_device(config)?;
        }
        this.connect_devices().inspect_err(|error| {
            // The others notice that a joining rank is lost, and continue.
            if world.joins.is_none() {
                this.exchange.abort(&error.to_string());
            }
        })?;
        this.control.stop_on(stop);
        this.subscribe_to_leave();
        Ok(this)
    }

    /// Connects the devices of the ranks of the present world. All ranks call this together.
    pub(super) fn connect_devices(&mut self) -> Result<(), TrainError> {
        self.exchange.world().map_or(Ok(()), |world| self.devices.connect(world))
    }

    /// Requests that this rank leaves when it is told to leave, in elastic runs.
    pub(super) fn subscribe_to_leave(&mut self) {
        if self.roster.is_elastic() {
            self.control.leave_on(self.roster.leave_flag(), self.roster.number());
        }
    }
}
