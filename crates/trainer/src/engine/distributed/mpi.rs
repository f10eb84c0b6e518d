//! MPI's operations in the place of this project's own transports: for gradients and parameters, which are what is large. How ranks meet,
//! watch over each other and agree stays with the control plane.

use phalanx_collectives::Communicator;
#[cfg(feature = "mpi")]
use phalanx_collectives::Launcher;

use super::Device;
use crate::engine::error::TrainError;

/// The ranks of `world` as MPI knows them, which has to have started them.
///
/// # Errors
/// [`TrainError::Setup`] where MPI has not started these ranks, or this rank computes on a GPU; [`TrainError::Comm`] if MPI does not
/// begin.
#[cfg(feature = "mpi")]
pub(super) fn connected(device: &Device, world: &Communicator) -> Result<Communicator, TrainError> {
    if !device.compute().is_host() {
        return Err(TrainError::Setup(
            "comm.transport = mpi is for ranks on processors, and this one has a GPU, whose ranks reach each other by NCCL: set \
             train.device = cpu"
                .to_owned(),
        ));
    }
    let get = |name: &str| std::env::var(name).ok();
    let told = get("MASTER_ADDR").is_some() && get("MASTER_PORT").is_some();
    if Launcher::of(&get) == Some(Launcher::Mpich) && !told {
        // Whoever has asked the launcher has ended its conversation with it, which MPI begins with.
        return Err(TrainError::Setup(
            "comm.transport = mpi under MPICH's launcher needs MASTER_ADDR and MASTER_PORT, which it is asked for otherwise: mpiexec \
             -genv MASTER_ADDR HOST -genv MASTER_PORT 29500, with the host of rank 0"
                .to_owned(),
        ));
    }
    let ranks = phalanx_collectives::connect_mpi()?;
    let (found, wanted) = ((ranks.rank(), ranks.world_size()), (world.rank(), world.world_size()));
    if found != wanted {
        return Err(TrainError::Setup(format!(
            "comm.transport = mpi: this is rank {} of {}, and of MPI rank {} of {}; start the ranks by mpirun or mpiexec",
            wanted.0, wanted.1, found.0, found.1
        )));
    }
    Ok(ranks)
}

/// Not in this build, which configurations have been refused by.
///
/// # Errors
/// [`TrainError::Setup`].
#[cfg(not(feature = "mpi"))]
pub(super) fn connected(_: &Device, _: &Communicator) -> Result<Communicator, TrainError> {
    Err(TrainError::Setup("comm.transport = mpi: this program was built without MPI".to_owned()))
}
