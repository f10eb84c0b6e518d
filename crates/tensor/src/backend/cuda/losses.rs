//! Losses, by the kernels.

use phalanx_cuda::kernels::{self, PairLoss};
use phalanx_cuda::{ElementType, Slice};

use super::Cuda;
use crate::Result;
use crate::backend::{Array, ElementLoss, Losses};

fn pair_loss(loss: ElementLoss) -> PairLoss {
    match loss {
        ElementLoss::L1 => PairLoss::L1,
        ElementLoss::SmoothL1 { beta } => PairLoss::SmoothL1 { beta },
        ElementLoss::Mse => PairLoss::Mse,
        ElementLoss::BceWithLogits => PairLoss::BceWithLogits,
    }
}

impl Cuda {
    /// The gradient of a loss, as a scalar of the type that is computed in.
    fn scalar(&self, op: &'static str, grad: &Array, dtype: ElementType) -> Result<Slice> {
        Ok(kernels::convert(self.gpu(), self.slice(op, grad)?, dtype)?)
    }
}

impl Losses for Cuda {
    fn cross_entropy(
        &self,
        logits: &Array,
        labels: &Array,
        smoothing: f64,
        factor: f64,
    ) -> Result<(Array, Array)> {
        const OP: &str = "cross_entropy";
        let (x, labels) = (self.open(OP, logits)?, self.slice(OP, labels)?);
        let width = x.dims2()?.1;
        let (loss, softmax) =
            kernels::cross_entropy(self.gpu(), x.slice()?, labels, width, smoothing, factor)?;
        Ok((self.array(loss, ()), self.array(softmax, logits.shape().clone())))
    }

    fn cross_entropy_backward(
        &self,
        softmax: &Array,
        labels: &Array,
        smoothing: f64,
        factor: f64,
        grad: &Array,
    ) -> Result<Array> {
        const OP: &str = "cross_entropy";
        let (y, labels) = (self.open(OP, softmax)?, self.slice(OP, labels)?);
        let (width, grad) = (y.dims2()?.1, self.scalar(OP, grad, y.slice()?.dtype())?);
        let gpu = self.gpu();
        let dx = kernels::cross_entropy_backward(gpu, y.slice()?, labels, width, smoothing, factor, &grad)?;
        Ok(self.array(dx, softmax.shape().clone()))
    }

    fn element_loss(&self, loss: ElementLoss, x: &Array, target: &Array, factor: f64) -> Result<Array> {
        let op = loss.name();
        let (x, target) = (self.slice(op, x)?, self.slice(op, target)?);
        Ok(self.array(kernels::pair_loss(self.gpu(), pair_loss(loss), x, target, factor)?, ()))
    }

    fn element_loss_backward(
        &self,
        loss: ElementLoss,
        x: &Array,
        target: &Array,
        factor: f64,
        grad: &Array,
    ) -> Result<Array> {
        let op = loss.name();
        let (values, target) = (self.slice(op, x)?, self.slice(op, target)?);
        let grad = self.scalar(op, grad, values.dtype().wide())?;
        let dx = kernels::pair_loss_backward(self.gpu(), pair_loss(loss), values, target, factor, &grad)?;
        Ok(self.array(dx, x.shape().clone()))
    }

    fn kl_standard_normal(&self, mu: &Array, logvar: &Array, factor: f64) -> Result<Array> {
        const OP: &str = "kl_standard_normal";
        let (mu, logvar) = (self.slice(OP, mu)?, self.slice(OP, logvar)?);
        Ok(self.array(kernels::pair_loss(self.gpu(), PairLoss::KlStandardNormal, mu, logvar, factor)?, ()))
    }

    fn kl_standard_normal_backward(
        &self,
        mu: &Array,
        logvar: &Array,
        factor: f64,
        grad: &Array,
    ) -> Result<[Array; 2]> {
        const OP: &str = "kl_standard_normal";
        let (means, logs) = (self.slice(OP, mu)?, self.slice(OP, logvar)?);
        let grad = self.scalar(OP, grad, means.dtype().wide())?;
        let grads = kernels::kl_standard_normal_backward(self.gpu(), means, logs, factor, &grad)?;
        Ok(grads.map(|slice| self.array(slice, mu.shape().clone())))
    }
}
