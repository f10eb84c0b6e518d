//! The comparison of weights with the networks of a training.

use std::collections::{BTreeMap, BTreeSet};

use phalanx_run::{AdaptersRecord, NewTensor, WeightsRecord};
use phalanx_tensor::{AdaptedLayer, Param};

use super::HeadRule;
use super::source::{WeightSource, WeightTensors};
use crate::engine::TrainError;
use crate::engine::distributed::Network;
use crate::engine::training::WeightNames;

/// The number of names that a message lists.
const LISTED: usize = 3;

/// The use of each tensor.
#[derive(Debug, Default)]
pub(super) struct WeightPlan {
    /// By name here: the name in the weights, and the number of elements.
    loaded: BTreeMap<String, Loaded>,
    new: Vec<NewTensor>,
    left: Vec<String>,
    /// The layers whose adapters are not among the weights.
    adapted: BTreeSet<String>,
}

#[derive(Debug)]
struct Loaded {
    there: String,
    elements: usize,
}

/// A parameter or buffer of the networks.
struct Wanted {
    name: String,
    shape: Vec<usize>,
    is_adapter: bool,
    /// True if rules freeze it for good.
    is_kept: bool,
}

impl Wanted {
    fn of_param(param: &Param) -> Self {
        Self {
            name: param.name().to_owned(),
            shape: param.whole_shape().dims().to_vec(),
            is_adapter: param.is_adapter(),
            is_kept: param.is_frozen_by_rule() && !param.trainable(),
        }
    }
}

/// The tensors that do not fit.
#[derive(Default)]
struct Misfits {
    shapes: Vec<NewTensor>,
    missing: Vec<String>,
    /// Tensors that the networks lack, where none may be left.
    strange: Vec<String>,
    /// Tensors that would be made new and never be trained.
    untrained: Vec<String>,
}

