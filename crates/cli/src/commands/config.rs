//! `phalanx config`: what there is to set, and what is set.

use clap::{Args, Subcommand};

use super::error::CliError;
use crate::Program;
use crate::console::out;
use phalanx_trainer::config::{Detail, diff};

/// List presets; show and compare configurations.
#[derive(Debug, Args)]
pub(super) struct ConfigArgs {
    #[command(subcommand)]
    command: ConfigCommand,
}

#[derive(Debug, Subcommand)]
enum ConfigCommand {
    /// List the presets.
    List,
    /// Print a configuration with every key's meaning. The output is itself a configuration file.
    Show {
        /// A preset's name, or a file that ends in .toml [default: what `train` takes].
        config: Option<String>,
        /// Overrides a key.
        #[arg(long = "set", value_name = "SECTION.KEY=VALUE")]
        sets: Vec<String>,
        /// Prints keys and values only.
        #[arg(long)]
        plain: bool,
    },
    /// Print the keys in which two configurations differ.
    Diff {
        /// A preset's name, or a file that ends in .toml.
        a: String,
        /// Another.
        b: String,
    },
}

pub(super) fn run(program: &Program, args: &ConfigArgs) -> Result<(), CliError> {
    let catalogue = program.catalogue();
    match &args.command {
        ConfigCommand::List => {
            let presets = || catalogue.presets.iter().map(|(name, _)| name.as_str());
            let width = presets().map(str::len).max().unwrap_or_default();
            for name in presets() {
                let description = program.resolve(name, &[])?.description.unwrap_or_default();
                out(&format!("{name:<width$}  {description}"));
            }
            let name = program.name();
            match catalogue.default_preset() {
                Some(default) => out(&format!("\n`{name} train` without a name trains {default}.")),
                None => out(&format!("There are no presets; `{name} train` trains with the defaults.")),
            }
        }
        ConfigCommand::Show { config, sets, plain } => {
            let detail = if *plain { Detail::Values } else { Detail::Full };
            let config = config.as_deref().or(catalogue.default_preset());
            out(catalogue.resolve(config, sets)?.to_toml(detail).trim_end());
        }
        ConfigCommand::Diff { a, b } => {
            let value = |value: Option<toml::Value>| {
                value.map_or_else(|| "none".to_owned(), |value| value.to_string())
            };
            for (key, left, right) in diff(&program.resolve(a, &[])?.config, &program.resolve(b, &[])?.config)
            {
                out(&format!("{key}: {} -> {}", value(left), value(right)));
            }
        }
    }
    Ok(())
}
