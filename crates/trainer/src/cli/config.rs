//! `phalanx config`: what there is to set, and what is set.

use clap::{Args, Subcommand};

use super::CliError;
use crate::config::{Detail, diff, presets, resolve};
use crate::console::out;

/// Lists presets; shows and compares configurations.
#[derive(Debug, Args)]
pub(super) struct ConfigArgs {
    #[command(subcommand)]
    command: ConfigCommand,
}

#[derive(Debug, Subcommand)]
enum ConfigCommand {
    /// Lists the presets.
    List,
    /// Prints a configuration with every key's meaning; the output is itself a configuration file.
    Show {
        /// A preset's name, or a file that ends in .toml.
        #[arg(default_value = presets::DEFAULT)]
        config: String,
        /// Overrides a key.
        #[arg(long = "set", value_name = "SECTION.KEY=VALUE")]
        sets: Vec<String>,
        /// Prints keys and values only.
        #[arg(long)]
        plain: bool,
    },
    /// Prints the keys in which two configurations differ.
    Diff {
        /// A preset's name, or a file that ends in .toml.
        a: String,
        /// Another.
        b: String,
    },
}

pub(super) fn run(args: &ConfigArgs) -> Result<(), CliError> {
    match &args.command {
        ConfigCommand::List => {
            let width = presets::names().map(str::len).max().unwrap_or_default();
            for name in presets::names() {
                let description = resolve(name, &[])?.description.unwrap_or_default();
                out(&format!("{name:<width$}  {description}"));
            }
            out(&format!("\n`phalanx train` without a name trains {}.", presets::DEFAULT));
        }
        ConfigCommand::Show { config, sets, plain } => {
            let detail = if *plain { Detail::Values } else { Detail::Full };
            out(resolve(config, sets)?.to_toml(detail).trim_end());
        }
        ConfigCommand::Diff { a, b } => {
            for (key, left, right) in diff(&resolve(a, &[])?.config, &resolve(b, &[])?.config) {
                out(&format!("{key}: {left} -> {right}"));
            }
        }
    }
    Ok(())
}
