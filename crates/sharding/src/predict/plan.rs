//! Predicted memory and traffic of a strategy, computed from a model's layout before anything is allocated.
//!
//! The input is the layout alone: buckets of a store that was built without values
//! ([`phalanx_tensor::BuildOptions::fill`]), so that models larger than memory can be planned.
//!
//! # Formulas
//!
//! Over buckets `u` of `S_u` bytes, of which a rank's part is `P_u` (elements `r·len/g .. (r + 1)·len/g` for rank `r` of
//! the `g` that share what is sharded), with `k` numbers of optimizer state for every trained parameter:
//!
//! | | replicated | sharded |
//! |---|---|---|
//! | parameters | `Σ S_u` | `Σ P_u`, and `S_u` for those outside of any block, which stay whole |
//! | gradients (trainable ones) | `Σ S_u` | `Σ P_u` |
//! | optimizer state (trainable ones) | `k·Σ S_u` | `k·Σ P_u` |
//! | averages of weights (trainable ones) | `Σ S_u` | `Σ P_u`, with the optimizer's state |
//! | gathered, at most | 0 | the largest sum of neighbours: the one that computes, and those gathered ahead |
//! | unreduced gradients, at most | 0 | the same sum of trainable ones: one is differentiated, the others are on their way |
//!
//! State of the root (`dp`) counts as replicated there and as nothing elsewhere.
//!
//! A codec keeps [`crate::CodecBytes::state`] for all gradients of every trainable one, and for the shard's where groups sum theirs;
//! of its messages as many are counted as there may be buckets on their way, or, where gradients are not sharded, all of them.
//!
//! Strategies that do not take every step together keep, besides, on every rank of `g`:
//!
//! | | keeps | sends in a step, on average |
//! |---|---|---|
//! | `local-sgd`, `post-local-sgd` (after its start) | nothing | an all-reduce of `Σ S_u` every `every` steps |
//! | `diloco` | `2·Σ S_u`: parameters of the last meeting and the outer momentum | an all-reduce every `every` steps, of half the bytes as bf16 |
//! | `ps-*` | `2·Σ P_u`: a server's values and the last gradients; with corrections of old gradients `g·Σ P_u` more | `2·Σ S_u·(g − 1)/g`: gradients to the other servers, values to the other workers |
//! | `d-psgd` | nothing | `Σ S_u` to each neighbour |
//! | `sgp` | `Σ S_u`: what is summed, of which parameters are a quotient | `Σ S_u` |
//! | `ad-psgd` | `Σ S_u`: what others change while this rank computes with a copy | `2·Σ S_u` at most: a question and an answer |
//!
//! Where workers push by a codec they keep its residual of `Σ S_u` besides, and messages stand for `Σ S_u·(g − 1)/g`; where they
//! pull rounded values, a server keeps those of one version, `Σ P_u` as integers of 8 bits, and these stand for the other half.
//!
//! These are of trainable ones only. What is pushed and not used yet is in memory besides, at most `g·Σ P_u`.
//!
//! The first four rows, a codec's state and a strategy's state are exact: to the byte the values that
//! [`crate::Observed::bytes`] and the optimizer report between steps. State without gradients is frozen. The other rows are
//! memory that the engine holds for a moment; it can be more if links are much slower than the CPU.
//!
//! Bytes sent are those of the rank that sends most. An all-gather or a reduce-scatter of `S` bytes among `g` ranks sends
//! `(g − 1)·S/g`, an all-reduce twice that: in a ring, through memory that ranks parallelize, and by the other algorithms that
//! divide what they send. An all-reduce by a tree sends `⌈log₂ g⌉·S`, through a single rank `(g − 1)·S`, and by halving and
//! doubling `S` more where `g` is no power of two. What is encoded counts as it travels. Sums of losses, of clipping norms
//! and of batch norm's statistics are not counted: they are some numbers a step.

use std::sync::Arc;

use phalanx_collectives::Algorithm;
use phalanx_tensor::{ParamBucket, ParamGroup};

use crate::mesh::natural_group;
use crate::options::Options;
use crate::strategy::{GossipKind, Meeting, Partition, ServerPace, StatePartition, Strategy, Synchrony};
use crate::synchrony::SyncOptions;
use crate::{Result, ShardingError};
use phalanx_codecs::traffic::{all_reduced, chunk, scattered};
use phalanx_codecs::{CodecGroups, CodecScope, GradCodec, PushCodec, ReductionRoute, WeightRounding};

