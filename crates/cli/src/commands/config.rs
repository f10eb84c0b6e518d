//! `phalanx config`: what there is to set, and what is set.

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::error::CliError;
use crate::Program;
use crate::console::out;
use phalanx_config::{Detail, KeyDoc, Resolved, diff};

/// List presets; show and compare configurations.
#[derive(Debug, Args)]
pub(super) struct ConfigArgs {
    #[command(subcommand)]
    command: ConfigCommand,
}

#[derive(Debug, Subcommand)]
enum ConfigCommand {
    /// List the presets.
    List {
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Print a configuration with every key's meaning. The output is itself a configuration file.
    Show {
        /// A preset's name, or a file that ends in .toml [default: what `train` takes].
        config: Option<String>,
        /// Override a key.
        #[arg(long = "set", value_name = "SECTION.KEY=VALUE")]
        sets: Vec<String>,
        /// Print keys and values only.
        #[arg(long)]
        plain: bool,
        /// Print JSON: each key with its value, default, type, meaning and origin.
        #[arg(long, conflicts_with = "plain")]
        json: bool,
    },
    /// Print the keys in which two configurations differ.
    Diff {
        /// A preset's name, or a file that ends in .toml.
        a: String,
        /// Another.
        b: String,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
}

pub(super) fn run(program: &Program, args: &ConfigArgs) -> Result<(), CliError> {
    match &args.command {
        ConfigCommand::List { json } => list(program, *json),
        ConfigCommand::Show { config, sets, plain, json } => {
            let catalogue = program.catalogue();
            let resolved = catalogue.resolve(config.as_deref().or(catalogue.default_preset()), sets)?;
            if *json {
                return print_json(&keys_as_json(&resolved));
            }
            let detail = if *plain { Detail::Values } else { Detail::Full };
            out(resolved.to_toml(detail).trim_end());
            Ok(())
        }
        ConfigCommand::Diff { a, b, json } => {
            let keys = diff(&program.resolve(a, &[])?.config, &program.resolve(b, &[])?.config);
            if *json {
                let object = |(key, left, right)| json!({"key": key, "a": left, "b": right});
                return print_json(&keys.into_iter().map(object).collect());
            }
            let value = |value: Option<toml::Value>| {
                value.map_or_else(|| "none".to_owned(), |value| value.to_string())
            };
            for (key, left, right) in keys {
                out(&format!("{key}: {} -> {}", value(left), value(right)));
            }
            Ok(())
        }
    }
}

/// Prints the presets and which of them is the default.
fn list(program: &Program, json: bool) -> Result<(), CliError> {
    let catalogue = program.catalogue();
    let described = catalogue
        .presets
        .iter()
        .map(|(name, _)| Ok((name.as_str(), program.resolve(name, &[])?.description.unwrap_or_default())));
    let presets = described.collect::<Result<Vec<_>, CliError>>()?;
    let default = catalogue.default_preset();
    if json {
        let object = |(name, description): (&str, String)| json!({"name": name, "description": description, "default": Some(name) == default});
        return print_json(
            &presets.into_iter().map(|(name, description)| object((name, description))).collect(),
        );
    }
    let width = presets.iter().map(|(name, _)| name.len()).max().unwrap_or_default();
    presets.iter().for_each(|(name, description)| out(&format!("{name:<width$}  {description}")));
    let name = program.name();
    match default {
        Some(default) => out(&format!("\n`{name} train` without a name trains {default}.")),
        None => out(&format!("There are no presets; `{name} train` trains with the defaults.")),
    }
    Ok(())
}

/// Returns the keys of a configuration with their values, defaults, types, meanings and origins.
fn keys_as_json(resolved: &Resolved) -> Value {
    let object = |key: KeyDoc| {
        json!({
            "key": key.path,
            "value": resolved.config.get(&key.path),
            "default": key.default,
            "type": key.kind,
            "meaning": key.meaning,
            "origin": resolved.origin(&key.path).to_string(),
        })
    };
    resolved.config.keys().into_iter().map(object).collect()
}

fn print_json(value: &Value) -> Result<(), CliError> {
    out(&serde_json::to_string_pretty(value).map_err(CliError::failed)?);
    Ok(())
}
