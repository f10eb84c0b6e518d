//! Memory of a captured graph or a replay: at fixed addresses, reused within a run, and kept until the graph is dropped.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::block::{Block, TrackedMemory};
use crate::{GpuError, Result};

/// Allocations in order, with the requested bytes.
type Sequence = Vec<(usize, Arc<TrackedMemory>)>;

/// The memory that a capture or the runs of a replay have allocated.
#[derive(Debug)]
pub(crate) struct Reserve {
    /// The number of the capture or replay.
    scope: u64,
    owned: Vec<Arc<Block>>,
    /// Unused memory that may be reused. Empty while a sequence is repeated.
    free: Vec<Arc<TrackedMemory>>,
    /// The allocations of the first run of this branch, in order. Later runs get the same memory.
    sequence: Sequence,
    /// The position of this run in the sequence.
    at: usize,
    /// True if this run does not repeat a sequence.
    loose: bool,
    /// The branch of this run, and the sequences of the other branches.
    path: Vec<u64>,
    others: HashMap<Vec<u64>, Sequence>,
    /// Addresses of memory that is never reused.
    dedicated: HashSet<usize>,
}

/// Returns true if memory fits: at most a quarter larger than requested, so that large blocks stay free for large arrays.
fn fits(bytes: usize, asked: usize) -> bool {
    bytes >= asked && bytes - asked <= asked / 4 + 512
}

impl Reserve {
    pub(crate) fn new(scope: u64) -> Self {
        Self {
            scope,
            owned: Vec::new(),
            free: Vec::new(),
            sequence: Sequence::new(),
            at: 0,
            loose: false,
            path: Vec::new(),
            others: HashMap::new(),
            dedicated: HashSet::new(),
        }
    }

    pub(super) fn scope(&self) -> u64 {
        self.scope
    }

    /// Begins another run, which gets the memory of the first one.
    pub(crate) fn rewind(&mut self) {
        if std::mem::take(&mut self.loose) {
            self.sequence.clear();
        }
        self.go_to(Vec::new());
    }

    /// Lets the rest of this run use free memory. Later runs do not repeat it.
    pub(super) fn loosen(&mut self) {
        if !std::mem::replace(&mut self.loose, true) {
            self.sequence.clear();
            self.at = 0;
            self.collect();
        }
    }

    /// Enters a branch of the current branch.
    pub(super) fn branch(&mut self, key: u64) {
        let path = self.path.iter().copied().chain([key]).collect();
        self.go_to(path);
    }

    fn go_to(&mut self, path: Vec<u64>) {
        let sequence = std::mem::take(&mut self.sequence);
        let left = std::mem::replace(&mut self.path, path);
        if !sequence.is_empty() {
            self.others.insert(left, sequence);
        }
        self.sequence = self.others.remove(&self.path).unwrap_or_default();
        self.at = 0;
        self.free.clear();
        if self.sequence.is_empty() {
            self.collect();
        }
    }

    /// Collects all unused memory before a sequence is recorded.
    fn collect(&mut self) {
        let all = self.owned.iter().map(|block| block.tracked());
        self.free = all.filter(|tracked| self.may_be_used(tracked)).cloned().collect();
    }

    /// Returns memory for the requested bytes: the memory at this position of the first run, or the smallest unused memory that
    /// fits. None if there is none.
    pub(super) fn take(&mut self, asked: usize, dedicated: bool) -> Result<Option<Arc<TrackedMemory>>> {
        let dedicated = dedicated && !self.loose;
        if let Some((bytes, tracked)) = self.sequence.get(self.at) {
            if *bytes != asked {
                let (action, problem) = (format!("memory of {asked} bytes"), format!("{bytes} bytes were"));
                return Err(GpuError::Replay { action, problem });
            }
            let tracked = tracked.clone();
            self.at += 1;
            if self.at == self.sequence.len() {
                self.collect();
                // The caller uses it from now on.
                self.free.retain(|free| !Arc::ptr_eq(free, &tracked));
            }
            return Ok(Some(tracked));
        }
        let fitting = self.free.iter().enumerate().filter(|(_, one)| !dedicated && fits(one.bytes(), asked));
        let Some((at, _)) = fitting.min_by_key(|(_, one)| one.bytes()) else { return Ok(None) };
        let tracked = self.free.swap_remove(at);
        self.given(asked, &tracked, false);
        Ok(Some(tracked))
    }

    /// Adds a new allocation, for `asked` bytes. Dedicated memory is never reused.
    pub(super) fn own(&mut self, block: Block, asked: usize, dedicated: bool) {
        let tracked = block.tracked().clone();
        self.owned.push(Arc::new(block));
        self.given(asked, &tracked, dedicated && !self.loose);
    }

    fn given(&mut self, asked: usize, tracked: &Arc<TrackedMemory>, dedicated: bool) {
        if dedicated {
            self.dedicated.insert(Arc::as_ptr(tracked).addr());
        }
        if !self.loose {
            self.sequence.push((asked, tracked.clone()));
            self.at = self.sequence.len();
        }
    }

    /// Makes unused memory available again.
    pub(super) fn give_back(&mut self, tracked: &Arc<TrackedMemory>) {
        if self.at == self.sequence.len() && self.may_be_used(tracked) {
            self.free.push(tracked.clone());
        }
    }

    /// Returns true if memory is unused and not dedicated.
    fn may_be_used(&self, tracked: &Arc<TrackedMemory>) -> bool {
        tracked.loans() == 0 && !self.dedicated.contains(&Arc::as_ptr(tracked).addr())
    }

    /// Returns the bytes of all memory.
    pub(crate) fn bytes(&self) -> usize {
        self.owned.iter().map(|block| block.tracked().bytes()).sum()
    }

    /// Returns all memory.
    pub(crate) fn into_owned(self) -> Vec<Arc<Block>> {
        self.owned
    }
}

#[cfg(test)]
mod tests {
    use super::fits;

    #[test]
    fn reused_memory_is_not_much_larger() {
        assert!(fits(1000, 1000) && fits(1700, 1000) && !fits(999, 1000));
        assert!(!fits(1 << 20, 1000) && fits(5 << 20, 4 << 20) && !fits(6 << 20, 4 << 20));
    }
}