/// The settings of a run that a plan depends on.
#[derive(Debug, Clone)]
pub struct Workload {
    /// Ranks that train together; servers that are ranks of their own ([`SyncOptions::servers`]) are not counted.
    pub ranks: usize,
    /// Ranks of a group, for strategies that have groups and for codecs between groups only; `None` for what
    /// [`crate::DataParallel::new`] takes on one host, the largest proper divisor of the number of ranks.
    pub group: Option<usize>,
    /// Numbers that the optimizer keeps for every parameter that it changes: 2 for Adam, 1 for SGD with momentum, 0 without.
    pub optimizer_numbers: usize,
    /// True if averages of the weights are kept.
    pub averages: bool,
    /// Micro-batches of a step: what is sharded is gathered for each, gradients are reduced once.
    pub micro_batches: usize,
    /// [`Options::prefetch`].
    pub prefetch: usize,
    /// [`Options::algorithm`].
    pub algorithm: Algorithm,
    /// [`Options::codec`].
    pub codec: Option<Arc<dyn GradCodec>>,
    /// [`Options::codec_scope`].
    pub codec_scope: CodecScope,
    /// [`Options::weights`].
    pub weights: Option<WeightRounding>,
    /// Options of asynchronous strategies.
    pub sync: SyncOptions,
}

impl Workload {
    /// Returns the sums of a rank's gradients, where `shards` ranks share what is sharded.
    fn route(&self, strategy: Strategy, rank: usize, shards: usize) -> ReductionRoute {
        let groups = strategy.data.has_groups();
        // Without a codec there is nothing that groups are for.
        let group =
            self.codec.as_ref().and_then(|_| strategy.codec_group(self.codec_scope, &vec![0; self.ranks]));
        let group = group.map(|natural| self.group.unwrap_or(natural));
        ReductionRoute {
            keeps: strategy.layout.placement(),
            scope: self.codec_scope,
            algorithm: self.algorithm,
            shard: (rank % shards, shards),
            replica: groups.then_some((rank / shards, self.ranks / shards)),
            groups: group.map(|group| CodecGroups::of(rank, self.ranks, group)),
        }
    }
}

impl Workload {
    /// Returns the codec of pushed gradients, if workers push encoded gradients to servers.
    fn pushes(&self, strategy: &Strategy) -> Option<PushCodec> {
        let served = matches!(strategy.synchrony, Synchrony::Servers(_));
        self.codec.as_ref().filter(|_| served).and_then(|codec| codec.push())
    }
}

impl Default for Workload {
    /// Adam on one rank.
    fn default() -> Self {
        let Options { prefetch, algorithm, codec, codec_scope, weights, .. } = Options::default();
        Self {
            ranks: 1,
            group: None,
            optimizer_numbers: 2,
            averages: false,
            micro_batches: 1,
            prefetch,
            algorithm,
            codec,
            codec_scope,
            weights,
            sync: SyncOptions::default(),
        }
    }
}

/// Bytes that one rank holds between steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RankBytes {
    /// Parameters.
    pub parameters: u64,
    /// Gradients.
    pub gradients: u64,
    /// The optimizer's state.
    pub optimizer: u64,
    /// Averages of weights.
    pub averages: u64,
    /// State of the codec of gradients.
    pub codec: u64,
    /// Further state of the strategy: parameters of the last meeting, outer momentum, a server's values.
    pub synchrony: u64,
}

impl RankBytes {
    /// All of them.
    pub fn total(&self) -> u64 {
        self.parameters + self.gradients + self.optimizer + self.averages + self.codec + self.synchrony
    }
}

/// A block and its bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlockBytes {
    /// The block's name; empty for parameters outside of any block.
    pub name: String,
    /// Bytes of its parameters.
    pub bytes: u64,
}

