//! Weights of files, folders and runs, read into the stores of networks.

use std::path::Path;

use phalanx_run::WeightsRecord;
use phalanx_tensor::{ParamBucket, ParamStore, TensorError};

use crate::error::WeightError;
use crate::head_rule::HeadRule;
use crate::names::WeightNames;
use crate::plan::WeightPlan;
use crate::source::{WeightSource, WeightTensors};

/// Reads the weights at `path` into the stores of the trained networks. Each rank reads the elements that it keeps; all ranks call this
/// together before they broadcast the state.
///
/// # Errors
/// If the weights cannot be read, do not fit the networks, or have numbers that are not finite.
pub fn load(
    path: &Path,
    stores: &[&ParamStore],
    names: &WeightNames,
    head: HeadRule,
) -> Result<WeightsRecord, WeightError> {
    let source = WeightSource::open(path)?;
    let (tensors, plan) = WeightPlan::of(&source, stores, names, head)?;
    load_planned(stores, &plan, &tensors)?;
    for store in stores {
        for buffer in store.buffers() {
            let shape = buffer.whole_shape();
            let values = plan.read(&tensors, buffer.name(), 0..shape.elem_count())?;
            let Some(values) = values else { continue };
            buffer.set(&values.reshape(shape).map_err(TensorError::from)?)?;
        }
    }
    Ok(plan.record(&source))
}

/// Reads the elements of all parameters that this rank keeps.
pub(crate) fn load_planned(
    stores: &[&ParamStore],
    plan: &WeightPlan,
    tensors: &WeightTensors<'_>,
) -> Result<(), WeightError> {
    let mut buckets = stores.iter().flat_map(|store| store.buckets());
    buckets.try_for_each(|bucket| load_bucket(bucket, plan, tensors))
}

/// Reads the elements of a bucket that this rank keeps.
fn load_bucket(
    param: &ParamBucket,
    plan: &WeightPlan,
    tensors: &WeightTensors<'_>,
) -> Result<(), WeightError> {
    let Some((values, entries)) = param.kept() else { return Ok(()) };
    for entry in entries.into_iter().filter(|entry| !entry.part.is_empty()) {
        let Some(part) = plan.read(tensors, &entry.name, entry.part)? else { continue };
        let part = part.to_dtype(param.dtype()).map_err(TensorError::from)?;
        values.narrow(entry.range)?.put(&part)?;
    }
    Ok(())
}
