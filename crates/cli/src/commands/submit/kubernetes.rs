//! `phalanx submit --kubernetes`: the manifest of a Job whose pods are ranks, or start those of a node.

use clap::Args;

use super::{SubmitArgs, check};
use crate::Program;
use crate::commands::error::CliError;
use crate::commands::train_args::configuration;
use crate::console::out;
use phalanx_launch::cluster::{Pods, pod_name, seconds_of};
use phalanx_trainer::config::{Detail, SecretPolicy};

/// The options for Kubernetes only.
#[derive(Debug, Args)]
pub(super) struct KubernetesArgs {
    /// Writes a manifest of Kubernetes instead of a job of SLURM: an indexed Job of --nodes pods with --ranks-per-node
    /// ranks in each. Needs --dry-run,
    /// --image and --volume-claim; give what it prints to `kubectl apply -f -`.
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
    let mut train = args.train.clone();
    train.world.ranks = u32::try_from(args.ranks()).ok();
    let resolved = configuration(program, &train, None)?;
    check(program, &resolved)?;
    if resolved.config.elastic().is_some() {
        return refuse(
            "elastic.min: a pod that is made again looks for all others anew, and those who are left have gone on without it; leave out \
             --elastic, and take --requeue, which goes on from the newest checkpoint"
                .to_owned(),
        );
    }
    let has_secret = args.kubernetes.secret.is_some() || resolved.config.comm.secret == SecretPolicy::None;
    if args.nodes > 1 && !has_secret {
        return refuse(format!(
            "--nodes {}: other pods can connect to the ranks, which have no secret. Make one with `openssl rand -hex 32 | kubectl create secret \
             generic NAME --from-file=secret=/dev/stdin` and give --secret NAME, or trust the network with --set comm.secret=none",
            args.nodes
        ));
    }
    let name = pod_name(&resolved.name);
    let run = args.train.out.as_ref().map_or_else(|| name.clone(), |out| out.display().to_string());
    let run = run.trim_start_matches("/runs/").to_owned();
    if run.starts_with('/') {
        return refuse(format!("--out {run} is not in the volume, which is mounted at /runs"));
    }
    let pods = Pods {
        name,
        pods: args.nodes,
        ranks_per_pod: args.ranks_per_node,
        image: args.kubernetes.image.clone().unwrap_or_default(),
        program: program.name().to_owned(),
        claim: args.kubernetes.volume_claim.clone().unwrap_or_default(),
        run,
        secret: args.kubernetes.secret.clone(),
        config: resolved.to_toml(Detail::Values).trim_start().to_owned(),
        cpus: args.cpus_per_rank,
        gpus: args.gpus_per_node,
        seconds: args.time.as_deref().map(seconds_of).transpose()?,
        requeue: args.requeue,
        warning: args.warning,
    };
    out(pods.manifest()?.trim_end());
    Ok(())
}

/// Refuses options that a Job of Kubernetes cannot honour.
fn check_options(args: &SubmitArgs) -> Result<(), CliError> {
    let refuse = |text: String| Err(CliError::Usage(text));
    for (option, is_given) in [
        ("--partition", args.partition.is_some()),
        ("--account", args.account.is_some()),
        ("--array", args.array.is_some()),
        ("--sbatch", !args.sbatch.is_empty()),
    ] {
        if is_given {
            return refuse(format!("{option} is for SLURM; Kubernetes has none, leave it out"));
        }
    }
    if let Some(gpus) =
        args.gpus_per_node.filter(|gpus| args.ranks_per_node > 1 && *gpus != args.ranks_per_node)
    {
        return refuse(format!(
            "--gpus-per-node {gpus}: each of the {0} ranks of a pod takes a GPU; take --gpus-per-node {0}",
            args.ranks_per_node
        ));
    }
    if args.train.start.resume {
        return refuse(
            "a Job goes on with the run that is in its folder; leave out --resume, and give the same --out"
                .to_owned(),
        );
    }
    Ok(())
}