/// The predicted memory and traffic of a strategy. See the [module](self) for the formulas.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemoryPlan {
    /// The strategy.
    pub strategy: Strategy,
    /// Ranks among which sharded state is divided: all of them, or those of a group; 1 if nothing is sharded.
    pub shards: usize,
    /// Memory of each rank between steps, by rank; servers that are ranks of their own come last. Parts differ by an
    /// element each.
    pub ranks: Vec<RankBytes>,
    /// The most bytes of whole parameters that are in memory besides, while blocks run.
    pub gathered: u64,
    /// The most bytes of whole gradients that are in memory besides, before they are reduced.
    pub unreduced: u64,
    /// The most bytes of encoded gradients that are in memory besides, on their way.
    pub wire: u64,
    /// Bytes that a rank sends in a step, rounded down for each operation.
    pub sent_per_step: u64,
    /// Buckets: the messages that a model travels in.
    pub bucket_count: usize,
    /// Blocks, in the order in which they run.
    pub blocks: Vec<BlockBytes>,
    /// The bytes of each network's trainable buckets, in the order of their use.
    pub buckets: Vec<Vec<u64>>,
    /// The number of each network's last buckets that stay gathered from forward to backward.
    pub kept: Vec<usize>,
    /// Bytes of parameters outside of any block: these stay whole on every rank.
    pub outside: u64,
}

impl MemoryPlan {
    /// Plans a model with these buckets.
    ///
    /// # Errors
    /// [`ShardingError::Mesh`] if there are no ranks, or ranks are not whole groups; [`ShardingError::Strategy`] if the strategy
    /// cannot go by the algorithm or the codec.
    pub fn new(params: &[ParamBucket], strategy: Strategy, workload: &Workload) -> Result<Self> {
        strategy.goes_by(workload.algorithm)?;
        let shards = shards(&strategy, workload)?;
        let layout = strategy.layout;
        workload.weights.map_or(Ok(()), |_| strategy.moves_parameters())?;
        let codec = workload.codec.as_ref();
        codec.map_or(Ok(()), |codec| strategy.encodes_by(&**codec, workload.codec_scope))?;
        let pushes = workload.pushes(&strategy);
        let routes: Vec<ReductionRoute> =
            (0..workload.ranks).map(|rank| workload.route(strategy, rank, shards)).collect();
        let mut ranks: Vec<RankBytes> =
            routes.iter().map(|route| rank_bytes(params, (&strategy, route), workload)).collect();
        let mut sent_per_step =
            routes.iter().map(|route| sent(params, (&strategy, route), workload)).max().unwrap_or(0);
        let apart = DedicatedServers::of(&strategy, workload);
        if let Some(apart) = &apart {
            ranks = apart.ranks(params);
            sent_per_step = apart.sent(params);
        }
        let of = |params: &[&ParamBucket]| params.iter().map(|param| bytes(param)).collect::<Vec<_>>();
        let gathered: Vec<_> = params.iter().filter(|param| layout.leaves_memory(param, shards)).collect();
        let trainable: Vec<_> = params.iter().filter(|param| param.trainable()).collect();
        let ahead = workload.prefetch + 1;
        let scatters = layout.scatters();
        let servers = apart.as_ref().map_or(workload.ranks, |apart| apart.servers);
        let wire = codec.map_or_else(Vec::new, |codec| {
            let messages = |param: &&ParamBucket| {
                if let Some(pushes) = &pushes {
                    return pushes.bytes(parts(param, servers)).message;
                }
                let of = |route: &ReductionRoute| -> u64 {
                    let sums = route.sums(param, params.len());
                    sums.iter().map(|sum| sum.bytes(&**codec).message).sum()
                };
                routes.iter().map(of).max().unwrap_or(0)
            };
            trainable.iter().map(messages).collect::<Vec<_>>()
        });
        Ok(Self {
            strategy,
            shards: match &apart {
                Some(apart) => apart.servers,
                None if layout.optimizer == Partition::Sharded => shards,
                None => 1,
            },
            ranks,
            gathered: largest_window(&of(&gathered), ahead),
            unreduced: if scatters { largest_window(&of(&trainable), ahead.max(2)) } else { 0 },
            wire: if scatters { largest_window(&wire, ahead.max(2)) } else { wire.iter().sum() },
            sent_per_step,
            bucket_count: params.len(),
            buckets: vec![of(&trainable)],
            kept: vec![kept(params, layout, shards, workload.prefetch)],
            outside: params.iter().filter(|param| param.is_outside()).map(bytes).sum(),
            blocks: blocks(params),
        })
    }

    /// The rank that holds most.
    pub fn largest_rank(&self) -> RankBytes {
        self.ranks.iter().copied().max_by_key(RankBytes::total).unwrap_or_default()
    }

