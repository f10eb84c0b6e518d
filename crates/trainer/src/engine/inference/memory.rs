//! What a run will hold and send under a strategy, without allocating the model.

use phalanx_sharding::{MemoryPlan, Strategy, Workload};
use phalanx_tensor::Unit;

use crate::config::{Config, ModelKind};
use crate::engine::{TrainError, data, optimize, tasks};

/// A configured model under several strategies.
#[derive(Debug, Clone)]
pub struct ModelPlan {
    /// The model, in words.
    pub model: String,
    /// Its parameters.
    pub parameters: u64,
    /// Those of them that are learnt.
    pub trainable: u64,
    /// What the plans assume.
    pub workload: Workload,
    /// By strategy, in the order asked for.
    pub plans: Vec<MemoryPlan>,
}

/// Plans the configured model under `strategies`. No image is read and no parameter allocated; `data.path` may be empty.
///
/// # Errors
/// If the model cannot be built, or strategies do not fit the number of ranks.
pub fn plan_memory(config: &Config, strategies: &[Strategy]) -> Result<ModelPlan, TrainError> {
    let classes = match config.model.kind {
        ModelKind::Cvae | ModelKind::Clip => 0,
        _ => data::num_classes(config)?,
    };
    let task = tasks::layout(config, classes)?;
    let store = task.store();
    let workload = Workload {
        ranks: config.train.ranks,
        group: None,
        optimizer_numbers: optimize::numbers_per_parameter(config),
        averages: config.train.ema > 0.0,
        micro_batches: config.train.accumulate,
        bucket_bytes: config.train.bucket_kib.saturating_mul(1 << 10),
        prefetch: config.train.prefetch,
    };
    let plan = |strategy: &Strategy| {
        // The only rank of a run has nobody to share with.
        let placement =
            if workload.ranks == 1 { Strategy::named("ddp")?.placement } else { strategy.placement };
        MemoryPlan::new(store.units(), Strategy { placement, ..*strategy }, workload)
    };
    let plans = strategies.iter().map(plan).collect::<Result<_, _>>()?;
    let trainable = store.units().iter().filter(|unit| unit.trainable()).map(Unit::len).sum::<usize>();
    Ok(ModelPlan {
        model: task.describe(),
        parameters: store.num_parameters() as u64,
        trainable: trainable as u64,
        workload,
        plans,
    })
}
