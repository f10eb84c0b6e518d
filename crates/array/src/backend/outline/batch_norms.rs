//! Batch normalisation without numbers.

use candle_core::DType;

use super::{Outlines, expect_equal, expect_len};
use crate::Result;
use crate::backend::{Array, BatchNormBackward, BatchNormMaps, BatchNormPass, BatchNorms, RunningStatistics};
use crate::storage::wide;

const OP: &str = "batch_norm2d";

impl Outlines {
    fn statistics(&self, channels: usize) -> Array {
        self.array(1 + 2 * channels, DType::F64)
    }

    fn gradient_sums(&self, of: &BatchNormBackward<'_>) -> Array {
        self.array(2 * of.pass.dims[1], DType::F64)
    }

    fn maps(&self, of: &BatchNormBackward<'_>) -> Result<BatchNormMaps> {
        let x = of.pass.x;
        expect_equal(OP, x, &[of.dy])?;
        let map = || self.like(x, wide(x.dtype()));
        Ok(BatchNormMaps { dx: map(), residual: of.residual.then(map) })
    }
}

/// Checks the sizes of a pass.
fn check(pass: &BatchNormPass<'_>) -> Result<()> {
    expect_len(OP, pass.x, pass.dims.iter().product())?;
    let of_channels = [pass.gamma, pass.beta];
    of_channels.iter().try_for_each(|array| expect_len(OP, array, pass.dims[1]))?;
    pass.residual.map_or(Ok(()), |residual| expect_equal(OP, pass.x, &[residual]))
}

impl BatchNorms for Outlines {
    fn batch_norm_sums(&self, dims: [usize; 3], x: &Array) -> Result<Array> {
        expect_len(OP, x, dims.iter().product())?;
        Ok(self.statistics(dims[1]))
    }

    fn batch_norm_statistics(&self, sums: &Array) -> Result<Array> {
        Ok(self.like(sums, DType::F64))
    }

    fn batch_norm_fixed(&self, mean: &Array, variance: &Array, _: f64) -> Result<Array> {
        expect_equal(OP, mean, &[variance])?;
        Ok(self.statistics(mean.elem_count()))
    }

    fn batch_norm_train(&self, pass: BatchNormPass<'_>) -> Result<(Array, Array)> {
        check(&pass)?;
        Ok((self.like(pass.x, pass.x.dtype()), self.statistics(pass.dims[1])))
    }

    fn batch_norm(&self, pass: BatchNormPass<'_>, statistics: &Array) -> Result<Array> {
        check(&pass)?;
        expect_len(OP, statistics, 1 + 2 * pass.dims[1])?;
        Ok(self.like(pass.x, pass.x.dtype()))
    }

    fn batch_norm_running(&self, _: &Array, running: RunningStatistics<'_>) -> Result<[Array; 2]> {
        Ok([running.mean, running.variance].map(|array| self.like(array, array.dtype())))
    }

    fn batch_norm_train_backward(&self, of: BatchNormBackward<'_>) -> Result<(BatchNormMaps, Array)> {
        Ok((self.maps(&of)?, self.gradient_sums(&of)))
    }

    fn batch_norm_gradient_sums(&self, of: BatchNormBackward<'_>) -> Result<Array> {
        Ok(self.gradient_sums(&of))
    }

    fn batch_norm_backward(&self, of: BatchNormBackward<'_>, _: Option<&Array>) -> Result<BatchNormMaps> {
        self.maps(&of)
    }

    fn batch_norm_affine_gradients(&self, sums: &Array, dtype: DType) -> Result<[Array; 2]> {
        Ok([(); 2].map(|()| self.array(sums.elem_count() / 2, dtype)))
    }

    fn count_up(&self, counter: &Array) -> Result<Array> {
        Ok(self.like(counter, counter.dtype()))
    }
}
