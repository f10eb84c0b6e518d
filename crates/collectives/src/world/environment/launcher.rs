//! Who has started a process.

use std::fmt;

/// A program that starts the ranks of a job and tells each by variables which it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Launcher {
    /// torchrun's agent.
    Torchrun,
    /// Whoever sets torchrun's variables for ranks and none of its agent's: this project's own programs, operators of
    /// Kubernetes, scripts.
    Variables,
    /// OpenMPI's `mpirun`.
    OpenMpi,
    /// The `mpiexec` (Hydra) of MPICH and its kin: Intel MPI, MVAPICH.
    Mpich,
    /// SLURM's `srun`.
    Slurm,
}

impl Launcher {
    /// The launcher whose variables `get` looks up, the innermost where one has started another; `None` if there is none.
    ///
    /// ```
    /// use phalanx_collectives::Launcher;
    ///
    /// let launcher = Launcher::of(&|name| std::env::var(name).ok());
    /// assert_eq!(launcher, None, "nobody launches examples");
    /// ```
    pub fn of(get: &dyn Fn(&str) -> Option<String>) -> Option<Self> {
        let is_set = |name: &str| get(name).is_some();
        let in_step = get("SLURM_STEP_ID").is_some_and(|step| is_of_srun(&step));
        if is_set("RANK") || is_set("WORLD_SIZE") {
            let agent = is_set("TORCHELASTIC_RUN_ID") || is_set("TORCHELASTIC_USE_AGENT_STORE");
            Some(if agent { Self::Torchrun } else { Self::Variables })
        } else if is_set("OMPI_COMM_WORLD_RANK") {
            Some(Self::OpenMpi)
        } else if is_set("PMI_RANK") && (is_set("MPI_LOCALNRANKS") || !in_step) {
            // Inside of an allocation Hydra starts its helpers by `srun`, whose variables are then those of the helper.
            Some(Self::Mpich)
        } else if is_set("SLURM_PROCID") && in_step {
            // A batch script has all of SLURM's variables but that of a step that `srun` has begun, and is no rank.
            Some(Self::Slurm)
        } else {
            None
        }
    }
}

/// Whether `srun` has begun the step of this number. Batch scripts (`-5` since SLURM 26.05) and the shells of `salloc` that
/// `LaunchParameters=use_interactive_step` has (`4294967290`) are steps with numbers above all others.
fn is_of_srun(step: &str) -> bool {
    step.trim().parse::<u32>().is_ok_and(|step| step < 0xffff_fff0)
}

impl fmt::Display for Launcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Torchrun => "torchrun",
            Self::Variables => "RANK and WORLD_SIZE",
            Self::OpenMpi => "mpirun of OpenMPI",
            Self::Mpich => "mpiexec of MPICH",
            Self::Slurm => "srun of SLURM",
        })
    }
}
