//! Adapters that a training begins with: `lora.from`.

use std::collections::BTreeSet;
use std::path::Path;

use phalanx_config::LoraConfig;
use phalanx_run::AdaptersRecord;
use phalanx_tensor::{AdaptedLayer, Param, ParamStore};

use crate::error::WeightError;
use crate::load::load_planned;
use crate::names::WeightNames;
use crate::peft::{PeftConfig, name_here, tensors_of};
use crate::plan::WeightPlan;
use crate::source::WeightSource;

/// Reads the adapters of `lora.from` into the stores of the trained networks, with the parameters of `lora.trained`. Each rank reads the elements
/// that it keeps; all ranks call this together.
///
/// # Errors
/// If the folder cannot be read, or its adapters are not those of the networks.
pub fn load_adapters(
    lora: &LoraConfig,
    stores: &[&ParamStore],
    names: &WeightNames,
) -> Result<AdaptersRecord, WeightError> {
    read(lora, stores, names, true)
}

/// Compares the adapters of `lora.from` with the networks, if it is set.
///
/// # Errors
/// Errors of [`load_adapters`].
pub(crate) fn check_adapters(
    lora: &LoraConfig,
    stores: &[&ParamStore],
    names: &WeightNames,
) -> Result<Option<AdaptersRecord>, WeightError> {
    if lora.from.is_empty() { Ok(None) } else { read(lora, stores, names, false).map(Some) }
}

fn read(
    lora: &LoraConfig,
    stores: &[&ParamStore],
    names: &WeightNames,
    loads: bool,
) -> Result<AdaptersRecord, WeightError> {
    let folder = Path::new(&lora.from);
    let read = || {
        PeftConfig::read(folder)?.check(folder, lora)?;
        let params = || stores.iter().flat_map(|store| store.params());
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
        check_layers(&pairs, stores, lora)?;
        let plan = WeightPlan::of_exactly(&tensors, &wanted, &pairs)?;
        if loads {
            load_planned(stores, &plan, &tensors)?;
        }
        let layers = stores.iter().flat_map(|store| store.adapted_layers());
        let layers = layers.map(|layer| layer.name.clone()).collect();
        Ok(AdaptersRecord { layers, path: Some(folder.display().to_string()) })
    };
    read().map_err(WeightError::of_key("lora.from"))
}

/// Checks that the layers with adapters are those of the folder. Each of `pairs` is a name here and its name in the folder.
fn check_layers(
    pairs: &[(String, String)],
    stores: &[&ParamStore],
    lora: &LoraConfig,
) -> Result<(), WeightError> {
    let there: BTreeSet<&str> = pairs.iter().filter_map(|(name, _)| AdaptedLayer::named_by(name)).collect();
    let here = stores.iter().flat_map(|store| store.adapted_layers());
    let here: BTreeSet<&str> = here.map(|layer| layer.name.as_str()).collect();
    if here == there {
        return Ok(());
    }
    let last = |name: &&str| name.rsplit('.').next().unwrap_or_default().to_owned();
    let layers: BTreeSet<String> = there.iter().map(last).collect();
    Err(WeightError::AdaptedLayers {
        folder: lora.from.clone(),
        there: there.len(),
        here: here.len(),
        layers: layers.into_iter().collect(),
    })
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
pub(crate) fn adapter_names(folder: &Path) -> Result<Vec<String>, WeightError> {
    let source = WeightSource::open(&tensors_of(folder))?;
    let tensors = source.tensors(|_| true)?;
    Ok(tensors.names().into_iter().map(str::to_owned).collect())
}
