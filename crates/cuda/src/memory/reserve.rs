//! Memory of a graph that is captured, or of work that is replayed: at fixed addresses, used again within it, and kept for it.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::block::{Block, Tracked};
use crate::{GpuError, Result};

/// Memory that was given out, with the bytes that were asked for.
type Sequence = Vec<(usize, Arc<Tracked>)>;

/// What a capture or the runs of a replay have allocated.
#[derive(Debug)]
pub(crate) struct Reserve {
    /// The number of the capture or the replay.
    scope: u64,
    owned: Vec<Arc<Block>>,
    /// What nobody has any more, of what may be used again; nothing while a sequence is repeated.
    free: Vec<Arc<Tracked>>,
    /// What was given out in the first run of this branch, in order. Later runs get it again.
    sequence: Sequence,
    /// How much of the sequence this run was given.
    at: usize,
    /// Whether nothing of this run is repeated.
    loose: bool,
    /// The branch that the run is in, and the sequences of the others.
    path: Vec<u64>,
    others: HashMap<Vec<u64>, Sequence>,
    /// By address: what was given out for good, and is never used for anything else.
    dedicated: HashSet<usize>,
}

/// What fits: no more than a quarter larger than what was asked for, so that large blocks are left for large arrays.
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

    /// Begins another run, which is given what the first one was.
    pub(crate) fn rewind(&mut self) {
        if std::mem::take(&mut self.loose) {
            self.sequence.clear();
        }
        self.go_to(Vec::new());
    }

    /// Lets the rest of this run take what is free; it is not what later ones are given.
    pub(super) fn loosen(&mut self) {
        if !std::mem::replace(&mut self.loose, true) {
            self.sequence.clear();
            self.at = 0;
            self.collect();
        }
    }

    /// Goes on in a branch of the branch that the run is in.
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

    /// What follows is recorded, with all memory that nobody has.
    fn collect(&mut self) {
        let all = self.owned.iter().map(|block| block.tracked());
        self.free = all.filter(|tracked| self.may_be_used(tracked)).cloned().collect();
    }

    /// Memory for so many bytes: what was given out at this place of the first run, or else the smallest that fits and that nobody
    /// has any more; none if there is none.
    pub(super) fn take(&mut self, asked: usize, dedicated: bool) -> Result<Option<Arc<Tracked>>> {
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
                // It is lent when this returns.
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

    /// Memory that is this one's from now on, and is given out for `asked` bytes; for good if it is dedicated.
    pub(super) fn own(&mut self, block: Block, asked: usize, dedicated: bool) {
        let tracked = block.tracked().clone();
        self.owned.push(Arc::new(block));
        self.given(asked, &tracked, dedicated && !self.loose);
    }

    fn given(&mut self, asked: usize, tracked: &Arc<Tracked>, dedicated: bool) {
        if dedicated {
            self.dedicated.insert(Arc::as_ptr(tracked).addr());
        }
        if !self.loose {
            self.sequence.push((asked, tracked.clone()));
            self.at = self.sequence.len();
        }
    }

    /// Memory that nobody has any more.
    pub(super) fn give_back(&mut self, tracked: &Arc<Tracked>) {
        if self.at == self.sequence.len() && self.may_be_used(tracked) {
            self.free.push(tracked.clone());
        }
    }

    /// Whether nobody has memory, and it is nobody's own.
    fn may_be_used(&self, tracked: &Arc<Tracked>) -> bool {
        tracked.loans() == 0 && !self.dedicated.contains(&Arc::as_ptr(tracked).addr())
    }

    /// Bytes that it has.
    pub(crate) fn bytes(&self) -> usize {
        self.owned.iter().map(|block| block.tracked().bytes()).sum()
    }

    /// All of it.
    pub(crate) fn into_owned(self) -> Vec<Arc<Block>> {
        self.owned
    }
}

#[cfg(test)]
mod tests {
    use super::fits;

    #[test]
    fn what_is_used_again_is_not_much_larger() {
        assert!(fits(1000, 1000) && fits(1700, 1000) && !fits(999, 1000));
        assert!(!fits(1 << 20, 1000) && fits(5 << 20, 4 << 20) && !fits(6 << 20, 4 << 20));
    }
}
