//! In what numbers a configuration computes, and what it recomputes.

use std::num::NonZeroUsize;
use std::sync::Arc;

use phalanx_tensor::optim::LossScale;
use phalanx_tensor::{Context, Precision, Recompute, TensorError};

use crate::config::Config;

/// For how many threads kernels cut their work where there are logical ranks, whatever threads there are.
const PARTS: NonZeroUsize = NonZeroUsize::new(4).unwrap();

/// The threads of a rank, which multiply as the precision says.
///
/// # Errors
/// If the environment asks for instructions that this processor does not have.
pub(super) fn context(config: &Config, threads: usize) -> Result<Arc<Context>, TensorError> {
    let context = Context::from_env(threads)?;
    let context = context.with_products(config.train.precision.products());
    Ok(Arc::new(match config.logical_ranks() {
        Some(_) => context.with_parts(PARTS),
        None => context,
    }))
}

/// What the loss is multiplied by, if it is.
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

/// Which blocks run a second time in backward.
pub(super) fn recompute(config: &Config) -> Recompute {
    match config.train.recompute {
        0 => Recompute::Never,
        every => Recompute::Every(every),
    }
}