    /// The most bytes that a rank holds at once, activations and buffers of communication not counted: what it holds between
    /// steps, what is gathered, what is not reduced yet and what is encoded. Each has its own peak, so the sum is an upper bound.
    pub fn peak(&self) -> u64 {
        self.largest_rank().total() + self.gathered + self.unreduced + self.wire
    }

    /// The block with the most parameters.
    pub fn largest_block(&self) -> Option<&BlockBytes> {
        self.blocks.iter().max_by_key(|block| block.bytes)
    }
}

/// Returns the number of a bucket's elements on each server.
fn parts(param: &ParamBucket, servers: usize) -> impl Iterator<Item = usize> {
    let len = param.len();
    (0..servers).map(move |server| chunk(len, servers, server).len())
}

/// Parameter servers on dedicated ranks.
struct DedicatedServers<'w> {
    servers: usize,
    corrects: bool,
    pushes: Option<PushCodec>,
    workload: &'w Workload,
}

impl<'w> DedicatedServers<'w> {
    fn of(strategy: &Strategy, workload: &'w Workload) -> Option<Self> {
        let Synchrony::Servers(pace) = strategy.synchrony else { return None };
        let corrects = workload.sync.compensation > 0.0 && pace != ServerPace::Together;
        let (servers, pushes) = (workload.sync.servers, workload.pushes(strategy));
        (servers > 0).then_some(Self { servers, corrects, pushes, workload })
    }

    /// Returns the bytes of a server's elements of a bucket.
    fn part(&self, param: &ParamBucket, server: usize) -> u64 {
        let (len, size) = (param.len(), param.dtype().size_in_bytes());
        (((server + 1) * len / self.servers - server * len / self.servers) * size) as u64
    }

    /// Returns the bytes of these elements as workers pull them, if pulled values are rounded.
    fn rounded(&self, param: &ParamBucket, server: usize) -> Option<u64> {
        let len = chunk(param.len(), self.servers, server).len();
        self.workload.weights.map(|rounding| rounding.message_len(len))
    }

    /// Returns the bytes of each worker and each server. Servers have values, gradients and optimizer state of their
    /// elements.
    fn ranks(&self, params: &[ParamBucket]) -> Vec<RankBytes> {
        let trainable = || params.iter().filter(|param| param.trainable());
        let worker = RankBytes {
            parameters: params.iter().map(bytes).sum(),
            gradients: trainable().map(bytes).sum(),
            codec: self.pushes.as_ref().map_or(0, |pushes| {
                trainable().map(|param| pushes.bytes(parts(param, self.servers)).state).sum()
            }),
            ..RankBytes::default()
        };
        let server = |server: usize| {
            let part: u64 = trainable().map(|param| self.part(param, server)).sum();
            let rounded: u64 = trainable().filter_map(|param| self.rounded(param, server)).sum();
            let copies = if self.corrects { self.workload.ranks as u64 } else { 0 };
            RankBytes {
                optimizer: self.workload.optimizer_numbers as u64 * part,
                averages: if self.workload.averages { part } else { 0 },
                synchrony: (2 + copies) * part + rounded,
                ..RankBytes::default()
            }
        };
        let workers = std::iter::repeat_n(worker, self.workload.ranks);
        workers.chain((0..self.servers).map(server)).collect()
    }

    /// Returns the most bytes that a rank sends: a worker its gradients, a server its elements to every worker.
    fn sent(&self, params: &[ParamBucket]) -> u64 {
        let of = |part: &dyn Fn(&ParamBucket) -> u64| -> u64 {
            params.iter().filter(|param| param.trainable()).map(part).sum()
        };
        let server = |server| {
            let pulled =
                |param: &ParamBucket| self.rounded(param, server).unwrap_or(self.part(param, server));
            self.workload.ranks as u64 * of(&pulled)
        };
        let worker = of(&|param| match &self.pushes {
            Some(pushes) => pushes.bytes(parts(param, self.servers)).sent,
            None => bytes(param),
        });
        (0..self.servers).map(server).chain([worker]).max().unwrap_or(0)
    }
}

