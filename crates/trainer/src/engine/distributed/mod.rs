//! The other ranks, as the training loop sees them.

mod clock;
mod cores;
mod epoch;
mod job;
mod left;
mod listeners;
mod mpi;
mod network;
mod shares;
mod world;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use phalanx_collectives::{Clock, CommStats, Communicator, ReduceOp, WorldConfig, connect_unless};
use phalanx_sharding::{ProcessMesh, Ranks, Strategy};

pub(in crate::engine) use cores::Cores;
pub(in crate::engine) use job::{Agreed, Interlude, Job, StopReason};
pub(in crate::engine) use left::Before;
use left::Roster;
pub(in crate::engine) use listeners::listener;
pub(in crate::engine) use network::{BatchGroups, Network, sync_options};
pub(in crate::engine) use shares::{Share, Shares};
use world::Link;
pub use world::{World, in_one_process, invited_world, launcher_world};

use super::device::Device;
use super::error::TrainError;
use crate::config::{Config, Transport};
use phalanx_run::host_name;
use phalanx_run::{Hearing, StopFlag};

/// What communication has cost a rank.
#[derive(Debug, Clone, Copy, Default)]
pub(in crate::engine) struct Traffic {
    pub(in crate::engine) bytes_sent: u64,
    pub(in crate::engine) bytes_received: u64,
    /// Time in which the loop waited.
    pub(in crate::engine) exposed: Duration,
    /// Time in which the communication thread was at work.
    pub(in crate::engine) busy: Duration,
}

impl From<CommStats> for Traffic {
    fn from(stats: CommStats) -> Self {
        Self {
            bytes_sent: stats.bytes_sent,
            bytes_received: stats.bytes_received,
            exposed: Duration::from_secs_f64(stats.seconds_exposed),
            busy: Duration::from_secs_f64(stats.seconds_busy),
        }
    }
}

impl std::ops::Add for Traffic {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            bytes_sent: self.bytes_sent + other.bytes_sent,
            bytes_received: self.bytes_received + other.bytes_received,
            exposed: self.exposed + other.exposed,
            busy: self.busy + other.busy,
        }
    }
}

impl std::ops::Sub for Traffic {
    type Output = Self;

    /// What came since `before`.
    fn sub(self, before: Self) -> Self {
        Self {
            bytes_sent: self.bytes_sent.saturating_sub(before.bytes_sent),
            bytes_received: self.bytes_received.saturating_sub(before.bytes_received),
            exposed: self.exposed.saturating_sub(before.exposed),
            busy: self.busy.saturating_sub(before.busy),
        }
    }
}

/// The other ranks; none, for the only rank.
pub(in crate::engine) struct Distributed {
    /// What this rank computes on.
    device: Device,
    /// Where this rank lies among the others; all networks are shared along its axes.
    // Before the world, which must outlive communicators that are made over it.
    mesh: Option<ProcessMesh>,
    /// All ranks, by the host's memory and network.
    world: Option<Communicator>,
    strategy: Option<Strategy>,
    job: Job,
    /// Asks for a stop the moment that this rank is told to, as long as this lives.
    told: Option<Hearing>,
    /// Asks the others to go on without this rank the moment that it is told to leave.
    leaving: Option<Hearing>,
    /// What gradients and parameters go over.
    transport: Transport,
    /// How many ranks only serve.
    servers: usize,
    /// Who is who, if ranks are processes.
    roster: Option<Roster>,
    /// Whether ranks are threads of this process.
    are_threads: bool,
    /// Which cores it may run on.
    cores: Cores,
}

