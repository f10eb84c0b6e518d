//! Weights that a training begins with, or that are evaluated: `model.weights`.
//!
//! | file | holds |
//! |---|---|
//! | `source` | the tensors of a file, a folder or a run |
//! | `plan` | which of them are loaded, which tensors of the model are made new, and which are not used |
//! | `positions` | positions of patches for images of another size |
//! | `adapters` | adapters that a training begins with: `lora.from` |
//! | `peft` | the format of their folders |
//!
//! Nothing is changed before every name and shape was compared. Each rank reads the elements that it keeps, with one tensor more in
//! memory at a time, so a sharded model is never whole on a rank.

mod adapters;
pub(in crate::engine) mod peft;
mod plan;
mod positions;
mod source;

use std::path::Path;

use phalanx_run::WeightsRecord;
use phalanx_tensor::{ParamBucket, TensorError};

pub(in crate::engine) use self::adapters::{adapter_names, load_adapters};
use self::plan::WeightPlan;
use self::source::{WeightSource, WeightTensors};
use super::TrainError;
use super::distributed::Network;
use super::training::{Built, WeightNames};
use phalanx_config::Config;

/// The treatment of the head of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::engine) enum HeadRule {
    /// It is loaded as all of the model, and must fit.
    Load,
    /// Tensors of it that do not fit are made new.
    Replace,
    /// All of it is made new.
    New,
}

impl HeadRule {
    /// The rule of a training.
    pub(in crate::engine) fn of(config: &Config) -> Self {
        if config.model.new_head { Self::New } else { Self::Replace }
    }
}

/// Reads the weights at `path` into the trained networks. Each rank reads the elements that it keeps; all ranks call this together
/// before they broadcast the state.
///
/// # Errors
/// If the weights cannot be read, do not fit the networks, or have numbers that are not finite.
pub(in crate::engine) fn load(
    path: &Path,
    networks: &[&Network],
    names: &WeightNames,
    head: HeadRule,
) -> Result<WeightsRecord, TrainError> {
    let source = WeightSource::open(path)?;
    let networks = trained(networks);
    let (tensors, plan) = WeightPlan::of(&source, &networks, names, head)?;
    load_planned(&networks, &plan, &tensors)?;
    for network in networks {
        for buffer in network.store().buffers() {
            let shape = buffer.whole_shape();
            let values = plan.read(&tensors, buffer.name(), 0..shape.elem_count())?;
            let Some(values) = values else { continue };
            buffer.set(&values.reshape(shape)?)?;
        }
    }
    Ok(plan.record(&source))
}

/// Compares `model.weights` with the networks of a training, whose values are not needed. With `reads`, every tensor is read, too.
/// Returns their use; `None` if there are none.
///
/// # Errors
/// Errors of [`load`].
pub(in crate::engine) fn check_configured(
    config: &Config,
    built: &Built,
    reads: bool,
) -> Result<Option<WeightsRecord>, TrainError> {
    if config.model.weights.is_empty() {
        return Ok(None);
    }
    let check = || {
        let source = WeightSource::open(Path::new(&config.model.weights))?;
        let networks = trained(&built.networks.iter().collect::<Vec<_>>());
        let (tensors, plan) = WeightPlan::of(&source, &networks, &built.names, HeadRule::of(config))?;
        for (there, count) in plan.loaded().filter(|_| reads) {
            tensors.read(there, 0..count)?;
        }
        Ok(plan.record(&source))
    };
    let mut record =
        check().map_err(|error: TrainError| TrainError::Setup(format!("model.weights: {error}")))?;
    let networks = built.networks.iter().collect::<Vec<_>>();
    if let Some(adapters) = adapters::check_adapters(&config.lora, &networks, &built.names)? {
        record.adapters = Some(adapters);
    }
    Ok(Some(record))
}

/// The networks that weights are for: those that are trained. Others have sources of their own.
fn trained<'n>(networks: &[&'n Network]) -> Vec<&'n Network> {
    networks.iter().copied().filter(|network| network.is_learnt()).collect()
}

/// Reads the elements of all parameters that this rank keeps.
fn load_planned(
    networks: &[&Network],
    plan: &WeightPlan,
    tensors: &WeightTensors<'_>,
) -> Result<(), TrainError> {
    let buckets = networks.iter().flat_map(|network| network.store().buckets());
    buckets.into_iter().try_for_each(|bucket| load_bucket(bucket, plan, tensors))
}

/// Reads the elements of a bucket that this rank keeps.
fn load_bucket(
    param: &ParamBucket,
    plan: &WeightPlan,
    tensors: &WeightTensors<'_>,
) -> Result<(), TrainError> {
    let Some((values, entries)) = param.kept() else { return Ok(()) };
    for entry in entries.into_iter().filter(|entry| !entry.part.is_empty()) {
        let Some(part) = plan.read(tensors, &entry.name, entry.part)? else { continue };
        let part = part.to_dtype(param.dtype()).map_err(TensorError::from)?;
        values.narrow(entry.range)?.put(&part)?;
    }
    Ok(())
}