/// Ranks among which sharded state is divided.
fn shards(strategy: &Strategy, workload: &Workload) -> Result<usize> {
    let ranks = workload.ranks;
    if ranks == 0 {
        return Err(ShardingError::Mesh("a world has at least one rank".into()));
    }
    let shards = match strategy.data.has_groups() {
        false => ranks,
        true => workload.group.unwrap_or_else(|| natural_group(&vec![0; ranks])),
    };
    let group = workload.group.unwrap_or(shards);
    match group > 0 && ranks.is_multiple_of(group) {
        true => Ok(shards),
        false => Err(ShardingError::Mesh(format!("{ranks} ranks are not whole groups of {group}"))),
    }
}

fn bytes(param: &ParamBucket) -> u64 {
    param.bytes() as u64
}

/// Returns the blocks in the order of their first parameters, without parameters outside of blocks.
fn blocks(params: &[ParamBucket]) -> Vec<BlockBytes> {
    let mut blocks: Vec<BlockBytes> = Vec::new();
    for (group, size) in groups(params).filter(|(group, _)| !group.block.is_empty()) {
        let bytes = (group.range.len() * size) as u64;
        match blocks.iter_mut().find(|block| block.name == group.block) {
            Some(block) => block.bytes += bytes,
            None => blocks.push(BlockBytes { name: group.block.clone(), bytes }),
        }
    }
    blocks
}

/// All groups, each with the bytes of an element.
fn groups(params: &[ParamBucket]) -> impl Iterator<Item = (&ParamGroup, usize)> {
    params.iter().flat_map(|param| param.groups().iter().map(|group| (group, param.dtype().size_in_bytes())))
}

/// The largest sum of `len` neighbours.
fn largest_window(values: &[u64], len: usize) -> u64 {
    let len = len.min(values.len()).max(1);
    values.windows(len).map(|window| window.iter().sum()).max().unwrap_or(0)
}

/// Returns the memory of a rank between steps.
fn rank_bytes(
    params: &[ParamBucket],
    (strategy, route): (&Strategy, &ReductionRoute),
    workload: &Workload,
) -> RankBytes {
    let (layout, of) = (strategy.layout, route.shard);
    let pushes = workload.pushes(strategy);
    let mut held = RankBytes::default();
    for param in params {
        let owned = layout.owned(param.len(), of).len();
        let (whole, part) = (bytes(param), (owned * param.dtype().size_in_bytes()) as u64);
        let lies = |layout: Partition| if layout == Partition::Replicated { whole } else { part };
        held.parameters += if layout.leaves_memory(param, of.1) { part } else { whole };
        if param.trainable() {
            let state = lies(layout.optimizer);
            held.gradients += lies(layout.gradients);
            held.optimizer += workload.optimizer_numbers as u64 * state;
            held.averages += if workload.averages { state } else { 0 };
            held.synchrony += kept_apart(strategy, workload, (whole, part));
            if let Some(pushes) = &pushes {
                held.codec += pushes.bytes(parts(param, workload.ranks)).state;
            } else if let Some(codec) = &workload.codec {
                held.codec +=
                    route.sums(param, params.len()).iter().map(|sum| sum.bytes(&**codec).state).sum::<u64>();
            }
        }
    }
    held
}

/// Bytes that a rank keeps of a bucket because ranks do not take every step together, given those of all and of its part.
fn kept_apart(strategy: &Strategy, workload: &Workload, (whole, part): (u64, u64)) -> u64 {
    match strategy.synchrony {
        Synchrony::EveryStep | Synchrony::Rounds(Meeting::Average | Meeting::AverageAfterStart) => 0,
        Synchrony::Rounds(Meeting::OuterStep) => 2 * whole,
        Synchrony::Servers(pace) => {
            let corrects = workload.sync.compensation > 0.0 && pace != ServerPace::Together;
            let copies = if corrects { workload.ranks as u64 } else { 0 };
            // Pulled values are rounded once for each version.
            let rounded = workload.weights.map_or(0, |rounding| rounding.message_len(part as usize / 4));
            (2 + copies) * part + rounded
        }
        Synchrony::Neighbours(GossipKind::AllNeighbours) => 0,
        Synchrony::Neighbours(GossipKind::RandomNeighbour | GossipKind::PushSum) => whole,
    }
}

