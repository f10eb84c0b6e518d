//! Updates of parameters by their gradients, on the training thread or on a server.

use std::fmt::Debug;
use std::sync::{Arc, Mutex, PoisonError};

use phalanx_tensor::optim::Optimizer;
use phalanx_tensor::{Context, ParamBucket};

/// Changes parameters by their gradients: an optimizer, and what follows every one of its steps.
pub trait OptimizerUpdate: Debug + Send {
    /// One change of the owned elements of these parameters.
    ///
    /// # Errors
    /// The optimizer's.
    fn apply(&mut self, params: &[ParamBucket], learning_rate: f64) -> phalanx_tensor::Result<()>;
}

/// An update that the training thread, a server's thread and checkpoints share.
pub type SharedUpdate = Arc<Mutex<dyn OptimizerUpdate>>;

/// An optimizer and nothing else as a rule.
#[derive(Debug)]
pub struct PlainUpdate<O> {
    optimizer: O,
    context: Context,
}

impl<O: Optimizer + 'static> PlainUpdate<O> {
    /// Makes the update of an optimizer that computes with `threads` threads.
    pub fn of(optimizer: O, threads: usize) -> SharedUpdate {
        Arc::new(Mutex::new(Self { optimizer, context: Context::new(threads) }))
    }
}

impl<O: Optimizer> OptimizerUpdate for PlainUpdate<O> {
    fn apply(&mut self, params: &[ParamBucket], learning_rate: f64) -> phalanx_tensor::Result<()> {
        self.optimizer.step(params, learning_rate, &self.context)
    }
}

/// Applies a shared update.
pub(crate) fn apply(
    rule: &SharedUpdate,
    params: &[ParamBucket],
    learning_rate: f64,
) -> phalanx_tensor::Result<()> {
    rule.lock().unwrap_or_else(PoisonError::into_inner).apply(params, learning_rate)
}
