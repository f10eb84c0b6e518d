//! Passes of a pipeline whose values all ranks get.
//!
//! Such a pass reads numbers between its blocks and goes on by them: text that is generated token by token, the steps of a sampler. Every
//! rank runs the whole computation. Each block is computed by one rank, which sends its outputs to the others; what is computed between
//! blocks all ranks compute alike.

use std::sync::Arc;

use candle_core::DType;

use super::Tape;
use super::value::Value;
use crate::backend::Array;
use crate::{Result, TensorError};

/// The ranks of a pass whose values all of them get.
pub trait StageSharing: std::fmt::Debug + Send + Sync {
    /// True if this rank computes a block.
    fn computes(&self, block: &str) -> bool;

    /// Returns the array of the rank that computes a block. All ranks call this together, with contiguous arrays of equal shapes that
    /// this may write to.
    ///
    /// # Errors
    /// Errors of the transport.
    fn share(
        &self,
        block: &str,
        array: Array,
    ) -> std::result::Result<Array, Box<dyn std::error::Error + Send + Sync>>;
}

/// A pass whose values all ranks get.
#[derive(Debug)]
pub struct StageShare {
    /// The ranks.
    pub ranks: Arc<dyn StageSharing>,
    /// The type of parameters.
    pub dtype: DType,
}

impl Tape {
    /// Returns the outputs of a block with their numbers, on all ranks; those of blocks within blocks stay as they are.
    pub(super) fn shared(
        &self,
        share: &StageShare,
        (block, is_outermost): (&str, bool),
        outputs: Vec<Value>,
    ) -> Result<Vec<Value>> {
        if self.records() {
            let problem = format!(
                "block `{block}` is of a pass whose values all ranks of a pipeline get: it has no backward"
            );
            return Err(TensorError::Backward(problem));
        }
        match is_outermost {
            true => outputs.into_iter().map(|output| self.shared_value(share, block, output)).collect(),
            false => Ok(outputs),
        }
    }

    fn shared_value(&self, share: &StageShare, block: &str, value: Value) -> Result<Value> {
        let dtype = value.dtype()?;
        if !dtype.is_float() {
            // Indices are computed from data, which all ranks have.
            return Ok(value);
        }
        let array = match share.ranks.computes(block) {
            true => value.contiguous_part()?,
            false => self.backend().full(0.0, value.shape(), dtype)?,
        };
        Ok(value.with_array(share.ranks.share(block, array).map_err(TensorError::hook("share"))?))
    }
}
