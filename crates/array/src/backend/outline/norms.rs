//! Normalisation of samples without numbers.

use candle_core::DType;

use super::{Outlines, expect_equal, expect_len};
use crate::Result;
use crate::backend::{
    Array, GroupShape, NormBackward, NormGrads, NormOutput, NormPass, Norms, RmsNormBackward, RmsNormGrads,
};
use crate::storage::wide;

/// The size of the last dimension.
fn width(x: &Array) -> usize {
    x.dims().last().copied().unwrap_or(1)
}

/// The number of rows.
fn rows(x: &Array) -> usize {
    x.elem_count() / width(x).max(1)
}

impl Outlines {
    fn normed(&self, x: &Array, statistics: usize) -> NormOutput {
        let [mean, inv_std] = [(); 2].map(|()| self.array(statistics, wide(x.dtype())));
        NormOutput { output: self.like(x, x.dtype()), mean, inv_std }
    }

    fn norm_grads(&self, from: &NormBackward<'_>, dx: DType) -> NormGrads {
        let [dgamma, dbeta] = [(); 2].map(|()| self.like(from.gamma, wide(from.x.dtype())));
        NormGrads { dx: self.like(from.x, dx), dgamma, dbeta }
    }
}

impl Norms for Outlines {
    fn layer_norm(&self, of: NormPass<'_>) -> Result<NormOutput> {
        expect_len("layer_norm", of.gamma, width(of.x))?;
        expect_len("layer_norm", of.beta, width(of.x))?;
        Ok(self.normed(of.x, rows(of.x)))
    }

    fn layer_norm_backward(&self, from: NormBackward<'_>, _: Option<&Array>) -> Result<NormGrads> {
        expect_equal("layer_norm", from.x, &[from.dy])?;
        Ok(self.norm_grads(&from, from.x.dtype()))
    }

    fn group_norm(&self, shape: GroupShape, of: NormPass<'_>) -> Result<NormOutput> {
        expect_len("group_norm", of.x, shape.dims.iter().product())?;
        expect_len("group_norm", of.gamma, shape.dims[1])?;
        Ok(self.normed(of.x, shape.dims[0] * shape.groups))
    }

    fn group_norm_backward(&self, _: GroupShape, from: NormBackward<'_>) -> Result<NormGrads> {
        expect_equal("group_norm", from.x, &[from.dy])?;
        Ok(self.norm_grads(&from, wide(from.x.dtype())))
    }

    fn rms_norm(&self, x: &Array, gamma: &Array, _: f64) -> Result<[Array; 2]> {
        expect_len("rms_norm", gamma, width(x))?;
        Ok([self.like(x, x.dtype()), self.array(rows(x), wide(x.dtype()))])
    }

    fn rms_norm_backward(&self, from: RmsNormBackward<'_>, _: Option<&Array>) -> Result<RmsNormGrads> {
        expect_equal("rms_norm", from.x, &[from.dy])?;
        let dgamma = self.like(from.gamma, wide(from.x.dtype()));
        Ok(RmsNormGrads { dx: self.like(from.x, from.x.dtype()), dgamma })
    }

    fn l2_normalise(&self, x: &Array) -> Result<(Array, Array)> {
        Ok((self.like(x, x.dtype()), self.array(rows(x), DType::F64)))
    }

    fn l2_normalise_backward(&self, y: &Array, dy: &Array, _: &Array) -> Result<Array> {
        expect_equal("l2_normalise", y, &[dy])?;
        Ok(self.like(y, wide(y.dtype())))
    }
}
