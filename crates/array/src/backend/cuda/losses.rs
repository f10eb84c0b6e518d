//! Losses with the GPU kernels.

use candle_core::Tensor;
use phalanx_cuda::kernels::{self, CrossEntropyColumns, CrossEntropyTargets, PairLoss};
use phalanx_cuda::{ElementType, Slice};
use phalanx_kernels::ROW_PARTS;

use super::Cuda;
use crate::Result;
use crate::backend::{
    Array, CrossEntropy, CutCrossEntropy, ElementLoss, ElementLossInputs, KlInputs, Losses, Transfers as _,
};

fn pair_loss(loss: ElementLoss) -> PairLoss {
    match loss {
        ElementLoss::L1 => PairLoss::L1,
        ElementLoss::SmoothL1 { beta } => PairLoss::SmoothL1 { beta },
        ElementLoss::Mse => PairLoss::Mse,
        ElementLoss::BceWithLogits => PairLoss::BceWithLogits,
    }
}

impl Cuda {
    /// Returns the gradient of a loss as a scalar in the type of the arithmetic.
    fn scalar(&self, op: &'static str, grad: &Array, dtype: ElementType) -> Result<Slice> {
        Ok(kernels::convert(self.gpu(), self.slice(op, grad)?, dtype)?)
    }

    fn targets<'a>(&self, op: &'static str, of: CrossEntropy<'a>) -> Result<CrossEntropyTargets<'a>> {
        let CrossEntropy { labels, weights, options, factor } = of;
        let (labels, weights) = (self.slice(op, labels)?, self.slice_if(op, weights)?);
        Ok(CrossEntropyTargets { labels, weights, options, factor })
    }

    fn columns<'a>(&self, op: &'static str, of: CutCrossEntropy<'a>) -> Result<CrossEntropyColumns<'a>> {
        let CutCrossEntropy { rows, first, columns } = of;
        Ok(CrossEntropyColumns { rows: self.targets(op, rows)?, first, columns })
    }
}

impl Losses for Cuda {
    fn cross_entropy(&self, logits: &Array, of: CrossEntropy<'_>) -> Result<Array> {
        const OP: &str = "cross_entropy";
        let x = self.slice(OP, logits)?;
        Ok(self.array(kernels::cross_entropy(self.gpu(), x, logits.dims()[1], self.targets(OP, of)?)?, ()))
    }

    fn cross_entropy_parts(&self, logits: &Array, of: CutCrossEntropy<'_>) -> Result<Array> {
        const OP: &str = "cross_entropy_parts";
        let (x, of) = (self.slice(OP, logits)?, self.columns(OP, of)?);
        let parts = kernels::cross_entropy_parts(self.gpu(), x, logits.dims()[1], of)?;
        Ok(self.array(parts, (logits.dims()[0], ROW_PARTS)))
    }

    fn cross_entropy_slopes(&self, logits: &Array, of: CutCrossEntropy<'_>, log_sums: &[f64]) -> Result<()> {
        const OP: &str = "cross_entropy_slopes";
        let (x, of) = (self.slice(OP, logits)?, self.columns(OP, of)?);
        let log_sums = Tensor::from_slice(log_sums, log_sums.len(), &candle_core::Device::Cpu)?;
        let log_sums = self.from_host(&log_sums)?;
        let log_sums = self.slice(OP, &log_sums)?;
        Ok(kernels::cross_entropy_slopes(self.gpu(), x, logits.dims()[1], of, log_sums)?)
    }

    fn element_loss(&self, of: ElementLossInputs<'_>) -> Result<Array> {
        let ElementLossInputs { loss, x, target, factor } = of;
        let op = loss.name();
        let (x, target) = (self.slice(op, x)?, self.slice(op, target)?);
        Ok(self.array(kernels::pair_loss(self.gpu(), pair_loss(loss), x, target, factor)?, ()))
    }

    fn element_loss_backward(&self, of: ElementLossInputs<'_>, grad: &Array) -> Result<Array> {
        let ElementLossInputs { loss, x, target, factor } = of;
        let op = loss.name();
        let (values, target) = (self.slice(op, x)?, self.slice(op, target)?);
        let grad = self.scalar(op, grad, values.dtype().wide())?;
        let dx = kernels::pair_loss_backward(self.gpu(), pair_loss(loss), values, target, factor, &grad)?;
        Ok(self.array(dx, x.shape().clone()))
    }

    fn kl_standard_normal(&self, of: KlInputs<'_>) -> Result<Array> {
        let KlInputs { mu, logvar, factor } = of;
        const OP: &str = "kl_standard_normal";
        let (mu, logvar) = (self.slice(OP, mu)?, self.slice(OP, logvar)?);
        Ok(self.array(kernels::pair_loss(self.gpu(), PairLoss::KlStandardNormal, mu, logvar, factor)?, ()))
    }

    fn kl_standard_normal_backward(&self, of: KlInputs<'_>, grad: &Array) -> Result<[Array; 2]> {
        let KlInputs { mu, logvar, factor } = of;
        const OP: &str = "kl_standard_normal";
        let (means, logs) = (self.slice(OP, mu)?, self.slice(OP, logvar)?);
        let grad = self.scalar(OP, grad, means.dtype().wide())?;
        let grads = kernels::kl_standard_normal_backward(self.gpu(), means, logs, factor, &grad)?;
        Ok(grads.map(|slice| self.array(slice, mu.shape().clone())))
    }
}