/// Bytes that a rank sends in a step, on average, of a trainable bucket where ranks do not take every step together.
fn sent_apart(strategy: &Strategy, workload: &Workload, whole: u64) -> Option<u64> {
    let (ranks, sync) = (workload.ranks, &workload.sync);
    Some(match strategy.synchrony {
        Synchrony::EveryStep => return None,
        Synchrony::Rounds(meeting) => {
            let encoded = if meeting == Meeting::OuterStep && sync.outer_bf16 { whole / 2 } else { whole };
            all_reduced(encoded, ranks, workload.algorithm) / sync.every.max(1)
        }
        // See `served`.
        Synchrony::Servers(_) => return None,
        Synchrony::Neighbours(GossipKind::AllNeighbours) => {
            sync.topology.sends_to(0, ranks).len() as u64 * whole
        }
        // A request, and the answer to a request.
        Synchrony::Neighbours(GossipKind::RandomNeighbour) if ranks > 1 => 2 * whole,
        Synchrony::Neighbours(GossipKind::PushSum) if ranks > 1 => whole,
        Synchrony::Neighbours(_) => 0,
    })
}

/// Returns the bytes of a trainable bucket that a rank with a worker and a server sends: gradients to the other servers, and
/// values to the other workers.
fn served(
    param: &ParamBucket,
    route: &ReductionRoute,
    workload: &Workload,
    pushes: Option<&PushCodec>,
) -> u64 {
    let (ranks, own) = (workload.ranks, chunk(param.len(), workload.ranks, route.shard.0).len());
    let pushed = match pushes {
        Some(pushes) => pushes.bytes(parts(param, ranks)).sent - pushes.message_len(own),
        None => scattered(bytes(param), ranks),
    };
    let pulled = match workload.weights {
        Some(rounding) => (ranks as u64 - 1) * rounding.message_len(own),
        None => scattered(bytes(param), ranks),
    };
    pushed + pulled
}

/// Returns the number of sharded buckets that stay gathered from forward to backward: those of the last block of forward, and
/// as many before them as are prefetched.
fn kept(params: &[ParamBucket], layout: StatePartition, shards: usize, prefetch: usize) -> usize {
    let end = groups(params).map(|(group, _)| &group.block).filter(|block| !block.is_empty()).last();
    let gathered = params.iter().filter(|param| layout.leaves_memory(param, shards));
    gathered.filter(|param| param.groups().iter().any(|group| Some(&group.block) == end)).count() + prefetch
}

/// Bytes that the rank of a route sends in a step.
fn sent(params: &[ParamBucket], (strategy, route): (&Strategy, &ReductionRoute), workload: &Workload) -> u64 {
    let (layout, shards) = (strategy.layout, route.shard.1);
    let pushes = workload.pushes(strategy);
    let mut sent = 0;
    for param in params.iter().filter(|param| param.trainable()) {
        let whole = bytes(param);
        if let Some(apart) = sent_apart(strategy, workload, whole) {
            sent += apart;
            continue;
        }
        if matches!(strategy.synchrony, Synchrony::Servers(_)) {
            sent += served(param, route, workload, pushes.as_ref());
            continue;
        }
        sent += route
            .sums(param, params.len())
            .iter()
            .map(|sum| match &workload.codec {
                Some(codec) => sum.bytes(&**codec).sent,
                None => sum.among.summed((sum.bucket.len * param.dtype().size_in_bytes()) as u64),
            })
            .sum::<u64>();
        sent += route.regathered(param.len());
        // Back as parameters.
        if layout.optimizer == Partition::Root
            || layout.optimizer == Partition::Sharded && !layout.leaves_memory(param, shards)
        {
            sent += scattered(whole, shards);
        }
    }
    let leaves = |param: &&ParamBucket| layout.leaves_memory(param, shards);
    let gathered = || params.iter().filter(leaves);
    // Backward ends at the first trained bucket; frozen ones before it are not gathered again.
    let first = params.iter().position(ParamBucket::trainable).unwrap_or(params.len());
    let again = params[first..].iter().filter(leaves).rev();
    let again = again.skip(kept(params, layout, shards, workload.prefetch));
    let gather = |param: &ParamBucket| match workload.weights {
        None => scattered(bytes(param), shards),
        Some(rounding) => {
            (shards as u64 - 1) * rounding.message_len(chunk(param.len(), shards, route.shard.0).len())
        }
    };
    let passes: u64 = gathered().chain(again).map(gather).sum();
    sent + workload.micro_batches.max(1) as u64 * passes
}
