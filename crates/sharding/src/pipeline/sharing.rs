//! Passes that read numbers: every rank runs them, and gets the results of the blocks that others compute.

use std::sync::Arc;

use candle_core::DType;
use phalanx_codecs::buffer::InPlace;
use phalanx_collectives::Communicator;
use phalanx_tensor::{Array, StageShare, StageSharing};

use super::stage_params::StageParams;

/// The ranks along a pipeline, each of which computes the blocks whose parameters it holds.
#[derive(Debug)]
struct SharedBlocks {
    comm: Communicator,
    params: Arc<StageParams>,
}

/// Returns the part of passes without backward that read numbers between blocks, such as those that generate text or draw images: all
/// ranks along a pipeline, those of `comm`, run them together. `dtype` is the type of parameters.
pub fn shared_blocks(comm: &Communicator, params: &Arc<StageParams>, dtype: DType) -> Arc<StageShare> {
    let ranks = Arc::new(SharedBlocks { comm: comm.clone(), params: params.clone() });
    Arc::new(StageShare { ranks, dtype })
}

/// The other ranks, whose values have no numbers.
#[derive(Debug)]
struct PlayedBlocks;

/// As [`shared_blocks`], on a rank to which the others are played.
pub(super) fn played_blocks(dtype: DType) -> Arc<StageShare> {
    Arc::new(StageShare { ranks: Arc::new(PlayedBlocks), dtype })
}

impl StageSharing for PlayedBlocks {
    fn computes(&self, _: &str) -> bool {
        false
    }

    fn share(&self, _: &str, array: Array) -> Result<Array, Box<dyn std::error::Error + Send + Sync>> {
        Ok(array)
    }
}

impl StageSharing for SharedBlocks {
    fn computes(&self, block: &str) -> bool {
        self.params.rank_of_block(block) == self.comm.rank()
    }

    fn share(&self, block: &str, array: Array) -> Result<Array, Box<dyn std::error::Error + Send + Sync>> {
        let dtype = array.dtype();
        // On hosts numbers of 16 bits are stored only, and f32 holds them.
        let is_narrow = array.is_host() && matches!(dtype, DType::BF16 | DType::F16);
        let array = match is_narrow {
            true => array.host("share")?.to_dtype(DType::F32)?.into(),
            false => array,
        };
        self.comm.broadcast(&mut InPlace::of(&array)?, self.params.rank_of_block(block))?;
        match is_narrow {
            true => Ok(array.host("share")?.to_dtype(dtype)?.into()),
            false => Ok(array),
        }
    }
}
