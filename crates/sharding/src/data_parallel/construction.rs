//! Construction of [`DataParallel`]: checks, communicators, and one reduction.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use phalanx_codecs::{CodecGroups, ReductionRoute};
use phalanx_collectives::Communicator;
use phalanx_tensor::{ParamBucket, ParamStore};

use super::DataParallel;
use super::combinations::Combination;
use super::reduction::{
    BucketReduction, CodecLinks, CodecReduction, ExactReduction, Reducer, RoundedReduction,
    SingleRankReduction, VirtualSum,
};
use super::weights::WeightGather;
use crate::consensus::check_same_model;
use crate::mesh::part;
use crate::options::Options;
use crate::parallel::Residency as _;
use crate::strategy::{Partition, Strategy};
use crate::virtual_ranks::VirtualRanks;
use crate::{ProcessMesh, Result};

/// The ranks that gradients and parameters go between.
struct Links<'m> {
    /// All ranks that have samples of a batch.
    all: Communicator,
    /// The ranks that share what is sharded.
    shards: &'m Communicator,
    /// The ranks that hold the same shards in other groups, if there are groups.
    replicas: Option<&'m Communicator>,
    /// The ranks that hold the other parts of the model for the same samples, if layers are cut.
    model: Option<&'m Communicator>,
}

impl<'m> Links<'m> {
    fn of(mesh: &'m ProcessMesh, strategy: &Strategy) -> Result<Self> {
        let (shards, replicas) = mesh.sharding(strategy.data)?;
        Ok(Self { all: mesh.batch().clone(), shards, replicas, model: mesh.model() })
    }
}

/// The thread or stream of communication work.
#[derive(Clone, Copy)]
struct Overlapping {
    /// True if communication runs while the rank computes.
    overlaps: bool,
    /// True if all parameters are on the host. A GPU moves its own memory and takes no CPU core from computing.
    on_host: bool,
}

impl Overlapping {
    /// True if background threads encode and add up. A device is given its work by the thread that trains.
    fn in_background(self) -> bool {
        self.overlaps && self.on_host
    }

    fn timely(self, comm: Communicator) -> Communicator {
        if self.overlaps { comm } else { comm.blocking() }
    }
}

/// Makes the strategy; see [`DataParallel::with_options`].
pub(super) fn build(
    store: &ParamStore,
    mesh: ProcessMesh,
    strategy: Strategy,
    options: Options,
) -> Result<Arc<DataParallel>> {
    let params = store.buckets().to_vec();
    let combination = Combination { params: &params, strategy: &strategy, options: &options };
    combination.check()?;
    let offloaded = combination.is_offloaded();
    let placed = virtual_ranks(&options, mesh.batch().world_size())?;
    check_same_model(store, mesh.batch())?;
    let links = Links::of(&mesh, &strategy)?;
    let sharded = strategy.layout.parameters == Partition::Sharded && links.shards.world_size() > 1;
    let gathers = offloaded || sharded;
    let on_host = params.iter().all(|param| param.device().is_host());
    let overlaps = options.overlap.decide(&links.all, gathers && on_host, options.threads.max(1))?;
    let overlapping = Overlapping { overlaps, on_host };
    let rounds = options.weights.filter(|_| gathers && links.shards.world_size() > 1);
    let gather = |rounding| WeightGather::new(part(links.shards, 0)?, rounding, overlapping.in_background());
    let weights = rounds.map(gather).transpose()?;
    let by = |comm: &Communicator| overlapping.timely(comm.using(options.algorithm));
    let shards = by(links.shards);
    let reducer = reduction(&params, (&strategy, &options), (&links, &shards), (overlapping, placed))?;
    let (comm, replicas) = (overlapping.timely(links.all), links.replicas.map(by));
    let (blocks, buckets) = if gathers { blocks_of(&params) } else { Default::default() };
    let order = params.iter().enumerate().filter(|(_, param)| param.trainable()).map(|(at, _)| at).rev();
    let this = DataParallel {
        labels: params.iter().enumerate().map(|(at, param)| label(at, param)).collect(),
        order: order.collect(),
        comm,
        mesh,
        shards,
        replicas,
        strategy,
        params,
        blocks,
        buckets,
        options,
        reducer,
        weights,
        state: Mutex::default(),
    };
    this.fill(store.key())?;
    this.broadcast_state(store)?;
    Ok(Arc::new(this))
}

