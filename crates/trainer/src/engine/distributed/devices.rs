//! The device of a rank, its cores, and the mesh that networks are shared on.

use phalanx_collectives::{Clock, Communicator};
use phalanx_sharding::{MeshLayout, ProcessMesh, Strategy};

use super::world::World;
use super::{Cores, mpi};
use crate::engine::device::Device;
use crate::engine::error::TrainError;
use phalanx_config::{Config, ParallelConfig, Transport};

/// The device of a rank, its cores, and the mesh that networks are shared on.
pub(super) struct Devices {
    device: Device,
    cores: Cores,
    /// This rank's place on the mesh; none for the only rank.
    mesh: Option<ProcessMesh>,
    strategy: Option<Strategy>,
    /// The degrees of the mesh.
    parallel: ParallelConfig,
    /// The number of ranks that do the same work; 1 outside of tests.
    duplicates: usize,
    /// The ranks with all samples of a batch, on the host.
    batch: Option<Communicator>,
    /// The transport of gradients and parameters.
    transport: Transport,
}

impl Devices {
    /// A CPU, with a mesh if there are other ranks.
    pub(super) fn of_host(mesh: Option<ProcessMesh>, strategy: Option<Strategy>) -> Self {
        let (device, cores) = (Device::cpu(), Cores::default());
        Self {
            device,
            cores,
            mesh,
            strategy,
            parallel: ParallelConfig::default(),
            duplicates: 1,
            batch: None,
            transport: Transport::Auto,
        }
    }

    /// Chooses the device and the cores of a rank. All ranks of `communicator` call this together.
    pub(super) fn choose(
        config: &Config,
        world: &World,
        communicator: Option<&Communicator>,
    ) -> Result<Self, TrainError> {
        let joins = world.joins.is_some();
        let device = match communicator {
            // The other ranks have chosen before, and tell their choice in their introduction.
            Some(_) if joins => Device::cpu(),
            Some(communicator) => Device::among(config, communicator)?,
            None => Device::alone(config)?,
        };
        let is_simulated = config.comm.simulated()?.is_some() || config.comm.clock == Clock::Cpu;
        if is_simulated && !device.compute().is_host() {
            let problem = "comm.link and comm.clock are for CPUs; set train.device = cpu".to_owned();
            return Err(TrainError::Setup(problem));
        }
        let cores = match joins {
            // The other ranks keep their cores.
            true => Cores::gather(config, &device, communicator)?,
            false => Cores::of(config, &device, communicator, world.is_thread())?,
        };
        Ok(Self {
            device,
            cores,
            mesh: None,
            strategy: Some(config.train.strategy),
            parallel: config.parallel.clone(),
            duplicates: world.duplicates,
            batch: None,
            transport: config.comm.transport,
        })
    }

    /// The device of this rank.
    pub(super) fn device(&self) -> &Device {
        &self.device
    }

    /// Sets the device of a rank that joins.
    pub(super) fn set_device(&mut self, device: Device) {
        self.device = device;
    }

    /// The cores that ranks may run on.
    pub(super) fn cores(&self) -> &Cores {
        &self.cores
    }

    /// Gathers the cores of the ranks of a new world. All its ranks call this together.
    pub(super) fn update_cores(&mut self, config: &Config, world: &Communicator) -> Result<(), TrainError> {
        self.cores = Cores::gather(config, &self.device, Some(world))?;
        Ok(())
    }

    /// This rank's place on the mesh; none for the only rank.
    pub(super) fn mesh(&self) -> Option<&ProcessMesh> {
        self.mesh.as_ref()
    }

    /// True if the configuration cuts layers over ranks, if only over one.
    pub(super) fn cuts_layers(&self) -> bool {
        self.parallel.cuts_layers()
    }

    pub(super) fn strategy(&self) -> Option<Strategy> {
        self.strategy
    }

    /// Connects the devices of all ranks and builds the mesh. All ranks of `world` call this together.
    pub(super) fn connect(&mut self, world: &Communicator) -> Result<(), TrainError> {
        let Some(strategy) = self.strategy else { return Ok(()) };
        let ranks = match self.transport {
            Transport::Auto => self.device.connected(world, strategy)?,
            Transport::Mpi => mpi::connected(&self.device, world)?,
        };
        let layout = self.layout(&strategy, world.hosts())?;
        let mesh = ProcessMesh::of(ranks, layout)?;
        let batch = mesh.layout().group_along(mesh.rank(), |kind| kind.samples_differ)?;
        self.batch = match batch.len() == world.world_size() {
            true => Some(world.clone()),
            false => world.split(batch.first().and_then(|first| u32::try_from(*first).ok()), 0)?,
        };
        self.mesh = Some(mesh);
        Ok(())
    }

    /// The mesh of ranks on these hosts.
    fn layout(&self, strategy: &Strategy, hosts: &[usize]) -> Result<MeshLayout, TrainError> {
        if self.duplicates == 1 {
            return Ok(self.parallel.layout(strategy, hosts)?);
        }
        let hosts: Vec<usize> = hosts.iter().copied().step_by(self.duplicates).collect();
        let layout = self.parallel.layout(strategy, &hosts)?;
        let axes: Vec<(&str, usize)> = layout.axes().chain([("duplicate", self.duplicates)]).collect();
        Ok(MeshLayout::new(&axes, hosts.len() * self.duplicates)?)
    }

    /// The ranks with all samples of a batch, on the host; none for the only rank.
    pub(super) fn batch(&self) -> Option<&Communicator> {
        self.batch.as_ref()
    }

    /// Closes the mesh.
    pub(super) fn disconnect(&mut self) {
        (self.mesh, self.batch) = (None, None);
    }

    /// Gives up the mesh after a failure.
    pub(super) fn abandon(&mut self) {
        if self.transport == Transport::Mpi {
            // At its end MPI would wait for all ranks, which may wait for this one. The launcher ends them when this process is gone.
            std::mem::forget(self.mesh.take());
        }
    }

    /// Fails if a rank of the mesh, or of `world`, is lost, without waiting.
    pub(super) fn check(&self, world: Option<&Communicator>) -> Result<(), TrainError> {
        let mesh = self.mesh.as_ref().map(ProcessMesh::world);
        // MPI does not tell which rank is lost.
        let world = world.filter(|_| self.transport == Transport::Mpi);
        Ok(mesh.into_iter().chain(world).try_for_each(Communicator::check)?)
    }

    /// True if results of a device mix with those of other ranks before the host notices that a rank was lost.
    pub(super) fn mixes_unseen(&self) -> bool {
        let on_host = self.strategy.is_none_or(|strategy| strategy.exchanges_on_host());
        !self.device.compute().is_host() && !on_host
    }
}
