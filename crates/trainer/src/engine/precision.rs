//! Precision, loss scaling and recomputation of a configuration.

use std::num::NonZeroUsize;
use std::sync::Arc;

use phalanx_tensor::optim::LossScale;
use phalanx_tensor::{Context, Precision, Recompute, TensorError};

use phalanx_config::Config;

/// The number of parts that kernels cut their work into with virtual ranks, for any number of threads.
const PARTS: NonZeroUsize = NonZeroUsize::new(4).unwrap();

/// Creates the threads of a rank, with products of the configured precision.
///
/// # Errors
/// If the environment asks for instructions that this CPU does not have.
pub(super) fn context(config: &Config, threads: usize) -> Result<Arc<Context>, TensorError> {
    let context = Context::from_env(threads)?;
    let context = context.with_products(config.train.precision.products());
    Ok(Arc::new(match config.logical_ranks() {
        Some(_) => context.with_parts(PARTS),
        None => context,
    }))
}

/// Creates the loss scale, if the loss is scaled.
///
/// # Errors
/// If the configured number cannot be a scale.
pub(super) fn loss_scale(config: &Config) -> Result<Option<LossScale>, TensorError> {
    match (config.train.loss_scale, config.train.precision) {
        (0.0, Precision::F16) => Ok(Some(LossScale::dynamic()?)),
        (0.0, _) => Ok(None),
        (fixed, _) => Ok(Some(LossScale::fixed(fixed)?)),
    }
}

/// The blocks that run a second time in backward.
pub(super) fn recompute(config: &Config) -> Recompute {
    match config.train.recompute {
        0 => Recompute::Never,
        every => Recompute::Every(every),
    }
}
