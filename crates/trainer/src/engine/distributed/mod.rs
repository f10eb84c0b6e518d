//! The other ranks, as the training loop sees them.
//!
//! | file | holds |
//! |---|---|
//! | `world` | a rank's place among the others, before they have met |
//! | `connect` | how ranks meet |
//! | `exchange` | collectives of all ranks on the host |
//! | `devices` | the device of a rank, its cores, and the mesh that networks are shared on |
//! | `control`, `job` | agreements between ranks: stops, actions between two steps |
//! | `roster` | the ranks by their numbers in the run, and how survivors rejoin |
//! | `generation` | worlds that follow each other in elastic runs |
//! | `network`, `listeners` | a network, and how it is shared |
//! | `batch_split` | the part of each batch that a rank takes |

mod batch_split;
mod clock;
mod connect;
mod control;
mod cores;
mod devices;
mod exchange;
mod generation;
mod job;
mod listeners;
mod mpi;
mod network;
mod roster;
mod stage_rank;
mod state_owner;
mod traffic;
mod world;

use phalanx_collectives::Communicator;
use phalanx_sharding::{ProcessMesh, Ranks, Strategy, single_rank_group};
use phalanx_tensor::{TensorGroup, TensorRank};

pub(in crate::engine) use batch_split::{BatchSplit, RankBatch};
use control::ControlPlane;
pub(in crate::engine) use cores::Cores;
use devices::Devices;
use exchange::Exchange;
pub(in crate::engine) use generation::NextWorld;
pub(in crate::engine) use job::{Agreed, AgreedAction, Job, StopReason};
pub(in crate::engine) use listeners::listener;
pub(in crate::engine) use network::{BatchGroups, Network, sync_options};
pub(in crate::engine) use roster::PreviousWorld;
use roster::Roster;
pub(in crate::engine) use stage_rank::StageRank;
pub(in crate::engine) use state_owner::StateOwner;
pub(in crate::engine) use traffic::Traffic;
pub use world::{World, in_one_process, invited_world, launcher_world, require_secret};

use super::device::Device;
use super::error::TrainError;
use phalanx_config::Config;
use phalanx_run::host_name;

/// The other ranks; none, for the only rank.
pub(in crate::engine) struct Distributed {
    // Before the exchange: communicators that are made over the world must not outlive it.
    devices: Devices,
    /// All ranks, by the host's memory and network.
    exchange: Exchange,
    control: ControlPlane,
    roster: Roster,
    /// The number of ranks that only serve.
    servers: usize,
    /// True if ranks are threads of this process.
    are_threads: bool,
}

impl Distributed {
    /// Creates the world of the only rank.
    pub(in crate::engine) fn none() -> Self {
        Self {
            devices: Devices::of_host(None, None),
            exchange: Exchange::alone(),
            control: ControlPlane::new(Job::alone()),
            roster: Roster::of_threads(0, 1),
            servers: 0,
            are_threads: false,
        }
    }

    /// Creates the world of ranks that are threads of a test.
    #[cfg(test)]
    pub(in crate::engine) fn among(communicator: Communicator) -> Result<Self, TrainError> {
        let mesh = ProcessMesh::data_parallel(communicator.clone())?;
        Ok(Self {
            devices: Devices::of_host(Some(mesh), None),
            control: ControlPlane::new(Job::shared(&communicator)?),
            roster: Roster::of_threads(communicator.rank(), communicator.world_size()),
            exchange: Exchange::among(communicator),
            servers: 0,
            are_threads: true,
        })
    }

    /// This rank in the world, from 0.
    pub(in crate::engine) fn rank(&self) -> usize {
        self.devices.mesh().map_or(0, ProcessMesh::rank)
    }

    /// The number of ranks.
    pub(in crate::engine) fn size(&self) -> usize {
        self.devices.mesh().map_or(1, ProcessMesh::world_size)
    }

    /// This rank's position among the parts of a batch, from 0. Ranks that differ along other axes have the same samples.
    pub(in crate::engine) fn data_rank(&self) -> usize {
        self.devices.mesh().map_or(0, ProcessMesh::data_rank)
    }

    /// The number of parts that the mesh splits a batch into, those of servers included.
    pub(in crate::engine) fn mesh_data_size(&self) -> usize {
        self.devices.mesh().map_or(1, ProcessMesh::data_size)
    }

    /// True if another rank does the same work, and its files count, not this rank's.
    pub(in crate::engine) fn is_duplicate(&self) -> bool {
        self.devices.mesh().is_some_and(|mesh| mesh.duplicate() > 0)
    }

