//! The listener of passes through several networks.

use std::collections::BTreeMap;
use std::sync::Arc;

use phalanx_sharding::ParallelStrategy;
use phalanx_tensor::{HookResult, Listener, ParamBucket};

use super::Network;

/// Creates the listener of passes through these networks; `None` for the only rank, unless parameters are offloaded.
pub(in crate::engine) fn listener<'n>(
    networks: impl Iterator<Item = &'n Network>,
) -> Option<Arc<dyn Listener>> {
    let shared: Vec<_> = networks.filter_map(|network| Some((network, network.listener()?))).collect();
    match shared.as_slice() {
        [] => None,
        [(_, only)] => Some(only.clone()),
        several => {
            let (mut by_block, mut by_param) = (BTreeMap::new(), BTreeMap::new());
            for (network, parallel) in several {
                for param in network.store().buckets() {
                    by_block.extend(param.blocks().map(|block| (block.to_owned(), parallel.clone())));
                    let first = param.entries().first().map(|entry| entry.name.clone());
                    by_param.extend(first.map(|name| (name, parallel.clone())));
                }
            }
            // Parameters outside of blocks are not reported by blocks.
            by_block.remove("");
            Some(Arc::new(Listeners { by_block, by_param }))
        }
    }
}

/// Passes each event on to the strategy instance of its network. Names of different networks differ.
#[derive(Debug)]
struct Listeners {
    by_block: BTreeMap<String, Arc<dyn ParallelStrategy>>,
    /// By the first parameter of a bucket.
    by_param: BTreeMap<String, Arc<dyn ParallelStrategy>>,
}

impl Listeners {
    fn of_block(&self, block: &str, tell: impl FnOnce(&dyn ParallelStrategy) -> HookResult) -> HookResult {
        self.by_block.get(block).map_or(Ok(()), |parallel| tell(&**parallel))
    }
}

impl Listener for Listeners {
    fn before_forward(&self, block: &str) -> HookResult {
        self.of_block(block, |parallel| parallel.before_forward(block))
    }

    fn after_forward(&self, block: &str) -> HookResult {
        self.of_block(block, |parallel| parallel.after_forward(block))
    }

    fn before_backward(&self, block: &str) -> HookResult {
        self.of_block(block, |parallel| parallel.before_backward(block))
    }

    fn after_backward(&self, block: &str) -> HookResult {
        self.of_block(block, |parallel| parallel.after_backward(block))
    }

    fn gradients_ready(&self, param: &ParamBucket) -> HookResult {
        let first = param.entries().first().and_then(|entry| self.by_param.get(&entry.name));
        first.map_or(Ok(()), |parallel| parallel.gradients_ready(param))
    }
}
