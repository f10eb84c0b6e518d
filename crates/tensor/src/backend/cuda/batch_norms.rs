//! Batch normalisation, by the kernels.

use candle_core::DType;
use phalanx_cuda::kernels;

use super::{Cuda, element_type};
use crate::backend::{Array, BatchNormBackward, BatchNormMaps, BatchNormPass, BatchNorms};
use crate::{Result, TensorError};

const OP: &str = "batch_norm2d";

impl Cuda {
    fn pass<'a>(&self, pass: BatchNormPass<'a>) -> Result<kernels::BatchNorm<'a>> {
        let BatchNormPass { dims, x, gamma, beta, eps, activation } = pass;
        let (x, gamma, beta) = (self.slice(OP, x)?, self.slice(OP, gamma)?, self.slice(OP, beta)?);
        Ok(kernels::BatchNorm { dims, x, gamma, beta, eps, activation })
    }

    fn backward<'a>(&self, from: BatchNormBackward<'a>) -> Result<kernels::BatchNormBackward<'a>> {
        Ok(kernels::BatchNormBackward {
            pass: self.pass(from.pass)?,
            statistics: self.slice(OP, from.statistics)?,
            output: self.slice_if(OP, from.output)?,
            dy: self.slice(OP, from.dy)?,
            residual: from.residual,
        })
    }

    fn maps(
        &self,
        from: BatchNormBackward<'_>,
        dx: phalanx_cuda::Slice,
        residual: Option<phalanx_cuda::Slice>,
    ) -> BatchNormMaps {
        let shape = from.pass.x.shape();
        let array = |slice| self.array(slice, shape.clone());
        BatchNormMaps { dx: array(dx), residual: residual.map(array) }
    }
}

impl BatchNorms for Cuda {
    fn batch_norm_sums(&self, dims: [usize; 3], x: &Array) -> Result<Array> {
        let sums = kernels::batch_norm_sums(self.gpu(), dims, self.slice(OP, x)?)?;
        let len = sums.len();
        Ok(self.array(sums, len))
    }

    fn batch_norm_statistics(&self, sums: &Array) -> Result<Array> {
        let statistics = kernels::batch_norm_statistics(self.gpu(), self.slice(OP, sums)?)?;
        Ok(self.array(statistics, sums.shape().clone()))
    }

    fn batch_norm_fixed(&self, mean: &Array, variance: &Array, count: f64) -> Result<Array> {
        let (mean, variance) = (self.slice(OP, mean)?, self.slice(OP, variance)?);
        let statistics = kernels::batch_norm_fixed(self.gpu(), mean, variance, count)?;
        let len = statistics.len();
        Ok(self.array(statistics, len))
    }

    fn batch_norm_train(&self, pass: BatchNormPass<'_>, residual: Option<&Array>) -> Result<(Array, Array)> {
        let [batch, _, pixels] = pass.dims;
        if batch * pixels < 2 {
            let problem =
                format!("training needs more than one element a channel; there is {}", batch * pixels);
            return Err(TensorError::shape(OP, problem));
        }
        let residual = self.slice_if(OP, residual)?;
        let (y, statistics) = kernels::batch_norm_train(self.gpu(), self.pass(pass)?, residual)?;
        let len = statistics.len();
        Ok((self.array(y, pass.x.shape().clone()), self.array(statistics, len)))
    }

    fn batch_norm(
        &self,
        pass: BatchNormPass<'_>,
        statistics: &Array,
        residual: Option<&Array>,
    ) -> Result<Array> {
        let (statistics, residual) = (self.slice(OP, statistics)?, self.slice_if(OP, residual)?);
        let y = kernels::batch_norm(self.gpu(), self.pass(pass)?, statistics, residual)?;
        Ok(self.array(y, pass.x.shape().clone()))
    }

    fn batch_norm_running(
        &self,
        statistics: &Array,
        momentum: f64,
        mean: &Array,
        variance: &Array,
    ) -> Result<[Array; 2]> {
        let (old_mean, old_variance) = (self.slice(OP, mean)?, self.slice(OP, variance)?);
        let statistics = self.slice(OP, statistics)?;
        let [new_mean, new_variance] =
            kernels::batch_norm_running(self.gpu(), statistics, momentum, old_mean, old_variance)?;
        Ok([self.array(new_mean, mean.shape().clone()), self.array(new_variance, variance.shape().clone())])
    }

    fn batch_norm_train_backward(&self, from: BatchNormBackward<'_>) -> Result<(BatchNormMaps, Array)> {
        let (dx, residual, sums) = kernels::batch_norm_train_backward(self.gpu(), self.backward(from)?)?;
        let len = sums.len();
        Ok((self.maps(from, dx, residual), self.array(sums, len)))
    }

    fn batch_norm_gradient_sums(&self, from: BatchNormBackward<'_>) -> Result<Array> {
        let sums = kernels::batch_norm_gradient_sums(self.gpu(), self.backward(from)?)?;
        let len = sums.len();
        Ok(self.array(sums, len))
    }

    fn batch_norm_backward(
        &self,
        from: BatchNormBackward<'_>,
        sums: Option<&Array>,
    ) -> Result<BatchNormMaps> {
        let sums = self.slice_if(OP, sums)?;
        let (dx, residual) = kernels::batch_norm_backward(self.gpu(), self.backward(from)?, sums)?;
        Ok(self.maps(from, dx, residual))
    }

    fn batch_norm_affine_gradients(&self, sums: &Array, dtype: DType) -> Result<[Array; 2]> {
        let sums = self.slice(OP, sums)?;
        let gradients = kernels::batch_norm_affine_gradients(self.gpu(), sums, element_type(OP, dtype)?)?;
        Ok(gradients.map(|slice| {
            let len = slice.len();
            self.array(slice, len)
        }))
    }

    fn count_up(&self, counter: &Array) -> Result<Array> {
        let more = kernels::count_up(self.gpu(), self.slice("counter", counter)?)?;
        Ok(self.array(more, counter.shape().clone()))
    }
}
