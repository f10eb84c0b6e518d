//! Batch normalisation with the GPU kernels.

use candle_core::DType;
use phalanx_cuda::{GpuError, Slice, kernels};

use super::{Cuda, argument, element_type};
use crate::backend::{Array, BatchNormBackward, BatchNormMaps, BatchNormPass, BatchNorms, RunningStatistics};
use crate::{ArrayError, Result};

const OP: &str = "batch_norm2d";

/// The feature maps of a pass, in the memory order of its input: as [N, C, P], or channels-last as [N·P, C, 1].
struct Maps {
    dims: [usize; 3],
    x: Slice,
    dy: Option<Slice>,
    output: Option<Slice>,
    residual: Option<Slice>,
    last: bool,
}

impl Cuda {
    fn maps_of(
        &self,
        [batch, channels, pixels]: [usize; 3],
        x: &Array,
        [dy, output, residual]: [Option<&Array>; 3],
    ) -> Result<Maps> {
        if self.is_last(OP, x)? {
            let (dims, last) = ([batch * pixels, channels, 1], true);
            let [dy, output] = [self.last_if(OP, dy)?, self.last_if(OP, output)?];
            return Ok(Maps {
                dims,
                x: self.last(OP, x)?,
                dy,
                output,
                residual: self.last_if(OP, residual)?,
                last,
            });
        }
        let slice = |array: Option<&Array>| Ok::<_, ArrayError>(self.slice_if(OP, array)?.cloned());
        let (dims, last) = ([batch, channels, pixels], false);
        let x = self.slice(OP, x)?.clone();
        Ok(Maps { dims, x, dy: slice(dy)?, output: slice(output)?, residual: slice(residual)?, last })
    }

    fn pass<'a>(&self, pass: BatchNormPass<'a>, maps: &'a Maps) -> Result<kernels::BatchNorm<'a>> {
        let BatchNormPass { gamma, beta, eps, activation, .. } = pass;
        let (gamma, beta) = (self.slice(OP, gamma)?, self.slice(OP, beta)?);
        Ok(kernels::BatchNorm { dims: maps.dims, x: &maps.x, gamma, beta, eps, activation })
    }

    /// Runs a backward kernel on the maps of a pass.
    fn backward<R>(
        &self,
        from: BatchNormBackward<'_>,
        run: impl FnOnce(kernels::BatchNormBackward<'_>) -> Result<R, GpuError>,
    ) -> Result<(R, bool)> {
        let maps = self.maps_of(from.pass.dims, from.pass.x, [Some(from.dy), from.output, None])?;
        let Some(dy) = &maps.dy else { return Err(argument(OP, "no gradient".to_owned())) };
        let (statistics, residual) = (self.slice(OP, from.statistics)?, from.residual);
        let (pass, output) = (self.pass(from.pass, &maps)?, maps.output.as_ref());
        let result = run(kernels::BatchNormBackward { pass, statistics, output, dy, residual })?;
        Ok((result, maps.last))
    }

    /// Makes an array of a map in the memory order of the others.
    fn map(&self, x: &Array, slice: Slice, last: bool) -> Array {
        if last { self.array_last(slice, x.shape().clone()) } else { self.array(slice, x.shape().clone()) }
    }
}

impl BatchNorms for Cuda {
    fn batch_norm_sums(&self, dims: [usize; 3], x: &Array) -> Result<Array> {
        let maps = self.maps_of(dims, x, [None; 3])?;
        let sums = kernels::batch_norm_sums(self.gpu(), maps.dims, &maps.x)?;
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

    fn batch_norm_train(&self, pass: BatchNormPass<'_>) -> Result<(Array, Array)> {
        let [batch, _, pixels] = pass.dims;
        if batch * pixels < 2 {
            let problem =
                format!("training needs more than one element a channel; there is {}", batch * pixels);
            return Err(ArrayError::shape(OP, problem));
        }
        let maps = self.maps_of(pass.dims, pass.x, [None, None, pass.residual])?;
        let by = self.pass(pass, &maps)?;
        let (y, statistics) = kernels::batch_norm_train(self.gpu(), by, maps.residual.as_ref())?;
        let len = statistics.len();
        Ok((self.map(pass.x, y, maps.last), self.array(statistics, len)))
    }

    fn batch_norm(&self, pass: BatchNormPass<'_>, statistics: &Array) -> Result<Array> {
        let maps = self.maps_of(pass.dims, pass.x, [None, None, pass.residual])?;
        let (by, statistics) = (self.pass(pass, &maps)?, self.slice(OP, statistics)?);
        let y = kernels::batch_norm(self.gpu(), by, statistics, maps.residual.as_ref())?;
        Ok(self.map(pass.x, y, maps.last))
    }

    fn batch_norm_running(&self, statistics: &Array, running: RunningStatistics<'_>) -> Result<[Array; 2]> {
        let RunningStatistics { momentum, mean, variance } = running;
        let (old_mean, old_variance) = (self.slice(OP, mean)?, self.slice(OP, variance)?);
        let statistics = self.slice(OP, statistics)?;
        // In place: a captured graph finds them at the same address in the next step.
        kernels::batch_norm_running(self.gpu(), statistics, momentum, old_mean, old_variance)?;
        Ok([mean.clone(), variance.clone()])
    }

    fn batch_norm_train_backward(&self, of: BatchNormBackward<'_>) -> Result<(BatchNormMaps, Array)> {
        let run = |by: kernels::BatchNormBackward<'_>| kernels::batch_norm_train_backward(self.gpu(), by);
        let ((dx, residual, sums), last) = self.backward(of, run)?;
        let (map, len) = (|slice| self.map(of.pass.x, slice, last), sums.len());
        Ok((BatchNormMaps { dx: map(dx), residual: residual.map(map) }, self.array(sums, len)))
    }

    fn batch_norm_gradient_sums(&self, of: BatchNormBackward<'_>) -> Result<Array> {
        let run = |by: kernels::BatchNormBackward<'_>| kernels::batch_norm_gradient_sums(self.gpu(), by);
        let (sums, _) = self.backward(of, run)?;
        let len = sums.len();
        Ok(self.array(sums, len))
    }

    fn batch_norm_backward(&self, of: BatchNormBackward<'_>, sums: Option<&Array>) -> Result<BatchNormMaps> {
        let sums = self.slice_if(OP, sums)?;
        let run = |by: kernels::BatchNormBackward<'_>| kernels::batch_norm_backward(self.gpu(), by, sums);
        let ((dx, residual), last) = self.backward(of, run)?;
        let map = |slice| self.map(of.pass.x, slice, last);
        Ok(BatchNormMaps { dx: map(dx), residual: residual.map(map) })
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
        kernels::count_up(self.gpu(), self.slice("counter", counter)?)?;
        Ok(counter.clone())
    }
}
