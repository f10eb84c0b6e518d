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
        let rates = rules.rates.iter().map(|rule| &rule.pattern);
        for pattern in rules
            .frozen
            .iter()
            .chain(&rules.undecayed)
            .chain(&rules.unturned)
            .chain(rates)
            .map(ToString::to_string)
        {
            let is_matched = !unmatched.contains(&pattern);
            *self.matched.entry(pattern).or_default() |= is_matched;
        }
        let frozen = store.params().iter().filter(|param| param.is_frozen_by_rule());
        let is_trained = |param: &&Param| param.trainable() && !param.is_frozen_by_rule();
        if frozen.count() > 0 && !store.params().iter().any(|param| is_trained(&param)) {
            let whose = if network.is_empty() { String::new() } else { format!(" of network `{network}`") };
            let key = if network.is_empty() { "optim.freeze" } else { "optim.freeze of a network" };
            return Err(TrainError::Setup(format!(
                "{key} freezes all parameters{whose}; leave some to train, such as the head"
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
        let Some((pattern, _)) = self.matched.iter().find(|(_, is_matched)| !**is_matched) else {
            return Ok(());
        };
        let mut layers: Vec<String> = Vec::new();
        for (network, store) in networks {
            for param in store.params() {
                for name in [param.block(), param.name()] {
                    let layer = layer_of(name, network);
                    if !layer.is_empty() && !layers.contains(&layer) {
                        layers.push(layer);
                    }
                }
            }
        }
        let shown = list(layers.iter().take(LISTED).map(String::as_str));
        let others = layers.len().saturating_sub(LISTED);
        let others = if others > 0 { format!(" and {others} more") } else { String::new() };
        Err(TrainError::Setup(format!(
            "optim.freeze, no_decay, unturned and rates: `{pattern}` matches no parameter; there is: {shown}{others}"
        )))
    }
}

/// The first part of a parameter's or block's name, after the name of its network.
fn layer_of(name: &str, network: &str) -> String {
    let rest = name.strip_prefix(network).filter(|_| !network.is_empty());
    match rest.and_then(|rest| rest.strip_prefix('.')) {
        Some(rest) => format!("{network}.{}", rest.split('.').next().unwrap_or_default()),
        None => name.split('.').next().unwrap_or_default().to_owned(),
    }
}
