//! The comparison of weights with the networks of a training.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use candle_core::Tensor;
use phalanx_run::{AdaptersRecord, NewTensor, WeightsRecord};
use phalanx_tensor::io::NamePart;
use phalanx_tensor::{AdaptedLayer, Param, ParamStore, TensorError};

use crate::error::WeightError;
use crate::head_rule::HeadRule;
use crate::names::WeightNames;
use crate::positions::ResampledPositions;
use crate::source::{WeightSource, WeightTensors};

/// The number of names that a message lists.
const LISTED: usize = 3;

/// The use of each tensor.
#[derive(Debug, Default)]
pub(crate) struct WeightPlan {
    /// By name here: the tensors of the weights.
    loaded: BTreeMap<String, Loaded>,
    new: Vec<NewTensor>,
    left: Vec<String>,
    /// The layers whose adapters are not among the weights.
    adapted: BTreeSet<String>,
}

/// The tensors of the weights that a tensor here is read from.
#[derive(Debug)]
struct Loaded {
    pieces: Vec<Piece>,
    /// Positions of images of another size.
    resampled: Option<ResampledPositions>,
}

/// A tensor of the weights: a whole one here, or a part of one, behind those before it.
#[derive(Debug)]
struct Piece {
    there: String,
    elements: usize,
}

