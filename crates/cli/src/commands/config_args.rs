//! The options that choose a configuration and change keys of it, for `train` and `submit`.

use std::path::{Path, PathBuf};

use clap::Args;
use phalanx_config::{ConfigError, Resolved};
use phalanx_run::RunFolder;
use toml::Value;

use super::error::CliError;
use super::resolve::{check_utf8, configuration_of, set_data, set_parallel};
use crate::Program;

/// The choice of a configuration.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Configuration")]
pub(super) struct ConfigArgs {
    /// A preset's name (see `phalanx config list`), or a file that ends in .toml [default: the first preset].
    #[arg(help_heading = None)]
    pub(super) config: Option<String>,
    /// Override a key (see `phalanx config show`).
    #[arg(long = "set", value_name = "SECTION.KEY=VALUE")]
    pub(super) sets: Vec<String>,
    /// The images: shapes, cifar10=PATH, or folder=PATH.
    #[arg(long, value_name = "KIND=PATH")]
    pub(super) data: Option<String>,
    /// Begin with weights, as in model.weights: a file (safetensors, or of torch.save), a folder of Hugging Face's libraries, or a
    /// run.
    #[arg(long, value_name = "FILE|FOLDER")]
    weights: Option<PathBuf>,
    /// The strategy by which ranks share the work.
    #[arg(long)]
    strategy: Option<String>,
    /// The degrees of the mesh, as in [parallel]; -1 is the rest of the ranks.
    #[arg(long, value_name = "replicate=2,shard=2")]
    parallel: Option<String>,
    /// Stop after this step, counted from the start of the run. The schedules do not change.
    #[arg(long, conflicts_with = "epochs")]
    steps: Option<u32>,
    /// Stop after this epoch, counted from the start of the run. The schedules do not change.
    #[arg(long)]
    epochs: Option<u32>,
    /// Simulate a network: bandwidth and latency of the link of each rank, as in comm.link.
    #[arg(long, value_name = "10Gbit,20us")]
    link: Option<String>,
}

impl ConfigArgs {
    /// Returns the chosen configuration with the keys of `--set`: of an existing run, if there is one and nothing else is chosen.
    pub(super) fn base(&self, program: &Program, existing: Option<&RunFolder>) -> Result<Resolved, CliError> {
        let catalogue = program.catalogue();
        let (None, Some(folder)) = (&self.config, existing) else {
            let config = self.config.as_deref().or(catalogue.default_preset());
            return Ok(catalogue.resolve(config, &self.sets)?);
        };
        let mut resolved = configuration_of(program, folder)?;
        for set in &self.sets {
            resolved.set(&format!("--set {set}"), set)?;
        }
        Ok(resolved)
    }

    /// Applies the options that each stand for a key.
    pub(super) fn apply(&self, resolved: &mut Resolved) -> Result<(), CliError> {
        let integer = |number: u32| Value::Integer(number.into());
        let text = |text: &String| Value::String(text.clone());
        let options = [
            ("--strategy", self.strategy.as_ref().map(text), "train.strategy", None),
            ("--link", self.link.as_ref().map(text), "comm.link", None),
            ("--steps", self.steps.map(integer), "train.stop_step", Some("train.stop_epoch")),
            ("--epochs", self.epochs.map(integer), "train.stop_epoch", Some("train.stop_step")),
        ];
        for (option, value, key, cleared) in options {
            let Some(value) = value else { continue };
            let shown = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            let option = format!("{option} {shown}");
            resolved.set_value(&option, key, value)?;
            if let Some(cleared) = cleared {
                resolved.set_value(&option, cleared, Value::Integer(0))?;
            }
        }
        if let Some(degrees) = &self.parallel {
            set_parallel(resolved, degrees)?;
        }
        if let Some(data) = &self.data {
            set_data(resolved, data)?;
        }
        if let Some(weights) = &self.weights {
            set_weights(resolved, weights)?;
        }
        Ok(())
    }

    /// Returns the first of the given options, each of which changes a run's configuration.
    pub(super) fn first_given(&self) -> Option<&'static str> {
        let options = [
            ("the preset", self.config.is_some()),
            ("--set", !self.sets.is_empty()),
            ("--strategy", self.strategy.is_some()),
            ("--parallel", self.parallel.is_some()),
            ("--link", self.link.is_some()),
            ("--data", self.data.is_some()),
            ("--weights", self.weights.is_some()),
            ("--steps", self.steps.is_some()),
            ("--epochs", self.epochs.is_some()),
        ];
        options.into_iter().find_map(|(option, is_given)| is_given.then_some(option))
    }
}

/// Applies `--weights`, with an absolute path, so that the run's config.toml means the same from everywhere.
fn set_weights(resolved: &mut Resolved, weights: &Path) -> Result<(), CliError> {
    check_utf8("--weights", weights)?;
    let path = std::path::absolute(weights).unwrap_or_else(|_| weights.to_owned());
    let (option, path) = (format!("--weights {}", weights.display()), path.display().to_string());
    Ok(resolved.set_value(&option, "model.weights", Value::String(path))?)
}

/// The options about ranks that come and go, and ranks that only serve.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Ranks and hosts")]
pub(super) struct ElasticArgs {
    /// The number of additional processes that only serve parameters, under ps-bsp, ps-ssp and ps-asp.
    #[arg(long)]
    servers: Option<u32>,
    /// Let ranks die, leave and join during training: at least MIN ranks remain, and at most MAX take part.
    #[arg(long, value_name = "MIN:MAX", value_parser = bounds)]
    elastic: Option<(u32, u32)>,
}

impl ElasticArgs {
    /// Applies the options. With `sets_ranks`, an elastic run begins with MAX ranks.
    pub(super) fn apply(&self, resolved: &mut Resolved, sets_ranks: bool) -> Result<(), ConfigError> {
        if let Some((least, most)) = self.elastic {
            let option = format!("--elastic {least}:{most}");
            resolved.set_value(&option, "elastic.min", Value::Integer(least.into()))?;
            resolved.set_value(&option, "elastic.max", Value::Integer(most.into()))?;
            if sets_ranks {
                resolved.set_value(&option, "train.ranks", Value::Integer(most.into()))?;
            }
        }
        if let Some(servers) = self.servers {
            let option = format!("--servers {servers}");
            resolved.set_value(&option, "sync.servers", Value::Integer(servers.into()))?;
        }
        Ok(())
    }

    /// Returns the first of the given options.
    pub(super) fn first_given(&self) -> Option<&'static str> {
        let options = [("--servers", self.servers.is_some()), ("--elastic", self.elastic.is_some())];
        options.into_iter().find_map(|(option, is_given)| is_given.then_some(option))
    }
}

/// Parses `MIN:MAX`.
fn bounds(text: &str) -> Result<(u32, u32), String> {
    let number = |text: &str| text.trim().parse::<u32>().ok().filter(|number| *number > 0);
    let both = text.split_once(':').and_then(|(least, most)| Some((number(least)?, number(most)?)));
    both.filter(|(least, most)| least <= most).ok_or_else(|| "expected MIN:MAX, such as 2:4".to_owned())
}
