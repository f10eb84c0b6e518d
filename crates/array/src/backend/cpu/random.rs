//! Random numbers.

use candle_core::{DType, Shape};
use phalanx_kernels::Float as _;

use crate::backend::{Array, Dropout, Random};
use crate::storage::{Contiguous, dispatch, stored, unwritten};
use crate::{Context, Key, Result};

/// Returns the dropout of the kernels.
pub(super) fn dropout_of(Dropout { key, p, first_sample, part }: Dropout) -> phalanx_kernels::Dropout {
    phalanx_kernels::Dropout { key: key.hash(), p, first_sample, part }
}

impl Random for Context {
    fn dropout(&self, x: &Array, of: Dropout) -> Result<Array> {
        const OP: &str = "dropout";
        let x = x.host(OP)?;
        let read = Contiguous::by(OP, self, x)?;
        let samples = x.dims().first().copied().unwrap_or(1);
        dispatch!(OP, x.dtype(), T => {
            let mut y = unwritten::<T>(x.elem_count());
            phalanx_kernels::dropout(self, dropout_of(of), samples, read.slice::<T>()?, &mut y)?;
            Ok(stored(self, y, x.shape().clone(), x.dtype())?.into())
        })
    }

    fn gaussian_noise(&self, key: Key, start: usize, shape: &Shape, dtype: DType) -> Result<Array> {
        let mut drawn = vec![0.0; shape.elem_count()];
        key.normal(start, &mut drawn);
        dispatch!("gaussian_noise", dtype, T => {
            let values = drawn.iter().map(|v| T::from_f64(*v)).collect::<Vec<T>>();
            Ok(stored(self, values, shape.clone(), dtype)?.into())
        })
    }
}