impl Distributed {
    /// Meets the other ranks, unless `stop` is raised before. If an operation with them fails, the last ones are written to the
    /// folder of logs.
    pub(in crate::engine) fn connect(
        world: &World,
        config: &Config,
        logs: &Path,
        stop: &StopFlag,
    ) -> Result<Self, TrainError> {
        let (mut place, timeout) = (None, config.comm.timeout);
        let (link, host_link) = (config.comm.simulated()?, config.comm.simulated_inside()?);
        let hosts = if link.is_some() { config.comm.hosts } else { 1 };
        let encryption = config.comm.encryption;
        let communicator = match &world.link {
            // A world that may grow is one from the beginning.
            Link::Process(config_of_world)
                if config_of_world.world_size > 1 || config.elastic().is_some() =>
            {
                let config = config_of_world;
                let flight_recorder = config.flight_recorder.clone().or_else(|| Some(logs.to_owned()));
                let mut config = WorldConfig {
                    flight_recorder,
                    encryption,
                    link,
                    host_link,
                    ..config.as_ref().clone().with_timeout(Duration::from_secs_f64(timeout))
                };
                if hosts > 1 {
                    let number = config.rank * hosts / config.world_size;
                    config.host = Some(format!("simulated host {number}"));
                }
                let communicator = connect_unless(&config, || stop.is_raised())?;
                place = Some(config);
                Some(communicator)
            }
            Link::Thread(communicator) if communicator.world_size() > 1 => Some(communicator.clone()),
            _ => None,
        };
        let (ranks, servers) =
            (communicator.as_ref().map_or(1, Communicator::world_size), config.sync.servers);
        if servers >= ranks {
            return Err(TrainError::Setup(format!(
                "sync.servers = {servers} of {ranks} ranks only serve; there must be a worker besides them, and a launcher must \
                 start train.ranks + sync.servers processes"
            )));
        }
        let strategy = config.train.strategy;
        let job = communicator.as_ref().map_or_else(|| Ok(Job::alone()), Job::shared)?;
        let device = match &communicator {
            // The others have settled that before, and tell it when they introduce themselves.
            Some(_) if world.joins.is_some() => Device::processor(),
            Some(world) => Device::among(config, world)?,
            None => Device::alone(config)?,
        };
        if (link.is_some() || config.comm.clock == Clock::Cpu) && !device.compute().is_host() {
            let problem = "comm.link and comm.clock are for CPUs; set train.device = cpu".to_owned();
            return Err(TrainError::Setup(problem));
        }
        let are_threads = matches!(world.link, Link::Thread(_));
        let cores = match world.joins {
            // The others keep to their cores.
            Some(_) => Cores::look(config, &device, communicator.as_ref())?,
            None => Cores::of(config, &device, communicator.as_ref(), are_threads)?,
        };
        let mut this = Self {
            device,
            cores,
            world: communicator,
            mesh: None,
            strategy: Some(strategy),
            job,
            told: None,
            leaving: None,
            transport: config.comm.transport,
            servers: config.sync.servers,
            roster: None,
            are_threads,
        };
        if let Some(config_of_world) = place {
            this.roster = Some(Roster {
                number: world.joins.unwrap_or(config_of_world.rank),
                members: Vec::new(),
                devices: Vec::new(),
                config: config_of_world,
                stop: stop.clone(),
                leave: world.leave.clone(),
                hosts: BTreeMap::new(),
                workers: ranks - servers,
                least: config.sync.min_workers,
                elastic: config.elastic(),
                has_joined: world.joins.is_some(),
                meetings: 0,
                broke_after: None,
            });
            this.introduce()?;
            if world.joins.is_some() {
                this.choose_device(config)?;
            }
        }
        let connected = this.connect_devices(strategy);
        connected.inspect_err(|error| {
            // Of a newcomer the others notice that it is lost, and go on.
            if let Some(communicator) = this.world.as_ref().filter(|_| world.joins.is_none()) {
                communicator.abort(&error.to_string());
            }
        })?;
        this.told = Some(this.asks_when(stop));
        this.leaving = this.leaves_when();
        Ok(this)
    }

    /// Connects what the ranks of the present world compute on, in the shape that the strategy wants. Every rank calls this at the
    /// same place.
    fn connect_devices(&mut self, strategy: Strategy) -> Result<(), TrainError> {
        if let Some(world) = &self.world {
            let ranks = match self.transport {
                Transport::Auto => self.device.connected(world, strategy)?,
                Transport::Mpi => mpi::connected(&self.device, world)?,
            };
            self.mesh = Some(ProcessMesh::suiting(ranks, &strategy, 0)?);
        }
        Ok(())
    }

    /// Has all ranks asked to stop the moment that this one is told to.
    fn asks_when(&self, stop: &StopFlag) -> Hearing {
        let asking = self.job.clone();
        stop.hear(move || {
            // A world that is broken or left ends without being asked.
            let _ = asking.request_stop(&StopReason::Asked);
        })
    }

    /// Nobody.
    pub(in crate::engine) fn none() -> Self {
        let device = Device::processor();
        Self {
            device,
            world: None,
            mesh: None,
            strategy: None,
            job: Job::alone(),
            told: None,
            leaving: None,
            transport: Transport::Auto,
            servers: 0,
            roster: None,
            are_threads: false,
            cores: Cores::default(),
        }
    }

