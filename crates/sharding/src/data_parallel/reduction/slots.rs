//! Gradients of the logical ranks of one rank: kept apart, and added up along the tree over all.

use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

use phalanx_tensor::{FlatStorage, ParamBucket, UnreducedGrads};

use crate::virtual_ranks::SumTree;
use crate::{Result, ShardingError};

/// The sums of some runs of shards, those that follow each other in order.
pub(super) type Sums = Vec<(Range<usize>, FlatStorage)>;

/// Memory that gradients and their sums have lain in, by bucket: for the next.
#[derive(Debug)]
pub(super) struct Spares(Mutex<Vec<Vec<FlatStorage>>>);

impl Spares {
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

    /// Bytes of it.
    pub(super) fn bytes(&self) -> u64 {
        self.buckets().iter().flatten().map(|spare| spare.bytes() as u64).sum()
    }

    fn buckets(&self) -> MutexGuard<'_, Vec<Vec<FlatStorage>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A step's gradients of the logical ranks of this rank.
#[derive(Debug)]
pub(super) struct ShardSlots {
    own: Range<usize>,
    tree: SumTree,
    /// The virtual rank that backward adds to, counted from the first of this rank.
    current: usize,
    /// By logical rank: whether more micro-batches of it follow.
    more: Vec<bool>,
    /// By logical rank and bucket: what it has come to while others have their turn.
    waiting: Vec<Vec<UnreducedGrads>>,
    /// By bucket: the sums so far, and how many logical ranks they are of.
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

    /// Bytes of gradients besides those that backward adds to.
    pub(super) fn bytes(&self) -> u64 {
        let waiting = self.waiting.iter().flatten().map(UnreducedGrads::bytes).sum::<usize>();
        let sums = self.sums.iter().flatten().map(|(_, sum)| sum.bytes()).sum::<usize>();
        (waiting + sums) as u64
    }

    /// Selects virtual rank `at`: the gradients of `params`, whose sums have not started, are its own.
    pub(super) fn turn<'p>(
        &mut self,
        at: usize,
        more: Option<bool>,
        params: impl Iterator<Item = &'p ParamBucket>,
        spares: &Spares,
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

    /// All uses of a bucket by the logical rank whose turn it is are differentiated. True if its gradients are the last and can be
    /// summed with those of other ranks.
    pub(super) fn ready(&mut self, param: &ParamBucket, spares: &Spares) -> Result<bool> {
        let (bucket, current) = (param.index(), self.current);
        if self.more[current] || self.added[bucket] != current {
            // If those before it have not come to this bucket they may not use it; that is known when all are through.
            return Ok(false);
        }
        if current == self.last() {
            return Ok(true);
        }
        let gradients = param.take_unreduced()?;
        self.add(bucket, gradients, spares)?;
        Ok(false)
    }

    /// All logical ranks are through: the gradients of `params` become those of the last, and those of the others are added up, zero
    /// where none came.
    pub(super) fn settle<'p>(
        &mut self,
        params: impl Iterator<Item = &'p ParamBucket> + Clone,
        spares: &Spares,
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

    /// The sums of this rank's whole subtrees, given the gradients of the last logical rank, whose memory the last sum is in.
    pub(super) fn close(&mut self, bucket: usize, full: &FlatStorage, spares: &Spares) -> Result<Sums> {
        let last = self.own.end - 1;
        let mut sums = std::mem::take(&mut self.sums[bucket]);
        self.tree.push(&mut sums, (last..self.own.end, full.clone()), |left, right| {
            right.add(&left)?;
            spares.keep(bucket, left);
            Ok::<_, ShardingError>(right)
        })?;
        Ok(sums)
    }

    /// Adds the gradients of the next logical rank.
    fn add(&mut self, bucket: usize, gradients: FlatStorage, spares: &Spares) -> Result<()> {
        let shard = self.own.start + self.added[bucket];
        self.added[bucket] += 1;
        self.tree.push(&mut self.sums[bucket], (shard..shard + 1, gradients), |left, right| {
            left.add(&right)?;
            spares.keep(bucket, right);
            Ok(left)
        })
    }
}