/// The names in the weights of the parts of each tensor here, by its name here.
type NamesThere = BTreeMap<String, Vec<String>>;

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
    /// Compares the weights of a source with stores of networks. Also returns the tensors of the source.
    ///
    /// # Errors
    /// If a tensor other than of the head is missing or has another shape; the error lists both sides.
    pub(crate) fn of<'s>(
        source: &'s WeightSource,
        stores: &[&ParamStore],
        names: &WeightNames,
        head: HeadRule,
    ) -> Result<(WeightTensors<'s>, Self), WeightError> {
        let wanted = wanted(stores);
        let here: BTreeSet<&str> = wanted.iter().map(|wanted| wanted.name.as_str()).collect();
        let tensors = source.tensors(|name| {
            let is_known = |other: NamePart| here.contains(other.name.as_str());
            here.contains(name)
                || names.programs.iter().any(|translate| translate.of(name).is_some_and(is_known))
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
    pub(crate) fn of_exactly(
        tensors: &WeightTensors<'_>,
        params: &[&Param],
        pairs: &[(String, String)],
    ) -> Result<Self, WeightError> {
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
                let piece = Piece { there: (*source).to_owned(), elements: param.whole_shape().elem_count() };
                plan.loaded.insert(name, Loaded { pieces: vec![piece], resampled: None });
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
        there: &NamesThere,
        (tensors, names, head): (&WeightTensors<'_>, &WeightNames, HeadRule),
        misfits: &mut Misfits,
    ) -> Result<(), WeightError> {
        let is_head = names.is_head(&name);
        let source = there.get(&name);
        let found = source.map(|source| joined_shape(tensors, source)).transpose()?;
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
        let resampled = found.as_ref().filter(|_| names.is_positions(&name));
        let resampled = resampled.and_then(|found| ResampledPositions::between(found, &shape));
        match (source, found) {
            (Some(source), Some(found)) if found == shape || resampled.is_some() => {
                let resampled = resampled.filter(|_| found != shape);
                if resampled.is_some() {
                    tracing::info!("{name} of {found:?} is resampled to {shape:?}");
                }
                let piece = |there: &String| {
                    let elements = tensors.shape(there)?.iter().product();
                    Ok::<_, WeightError>(Piece { there: there.clone(), elements })
                };
                let pieces = source.iter().map(piece).collect::<Result<_, _>>()?;
                self.loaded.insert(name, Loaded { pieces, resampled });
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
    fn unused(&self, tensors: &WeightTensors<'_>, there: &NamesThere) -> Vec<String> {
        let loaded = self.loaded().map(|(there, _)| there);
        let replaced = self.new.iter().filter_map(|new| there.get(new.name.as_str()));
        let used: BTreeSet<&str> = loaded.chain(replaced.flatten().map(String::as_str)).collect();
        tensors.names().into_iter().filter(|name| !used.contains(name)).map(str::to_owned).collect()
    }

    /// Reads elements of a tensor that is loaded, a flat tensor; `None` for others.
    ///
    /// # Errors
    /// Errors of [`WeightTensors::read`].
    pub(crate) fn read(
        &self,
        tensors: &WeightTensors<'_>,
        name: &str,
        range: Range<usize>,
    ) -> Result<Option<Tensor>, WeightError> {
        let Some(Loaded { pieces, resampled }) = self.loaded.get(name) else { return Ok(None) };
        if let Some(resampled) = resampled {
            let all = joined(pieces, tensors, 0..resampled.elements())?;
            return Ok(Some(resampled.resample(&all, range).map_err(TensorError::from)?));
        }
        joined(pieces, tensors, range).map(Some)
    }

    /// The names in the weights of all tensors that are loaded, with their numbers of elements.
    pub(crate) fn loaded(&self) -> impl Iterator<Item = (&str, usize)> {
        let pieces = self.loaded.values().flat_map(|loaded| &loaded.pieces);
        pieces.map(|piece| (piece.there.as_str(), piece.elements))
    }

    /// The record for the run's folder.
    pub(crate) fn record(self, source: &WeightSource) -> WeightsRecord {
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
fn wanted(stores: &[&ParamStore]) -> Vec<Wanted> {
    let mut all = Vec::new();
    for store in stores {
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

/// The names of tensors in the weights by their names here: the names themselves, or those of the program that knows most of them. A
/// tensor of which parts are missing is missing.
fn translated(all: &[&str], here: &BTreeSet<&str>, names: &WeightNames) -> NamesThere {
    let by = |translate: &dyn Fn(&str) -> Option<NamePart>| {
        let mut parts: BTreeMap<String, BTreeMap<usize, String>> = BTreeMap::new();
        let mut wanted: BTreeMap<String, usize> = BTreeMap::new();
        for there in all {
            let NamePart { name, part, parts: number } =
                translate(there).unwrap_or_else(|| NamePart::whole(*there));
            wanted.entry(name.clone()).or_insert(number);
            parts.entry(name).or_default().entry(part).or_insert_with(|| (*there).to_owned());
        }
        parts.retain(|name, parts| wanted.get(name) == Some(&parts.len()));
        parts.into_iter().map(|(name, parts)| (name, parts.into_values().collect())).collect()
    };
    let count = |map: &NamesThere| map.keys().filter(|name| here.contains(name.as_str())).count();
    let mut best = by(&|_| None);
    for translate in &names.programs {
        let map = by(&|name| translate.of(name));
        if count(&map) > count(&best) {
            best = map;
        }
    }
    best
}

/// Reads elements of tensors that lie one behind the other, flat.
fn joined(pieces: &[Piece], tensors: &WeightTensors<'_>, range: Range<usize>) -> Result<Tensor, WeightError> {
    let (mut parts, mut start) = (Vec::with_capacity(pieces.len()), 0);
    for Piece { there, elements } in pieces {
        let (first, last) = (range.start.max(start), range.end.min(start + elements));
        if first < last {
            parts.push(tensors.read(there, first - start..last - start)?);
        }
        start += elements;
    }
    let joined = match parts.as_slice() {
        [part] => part.clone(),
        _ => Tensor::cat(&parts, 0).map_err(TensorError::from)?,
    };
    Ok(joined)
}

/// The shape of tensors of the weights, one behind the other along the first dimension.
fn joined_shape(tensors: &WeightTensors<'_>, pieces: &[String]) -> Result<Vec<usize>, WeightError> {
    let shapes = pieces.iter().map(|there| tensors.shape(there)).collect::<Result<Vec<_>, _>>()?;
    let mut joined = shapes.first().cloned().unwrap_or_default();
    for (shape, there) in shapes.iter().zip(pieces).skip(1) {
        let (Some(rows), Some(more)) = (joined.first_mut(), shape.first()) else {
            return Err(tensors.error(&format!("`{there}` has no rows that could be joined")));
        };
        *rows += more;
        if joined[1..] != shape[1..] {
            return Err(
                tensors.error(&format!("`{there}` has shape {shape:?}, its other parts {:?}", shapes[0]))
            );
        }
    }
    Ok(joined)
}

impl Misfits {
    /// Fails if there are any.
    fn refuse(&self, tensors: &WeightTensors<'_>, names: &WeightNames) -> Result<(), WeightError> {
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
