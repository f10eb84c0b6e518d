//! Adapters that a training begins with: `lora.from`.

use std::collections::BTreeSet;
use std::path::Path;

use phalanx_run::AdaptersRecord;
use phalanx_tensor::{AdaptedLayer, Param};

use super::peft::{PeftConfig, name_here, tensors_of};
use super::plan::WeightPlan;
use super::source::WeightSource;
use super::{load_planned, trained};
use crate::engine::TrainError;
use crate::engine::distributed::Network;
use crate::engine::training::WeightNames;
use phalanx_config::LoraConfig;

/// Reads the adapters of `lora.from` into the trained networks, with the parameters of `lora.trained`. Each rank reads the elements
/// that it keeps; all ranks call this together.
///
/// # Errors
/// If the folder cannot be read, or its adapters are not those of the networks.
pub(in crate::engine) fn load_adapters(
    lora: &LoraConfig,
    networks: &[&Network],
    names: &WeightNames,
) -> Result<AdaptersRecord, TrainError> {
    read(lora, networks, names, true)
}

/// Compares the adapters of `lora.from` with the networks, if it is set.
///
/// # Errors
/// Errors of [`load_adapters`].
pub(super) fn check_adapters(
    lora: &LoraConfig,
    networks: &[&Network],
    names: &WeightNames,
) -> Result<Option<AdaptersRecord>, TrainError> {
    if lora.from.is_empty() { Ok(None) } else { read(lora, networks, names, false).map(Some) }
}

fn read(
    lora: &LoraConfig,
    networks: &[&Network],
    names: &WeightNames,
    loads: bool,
) -> Result<AdaptersRecord, TrainError> {
    let folder = Path::new(&lora.from);
    let of_key = |error: TrainError| TrainError::Setup(format!("lora.from: {error}"));
    let read = || {
        PeftConfig::read(folder)?.check(folder, lora)?;
        let networks = trained(networks);
        let params = || networks.iter().flat_map(|network| network.store().params());
        let wanted: Vec<&Param> = params().filter(|param| param.is_adapter() || param.trainable()).collect();
        let here: BTreeSet<&str> = wanted.iter().map(|param| param.name()).collect();
        let source = WeightSource::open(&tensors_of(folder))?;
        let own = |name: &str| own_name(name, &here, names);
        let tensors = source.tensors(|name| own(name).is_some())?;
        let pairs: Vec<(String, String)> = tensors
            .names()
            .into_iter()
            .map(|name| (own(name).unwrap_or_else(|| name_here(name).to_owned()), name.to_owned()))
            .collect();
        check_layers(&pairs, &networks, lora)?;
        let plan = WeightPlan::of_exactly(&tensors, &wanted, &pairs)?;
        if loads {
            load_planned(&networks, &plan, &tensors)?;
        }
        let layers = networks.iter().flat_map(|network| network.store().adapted_layers());
        let layers = layers.map(|layer| layer.name.clone()).collect();
        Ok(AdaptersRecord { layers, path: Some(folder.display().to_string()) })
    };
    read().map_err(of_key)
}

/// Checks that the layers with adapters are those of the folder. Each of `pairs` is a name here and its name in the folder.
fn check_layers(
    pairs: &[(String, String)],
    networks: &[&Network],
    lora: &LoraConfig,
) -> Result<(), TrainError> {
    let there: BTreeSet<&str> = pairs.iter().filter_map(|(name, _)| AdaptedLayer::named_by(name)).collect();
    let here = networks.iter().flat_map(|network| network.store().adapted_layers());
    let here: BTreeSet<&str> = here.map(|layer| layer.name.as_str()).collect();
    if here == there {
        return Ok(());
    }
    let last = |name: &&str| format!("\"{}\"", name.rsplit('.').next().unwrap_or_default());
    let lasts: BTreeSet<String> = there.iter().map(last).collect();
    let kinds: Vec<String> = lasts.into_iter().collect();
    Err(TrainError::Setup(format!(
        "{} has adapters of {} layers, and the model of {}; set lora.layers=[{}]",
        lora.from,
        there.len(),
        here.len(),
        kinds.join(",")
    )))
}

/// Returns the name here of a tensor of the folder, if the networks have it.
fn own_name(name: &str, here: &BTreeSet<&str>, names: &WeightNames) -> Option<String> {
    let name = name_here(name);
    let translated = names.programs.iter().filter_map(|translate| translate.of(name));
    // A part of a tensor has no adapter of its own here.
    let whole = translated.filter(|part| part.parts == 1).map(|part| part.name);
    std::iter::once(name.to_owned()).chain(whole).find(|name| here.contains(name.as_str()))
}

/// Returns the names of all tensors in a folder of adapters.
///
/// # Errors
/// If there are none, or they are damaged.
pub(in crate::engine) fn adapter_names(folder: &Path) -> Result<Vec<String>, TrainError> {
    let source = WeightSource::open(&tensors_of(folder))?;
    let tensors = source.tensors(|_| true)?;
    Ok(tensors.names().into_iter().map(str::to_owned).collect())
}
