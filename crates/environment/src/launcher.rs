//! Detection of the launcher.

use std::fmt;

/// A program that starts the ranks of a job and describes each rank's place by variables.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Launcher {
    /// torchrun's agent.
    Torchrun,
    /// A program that sets torchrun's variables for ranks and none of its agent: Phalanx itself, Kubernetes operators,
    /// scripts.
    Variables,
    /// OpenMPI's `mpirun`.
    OpenMpi,
    /// The `mpiexec` (Hydra) of MPICH and its relatives: Intel MPI, MVAPICH.
    Mpich,
    /// SLURM's `srun`.
    Slurm,
}

impl Launcher {
    /// Returns the launcher whose variables `get` returns; `None` if there is none. If one launcher started another, the
    /// innermost counts.
    ///
    /// ```
    /// use phalanx_environment::Launcher;
    ///
    /// let launcher = Launcher::of(&|name| std::env::var(name).ok());
    /// assert_eq!(launcher, None, "examples have no launcher");
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
            // Inside an allocation Hydra starts its helpers by `srun`, so the variables of `srun` describe a helper.
            Some(Self::Mpich)
        } else if is_set("SLURM_PROCID") && in_step {
            // A batch script is no rank. It has all of SLURM's variables except those of a step of `srun`.
            Some(Self::Slurm)
        } else {
            None
        }
    }
}

/// True if `srun` started the step with this number. Steps of batch scripts (`-5` since SLURM 26.05) and of the shells of `salloc`
/// under `LaunchParameters=use_interactive_step` (`4294967290`) have numbers above all others.
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