impl WeightPlan {
    /// Compares the weights of a source with networks. Also returns the tensors of the source.
    ///
    /// # Errors
    /// If a tensor other than of the head is missing or has another shape; the error lists both sides.
    pub(super) fn of<'s>(
        source: &'s WeightSource,
        networks: &[&Network],
        names: &WeightNames,
        head: HeadRule,
    ) -> Result<(WeightTensors<'s>, Self), TrainError> {
        let wanted = wanted(networks);
        let here: BTreeSet<&str> = wanted.iter().map(|wanted| wanted.name.as_str()).collect();
        let tensors = source.tensors(|name| {
            let is_known = |other: String| here.contains(other.as_str());
            here.contains(name)
                || names.programs.iter().any(|translate| translate(name).is_some_and(is_known))
        })?;
        let there = translated(&tensors.names(), &here, names);
        let mut plan = Self::default();
        let mut misfits = Misfits::default();
        for wanted in wanted {
            plan.place(wanted, &there, (&tensors, names, head), &mut misfits)?;
        }
        plan.left = plan.unused(&tensors, &there);
        if head == HeadRule::Load {
            // What is evaluated must be the whole model of the weights.
            let is_strange = |name: &&String| tensors.is_weight(name) && !names.is_absent(name);
            misfits.strange = plan.left.iter().filter(is_strange).cloned().collect();
        } else {
            // The weights without their adapters are those of another model.
            let is_adapter = |name: &&String| AdaptedLayer::named_by(name).is_some();
            misfits.strange = plan.left.iter().filter(is_adapter).cloned().collect();
        }
        misfits.refuse(&tensors, names)?;
        Ok((tensors, plan))
    }

    /// The plan of parameters that are all loaded, from tensors that are all used. Each of `pairs` is a name here and its name in the
    /// weights.
    ///
    /// # Errors
    /// If a parameter is missing or has another shape, or the weights have more.
    pub(super) fn of_exactly(
        tensors: &WeightTensors<'_>,
        params: &[&Param],
        pairs: &[(String, String)],
    ) -> Result<Self, TrainError> {
        let there: BTreeMap<&str, &str> =
            pairs.iter().map(|(here, there)| (here.as_str(), there.as_str())).collect();
        let (mut plan, mut misfits) = (Self::default(), Misfits::default());
        for param in params {
            let (name, shape) = (param.name().to_owned(), param.whole_shape().dims().to_vec());
            let Some(source) = there.get(param.name()) else {
                misfits.missing.push(name);
                continue;
            };
            let found = tensors.shape(source)?;
            if found == shape {
                let loaded =
                    Loaded { there: (*source).to_owned(), elements: param.whole_shape().elem_count() };
                plan.loaded.insert(name, loaded);
            } else {
                misfits.shapes.push(NewTensor { name, shape, found: Some(found) });
            }
        }
        let used: BTreeSet<&str> = params.iter().map(|param| param.name()).collect();
        let others = pairs.iter().filter(|(here, _)| !used.contains(here.as_str()));
        misfits.strange = others.map(|(_, there)| there.clone()).collect();
        misfits.refuse(tensors, &WeightNames::default())?;
        Ok(plan)
    }

    /// Decides about one tensor of the networks.
    fn place(
        &mut self,
        Wanted { name, shape, is_adapter, is_kept }: Wanted,
        there: &BTreeMap<String, String>,
        (tensors, names, head): (&WeightTensors<'_>, &WeightNames, HeadRule),
        misfits: &mut Misfits,
    ) -> Result<(), TrainError> {
        let is_head = names.is_head(&name);
        let source = there.get(&name);
        let found = source.map(|source| tensors.shape(source)).transpose()?;
        if is_adapter && source.is_none() && head != HeadRule::Load {
            self.adapted.extend(AdaptedLayer::named_by(&name).map(str::to_owned));
            return Ok(());
        }
        if is_head && head == HeadRule::New {
            if is_kept {
                misfits.untrained.push(name.clone());
            }
            self.new.push(NewTensor { name, shape, found });
            return Ok(());
        }
        match (source, found) {
            (Some(source), Some(found)) if found == shape => {
                let loaded = Loaded { there: source.clone(), elements: shape.iter().product() };
                self.loaded.insert(name, loaded);
            }
            (_, found) if is_head && head == HeadRule::Replace => {
                if is_kept {
                    misfits.untrained.push(name.clone());
                }
                self.new.push(NewTensor { name, shape, found });
            }
            // Old files lack these counters, which begin at 0.
            (_, None) if name.ends_with("num_batches_tracked") => {}
            (_, None) => misfits.missing.push(name),
            (_, found) => misfits.shapes.push(NewTensor { name, shape, found }),
        }
        Ok(())
    }

    /// The names of the tensors that are neither loaded nor replaced by new ones.
    fn unused(&self, tensors: &WeightTensors<'_>, there: &BTreeMap<String, String>) -> Vec<String> {
        let loaded = self.loaded.values().map(|loaded| loaded.there.as_str());
        let replaced = self.new.iter().filter_map(|new| there.get(new.name.as_str()).map(String::as_str));
        let used: BTreeSet<&str> = loaded.chain(replaced).collect();
        tensors.names().into_iter().filter(|name| !used.contains(name)).map(str::to_owned).collect()
    }

    /// The name in the weights of a tensor that is loaded.
    pub(super) fn source_of(&self, name: &str) -> Option<&str> {
        self.loaded.get(name).map(|loaded| loaded.there.as_str())
    }

    /// The names in the weights of all tensors that are loaded, with their numbers of elements.
    pub(super) fn loaded(&self) -> impl Iterator<Item = (&str, usize)> {
        self.loaded.values().map(|loaded| (loaded.there.as_str(), loaded.elements))
    }

    /// The record for the run's folder.
    pub(super) fn record(self, source: &WeightSource) -> WeightsRecord {
        let adapters = (!self.adapted.is_empty())
            .then_some(AdaptersRecord { layers: self.adapted.into_iter().collect(), path: None });
        WeightsRecord {
            path: source.path().display().to_string(),
            step: source.step(),
            averages: source.has_averages(),
            loaded: self.loaded.into_keys().collect(),
            new: self.new,
            left: self.left,
            adapters,
        }
    }
}

