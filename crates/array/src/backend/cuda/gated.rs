//! Gated linear units with the GPU kernels.

use phalanx_cuda::kernels;

use super::Cuda;
use crate::Result;
use crate::backend::{Array, GatedUnits};

impl GatedUnits for Cuda {
    fn geglu(&self, x: &Array) -> Result<Array> {
        const OP: &str = "geglu";
        let mut dims = x.dims().to_vec();
        let width = dims.last_mut().map_or(0, |last| {
            *last /= 2;
            *last
        });
        Ok(self.array(kernels::geglu(self.gpu(), self.slice(OP, x)?, width)?, dims))
    }

    fn geglu_backward(&self, x: &Array, dy: &Array) -> Result<Array> {
        const OP: &str = "geglu";
        let width = dy.dims().last().copied().unwrap_or(0);
        let dx = kernels::geglu_backward(self.gpu(), self.slice(OP, x)?, self.slice(OP, dy)?, width)?;
        Ok(self.array(dx, x.shape().clone()))
    }

    fn swiglu(&self, gate: &Array, value: &Array) -> Result<Array> {
        const OP: &str = "swiglu";
        let y = kernels::swiglu(self.gpu(), self.slice(OP, gate)?, self.slice(OP, value)?)?;
        Ok(self.array(y, gate.shape().clone()))
    }

    fn swiglu_backward(&self, gate: &Array, value: &Array, dy: &Array) -> Result<[Array; 2]> {
        const OP: &str = "swiglu";
        let (gates, values, grad) = (self.slice(OP, gate)?, self.slice(OP, value)?, self.slice(OP, dy)?);
        let grads = kernels::swiglu_backward(self.gpu(), gates, values, grad)?;
        Ok(grads.map(|grad| self.array(grad, gate.shape().clone())))
    }
}
