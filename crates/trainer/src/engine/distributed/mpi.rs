//! MPI in place of the built-in transports, for gradients and parameters. Rendezvous, failure detection and agreements stay with the
//! control plane.

use phalanx_collectives::Communicator;
#[cfg(feature = "mpi")]
use phalanx_collectives::Launcher;

use super::Device;
use crate::engine::error::TrainError;

/// Connects the ranks of `world`, which MPI has started.
///
/// # Errors
/// [`TrainError::Setup`] if MPI has not started these ranks, or if this rank computes on a GPU; [`TrainError::Comm`] if MPI cannot be
/// initialised.
#[cfg(feature = "mpi")]
pub(super) fn connected(device: &Device, world: &Communicator) -> Result<Communicator, TrainError> {
    if !device.compute().is_host() {
        return Err(TrainError::Setup(
            "comm.transport = mpi is for ranks on CPUs, and this one has a GPU, which uses NCCL: set \
             train.device = cpu"
                .to_owned(),
        ));
    }
    let get = |name: &str| std::env::var(name).ok();
    let is_known = get("MASTER_ADDR").is_some() && get("MASTER_PORT").is_some();
    if Launcher::of(&get) == Some(Launcher::Mpich) && !is_known {
        // A process can talk to this launcher once. MPI starts with it, so the address must come from elsewhere.
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

/// Fails: this build has no MPI, and the configuration was refused.
///
/// # Errors
/// [`TrainError::Setup`].
#[cfg(not(feature = "mpi"))]
pub(super) fn connected(_: &Device, _: &Communicator) -> Result<Communicator, TrainError> {
    Err(TrainError::Setup("comm.transport = mpi: this program was built without MPI".to_owned()))
}
