//! What a run will hold and send under a strategy, without allocating the model.

use phalanx_sharding::{MemoryPlan, ShardingError, Strategy, Workload, codec_named};
use phalanx_tensor::FlatParam;

use super::{TrainError, data, optimize, tasks};
use crate::config::{Config, ModelKind};

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
    /// By strategy, in the order asked for; without those that cannot go by the configured algorithm.
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
        prefetch: config.train.prefetch,
        algorithm: config.comm.algorithm.algorithm(),
        codec: codec_named(config.comm.codec.as_str())?,
    };
    let plan = |strategy: &Strategy| {
        // The only rank of a run has nobody to share with.
        let layout = if workload.ranks == 1 { Strategy::named("ddp")?.layout } else { strategy.layout };
        MemoryPlan::new(store.flat_params(), Strategy { layout, ..*strategy }, &workload)
    };
    let going = strategies.iter().filter(|strategy| strategy.goes_by(workload.algorithm).is_ok());
    let plans = going.map(plan).collect::<Result<_, ShardingError>>()?;
    let trainable = store.flat_params().iter().filter(|param| param.trainable());
    let trainable = trainable.map(FlatParam::len).sum::<usize>();
    Ok(ModelPlan {
        model: task.describe(),
        parameters: store.num_parameters() as u64,
        trainable: trainable as u64,
        workload,
        plans,
    })
}
