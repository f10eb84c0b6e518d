//! Normalisation of samples with the GPU kernels.

use phalanx_cuda::{Slice, kernels};

use super::Cuda;
use crate::Result;
use crate::backend::{
    Array, GroupShape, NormBackward, NormGrads, NormOutput, NormPass, Norms, RmsNormBackward, RmsNormGrads,
};

impl Cuda {
    fn normed(&self, x: &Array, [output, mean, inv_std]: [Slice; 3]) -> NormOutput {
        let (means, inverses) = (mean.len(), inv_std.len());
        NormOutput {
            output: self.array(output, x.shape().clone()),
            mean: self.array(mean, means),
            inv_std: self.array(inv_std, inverses),
        }
    }

    fn norm_inputs<'a>(&self, op: &'static str, from: NormBackward<'a>) -> Result<kernels::NormInputs<'a>> {
        Ok(kernels::NormInputs {
            x: self.slice(op, from.x)?,
            dy: self.slice(op, from.dy)?,
            gamma: self.slice(op, from.gamma)?,
            mean: self.slice(op, from.mean)?,
            inv_std: self.slice(op, from.inv_std)?,
        })
    }

    fn norm_grads(&self, x: &Array, [dx, dgamma, dbeta]: [Slice; 3]) -> NormGrads {
        let channels = dgamma.len();
        NormGrads {
            dx: self.array(dx, x.shape().clone()),
            dgamma: self.array(dgamma, channels),
            dbeta: self.array(dbeta, channels),
        }
    }
}

impl Norms for Cuda {
    fn layer_norm(&self, of: NormPass<'_>) -> Result<NormOutput> {
        let NormPass { x, gamma, beta, eps } = of;
        const OP: &str = "layer_norm";
        let (from, g, b) = (self.open(OP, x)?, self.slice(OP, gamma)?, self.slice(OP, beta)?);
        Ok(self.normed(x, kernels::layer_norm(self.gpu(), from.slice()?, g, b, from.width(), eps)?))
    }

    fn layer_norm_backward(&self, from: NormBackward<'_>, before: Option<&Array>) -> Result<NormGrads> {
        const OP: &str = "layer_norm";
        let width = self.open(OP, from.x)?.width();
        let before = before.map(|before| self.slice(OP, before)).transpose()?;
        let inputs = self.norm_inputs(OP, from)?;
        let grads = kernels::layer_norm_backward(self.gpu(), inputs, before, width)?;
        Ok(self.norm_grads(from.x, grads))
    }

    fn group_norm(&self, shape: GroupShape, of: NormPass<'_>) -> Result<NormOutput> {
        let GroupShape { dims, groups } = shape;
        let NormPass { x, gamma, beta, eps } = of;
        const OP: &str = "group_norm";
        let (g, b) = (self.slice(OP, gamma)?, self.slice(OP, beta)?);
        let (layout, from) = self.laid(OP, x)?;
        let [y, mean, inv_std] = kernels::group_norm(self.gpu(), layout, dims, groups, &from, [g, b], eps)?;
        let rest = self.normed(x, [y.clone(), mean, inv_std]);
        Ok(NormOutput { output: self.array_laid(layout, y, x.shape().clone()), ..rest })
    }

    fn group_norm_backward(&self, shape: GroupShape, from: NormBackward<'_>) -> Result<NormGrads> {
        let GroupShape { dims, groups } = shape;
        const OP: &str = "group_norm";
        let (layout, x) = self.laid(OP, from.x)?;
        let dy = self.laid_as(OP, layout, from.dy)?;
        let (gamma, mean) = (self.slice(OP, from.gamma)?, self.slice(OP, from.mean)?);
        let inv_std = self.slice(OP, from.inv_std)?;
        let inputs = kernels::NormInputs { x: &x, dy: &dy, gamma, mean, inv_std };
        let [dx, dgamma, dbeta] = kernels::group_norm_backward(self.gpu(), layout, dims, groups, inputs)?;
        let rest = self.norm_grads(from.x, [dx.clone(), dgamma, dbeta]);
        Ok(NormGrads { dx: self.array_laid(layout, dx, from.x.shape().clone()), ..rest })
    }

    fn rms_norm(&self, x: &Array, gamma: &Array, eps: f64) -> Result<[Array; 2]> {
        const OP: &str = "rms_norm";
        let (from, gamma) = (self.open(OP, x)?, self.slice(OP, gamma)?);
        let [y, inv_rms] = kernels::rms_norm(self.gpu(), from.slice()?, gamma, from.width(), eps)?;
        let rows = inv_rms.len();
        Ok([self.array(y, x.shape().clone()), self.array(inv_rms, rows)])
    }

    fn rms_norm_backward(&self, from: RmsNormBackward<'_>, before: Option<&Array>) -> Result<RmsNormGrads> {
        const OP: &str = "rms_norm";
        let RmsNormBackward { x, dy, gamma, inv_rms } = from;
        let input = self.open(OP, x)?;
        let width = input.width();
        let inputs = kernels::RmsNormInputs {
            x: input.slice()?,
            dy: self.slice(OP, dy)?,
            gamma: self.slice(OP, gamma)?,
            inv_rms: self.slice(OP, inv_rms)?,
        };
        let before = before.map(|before| self.slice(OP, before)).transpose()?;
        let [dx, dgamma] = kernels::rms_norm_backward(self.gpu(), inputs, before, width)?;
        Ok(RmsNormGrads { dx: self.array(dx, x.shape().clone()), dgamma: self.array(dgamma, width) })
    }

    fn l2_normalise(&self, x: &Array) -> Result<(Array, Array)> {
        let from = self.open("l2_normalise", x)?;
        let [y, inverses] = kernels::l2_normalise(self.gpu(), from.slice()?, from.width())?;
        let rows = inverses.len();
        Ok((self.array(y, x.shape().clone()), self.array(inverses, rows)))
    }

    fn l2_normalise_backward(&self, y: &Array, dy: &Array, inverses: &Array) -> Result<Array> {
        const OP: &str = "l2_normalise";
        let (from, grad, inverses) = (self.open(OP, y)?, self.slice(OP, dy)?, self.slice(OP, inverses)?);
        let dx = kernels::l2_normalise_backward(self.gpu(), from.slice()?, grad, inverses, from.width())?;
        Ok(self.array(dx, y.shape().clone()))
    }
}
