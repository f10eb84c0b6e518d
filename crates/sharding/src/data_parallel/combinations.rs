//! The combinations of strategies and options that [`super::DataParallel`] accepts.

use candle_core::DType;
use phalanx_tensor::ParamBucket;

use crate::options::Options;
use crate::strategy::Strategy;
use crate::{Result, ShardingError};

/// A model, a strategy and options, to be checked together.
pub(super) struct Combination<'a> {
    pub(super) params: &'a [ParamBucket],
    pub(super) strategy: &'a Strategy,
    pub(super) options: &'a Options,
}

/// One condition on what is combined.
struct Condition {
    /// True if the condition applies.
    applies: fn(&Combination<'_>) -> bool,
    check: fn(&Combination<'_>) -> Result<()>,
}

/// All conditions, in the order in which they are checked:
///
/// | chosen | needs |
/// |---|---|
/// | any strategy | steps that all ranks take together, and the algorithm's collectives |
/// | parameters on the host | a strategy whose ranks update what they keep |
/// | rounded parameters | a strategy that gathers parameters; parameters of f32 |
/// | a codec | trainable parameters of f32 |
const CONDITIONS: [Condition; 6] = [
    Condition { applies: |_| true, check: takes_steps_together },
    Condition { applies: |_| true, check: |all| all.strategy.goes_by(all.options.algorithm) },
    Condition { applies: |all| all.is_offloaded(), check: |all| all.strategy.keeps_on_host() },
    Condition { applies: |all| all.options.weights.is_some(), check: |all| all.strategy.moves_parameters() },
    Condition { applies: |all| all.options.weights.is_some(), check: rounds_f32 },
    Condition { applies: |all| all.options.codec.is_some(), check: encodes_f32 },
];

impl Combination<'_> {
    /// True if parameters are kept on the host, and come to a device with the blocks that use them.
    pub(super) fn is_offloaded(&self) -> bool {
        self.params.iter().any(ParamBucket::is_offloaded)
    }

    /// Checks all conditions.
    ///
    /// # Errors
    /// [`ShardingError::Strategy`] or [`ShardingError::Codec`] of the first condition that does not hold.
    pub(super) fn check(&self) -> Result<()> {
        let mut applying = CONDITIONS.iter().filter(|condition| (condition.applies)(self));
        applying.try_for_each(|condition| (condition.check)(self))
    }
}

fn takes_steps_together(all: &Combination<'_>) -> Result<()> {
    match all.strategy.is_bulk_synchronous() {
        true => Ok(()),
        false => {
            let problem = "does not take every step together; `parallelize` makes it";
            Err(ShardingError::strategy(all.strategy.name, problem))
        }
    }
}

fn rounds_f32(all: &Combination<'_>) -> Result<()> {
    let other = all.params.iter().find(|param| param.dtype() != DType::F32);
    match (other, all.options.weights) {
        (Some(param), Some(weights)) => {
            let problem = format!("rounds parameters of f32, not {}", param.dtype().as_str());
            Err(ShardingError::codec(weights.name(), problem))
        }
        _ => Ok(()),
    }
}

fn encodes_f32(all: &Combination<'_>) -> Result<()> {
    let other = all.params.iter().find(|param| param.trainable() && param.dtype() != DType::F32);
    match (other, &all.options.codec) {
        (Some(param), Some(codec)) => {
            let problem = format!("encodes gradients of f32, not {}", param.dtype().as_str());
            Err(ShardingError::codec(codec.name(), problem))
        }
        _ => Ok(()),
    }
}
