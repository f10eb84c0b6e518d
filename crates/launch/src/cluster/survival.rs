//! Determines whether a launcher keeps the other ranks of a job alive when one dies.
//!
//! With SLURM, OpenMPI and MPICH it depends on options that ranks mostly cannot see; torchrun always ends all ranks.

use phalanx_environment::{Launcher, SlurmJob, Variables, recovers};

/// The effect of the death of a rank on the other ranks of its job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RankSurvival {
    /// The launcher always ends them.
    Never {
        /// The launcher.
        launcher: &'static str,
        /// The reason, and what to do.
        why: &'static str,
    },
    /// The launcher ends them by default. Ranks cannot see its options; the text names the required ones.
    Doubtful(String),
    /// No sign that the launcher would end them.
    Likely,
}

/// Determines the behaviour from the environment variables that `get` looks up.
///
/// - torchrun: an agent ends all workers of its host when one fails, and restarts the workers of all hosts
///   (`torch.distributed.elastic.agent`).
/// - SLURM: `srun` reads `SLURM_KILL_BAD_EXIT` (srun(1), INPUT ENVIRONMENT VARIABLES). Its tasks see this variable, but
///   not its command line or the cluster's `KillOnBadExit`.
/// - OpenMPI: `mpirun` ends a job when a process fails, unless `--enable-recovery` is set. Version 4 passes this option
///   to ranks as a parameter.
/// - MPICH: Hydra's `mpiexec` cleans up, unless `-disable-auto-cleanup` is set, which ranks do not see. Version 4.0
///   cleans up in any case if a signal kills the process that it started.
pub fn survival(get: Variables<'_>) -> RankSurvival {
    let advised = |text: &str| RankSurvival::Doubtful(text.to_owned());
    match Launcher::of(get) {
        Some(Launcher::Torchrun) => RankSurvival::Never {
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
        Some(Launcher::Variables | Launcher::OpenMpi | Launcher::Slurm) | None => RankSurvival::Likely,
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
        assert!(matches!(torchrun, RankSurvival::Never { launcher: "torchrun", .. }), "{torchrun:?}");
        let (step, task) = (("SLURM_STEP_ID", "0"), ("SLURM_PROCID", "0"));
        for (variables, advice) in [
            (&[step, task, ("SLURM_KILL_BAD_EXIT", "1")][..], "--kill-on-bad-exit=0"),
            (&[("OMPI_COMM_WORLD_RANK", "0")], "--enable-recovery"),
            (&[("PMI_RANK", "0"), ("MPI_LOCALNRANKS", "2")], "-disable-auto-cleanup"),
        ] {
            let found = of(variables);
            assert!(
                matches!(&found, RankSurvival::Doubtful(text) if text.contains(advice)),
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
            assert_eq!(of(variables), RankSurvival::Likely, "{variables:?}");
        }
    }
}
