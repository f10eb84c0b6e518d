//! Rotary position embeddings without numbers.

use candle_core::DType;

use super::Outlines;
use crate::Result;
use crate::backend::{Array, RotaryAngles, RotaryEmbeddings};
use crate::storage::wide;

impl RotaryEmbeddings for Outlines {
    fn rotary_angles(&self, positions: &Array, frequencies: &[f64], _: f64) -> Result<RotaryAngles> {
        let mut dims = positions.dims().to_vec();
        dims.push(frequencies.len());
        let [cos, sin] = [(); 2].map(|()| self.array(dims.clone(), DType::F32));
        Ok(RotaryAngles { cos, sin })
    }

    fn rotary(&self, x: &Array, _: &RotaryAngles, inverse: bool) -> Result<Array> {
        Ok(self.like(x, if inverse { wide(x.dtype()) } else { x.dtype() }))
    }
}
