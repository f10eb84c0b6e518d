//! Keeps the gradients of each virtual rank of this rank apart, and sums them along the tree over all virtual ranks.

use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

use phalanx_tensor::{FlatStorage, ParamBucket, UnreducedGrads};

use crate::virtual_ranks::SumTree;
use crate::{Result, ShardingError};

/// Sums of adjacent ranges of shards, in order.
pub(super) type Sums = Vec<(Range<usize>, FlatStorage)>;

/// Free buffers for gradients and sums, by bucket.
#[derive(Debug)]
pub(super) struct SpareBuffers(Mutex<Vec<Vec<FlatStorage>>>);

impl SpareBuffers {
    /// Makes an empty store of `buckets` buckets.
    pub(super) fn new(buckets: usize) -> Self {
        Self(Mutex::new(vec![Vec::new(); buckets]))
    }

    fn take(&self, bucket: usize) -> Option<FlatStorage> {
        self.buckets()[bucket].pop()
    }

    pub(super) fn keep(&self, bucket: usize, spare: FlatStorage) {
        self.buckets()[bucket].push(spare);
    }

    /// Returns the bytes of the free buffers.
    pub(super) fn bytes(&self) -> u64 {
        self.buckets().iter().flatten().map(|spare| spare.bytes() as u64).sum()
    }

    fn buckets(&self) -> MutexGuard<'_, Vec<Vec<FlatStorage>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The gradients of this rank's virtual ranks in one step.
#[derive(Debug)]
pub(super) struct ShardSlots {
    own: Range<usize>,
    tree: SumTree,
    /// The virtual rank that backward adds to, counted from the first of this rank.
    current: usize,
    /// For each virtual rank, true if more of its micro-batches follow.
    more: Vec<bool>,
    /// The gradients of inactive virtual ranks, by virtual rank and bucket.
    waiting: Vec<Vec<UnreducedGrads>>,
    /// The partial sums, by bucket.
    sums: Vec<Sums>,
    added: Vec<usize>,
}

impl ShardSlots {
    /// Makes the slots of virtual ranks `own`, for `buckets` buckets.
    pub(super) fn new(own: Range<usize>, tree: SumTree, buckets: usize) -> Self {
        let nothing = || std::iter::repeat_with(UnreducedGrads::default).take(buckets).collect();
        Self {
            tree,
            current: 0,
            more: vec![false; own.len()],
            waiting: own.clone().map(|_| nothing()).collect(),
            sums: std::iter::repeat_with(Vec::new).take(buckets).collect(),
            added: vec![0; buckets],
            own,
        }
    }

    fn last(&self) -> usize {
        self.own.len() - 1
    }

    /// Returns the bytes of gradients other than the active virtual rank's.
    pub(super) fn bytes(&self) -> u64 {
        let waiting = self.waiting.iter().flatten().map(UnreducedGrads::bytes).sum::<usize>();
        let sums = self.sums.iter().flatten().map(|(_, sum)| sum.bytes()).sum::<usize>();
        (waiting + sums) as u64
    }

    /// Selects virtual rank `at`: swaps its gradients into `params`, whose sums have not started.
    pub(super) fn turn<'p>(
        &mut self,
        at: usize,
        more: Option<bool>,
        params: impl Iterator<Item = &'p ParamBucket>,
        spares: &SpareBuffers,
    ) -> Result<()> {
        if let Some(more) = more {
            self.more[at] = more;
        }
        if at == self.current {
            return Ok(());
        }
        for param in params {
            let bucket = param.index();
            param.swap_unreduced(&mut self.waiting[self.current][bucket])?;
            let own = &mut self.waiting[at][bucket];
            if own.bytes() == 0
                && self.added[bucket] <= at
                && let Some(spare) = spares.take(bucket)
            {
                *own = UnreducedGrads::with_memory(spare);
            }
            param.swap_unreduced(own)?;
        }
        self.current = at;
        Ok(())
    }

    /// Adds the complete gradients of a bucket of the active virtual rank. Returns true for the last virtual rank: then
    /// the sum over ranks can start.
    pub(super) fn ready(&mut self, param: &ParamBucket, spares: &SpareBuffers) -> Result<bool> {
        let (bucket, current) = (param.index(), self.current);
        if self.more[current] || self.added[bucket] != current {
            // Earlier virtual ranks may not use this bucket. `settle` handles them.
            return Ok(false);
        }
        if current == self.last() {
            return Ok(true);
        }
        let gradients = param.take_unreduced()?;
        self.add(bucket, gradients, spares)?;
        Ok(false)
    }

    /// Selects the last virtual rank and adds the gradients of all others, with zeros where they have none. Call it
    /// when all virtual ranks are done.
    pub(super) fn settle<'p>(
        &mut self,
        params: impl Iterator<Item = &'p ParamBucket> + Clone,
        spares: &SpareBuffers,
    ) -> Result<()> {
        self.turn(self.last(), None, params.clone(), spares)?;
        for param in params {
            let bucket = param.index();
            for at in self.added[bucket]..self.last() {
                param.swap_unreduced(&mut self.waiting[at][bucket])?;
                let gradients = param.take_unreduced()?;
                param.swap_unreduced(&mut self.waiting[at][bucket])?;
                self.add(bucket, gradients, spares)?;
            }
        }
        Ok(())
    }

    /// Returns the sums of this rank's whole subtrees. `full` has the gradients of the last virtual rank, and its
    /// memory receives the last sum.
    pub(super) fn close(&mut self, bucket: usize, full: &FlatStorage, spares: &SpareBuffers) -> Result<Sums> {
        let last = self.own.end - 1;
        let mut sums = std::mem::take(&mut self.sums[bucket]);
        self.tree.push(&mut sums, (last..self.own.end, full.clone()), |left, right| {
            right.add(&left)?;
            spares.keep(bucket, left);
            Ok::<_, ShardingError>(right)
        })?;
        Ok(sums)
    }

    /// Adds the gradients of the next virtual rank.
    fn add(&mut self, bucket: usize, gradients: FlatStorage, spares: &SpareBuffers) -> Result<()> {
        let shard = self.own.start + self.added[bucket];
        self.added[bucket] += 1;
        self.tree.push(&mut self.sums[bucket], (shard..shard + 1, gradients), |left, right| {
            left.add(&right)?;
            spares.keep(bucket, right);
            Ok(left)
        })
    }
}
