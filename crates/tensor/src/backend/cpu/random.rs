//! Random numbers.

use candle_core::{DType, Device, Shape, Tensor};
use phalanx_kernels::Float as _;

use crate::backend::{Array, Random};
use crate::storage::{Bytes, Contiguous, dispatch, stored};
use crate::{Context, Key, Result};

impl Random for Context {
    fn dropout_mask(&self, key: Key, start: usize, shape: &Shape, p: f64) -> Result<Array> {
        let mut drawn = vec![0.0; shape.elem_count()];
        key.uniform(start, &mut drawn);
        let kept: Vec<u8> = drawn.iter().map(|u| u8::from(*u >= p)).collect();
        Ok(Tensor::from_vec(kept, shape.clone(), &Device::Cpu)?.into())
    }

    fn dropout(&self, x: &Array, mask: &Array, p: f64) -> Result<Array> {
        const OP: &str = "dropout";
        let x = x.host(OP)?;
        let mask = Bytes::of(OP, mask.host(OP)?)?;
        let read = Contiguous::by(OP, self, x)?;
        dispatch!(OP, x.dtype(), T => {
            let factors = [T::from_f64(0.0), T::from_f64(1.0 / (1.0 - p))];
            let pairs = read.slice::<T>()?.iter().zip(mask.slice()?);
            let values = pairs.map(|(x, kept)| *x * factors[usize::from(*kept != 0)]).collect::<Vec<T>>();
            Ok(stored(self, values, x.shape().clone(), x.dtype())?.into())
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