    /// Ranks that are threads of a test.
    #[cfg(test)]
    pub(in crate::engine) fn among(communicator: Communicator) -> Result<Self, TrainError> {
        let (job, world) = (Job::shared(&communicator)?, Some(communicator.clone()));
        let mesh = Some(ProcessMesh::data_parallel(communicator)?);
        let device = Device::processor();
        let (strategy, told, leaving, roster) = (None, None, None, None);
        Ok(Self {
            device,
            world,
            mesh,
            strategy,
            job,
            told,
            leaving,
            transport: Transport::Auto,
            servers: 0,
            roster,
            are_threads: true,
            cores: Cores::default(),
        })
    }

    /// This rank in the world, from 0.
    pub(in crate::engine) fn rank(&self) -> usize {
        self.mesh.as_ref().map_or(0, ProcessMesh::rank)
    }

    /// How many ranks there are.
    pub(in crate::engine) fn size(&self) -> usize {
        self.mesh.as_ref().map_or(1, ProcessMesh::world_size)
    }

    /// How many parts a batch has: one for each rank that trains.
    pub(in crate::engine) fn data_size(&self) -> usize {
        self.mesh.as_ref().map_or(1, ProcessMesh::data_size).saturating_sub(self.servers).max(1)
    }

    /// Whether there are ranks that only serve.
    pub(in crate::engine) fn has_servers(&self) -> bool {
        self.servers > 0
    }

    /// Whether this rank only serves, and has no samples: those are the last ranks.
    pub(in crate::engine) fn is_server(&self) -> bool {
        self.servers > 0 && self.rank() >= self.data_size()
    }

    /// This rank's part of every batch; none of a rank that only serves.
    pub(in crate::engine) fn share(&self) -> Share {
        let rank = self.mesh.as_ref().map_or(0, ProcessMesh::data_rank);
        Share { rank: (!self.is_server()).then_some(rank), ranks: self.data_size() }
    }

    /// The number of this rank's host, and its name.
    pub(in crate::engine) fn host(&self) -> (usize, String) {
        let number = self.world.as_ref().map_or(0, |world| world.hosts()[world.rank()]);
        (number, host_name())
    }

    /// Whether this is the first rank of its host.
    pub(in crate::engine) fn is_first_of_host(&self) -> bool {
        self.world.as_ref().is_none_or(|world| world.local_rank() == 0)
    }

    /// Whether this is the first rank of its process.
    pub(in crate::engine) fn is_first_of_process(&self) -> bool {
        !self.are_threads || self.rank() == 0
    }

    /// What ranks tell each other apart from the collectives of a step.
    pub(in crate::engine) fn job(&self) -> &Job {
        &self.job
    }

    /// Whether there are others, with whom a model will be shared.
    pub(in crate::engine) fn is_shared(&self) -> bool {
        self.mesh.is_some()
    }

    /// Which cores it may run on.
    pub(in crate::engine) fn cores(&self) -> &Cores {
        &self.cores
    }

    /// What this rank computes on.
    pub(in crate::engine) fn device(&self) -> &Device {
        &self.device
    }

    /// The communicator of all ranks, for what lies on the host.
    fn world(&self) -> Option<&Communicator> {
        self.world.as_ref()
    }

    /// The ranks among which the first reads the data for all and scatters it, if the strategy says so.
    pub(in crate::engine) fn fed(&self) -> Option<&Communicator> {
        let threads = self.strategy.is_some_and(|strategy| strategy.ranks == Ranks::Threads);
        // These are all ranks; batches are the host's, wherever networks compute.
        self.world.as_ref().filter(|_| threads)
    }

    /// The mesh and the strategy by which networks are shared; nothing for the only rank.
    fn sharing(&self) -> Option<(&ProcessMesh, Strategy)> {
        self.mesh.as_ref().zip(self.strategy)
    }

    /// What every rank has to say, known to all, by rank.
    pub(in crate::engine) fn gather_text(&self, text: &str) -> Result<Vec<String>, TrainError> {
        let Some(world) = self.world() else { return Ok(vec![text.to_owned()]) };
        let all = world.all_gatherv(text.as_bytes())?;
        Ok(all.iter().map(|bytes| String::from_utf8_lossy(bytes).into_owned()).collect())
    }

    /// The numbers of all ranks, one rank's after the other's.
    pub(in crate::engine) fn gather_numbers(&self, own: &[f32]) -> Result<Vec<f32>, TrainError> {
        self.world().map_or_else(|| Ok(own.to_vec()), |world| Ok(world.all_gatherv(own)?.concat()))
    }

    /// The bytes of all ranks, by rank, on rank 0; nothing elsewhere.
    pub(in crate::engine) fn gather_bytes(&self, own: Vec<u8>) -> Result<Vec<Vec<u8>>, TrainError> {
        match self.world() {
            Some(world) => Ok(world.gatherv(&own, 0)?),
            None => Ok(vec![own]),
        }
    }

