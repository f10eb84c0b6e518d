//! What a run will hold and send under a strategy, without allocating the model.

use phalanx_sharding::{MemoryPlan, ShardingError, Strategy, Workload};
use phalanx_tensor::ComputeDevice;

use crate::config::{Config, Offload};
use crate::engine::distributed::{Network, sync_options};
use crate::engine::training::{Built, Task, Weights};
use crate::engine::{TrainError, optimize};

/// A configured model under several strategies.
#[derive(Debug, Clone)]
pub struct ModelPlan {
    /// The model, in words.
    pub model: String,
    /// Its parameters.
    pub parameters: u64,
    /// Those of them that are learnt.
    pub trainable: u64,
    /// What the plans assume; of several networks, for the first.
    pub workload: Workload,
    /// By strategy, in the order asked for; without those that cannot go by the configured algorithm,
    /// by the configured codec, or neither gather nor pull parameters that could be quantised.
    pub plans: Vec<MemoryPlan>,
}

/// Plans the configured training of a task under `strategies`. No image is read and no parameter allocated; `data.path` may be empty.
///
/// # Errors
/// If the model cannot be built, or strategies do not fit the number of ranks.
pub fn plan_memory(task: &Task, config: &Config, strategies: &[Strategy]) -> Result<ModelPlan, TrainError> {
    let Built { training, networks } = task.build(config, None, Weights::Absent, &ComputeDevice::host())?;
    let updates = |network: &Network| {
        let phases = training.phases();
        phases.iter().filter(|phase| network.is_learnt() && phase.updates(network.name())).count()
    };
    let codec = config.codec.settings(config.train.seed, "").codec().map_err(ShardingError::from)?;
    let workload = |network: &Network| {
        let own = config.for_network(network.name());
        Workload {
            ranks: own.train.ranks,
            // Groups are hosts, where several are simulated.
            group: match &config.comm.ranks_by_host(own.train.ranks)[..] {
                [_] => None,
                hosts => Some(hosts[0].max(1)),
            },
            optimizer_numbers: optimize::numbers_per_parameter(&own),
            averages: own.train.ema > 0.0,
            micro_batches: own.train.accumulate,
            prefetch: own.train.prefetch,
            algorithm: config.comm.algorithm,
            codec: codec.clone(),
            codec_scope: config.codec.scope,
            weights: config.codec.weight_rounding(),
            sync: sync_options(config, own.train.ranks, network.name()),
        }
    };
    let plan = |strategy: &Strategy| -> Result<MemoryPlan, TrainError> {
        // The only rank of a run has nobody to share with.
        let alone = Strategy::named("ddp")?;
        let (layout, synchrony) = match config.world_size() {
            1 => (alone.layout, alone.synchrony),
            _ => (strategy.layout, strategy.synchrony),
        };
        let strategy = Strategy { layout, synchrony, ..*strategy };
        let mut sum: Option<MemoryPlan> = None;
        for network in &networks {
            let mut workload = workload(network);
            if workload.ranks == 1 {
                // Nothing is sent, so nothing is encoded.
                workload = Workload { codec: None, weights: None, ..workload };
            }
            let mut plan = MemoryPlan::new(network.store().buckets(), strategy, &workload)?;
            plan.sent_per_step *= updates(network).max(1) as u64;
            if config.train.offload == Offload::Disk {
                // It is in memory for three flat units at a time: the one before, which is written, and the one after, which is read.
                let units = network.store().buckets().iter().filter(|param| param.trainable());
                let most = 3 * units.map(|param| param.bytes() as u64).max().unwrap_or(0);
                let numbers = optimize::numbers_per_parameter(config) as u64;
                for rank in &mut plan.ranks {
                    rank.optimizer = rank.optimizer.min(numbers * most);
                    rank.averages = rank.averages.min(most);
                }
            }
            match &mut sum {
                None => sum = Some(plan),
                Some(sum) => add(sum, plan),
            }
        }
        // A training has a network.
        sum.ok_or_else(|| TrainError::Setup("there is no network to plan".to_owned()))
    };
    let goes = |strategy: &&Strategy| {
        strategy.goes_by(config.comm.algorithm).is_ok()
            && (config.codec.weight_rounding().is_none() || strategy.moves_parameters().is_ok())
            && codec.as_ref().is_none_or(|codec| strategy.encodes_by(&**codec, config.codec.scope).is_ok())
    };
    let plans = strategies.iter().filter(goes).map(plan).collect::<Result<_, _>>()?;
    let params = || networks.iter().flat_map(|network| network.store().buckets());
    Ok(ModelPlan {
        model: training.describe().to_owned(),
        parameters: networks.iter().map(|network| network.store().num_parameters() as u64).sum(),
        trainable: params().filter(|param| param.trainable()).map(|param| param.len() as u64).sum(),
        workload: workload(&networks[0]),
        plans,
    })
}

/// Adds what another network needs. What is there for a moment only is counted as if all networks had it at the same one.
fn add(sum: &mut MemoryPlan, other: MemoryPlan) {
    for (rank, other) in sum.ranks.iter_mut().zip(other.ranks) {
        rank.parameters += other.parameters;
        rank.gradients += other.gradients;
        rank.optimizer += other.optimizer;
        rank.averages += other.averages;
        rank.codec += other.codec;
        rank.synchrony += other.synchrony;
    }
    sum.gathered += other.gathered;
    sum.unreduced += other.unreduced;
    sum.wire += other.wire;
    sum.sent_per_step += other.sent_per_step;
    sum.bucket_count += other.bucket_count;
    sum.outside += other.outside;
    sum.blocks.extend(other.blocks);
    sum.buckets.extend(other.buckets);
    sum.kept.extend(other.kept);
}