/// The parameters and buffers of networks.
fn wanted(networks: &[&Network]) -> Vec<Wanted> {
    let mut all = Vec::new();
    for store in networks.iter().map(|network| network.store()) {
        // Also of other stages, so that all ranks find the same.
        all.extend(store.model_params().map(Wanted::of_param));
        all.extend(store.model_buffers().map(|buffer| Wanted {
            name: buffer.name().to_owned(),
            shape: buffer.whole_shape().dims().to_vec(),
            is_adapter: false,
            is_kept: false,
        }));
    }
    all
}

/// The names of tensors in the weights by their names here: the names themselves, or those of the program that knows most of them.
fn translated(all: &[&str], here: &BTreeSet<&str>, names: &WeightNames) -> BTreeMap<String, String> {
    let by = |translate: &dyn Fn(&str) -> Option<String>| {
        let mut map = BTreeMap::new();
        for name in all {
            let own = translate(name).unwrap_or_else(|| (*name).to_owned());
            map.entry(own).or_insert_with(|| (*name).to_owned());
        }
        map
    };
    let count =
        |map: &BTreeMap<String, String>| map.keys().filter(|name| here.contains(name.as_str())).count();
    let mut best = by(&|_| None);
    for translate in &names.programs {
        let map = by(translate);
        if count(&map) > count(&best) {
            best = map;
        }
    }
    best
}

impl Misfits {
    /// Fails if there are any.
    fn refuse(&self, tensors: &WeightTensors<'_>, names: &WeightNames) -> Result<(), TrainError> {
        let mut problems = Vec::new();
        if let Some(first) = self.shapes.first() {
            problems.push(describe(first, self.shapes.len() - 1, names));
        }
        if !self.missing.is_empty() {
            problems.push(format!("it lacks {}", listed(&self.missing)));
        }
        if !self.strange.is_empty() {
            let adapters = match self.strange.iter().any(|name| AdaptedLayer::named_by(name).is_some()) {
                true => " (set lora.rank, or export the weights with their adapters merged)",
                false => "",
            };
            problems.push(format!("it has {} which the model does not{adapters}", listed(&self.strange)));
        }
        if let (true, false) = (problems.is_empty(), self.untrained.is_empty()) {
            return Err(tensors.error(&format!(
                "{} would be made new and never trained: name the head in lora.trained, or leave it out of optim.freeze",
                listed(&self.untrained)
            )));
        }
        if problems.is_empty() {
            return Ok(());
        }
        let problems = problems.join("; ");
        Err(tensors.error(&format!("does not fit this model: {problems}; it holds {}", tensors.content())))
    }
}

/// Lists the first names, and the number of the others.
fn listed(names: &[String]) -> String {
    let shown: Vec<String> = names.iter().take(LISTED).map(|name| format!("`{name}`")).collect();
    let others = names.len() - shown.len();
    let others = if others > 0 { format!(" and {others} more") } else { String::new() };
    format!("{}{others}", shown.join(", "))
}

/// Describes a tensor of another shape.
fn describe(misfit: &NewTensor, others: usize, names: &WeightNames) -> String {
    let NewTensor { name, shape, found } = misfit;
    let found = found.as_deref().unwrap_or_default();
    let mut text = format!("`{name}` has shape {found:?}, here it has {shape:?}");
    if let (&[a, b, high, wide], &[c, d, here_high, here_wide]) = (found, shape.as_slice())
        && (a, b) == (c, d)
    {
        text += &format!(" (a kernel of {high}x{wide} in place of {here_high}x{here_wide})");
    }
    if let Some(advice) = names.advice(name) {
        text += &format!("; {advice}");
    }
    if others > 0 {
        text += &format!("; {others} more tensors have other shapes");
    }
    if !names.has_head() {
        text += "; this task names no head that could be made new";
    }
    text
}