    /// Gives bytes to the next rank, and returns those of the one before. Every rank calls this at the same place.
    pub(in crate::engine) fn pass_on(&self, bytes: &[u8]) -> Result<Vec<u8>, TrainError> {
        let Some(world) = self.world().filter(|world| world.world_size() > 1) else {
            return Ok(bytes.to_vec());
        };
        let (rank, ranks) = (world.rank(), world.world_size());
        let (next, before) = ((rank + 1) % ranks, (rank + ranks - 1) % ranks);
        let mut length = [0_i64];
        world.send_recv(&[bytes.len() as i64], next, &mut length, before)?;
        let mut received = Vec::new();
        let length = usize::try_from(length[0]).unwrap_or(usize::MAX);
        if received.try_reserve_exact(length).is_err() {
            return Err(TrainError::Setup(format!(
                "rank {before} announces {length} bytes, for which there is no memory"
            )));
        }
        received.resize(length, 0);
        world.send_recv(bytes, next, &mut received, before)?;
        Ok(received)
    }

    /// Replaces bytes by those of rank `root`, of as many.
    pub(in crate::engine) fn broadcast_bytes(&self, bytes: &mut [u8], root: usize) -> Result<(), TrainError> {
        self.world().map_or(Ok(()), |world| Ok(world.broadcast(bytes, root)?))
    }

    /// Replaces each number by its sum over the ranks.
    pub(in crate::engine) fn sum(&self, values: &mut [f64]) -> Result<(), TrainError> {
        self.world().map_or(Ok(()), |world| Ok(world.all_reduce(values, ReduceOp::Sum)?))
    }

    /// The sum of one number over the ranks.
    pub(in crate::engine) fn sum_of(&self, value: f64) -> Result<f64, TrainError> {
        let mut values = [value];
        self.sum(&mut values)?;
        Ok(values[0])
    }

    /// What communication has cost so far, that of `networks` included.
    pub(in crate::engine) fn traffic<'n>(&self, networks: impl Iterator<Item = &'n Network>) -> Traffic {
        let Some(mesh) = &self.mesh else { return Traffic::default() };
        let base = Traffic::from(mesh.stats());
        // A network's numbers are those of the mesh that all share, and of its own groups.
        networks.filter_map(Network::traffic).fold(base, |sum, network| sum + (network - base))
    }

    /// An error if a rank is lost, so that what was computed with it is not to be believed; waits for nothing.
    pub(in crate::engine) fn check(&self) -> Result<(), TrainError> {
        let mesh = self.mesh.as_ref().map(ProcessMesh::world);
        // MPI does not tell who is lost.
        let world = self.world.as_ref().filter(|_| self.transport == Transport::Mpi);
        Ok(mesh.into_iter().chain(world).try_for_each(Communicator::check)?)
    }

    /// Whether what is computed here mixes with what comes from other ranks, and nobody has waited on the host for that to come: it
    /// is read before anybody knows that a rank was lost.
    pub(in crate::engine) fn mixes_unseen(&self) -> bool {
        let on_host = self.strategy.is_none_or(|strategy| strategy.exchanges_on_host());
        !self.device.compute().is_host() && !on_host
    }

    /// Tells the other ranks that this one fails, so that they do not wait for it.
    fn abort(&self, reason: &str) {
        if let Some(world) = self.world() {
            world.abort(reason);
        }
    }

    /// Waits until all have come this far: the end, before which nobody parts.
    pub(in crate::engine) fn meet_at_the_end(&self) -> Result<(), TrainError> {
        self.world().map_or(Ok(()), |world| Ok(world.barrier("end of training")?))
    }

    /// Leaves the world: in good order if all went well, when all have met at the end; otherwise the others hear what has gone
    /// wrong.
    pub(in crate::engine) fn part<R>(mut self, outcome: Result<R, TrainError>) -> Result<R, TrainError> {
        match &outcome {
            Ok(_) => {
                (self.told, self.leaving) = (None, None);
                if let Some(world) = self.world.clone() {
                    // What a GPU's communicators have to close goes before the world that watches over them.
                    self.mesh = None;
                    world.shutdown();
                }
            }
            Err(error) if error.is_consequence() => {}
            Err(error) => self.abort(&error.to_string()),
        }
        if outcome.is_err() && self.transport == Transport::Mpi {
            // MPI would wait for all at its end, who may wait for this rank. Its launcher ends them when this process has gone without.
            std::mem::forget(self.mesh.take());
        }
        outcome
    }
}
