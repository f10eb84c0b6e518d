//! What a strategy will hold and send, computed from a model's layout before anything is allocated.
//!
//! The input is the layout alone: units of a store that was built without values
//! ([`phalanx_tensor::BuildOptions::fill`]), so that models larger than memory can be planned.
//!
//! # Formulas
//!
//! Over buckets `u` of `S_u` bytes (units that travel together), of which a rank's part is `P_u` (elements
//! `r·len/g .. (r + 1)·len/g` for rank `r` of the `g` that share what is sharded), with `k` numbers of optimizer state for
//! every trained parameter:
//!
//! | | replicated | sharded |
//! |---|---|---|
//! | parameters | `Σ S_u` | `Σ P_u`, and `S_u` for units outside of any block, which stay whole |
//! | gradients (trainable units) | `Σ S_u` | `Σ P_u` |
//! | optimizer state (trainable units) | `k·Σ S_u` | `k·Σ P_u` |
//! | averages of weights (trainable units) | `Σ S_u` | `Σ P_u`, with the optimizer's state |
//! | gathered, at most | 0 | the largest sum of neighbours: the one that computes, and those gathered ahead |
//! | unreduced gradients, at most | 0 | the same sum of trainable buckets: one is differentiated, the others are on their way |
//!
//! What is at the leader (`dp`) counts as replicated there and as nothing elsewhere.
//!
//! The first four are exact, to the byte what [`crate::DataParallel::bytes`] and the optimizer report between steps; a unit
//! without gradients is one that is frozen. The last two are what the engine holds for a moment besides; more can be on its
//! way if links are much slower than the processor.
//!
//! Bytes sent are those of a ring, and of memory that ranks share: an all-gather or a reduce-scatter of `S` bytes among `g`
//! ranks sends `(g − 1)·S/g`, an all-reduce twice that. Trees and stars send other amounts. Sums of losses, of clipping
//! norms and of batch norm's statistics are not counted: they are some numbers a step.

use phalanx_tensor::Unit;

use crate::data_parallel::{BucketShare, natural_group, shares};
use crate::options::Options;
use crate::strategy::{Held, ShardAxis, Strategy};
use crate::{Result, ShardingError};

/// What a run does with a model, as far as a plan depends on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Workload {
    /// Ranks that train together.
    pub ranks: usize,
    /// Ranks of a group, for strategies that have groups; `None` for what [`crate::DataParallel::new`] takes on one host,
    /// the largest proper divisor of the number of ranks.
    pub group: Option<usize>,
    /// Numbers that the optimizer keeps for every parameter that it changes: 2 for Adam, 1 for SGD with momentum, 0 without.
    pub optimizer_numbers: usize,
    /// Whether averages of the weights are kept.
    pub averages: bool,
    /// Micro-batches of a step: what is sharded is gathered for each, gradients are reduced once.
    pub micro_batches: usize,
    /// [`Options::bucket_bytes`].
    pub bucket_bytes: usize,
    /// [`Options::prefetch`].
    pub prefetch: usize,
}

impl Default for Workload {
    /// Adam on one rank.
    fn default() -> Self {
        let Options { bucket_bytes, prefetch, .. } = Options::default();
        Self {
            ranks: 1,
            group: None,
            optimizer_numbers: 2,
            averages: false,
            micro_batches: 1,
            bucket_bytes,
            prefetch,
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
}

impl RankBytes {
    /// All of them.
    pub fn total(&self) -> u64 {
        self.parameters + self.gradients + self.optimizer + self.averages
    }
}

/// A block and what it weighs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlockBytes {
    /// The block's name; empty for what lies outside of any block.
    pub name: String,
    /// Bytes of its parameters.
    pub bytes: u64,
}

/// What a strategy holds and sends. See the [module](self) for the formulas.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemoryPlan {
    /// The strategy.
    pub strategy: Strategy,
    /// Ranks among which sharded state is divided: all of them, or those of a group; 1 if nothing is sharded.
    pub shards: usize,
    /// What each rank holds between steps, by rank. Parts differ by an element a unit.
    pub ranks: Vec<RankBytes>,
    /// The most bytes of whole parameters that are in memory besides, while blocks run.
    pub gathered: u64,
    /// The most bytes of whole gradients that are in memory besides, before they are reduced.
    pub unreduced: u64,
    /// Bytes that a rank sends in a step, rounded down for each operation.
    pub sent_per_step: u64,
    /// Flat units.
    pub units: usize,
    /// Buckets: the messages that they travel in.
    pub buckets: usize,
    /// Blocks, in the order in which they run.
    pub blocks: Vec<BlockBytes>,
    /// Bytes of parameters outside of any block: these stay whole on every rank.
    pub outside: u64,
}

impl MemoryPlan {
    /// Plans a model with these units.
    ///
    /// # Errors
    /// [`ShardingError::Mesh`] if there are no ranks, or ranks are not whole groups.
    pub fn new(units: &[Unit], strategy: Strategy, workload: Workload) -> Result<Self> {
        let shards = shards(&strategy, workload)?;
        let placement = strategy.placement;
        let blocks = blocks(units);
        let ranks = (0..workload.ranks)
            .map(|rank| rank_bytes(units, &strategy, workload, rank % shards, shards))
            .collect();
        let buckets = shares(units, placement, (0, shards), workload.bucket_bytes).0;
        let sizes = |counts: fn(&BucketShare) -> bool| -> Vec<u64> {
            buckets.iter().filter(|bucket| counts(bucket)).map(|bucket| bucket.bytes).collect()
        };
        let released = sizes(|bucket| bucket.released);
        let gradients = sizes(|bucket| bucket.trainable);
        let ahead = workload.prefetch + 1;
        let gathers = placement.parameters == Held::Sharded;
        let scatters = placement.gradients == Held::Sharded;
        Ok(Self {
            strategy,
            shards: if placement.optimizer == Held::Sharded { shards } else { 1 },
            ranks,
            gathered: if gathers { largest_window(&released, ahead) } else { 0 },
            unreduced: if scatters { largest_window(&gradients, ahead.max(2)) } else { 0 },
            sent_per_step: sent(&buckets, &strategy, workload, shards),
            units: units.len(),
            buckets: buckets.len(),
            outside: of_block(units, "").map(bytes).sum(),
            blocks,
        })
    }