    /// True if another rank has the same results for the same samples, and they count, not this rank's.
    pub(in crate::engine) fn repeats_results(&self) -> bool {
        self.is_duplicate() || self.devices.mesh().is_some_and(|mesh| !mesh.is_first_of_model())
    }

    /// True if evaluations take this rank's results: it is the first one that has the last layers of the model for its samples.
    pub(in crate::engine) fn has_results(&self) -> bool {
        let StageRank { rank, ranks } = self.stage_rank();
        !self.is_duplicate() && self.tensor_rank().rank == 0 && rank + 1 == ranks
    }

    /// True if this rank computes what rank 0 draws or writes between two steps: all ranks that hold parts of its model take part.
    pub(in crate::engine) fn computes_with_first(&self) -> bool {
        self.data_rank() == 0 && !self.is_duplicate()
    }

    /// This rank among those that compute parts of the same layers.
    pub(in crate::engine) fn tensor_rank(&self) -> TensorRank {
        let group = self.devices.mesh().and_then(|mesh| mesh.axis("tensor").ok());
        group.map_or(TensorRank::ALONE, |group| TensorRank { rank: group.rank(), ranks: group.world_size() })
    }

    /// The ranks along the pipeline; none if the model has no stages.
    pub(in crate::engine) fn pipeline(&self) -> Option<&Communicator> {
        let comm = self.devices.mesh().and_then(|mesh| mesh.axis("pipeline").ok());
        comm.filter(|comm| comm.world_size() > 1)
    }

    /// This rank among those along the pipeline.
    pub(in crate::engine) fn stage_rank(&self) -> StageRank {
        self.pipeline()
            .map_or(StageRank::ALONE, |comm| StageRank { rank: comm.rank(), ranks: comm.world_size() })
    }

    /// This rank, as the owner of state that no other rank has.
    pub(in crate::engine) fn state_owner(&self) -> StateOwner {
        let (rank, ranks) = (self.data_rank(), self.mesh_data_size());
        StateOwner { rank, ranks, tensor: self.tensor_rank(), stage: self.stage_rank() }
    }

    /// The ranks that compute parts of the same layers; none if layers are not cut.
    /// All ranks call this together.
    pub(in crate::engine) fn tensor_group(
        &self,
        config: &Config,
        threads: usize,
    ) -> Result<Option<TensorGroup>, TrainError> {
        if !self.devices.cuts_layers() {
            return Ok(None);
        }
        let splits_sequences = config.tensor.sequence;
        let mesh = self.devices.mesh();
        let Some((comm, ranks)) =
            mesh.and_then(|mesh| mesh.axis("tensor").ok().zip(mesh.group("tensor").ok()))
        else {
            let alone = TensorGroup::from(single_rank_group());
            return Ok(Some(TensorGroup { splits_sequences, ..alone }));
        };
        let overlaps = config.overlap().decide(comm, self.device().compute().is_host(), threads)?;
        Ok(Some(TensorGroup { ranks, splits_sequences, overlaps }))
    }

    /// The ranks whose losses add up to the loss of a batch, by data rank.
    pub(in crate::engine) fn loss_ranks(&self) -> Vec<usize> {
        let Some(mesh) = self.devices.mesh() else { return vec![0] };
        // Duplicates are not in the group of rank 0.
        let group = mesh.layout().group_along(0, |kind| kind.loss_summed).unwrap_or_default();
        let number = group.len().saturating_sub(self.servers);
        group.into_iter().take(number).collect()
    }

    /// The number of parts of a batch: one for each rank that trains.
    pub(in crate::engine) fn data_size(&self) -> usize {
        self.mesh_data_size().saturating_sub(self.servers).max(1)
    }

    /// The number of ranks that train: all but servers.
    pub(in crate::engine) fn training_ranks(&self) -> usize {
        self.size().saturating_sub(self.servers).max(1)
    }

    /// True if there are ranks that only serve.
    pub(in crate::engine) fn has_servers(&self) -> bool {
        self.servers > 0
    }

    /// True if this rank only serves and has no samples. Servers are the last ranks.
    pub(in crate::engine) fn is_server(&self) -> bool {
        self.servers > 0 && self.data_rank() >= self.data_size()
    }

    /// This rank's part of each batch; none for a server.
    pub(in crate::engine) fn rank_batch(&self) -> RankBatch {
        RankBatch { rank: (!self.is_server()).then_some(self.data_rank()), ranks: self.data_size() }
    }

    /// The number of this rank's host, and its name.
    pub(in crate::engine) fn host(&self) -> (usize, String) {
        let number = self.exchange.world().map_or(0, |world| world.hosts()[world.rank()]);
        (number, host_name())
    }

