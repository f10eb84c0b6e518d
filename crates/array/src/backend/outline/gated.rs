//! Gated linear units without numbers.

use super::{Outlines, expect_equal};
use crate::Result;
use crate::backend::{Array, GatedUnits};
use crate::storage::wide;

impl GatedUnits for Outlines {
    fn geglu(&self, x: &Array) -> Result<Array> {
        let mut dims = x.dims().to_vec();
        if let Some(last) = dims.last_mut() {
            *last /= 2;
        }
        Ok(self.array(dims, x.dtype()))
    }

    fn geglu_backward(&self, x: &Array, dy: &Array) -> Result<Array> {
        Ok(self.like(x, wide(dy.dtype())))
    }

    fn swiglu(&self, gate: &Array, value: &Array) -> Result<Array> {
        expect_equal("swiglu", gate, &[value])?;
        Ok(self.like(gate, gate.dtype()))
    }

    fn swiglu_backward(&self, gate: &Array, value: &Array, dy: &Array) -> Result<[Array; 2]> {
        expect_equal("swiglu", gate, &[value, dy])?;
        Ok([(); 2].map(|()| self.like(gate, wide(gate.dtype()))))
    }
}
