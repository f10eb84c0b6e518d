//! The fate of a job's other ranks when one dies, as far as the launcher shows it.
//!
//! SLURM, OpenMPI and MPICH leave it to options of their commands, of which ranks see little; torchrun's agents leave no choice.

use phalanx_collectives::environment::{Launcher, SlurmJob, Variables, recovers};

/// The fate of the other ranks when a rank of a job dies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Survival {
    /// The launcher ends them, with every option.
    Never {
        /// The launcher.
        launcher: &'static str,
        /// Why.
        why: &'static str,
    },
    /// The launcher ends them unless it was told otherwise, which cannot be seen from a rank: what to tell it.
    Doubtful(String),
    /// Nothing is to be seen that would end them.
    Likely,
}

/// Decides by the variables that `get` looks up.
///
/// - torchrun: an agent ends all workers of its host when one fails, and starts all of all hosts anew
///   (`torch.distributed.elastic.agent`).
/// - SLURM: `srun` reads `SLURM_KILL_BAD_EXIT` (srun(1), INPUT ENVIRONMENT VARIABLES), whose value its tasks see too; what its command
///   line says, or `KillOnBadExit` of the cluster, they do not.
/// - OpenMPI: `mpirun` ends a job whose process ends badly, unless `--enable-recovery` is given, which version 4 passes on as a
///   parameter that ranks see.
/// - MPICH: Hydra's `mpiexec` cleans up, unless `-disable-auto-cleanup` is given, which ranks do not see; of version 4.0 also then if
///   a signal has killed the process that it started.
pub fn survival(get: Variables<'_>) -> Survival {
    let advised = |text: &str| Survival::Doubtful(text.to_owned());
    match Launcher::of(get) {
        Some(Launcher::Torchrun) => Survival::Never {
            launcher: "torchrun",
            why: "its agent ends all ranks of a host when one dies and starts them anew; start them by srun, mpirun or --ranks, or leave \
                  --elastic to torchrun: --max-restarts, and ranks go on from the newest checkpoint",
        },
        Some(Launcher::OpenMpi) if !recovers(get) => advised(
            "mpirun ends all ranks when one dies, unless it was started with --enable-recovery; a world that changes goes on only then",
        ),
        Some(Launcher::Mpich) => advised(
            "mpiexec ends all ranks when one dies, unless it was started with -disable-auto-cleanup, and if a signal kills one perhaps also \
             then, unless a shell is between (sh -c '\"$@\"; exit $?' - phalanx train …); a world that changes goes on only then",
        ),
        Some(Launcher::Slurm) if SlurmJob::kills_on_bad_exit(get) => advised(
            "SLURM_KILL_BAD_EXIT has srun end all ranks when one dies; a world that changes goes on only with srun --no-kill \
             --kill-on-bad-exit=0",
        ),
        Some(Launcher::Variables | Launcher::OpenMpi | Launcher::Slurm) | None => Survival::Likely,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn launchers_that_end_all_ranks_are_known() {
        let of = |variables: &[(&str, &str)]| {
            survival(&|name| {
                variables.iter().find(|(own, _)| *own == name).map(|(_, value)| (*value).to_owned())
            })
        };
        let torchrun = of(&[("RANK", "0"), ("WORLD_SIZE", "2"), ("TORCHELASTIC_RUN_ID", "none")]);
        assert!(matches!(torchrun, Survival::Never { launcher: "torchrun", .. }), "{torchrun:?}");
        let (step, task) = (("SLURM_STEP_ID", "0"), ("SLURM_PROCID", "0"));
        for (variables, advice) in [
            (&[step, task, ("SLURM_KILL_BAD_EXIT", "1")][..], "--kill-on-bad-exit=0"),
            (&[("OMPI_COMM_WORLD_RANK", "0")], "--enable-recovery"),
            (&[("PMI_RANK", "0"), ("MPI_LOCALNRANKS", "2")], "-disable-auto-cleanup"),
        ] {
            let found = of(variables);
            assert!(
                matches!(&found, Survival::Doubtful(text) if text.contains(advice)),
                "{variables:?}: {found:?}"
            );
        }
        for variables in [
            &[step, task][..],
            &[step, task, ("SLURM_KILL_BAD_EXIT", "0")],
            // What a script starts by itself is no task of srun's.
            &[task, ("SLURM_KILL_BAD_EXIT", "1")],
            &[("OMPI_COMM_WORLD_RANK", "0"), ("OMPI_MCA_orte_enable_recovery", "1")],
            &[("RANK", "0"), ("WORLD_SIZE", "2")],
            &[],
        ] {
            assert_eq!(of(variables), Survival::Likely, "{variables:?}");
        }
    }
}
