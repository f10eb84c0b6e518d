//! Random numbers with the GPU kernels: the streams of [`Key`].

use candle_core::{DType, Shape};
use phalanx_cuda::kernels::{self, StreamKey};

use super::{Cuda, element_type};
use crate::backend::{Array, Dropout, Random};
use crate::{Key, Result};

/// Returns the dropout of the kernels.
pub(super) fn dropout_of(Dropout { key, p, first_sample, part }: Dropout) -> kernels::Dropout {
    let part = part.map(|part| kernels::SamplePart { first: part.first, own: part.own, all: part.all });
    kernels::Dropout { key: stream(key), p, first_sample, part }
}

fn stream(key: Key) -> StreamKey {
    let [seed, step, rank, stream] = key.words();
    StreamKey { seed, step, rank, stream }
}

impl Random for Cuda {
    fn dropout(&self, x: &Array, of: Dropout) -> Result<Array> {
        let samples = x.dims().first().copied().unwrap_or(1);
        let y = kernels::dropout(self.gpu(), self.slice("dropout", x)?, samples, dropout_of(of))?;
        Ok(self.array(y, x.shape().clone()))
    }

    fn gaussian_noise(&self, key: Key, start: usize, shape: &Shape, dtype: DType) -> Result<Array> {
        let dtype = element_type("gaussian_noise", dtype)?;
        let drawn = kernels::normal(self.gpu(), stream(key), start, shape.elem_count(), dtype)?;
        Ok(self.array(drawn, shape.clone()))
    }
}
