//! `phalanx submit --kubernetes`: the manifest of a Job whose pods are ranks, or start those of a node.

use clap::Args;

use super::SubmitArgs;
use crate::Program;
use crate::commands::error::CliError;
use crate::console::out;
use phalanx_config::{Detail, SecretPolicy};
use phalanx_launch::cluster::{Pods, pod_name, seconds_of};

/// The options for Kubernetes only.
#[derive(Debug, Args)]
#[command(next_help_heading = "Kubernetes")]
pub(super) struct KubernetesArgs {
    /// Print a manifest of Kubernetes in place of a job of SLURM: an indexed Job of --nodes pods with --ranks-per-node
    /// ranks in each, for `kubectl apply -f -`. Needs --dry-run, --image and --volume-claim.
    #[arg(long, requires = "dry_run", requires = "image", requires = "volume_claim")]
    pub(super) kubernetes: bool,
    /// The image that has this program (see Containerfile).
    #[arg(long, requires = "kubernetes")]
    image: Option<String>,
    /// The claim of a volume that all pods can write: --out is a folder in it, and data.path begins with /runs.
    #[arg(long, value_name = "CLAIM", requires = "kubernetes")]
    volume_claim: Option<String>,
    /// The Secret that has what ranks prove to know to each other, under the key `secret`. Several pods need one, unless comm.secret
    /// is none.
    #[arg(long, value_name = "NAME", requires = "kubernetes")]
    secret: Option<String>,
}

/// Prints the manifest.
pub(super) fn show(program: &Program, args: &SubmitArgs) -> Result<(), CliError> {
    check_options(args)?;
    let refuse = |text: String| Err(CliError::Usage(text));
    let resolved = args.configuration(program, args.choice.sets.clone())?;
    if resolved.config.elastic().is_some() {
        return refuse(
            "elastic.min: a pod that is made again looks for all others anew, and those who are left have gone on without it; leave out \
             --elastic, and take --requeue, which goes on from the newest checkpoint"
                .to_owned(),
        );
    }
    let has_secret = args.kubernetes.secret.is_some() || resolved.config.comm.secret == SecretPolicy::None;
    if args.job.nodes > 1 && !has_secret {
        return refuse(format!(
            "--nodes {}: other pods can connect to the ranks, which have no secret. Make one with `openssl rand -hex 32 | kubectl create secret \
             generic NAME --from-file=secret=/dev/stdin` and give --secret NAME, or trust the network with --set comm.secret=none",
            args.job.nodes
        ));
    }
    let name = pod_name(&resolved.name);
    let run = args.out.as_ref().map_or_else(|| name.clone(), |out| out.display().to_string());
    let run = run.trim_start_matches("/runs/").to_owned();
    if run.starts_with('/') {
        return refuse(format!("--out {run} is not in the volume, which is mounted at /runs"));
    }
    let pods = Pods {
        name,
        pods: args.job.nodes,
        ranks_per_pod: args.job.ranks_per_node,
        image: args.kubernetes.image.clone().unwrap_or_default(),
        program: program.name().to_owned(),
        claim: args.kubernetes.volume_claim.clone().unwrap_or_default(),
        run,
        secret: args.kubernetes.secret.clone(),
        config: resolved.to_toml(Detail::Values).trim_start().to_owned(),
        cpus: args.job.cpus_per_rank,
        gpus: args.job.gpus_per_node,
        seconds: args.job.time.as_deref().map(seconds_of).transpose()?,
        requeue: args.job.requeue,
        warning: args.job.warning,
    };
    out(pods.manifest()?.trim_end());
    Ok(())
}

/// Refuses options that a Job of Kubernetes cannot honour.
fn check_options(args: &SubmitArgs) -> Result<(), CliError> {
    let refuse = |text: String| Err(CliError::Usage(text));
    for (option, is_given) in [
        ("--partition", args.job.partition.is_some()),
        ("--account", args.job.account.is_some()),
        ("--array", args.job.array.is_some()),
        ("--sbatch", !args.job.sbatch.is_empty()),
    ] {
        if is_given {
            return refuse(format!("{option} is for SLURM; Kubernetes has none, leave it out"));
        }
    }
    if args.resume {
        return refuse(
            "a Job goes on with the run that is in its folder; leave out --resume, and give the same --out"
                .to_owned(),
        );
    }
    Ok(())
}
