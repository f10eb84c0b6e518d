//! The settings that MPI does not support.

use phalanx_collectives::{Algorithm, Clock, Encryption};
use phalanx_sharding::Ranks;

use super::keys::{Config, DeviceKind, Transport};
use super::validate::Relations;

impl Config {
    /// Checks that what goes over MPI can: it has collective operations of worlds that stay as they are.
    pub(super) fn check_transport(&self, relations: &mut Relations<'_>) {
        let Self { train, comm, sync, .. } = self;
        if comm.transport == Transport::Auto {
            return;
        }
        let strategy = &train.strategy;
        let others = [
            (
                cfg!(feature = "mpi"),
                "comm.transport",
                "this program was built without MPI; build it by `cargo build --release -p phalanx-trainer --features mpi`".to_owned(),
            ),
            (
                strategy.is_bulk_synchronous() && strategy.ranks == Ranks::Processes,
                "train.strategy",
                format!("{strategy} does not go over it; ddp, zero1, zero2, fsdp and hsdp do"),
            ),
            (
                train.device != DeviceKind::Cuda,
                "train.device",
                "GPUs reach each other by NCCL; set train.device to cpu".to_owned(),
            ),
            (
                self.elastic().is_none() && sync.min_workers == 0,
                "elastic.min",
                "MPI ends all ranks when one dies; take comm.transport = auto for worlds that change".to_owned(),
            ),
            (
                comm.algorithm == Algorithm::Auto,
                "comm.algorithm",
                "MPI chooses its algorithms; set it to auto".to_owned(),
            ),
            (
                comm.link.is_empty() && comm.clock == Clock::Wall,
                "comm.link",
                "simulated links and clocks know nothing of MPI".to_owned(),
            ),
            (
                comm.encryption != Encryption::All,
                "comm.encryption",
                "MPI encrypts nothing; set it to control, for how ranks meet and agree, or none".to_owned(),
            ),
        ];
        for (holds, key, problem) in others {
            relations.require(holds, key, format!("comm.transport = mpi: {problem}"));
        }
    }
}
