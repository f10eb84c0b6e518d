//! The interface between the tape and distributed strategies.

use crate::error::HookResult;
use crate::store::ParamBucket;

/// Callbacks about the progress of forward and backward.
///
/// The thread of the tape makes the calls, in an order that depends only on the model. So ranks with the same model
/// issue the same collectives in the same order. A block that is recomputed in backward reports its forward once; the
/// recomputation is between *before* and *after backward*.
pub trait Listener: std::fmt::Debug + Send + Sync {
    /// Block `block` will run forward. Its parameters must be in memory on return.
    ///
    /// # Errors
    /// The reason that the pass cannot continue.
    fn before_forward(&self, block: &str) -> HookResult {
        let _ = block;
        Ok(())
    }

    /// Block `block` has run forward. Its parameters may be released.
    ///
    /// # Errors
    /// The reason that the pass cannot continue.
    fn after_forward(&self, block: &str) -> HookResult {
        let _ = block;
        Ok(())
    }

    /// Backward will enter block `block` at its end. Its parameters must be in memory on return.
    ///
    /// # Errors
    /// The reason that the pass cannot continue.
    fn before_backward(&self, block: &str) -> HookResult {
        let _ = block;
        Ok(())
    }

    /// Backward has passed the start of block `block`. Its parameters may be released.
    ///
    /// # Errors
    /// The reason that the pass cannot continue.
    fn after_backward(&self, block: &str) -> HookResult {
        let _ = block;
        Ok(())
    }

    /// Backward has passed all uses of these parameters on this tape. Their gradients are complete; unused parameters
    /// have zeros.
    ///
    /// # Errors
    /// The reason that the pass cannot continue.
    fn gradients_ready(&self, bucket: &ParamBucket) -> HookResult {
        let _ = bucket;
        Ok(())
    }
}

/// A listener that does nothing.
#[derive(Debug)]
pub(super) struct NoListener;

impl Listener for NoListener {}
