//! The check of the weights that a configuration names.

use std::path::Path;

use phalanx_config::Config;
use phalanx_run::WeightsRecord;
use phalanx_tensor::ParamStore;

use crate::adapters::check_adapters;
use crate::error::WeightError;
use crate::head_rule::HeadRule;
use crate::names::WeightNames;
use crate::plan::WeightPlan;
use crate::source::WeightSource;

/// Compares `model.weights` and `lora.from` with the stores of the trained networks, whose values are not needed. With `reads`, every
/// tensor is read, too. Returns their use; `None` if there are none.
///
/// # Errors
/// The errors of [`load`](crate::load()).
pub fn check_configured(
    config: &Config,
    stores: &[&ParamStore],
    names: &WeightNames,
    reads: bool,
) -> Result<Option<WeightsRecord>, WeightError> {
    if config.model.weights.is_empty() {
        return Ok(None);
    }
    let check = || {
        let source = WeightSource::open(Path::new(&config.model.weights))?;
        let (tensors, plan) = WeightPlan::of(&source, stores, names, HeadRule::of(config))?;
        for (there, count) in plan.loaded().filter(|_| reads) {
            tensors.read(there, 0..count)?;
        }
        Ok(plan.record(&source))
    };
    let mut record = check().map_err(WeightError::of_key("model.weights"))?;
    if let Some(adapters) = check_adapters(&config.lora, stores, names)? {
        record.adapters = Some(adapters);
    }
    Ok(Some(record))
}