    /// True on the first rank of a host.
    pub(in crate::engine) fn is_first_of_host(&self) -> bool {
        self.exchange.world().is_none_or(|world| world.local_rank() == 0)
    }

    /// True on the first rank of a process.
    pub(in crate::engine) fn is_first_of_process(&self) -> bool {
        !self.are_threads || self.rank() == 0
    }

    /// Agreements between ranks, apart from the collectives of a step.
    pub(in crate::engine) fn job(&self) -> &Job {
        self.control.job()
    }

    /// Collectives of all ranks on the host.
    pub(in crate::engine) fn exchange(&self) -> &Exchange {
        &self.exchange
    }

    /// The ranks by their numbers in the run.
    pub(in crate::engine) fn roster(&self) -> &Roster {
        &self.roster
    }

    /// True if there are other ranks to share a model with.
    pub(in crate::engine) fn is_shared(&self) -> bool {
        self.devices.mesh().is_some()
    }

    /// The cores that ranks may run on.
    pub(in crate::engine) fn cores(&self) -> &Cores {
        self.devices.cores()
    }

    /// The number of compute threads: `wanted`, or one for each core of this rank if that is 0. Ranks that share layers have as many as
    /// the one with the fewest, so that what they compute alike has the same bits. All ranks call this together.
    pub(in crate::engine) fn threads(&self, wanted: usize) -> Result<usize, TrainError> {
        let own = self.cores().threads(wanted);
        if !self.devices.cuts_layers() {
            return Ok(own);
        }
        let all = self.exchange.gather_numbers(&[own as f32])?;
        Ok(all.into_iter().fold(own, |least, threads| least.min(threads as usize)))
    }

    /// The device of this rank.
    pub(in crate::engine) fn device(&self) -> &Device {
        self.devices.device()
    }

    /// The ranks whose first reads the data for all and scatters it, if the strategy says so.
    pub(in crate::engine) fn fed(&self) -> Option<&Communicator> {
        let threads = self.devices.strategy().is_some_and(|strategy| strategy.ranks == Ranks::Threads);
        // Batches are on the host, wherever networks compute.
        self.devices.batch().filter(|_| threads)
    }

    /// The mesh and the strategy by which networks are shared; none for the only rank.
    fn sharing(&self) -> Option<(&ProcessMesh, Strategy)> {
        self.devices.mesh().zip(self.devices.strategy())
    }

    /// The communication of this rank so far, that of `networks` included.
    pub(in crate::engine) fn traffic<'n>(&self, networks: impl Iterator<Item = &'n Network>) -> Traffic {
        let Some(mesh) = self.devices.mesh() else { return Traffic::default() };
        let base = Traffic::from(mesh.stats());
        // The numbers of a network are those of the shared mesh and of its own groups.
        networks.filter_map(Network::traffic).fold(base, |sum, network| sum + (network - base))
    }

    /// Fails if a rank is lost, without waiting: results computed with it are wrong.
    pub(in crate::engine) fn check(&self) -> Result<(), TrainError> {
        self.devices.check(self.exchange.world())
    }

    /// True if results of a device mix with those of other ranks before the host notices that a rank was lost.
    pub(in crate::engine) fn mixes_unseen(&self) -> bool {
        self.devices.mixes_unseen()
    }

    /// True if the run would continue if a worker died now.
    pub(in crate::engine) fn outlives_a_death(&self) -> bool {
        self.roster.may_outlive_a_death() && self.data_size() > self.roster.min_workers()
    }

    /// The number of ranks that can still join.
    pub(in crate::engine) fn room(&self) -> usize {
        self.roster.max_ranks().saturating_sub(self.data_size())
    }

    /// Waits until all ranks have reached the end, before which none leaves.
    pub(in crate::engine) fn meet_at_the_end(&self) -> Result<(), TrainError> {
        self.exchange.world().map_or(Ok(()), |world| Ok(world.barrier("end of training")?))
    }

    /// Leaves the world: in good order after success, when all have met at the end; otherwise tells the others the error.
    pub(in crate::engine) fn part<R>(mut self, outcome: Result<R, TrainError>) -> Result<R, TrainError> {
        match &outcome {
            Ok(_) => {
                self.control.unsubscribe();
                if let Some(world) = self.exchange.world().cloned() {
                    // Communicators of a GPU are closed before the world that watches over them.
                    self.devices.disconnect();
                    world.shutdown();
                }
            }
            Err(error) if error.is_consequence() => {}
            Err(error) => self.exchange.abort(&error.to_string()),
        }
        if outcome.is_err() {
            self.devices.abandon();
        }
        outcome
    }
}
