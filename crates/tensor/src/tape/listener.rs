//! The few calls that everything distributed hangs on.

use crate::error::HookResult;
use crate::store::FlatParam;

/// Is told how far forward and backward have come.
///
/// Calls come on the thread that runs the tape, in an order that depends only on the model, so that ranks that
/// run the same model issue the same collectives in the same order. A block that is recomputed in backward
/// reports its forward once; its recomputation happens between *before* and *after backward*.
pub trait Listener: std::fmt::Debug + Send + Sync {
    /// Block `block` is about to run forward: its parameters must be in memory when this returns.
    ///
    /// # Errors
    /// Whatever keeps the pass from going on.
    fn before_forward(&self, block: &str) -> HookResult {
        let _ = block;
        Ok(())
    }

    /// Block `block` has run forward: its parameters may leave memory.
    ///
    /// # Errors
    /// Whatever keeps the pass from going on.
    fn after_forward(&self, block: &str) -> HookResult {
        let _ = block;
        Ok(())
    }

    /// Backward has come to the end of block `block`: its parameters must be in memory when this returns.
    ///
    /// # Errors
    /// Whatever keeps the pass from going on.
    fn before_backward(&self, block: &str) -> HookResult {
        let _ = block;
        Ok(())
    }

    /// Backward has passed the start of block `block`: its parameters may leave memory.
    ///
    /// # Errors
    /// Whatever keeps the pass from going on.
    fn after_backward(&self, block: &str) -> HookResult {
        let _ = block;
        Ok(())
    }

    /// Every use of these parameters on this tape has been differentiated: their gradients are complete, zero for those that
    /// were not used.
    ///
    /// # Errors
    /// Whatever keeps the pass from going on.
    fn gradients_ready(&self, flat_param: &FlatParam) -> HookResult {
        let _ = flat_param;
        Ok(())
    }
}

/// Listens to passes that nobody listens to.
#[derive(Debug)]
pub(super) struct Nobody;

impl Listener for Nobody {}
