//! Checks of the rules about single parameters (`optim.freeze`, `optim.no_decay`, `optim.rates`) against the networks of a training.

use std::collections::{BTreeMap, BTreeSet};

use phalanx_tensor::{Param, ParamRules, ParamStore};

use super::checks::list;
use crate::engine::error::TrainError;

/// The largest number of names that a message lists.
const LISTED: usize = 24;

/// The use of the rules by the networks so far. A pattern is an error if no network has a parameter that it matches.
#[derive(Debug, Default)]
pub(super) struct RuleUse {
    /// By pattern: true if a network has a parameter that it matches.
    matched: BTreeMap<String, bool>,
    /// By pattern of layers with adapters: the same.
    layers: BTreeMap<String, bool>,
}

impl RuleUse {
    /// Adds a network with its rules.
    ///
    /// # Errors
    /// [`TrainError::Setup`] if the rules freeze all that would be trained of it.
    pub(super) fn add(
        &mut self,
        network: &str,
        store: &ParamStore,
        rules: &ParamRules,
    ) -> Result<(), TrainError> {
        let unmatched: BTreeSet<String> =
            store.unmatched(rules).into_iter().map(ToString::to_string).collect();
        for pattern in rules.patterns().map(ToString::to_string) {
            let is_matched = !unmatched.contains(&pattern);
            *self.matched.entry(pattern).or_default() |= is_matched;
        }
        self.add_layers(network, store, rules)?;
        let is_trained = |param: &Param| param.trainable() && !param.is_frozen_by_rule();
        if store.model_params().any(Param::is_frozen_by_rule) && !store.model_params().any(is_trained) {
            let whose = if network.is_empty() { String::new() } else { format!(" of network `{network}`") };
            let key = if network.is_empty() { "optim.freeze" } else { "optim.freeze of a network" };
            return Err(TrainError::Setup(format!(
                "{key} freezes all parameters{whose}; leave some to train, such as the head"
            )));
        }
        Ok(())
    }

    /// Adds the layers of a network that have adapters.
    fn add_layers(
        &mut self,
        network: &str,
        store: &ParamStore,
        rules: &ParamRules,
    ) -> Result<(), TrainError> {
        let unmatched = store.unmatched_layers(rules);
        for pattern in rules.adapters.iter().flat_map(|rule| &rule.layers) {
            let is_matched = !unmatched.contains(&pattern);
            *self.layers.entry(pattern.to_string()).or_default() |= is_matched;
        }
        let is_trained = store.model_params().any(|param| param.trainable() || param.is_frozen_by_rule());
        if rules.adapters.is_some() && is_trained && store.adapted_layers().is_empty() {
            let whose =
                if network.is_empty() { "the model".to_owned() } else { format!("network `{network}`") };
            return Err(TrainError::Setup(format!(
                "lora.rank: {whose} has no linear layer that lora.layers names; there is: {}",
                linear_layers(std::iter::once(store))
            )));
        }
        Ok(())
    }

    /// Checks that each pattern matches a parameter of these networks, given with their names.
    ///
    /// # Errors
    /// [`TrainError::Setup`] naming the pattern, with the names of the networks' layers.
    pub(super) fn check<'n>(
        &self,
        networks: impl Iterator<Item = (&'n str, &'n ParamStore)>,
    ) -> Result<(), TrainError> {
        let first = |matched: &BTreeMap<String, bool>| {
            matched.iter().find(|(_, is_matched)| !**is_matched).map(|(pattern, _)| pattern.clone())
        };
        let (keys, pattern) = match (first(&self.matched), first(&self.layers)) {
            (Some(pattern), _) => ("optim.freeze, no_decay, unturned and rates, lora.trained", pattern),
            (None, Some(pattern)) => ("lora.layers", pattern),
            (None, None) => return Ok(()),
        };
        let (what, there) = match keys {
            "lora.layers" => ("linear layer", linear_layers(networks.map(|(_, store)| store))),
            _ => ("parameter", layers_of(networks)),
        };
        Err(TrainError::Setup(format!("{keys}: `{pattern}` matches no {what}; there is: {there}")))
    }
}

/// Lists the last parts of the names of the linear layers of networks.
fn linear_layers<'n>(stores: impl Iterator<Item = &'n ParamStore>) -> String {
    let mut layers: Vec<String> = Vec::new();
    for param in stores.flat_map(ParamStore::model_params) {
        let Some(layer) = param.name().strip_suffix(".weight") else { continue };
        let last = layer.rsplit('.').next().unwrap_or_default().to_owned();
        if param.dims().len() == 2 && !param.is_table() && !param.is_adapter() && !layers.contains(&last) {
            layers.push(last);
        }
    }
    shown(&layers)
}

/// Lists the names of the layers of networks.
fn layers_of<'n>(networks: impl Iterator<Item = (&'n str, &'n ParamStore)>) -> String {
    let mut layers: Vec<String> = Vec::new();
    for (network, store) in networks {
        for param in store.model_params() {
            for name in [param.block(), param.name()] {
                let layer = layer_of(name, network);
                if !layer.is_empty() && !layers.contains(&layer) {
                    layers.push(layer);
                }
            }
        }
    }
    shown(&layers)
}

/// Lists the first names, and the number of the others.
fn shown(layers: &[String]) -> String {
    let shown = list(layers.iter().take(LISTED).map(String::as_str));
    let others = layers.len().saturating_sub(LISTED);
    let others = if others > 0 { format!(" and {others} more") } else { String::new() };
    format!("{shown}{others}")
}

/// The first part of a parameter's or block's name, after the name of its network.
fn layer_of(name: &str, network: &str) -> String {
    let rest = name.strip_prefix(network).filter(|_| !network.is_empty());
    match rest.and_then(|rest| rest.strip_prefix('.')) {
        Some(rest) => format!("{network}.{}", rest.split('.').next().unwrap_or_default()),
        None => name.split('.').next().unwrap_or_default().to_owned(),
    }
}
