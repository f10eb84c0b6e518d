//! Random numbers with the GPU kernels: the streams of [`Key`].

use candle_core::{DType, Shape};
use phalanx_cuda::kernels::{self, StreamKey};

use super::{Cuda, element_type};
use crate::backend::{Array, Random};
use crate::{Key, Result};

pub(super) fn stream(key: Key) -> StreamKey {
    let [seed, step, rank, stream] = key.words();
    StreamKey { seed, step, rank, stream }
}

impl Random for Cuda {
    fn dropout_mask(&self, key: Key, start: usize, shape: &Shape, p: f64) -> Result<Array> {
        let mask = kernels::dropout_mask(self.gpu(), stream(key), start, shape.elem_count(), p)?;
        Ok(self.array(mask, shape.clone()))
    }

    fn dropout(&self, x: &Array, mask: &Array, p: f64) -> Result<Array> {
        const OP: &str = "dropout";
        let y = kernels::dropout(self.gpu(), self.slice(OP, x)?, self.slice(OP, mask)?, p)?;
        Ok(self.array(y, x.shape().clone()))
    }

    fn gaussian_noise(&self, key: Key, start: usize, shape: &Shape, dtype: DType) -> Result<Array> {
        let dtype = element_type("gaussian_noise", dtype)?;
        let drawn = kernels::normal(self.gpu(), stream(key), start, shape.elem_count(), dtype)?;
        Ok(self.array(drawn, shape.clone()))
    }
}