    /// The rank that holds most.
    pub fn largest_rank(&self) -> RankBytes {
        self.ranks.iter().copied().max_by_key(RankBytes::total).unwrap_or_default()
    }

    /// The most bytes that a rank holds at once, activations and buffers of communication not counted: what it holds between
    /// steps, what is gathered and what is not reduced yet. Each has its own peak, so the sum is an upper bound.
    pub fn peak(&self) -> u64 {
        self.largest_rank().total() + self.gathered + self.unreduced
    }

    /// The block with the most parameters.
    pub fn largest_block(&self) -> Option<&BlockBytes> {
        self.blocks.iter().max_by_key(|block| block.bytes)
    }
}

/// Ranks among which sharded state is divided.
fn shards(strategy: &Strategy, workload: Workload) -> Result<usize> {
    let ranks = workload.ranks;
    if ranks == 0 {
        return Err(ShardingError::Mesh("a world has at least one rank".into()));
    }
    let shards = match strategy.axis {
        ShardAxis::World => ranks,
        ShardAxis::Group => workload.group.unwrap_or_else(|| natural_group(&vec![0; ranks])),
    };
    if shards == 0 || !ranks.is_multiple_of(shards) {
        return Err(ShardingError::Mesh(format!("{ranks} ranks are not whole groups of {shards}")));
    }
    Ok(shards)
}

fn bytes(unit: &Unit) -> u64 {
    unit.bytes() as u64
}

fn of_block<'a>(units: &'a [Unit], block: &'a str) -> impl Iterator<Item = &'a Unit> {
    units.iter().filter(move |unit| unit.block() == block)
}

/// The blocks in the order of their first units; what lies outside of any is none.
fn blocks(units: &[Unit]) -> Vec<BlockBytes> {
    let mut blocks: Vec<BlockBytes> = Vec::new();
    for unit in units.iter().filter(|unit| !unit.block().is_empty()) {
        match blocks.iter_mut().find(|block| block.name == unit.block()) {
            Some(block) => block.bytes += bytes(unit),
            None => blocks.push(BlockBytes { name: unit.block().to_owned(), bytes: bytes(unit) }),
        }
    }
    blocks
}

/// The largest sum of `len` neighbours.
fn largest_window(values: &[u64], len: usize) -> u64 {
    let len = len.min(values.len()).max(1);
    values.windows(len).map(|window| window.iter().sum()).max().unwrap_or(0)
}

/// What the rank at place `at` of `shards` holds between steps.
fn rank_bytes(
    units: &[Unit],
    strategy: &Strategy,
    workload: Workload,
    at: usize,
    shards: usize,
) -> RankBytes {
    let placement = strategy.placement;
    let mut held = RankBytes::default();
    let owned = shares(units, placement, (at, shards), workload.bucket_bytes).1;
    for (unit, owned) in units.iter().zip(owned) {
        let (whole, part) = (bytes(unit), (owned * unit.dtype().size_in_bytes()) as u64);
        let of = |kept: Held| if kept == Held::Replicated { whole } else { part };
        held.parameters += if unit.block().is_empty() { whole } else { of(placement.parameters) };
        if unit.trainable() {
            let state = of(placement.optimizer);
            held.gradients += of(placement.gradients);
            held.optimizer += workload.optimizer_numbers as u64 * state;
            held.averages += if workload.averages { state } else { 0 };
        }
    }
    held
}

/// Bytes that a rank sends in a step.
fn sent(buckets: &[BucketShare], strategy: &Strategy, workload: Workload, shards: usize) -> u64 {
    // One way around a ring of `among` ranks.
    let way = |bytes: u64, among: usize| (u128::from(bytes) * (among as u128 - 1) / among as u128) as u64;
    let placement = strategy.placement;
    let mut sent = 0;
    for bucket in buckets.iter().filter(|bucket| bucket.trainable) {
        let whole = bucket.bytes;
        sent += match placement.gradients {
            Held::Replicated => way(2 * whole, workload.ranks),
            // To the leader, and back as parameters.
            Held::Leader => 2 * way(whole, workload.ranks),
            // The parts are then summed over the groups' replicas.
            Held::Sharded => way(whole, shards) + way(2 * whole / shards as u64, workload.ranks / shards),
        };
        if placement.optimizer == Held::Sharded && !bucket.released {
            sent += way(whole, shards);
        }
    }
    let released = || buckets.iter().filter(|bucket| bucket.released);
    // What a forward ends with stays for the backward that begins with it, and so do as many before it as are gathered ahead.
    let last = released().filter(|bucket| bucket.is_last).count();
    let again = released().rev().skip(last + workload.prefetch);
    let passes: u64 = released().chain(again).map(|bucket| way(bucket.bytes, shards)).sum();
    sent + workload.micro_batches.max(1) as u64 * passes
}