/// The virtual ranks that the options ask for, on `ranks` ranks.
fn virtual_ranks(options: &Options, ranks: usize) -> Result<Option<VirtualRanks>> {
    let placed = options.virtual_ranks.map(|count| VirtualRanks::new(count, ranks)).transpose()?;
    if placed.is_some() {
        options.sums_exactly()?;
    }
    Ok(placed)
}

/// Chooses the reduction and makes the communicators of its own. Every rank does so at the same place.
fn reduction(
    params: &[ParamBucket],
    (strategy, options): (&Strategy, &Options),
    (links, shards): (&Links<'_>, &Communicator),
    (overlapping, placed): (Overlapping, Option<VirtualRanks>),
) -> Result<Reducer> {
    let gradients = strategy.layout.gradients;
    let rounded = if overlapping.on_host { None } else { RoundedReduction::dtype_of(options)? };
    // One rank has nothing to send, and its device no means to. Nor have ranks that share layers and no further samples.
    let several = links.all.world_size() > 1;
    let encodes =
        if overlapping.on_host { several || links.model.is_none() } else { rounded.is_none() && several };
    if options.codec.is_some() && encodes {
        let coded = coded(params, (strategy, options), links, overlapping)?;
        return Ok(Reducer { by: coded.clone(), coded: Some(coded), virtual_sum: None });
    }
    if let Some(placed) = placed {
        let own = links.replicas.map(|replicas| part(replicas, 0));
        let links = (part(&links.all, 0)?, links.shards.world_size(), own.transpose()?);
        let sum = VirtualSum::new(placed, gradients, links, (params.len(), overlapping.in_background()))?;
        let sum = Arc::new(sum);
        return Ok(Reducer { by: sum.clone(), coded: None, virtual_sum: Some(sum) });
    }
    let shards = shards.clone();
    let reduction: Arc<dyn BucketReduction> = match rounded {
        _ if links.all.world_size() == 1 && !overlapping.on_host => {
            Arc::new(SingleRankReduction::new(gradients))
        }
        Some(dtype) => Arc::new(RoundedReduction::new(dtype, shards, gradients)),
        None => Arc::new(ExactReduction::new(shards, gradients)),
    };
    Ok(Reducer { by: reduction, coded: None, virtual_sum: None })
}

/// Makes the sums by the codec of the options.
fn coded(
    params: &[ParamBucket],
    (strategy, options): (&Strategy, &Options),
    links: &Links<'_>,
    overlapping: Overlapping,
) -> Result<Arc<CodecReduction>> {
    let codec = options.codec.clone().ok_or(crate::ShardingError::Step("there is no codec"))?;
    let place = |comm: &Communicator| (comm.rank(), comm.world_size());
    let (rank, ranks) = place(&links.all);
    let group = strategy.codec_group(options.codec_scope, links.all.hosts());
    let (shards, replicas) = match group {
        None => {
            let replicas = links.replicas.map(|replicas| part(replicas, 0));
            (part(links.shards, 0)?, replicas.transpose()?)
        }
        Some(group) => (part(&links.all, rank / group)?, Some(part(&links.all, rank % group)?)),
    };
    let route = ReductionRoute {
        keeps: strategy.layout.placement(),
        scope: options.codec_scope,
        algorithm: options.algorithm,
        shard: place(links.shards),
        replica: links.replicas.map(place),
        groups: group.map(|group| CodecGroups::of(rank, ranks, group)),
    };
    Ok(Arc::new(CodecReduction::new(
        codec,
        route,
        CodecLinks { shards, replicas, model: links.model.map(|model| part(model, 0)).transpose()? },
        params,
        (options.codec_when, overlapping.in_background()),
    )?))
}

/// The number of each block, and by block the buckets of its parameters.
fn blocks_of(params: &[ParamBucket]) -> (BTreeMap<String, usize>, Vec<Vec<usize>>) {
    let (mut blocks, mut buckets) = (BTreeMap::new(), Vec::new());
    for (at, param) in params.iter().enumerate() {
        for block in param.blocks().filter(|block| !block.is_empty()) {
            let index = *blocks.entry(block.to_owned()).or_insert(buckets.len());
            buckets.resize(buckets.len().max(index + 1), Vec::new());
            buckets[index].push(at);
        }
    }
    (blocks, buckets)
}

/// The label of a bucket's operations in the flight recorder.
fn label(bucket: usize, param: &ParamBucket) -> Arc<str> {
    let first = param.entries().first().map_or("nothing", |entry| entry.name.as_str());
    Arc::from(format!("bucket {bucket}, from {first}"))
}
