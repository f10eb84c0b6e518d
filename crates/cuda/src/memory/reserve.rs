//! Memory of a graph that is captured: at fixed addresses, used again within the capture, and kept for the graph.

use std::sync::Arc;

use super::block::{Block, Tracked};

/// What a capture has allocated.
#[derive(Debug)]
pub(super) struct Reserve {
    /// The capture's number.
    pub(super) capture: u64,
    owned: Vec<Arc<Block>>,
    free: Vec<Arc<Tracked>>,
}

/// What fits: no more than a quarter larger than what was asked for, so that large blocks are left for large arrays.
fn fits(bytes: usize, asked: usize) -> bool {
    bytes >= asked && bytes - asked <= asked / 4 + 512
}

impl Reserve {
    pub(super) fn new(capture: u64) -> Self {
        Self { capture, owned: Vec::new(), free: Vec::new() }
    }

    /// The smallest memory that fits and that nobody has any more.
    pub(super) fn take(&mut self, asked: usize) -> Option<Arc<Tracked>> {
        let fitting = self.free.iter().enumerate().filter(|(_, one)| fits(one.bytes(), asked));
        let (at, _) = fitting.min_by_key(|(_, one)| one.bytes())?;
        Some(self.free.swap_remove(at))
    }

    /// Memory that is the graph's from now on.
    pub(super) fn own(&mut self, block: Block) {
        self.owned.push(Arc::new(block));
    }

    /// Memory that nobody has any more.
    pub(super) fn give_back(&mut self, tracked: &Arc<Tracked>) {
        self.free.push(tracked.clone());
    }

    /// All of it.
    pub(super) fn into_owned(self) -> Vec<Arc<Block>> {
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
