//! Memory and traffic of a run under several strategies, without allocating the model.

use phalanx_sharding::{MemoryPlan, ShardingError, Strategy, Workload};
use phalanx_tensor::{ComputeDevice, ParamBucket, TensorRank};

use crate::engine::distributed::{Network, sync_options};
use crate::engine::stages::Stages;
use crate::engine::training::{BuildTarget, Built, StageTarget, Task, Weights};
use crate::engine::{TrainError, optimize};
use phalanx_config::{Config, Offload};

/// The memory plans of a model under several strategies.
#[derive(Debug, Clone)]
pub struct ModelPlan {
    /// The description of the model.
    pub model: String,
    /// The number of parameters.
    pub parameters: u64,
    /// The number of trained parameters.
    pub trainable: u64,
    /// The ranks that compute parts of the same layers; plans are of the one that holds most.
    pub tensor: usize,
    /// The assumptions of the plans; those of the first of several networks.
    pub workload: Workload,
    /// The plans by strategy, in order, without strategies that do not support the configured algorithm, codec or parameter
    /// quantisation.
    pub plans: Vec<MemoryPlan>,
}

/// Plans a training under `strategies`. Reads no image and allocates no parameter; `data.path` may be empty.
///
/// # Errors
/// If the model cannot be built, or strategies do not fit the number of ranks.
pub fn plan_memory(task: &Task, config: &Config, strategies: &[Strategy]) -> Result<ModelPlan, TrainError> {
    let built = largest(task, config)?;
    let codec = config.codec.settings(config.train.seed, "").codec().map_err(ShardingError::from)?;
    let goes = |strategy: &&Strategy| {
        (!config.shares_model() || strategy.is_bulk_synchronous())
            && strategy.goes_by(config.comm.algorithm).is_ok()
            && (config.codec.weight_rounding().is_none() || strategy.moves_parameters().is_ok())
            && codec.as_ref().is_none_or(|codec| strategy.encodes_by(&**codec, config.codec.scope).is_ok())
    };
    let plan = |strategy: &Strategy| plan_of(strategy, &built, config);
    let plans = strategies.iter().filter(goes).map(plan).collect::<Result<_, _>>()?;
    let Built { training, networks, .. } = &built;
    let params = || networks.iter().flat_map(|network| network.store().params());
    Ok(ModelPlan {
        model: training.describe().to_owned(),
        parameters: networks.iter().map(|network| network.store().num_parameters() as u64).sum(),
        trainable: params()
            .filter(|param| param.trainable())
            .map(|param| param.whole_shape().elem_count() as u64)
            .sum(),
        tensor: config.tensor_ranks().unwrap_or(1),
        workload: workload(&networks[0], config)?,
        plans,
    })
}

/// Builds the networks, of ranks that share layers or have stages as the one that holds most.
fn largest(task: &Task, config: &Config) -> Result<Built, TrainError> {
    let device = ComputeDevice::host();
    let stages = Stages::of(task, config, None)?;
    let build = |tensor: Option<TensorRank>, stage: usize| {
        let stage = stages.as_ref().map(|stages| StageTarget { params: &stages.params, rank: stage });
        let target = BuildTarget { tensor, stage, ..BuildTarget::whole(Weights::Absent, &device) };
        task.build(config, None, target)
    };
    let tensor: Vec<Option<TensorRank>> = match config.tensor_ranks() {
        None => vec![None],
        Some(ranks) => (0..ranks).map(|rank| Some(TensorRank { rank, ranks })).collect(),
    };
    let bytes = |built: &Built| -> usize {
        built.networks.iter().flat_map(|network| network.store().buckets()).map(ParamBucket::bytes).sum()
    };
    let mut most = build(tensor[0], 0)?;
    let others = (0..config.pipeline_ranks()).flat_map(|stage| tensor.iter().map(move |own| (*own, stage)));
    for (tensor, stage) in others.skip(1) {
        let other = build(tensor, stage)?;
        if bytes(&other) > bytes(&most) {
            most = other;
        }
    }
    Ok(most)
}

/// The assumptions of a network's plan.
fn workload(network: &Network, config: &Config) -> Result<Workload, TrainError> {
    let own = config.for_network(network.name());
    // Without a degree, groups are hosts, if several are simulated.
    let of_hosts = || match &config.comm.ranks_by_host(own.train.ranks)[..] {
        [_] => None,
        hosts => Some(hosts[0].max(1)),
    };
    let codec = config.codec.settings(config.train.seed, "").codec().map_err(ShardingError::from)?;
    Ok(Workload {
        ranks: own.data_ranks(),
        group: own.parallel.group().or_else(of_hosts),
        optimizer_numbers: optimize::numbers_per_parameter(&own),
        averages: own.train.ema > 0.0,
        micro_batches: own.micro_batches(),
        prefetch: own.train.prefetch,
        algorithm: config.comm.algorithm,
        codec,
        codec_scope: config.codec.scope,
        weights: config.codec.weight_rounding(),
        sync: sync_options(config, own.train.ranks, network.name()),
    })
}

/// The plan of all networks under one strategy.
fn plan_of(strategy: &Strategy, built: &Built, config: &Config) -> Result<MemoryPlan, TrainError> {
    let Built { training, networks, .. } = built;
    // The only rank shares with no other.
    let alone = Strategy::named("ddp")?;
    let servers = config.world_size() - config.train.ranks;
    let (layout, synchrony) = match config.data_ranks() + servers {
        1 => (alone.layout, alone.synchrony),
        _ => (strategy.layout, strategy.synchrony),
    };
    let strategy = Strategy { layout, synchrony, ..*strategy };
    let phases = training.phases();
    let mut sum: Option<MemoryPlan> = None;
    for network in networks {
        let mut workload = workload(network, config)?;
        if workload.ranks == 1 {
            // Nothing is sent, so nothing is encoded.
            workload = Workload { codec: None, weights: None, ..workload };
        }
        let mut plan = MemoryPlan::new(network.store().buckets(), strategy, &workload)?;
        let updates = phases.iter().filter(|phase| network.is_learnt() && phase.updates(network.name()));
        plan.sent_per_step *= updates.count().max(1) as u64;
        if config.train.offload == Offload::Disk {
            keep_on_disk(&mut plan, network, config);
        }
        match &mut sum {
            None => sum = Some(plan),
            Some(sum) => add(sum, plan),
        }
    }
    // A training has a network.
    sum.ok_or_else(|| TrainError::Setup("there is no network to plan".to_owned()))
}

/// Counts the optimizer state of three buckets in memory: the current, the previous, which is written, and the next, which is read.
fn keep_on_disk(plan: &mut MemoryPlan, network: &Network, config: &Config) {
    let buckets = network.store().buckets().iter().filter(|param| param.trainable());
    let most = 3 * buckets.map(|param| param.bytes() as u64).max().unwrap_or(0);
    let numbers = optimize::numbers_per_parameter(config) as u64;
    for rank in &mut plan.ranks {
        rank.optimizer = rank.optimizer.min(numbers * most);
        rank.averages = rank.averages.min(most);
    }
}

/// Adds the needs of another network. Temporary memory is counted as if all networks had it at the same time.
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
