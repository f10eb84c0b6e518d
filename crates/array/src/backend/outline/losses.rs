//! Losses without numbers.

use candle_core::DType;
use phalanx_kernels::ROW_PARTS;

use super::{Outlines, expect_equal, expect_len};
use crate::backend::{Array, CrossEntropy, CutCrossEntropy, ElementLossInputs, KlInputs, Losses};
use crate::storage::wide;
use crate::{ArrayError, Result};

const OP: &str = "cross_entropy";

/// The rows of logits with a label each.
fn rows(logits: &Array, of: &CrossEntropy<'_>) -> Result<usize> {
    let &[rows, _] = logits.dims() else {
        return Err(ArrayError::shape(OP, format!("logits are [R, K], not {:?}", logits.shape())));
    };
    expect_len(OP, of.labels, rows)?;
    of.weights.map_or(Ok(()), |weights| expect_len(OP, weights, rows))?;
    Ok(rows)
}

impl Losses for Outlines {
    fn cross_entropy(&self, logits: &Array, of: CrossEntropy<'_>) -> Result<Array> {
        rows(logits, &of)?;
        Ok(self.array((), logits.dtype()))
    }

    fn cross_entropy_parts(&self, logits: &Array, of: CutCrossEntropy<'_>) -> Result<Array> {
        Ok(self.array((rows(logits, &of.rows)?, ROW_PARTS), DType::F64))
    }

    fn cross_entropy_slopes(&self, logits: &Array, of: CutCrossEntropy<'_>, _: &[f64]) -> Result<()> {
        rows(logits, &of.rows).map(drop)
    }

    fn element_loss(&self, of: ElementLossInputs<'_>) -> Result<Array> {
        expect_equal(of.loss.name(), of.x, &[of.target])?;
        Ok(self.array((), wide(of.x.dtype())))
    }

    fn element_loss_backward(&self, of: ElementLossInputs<'_>, _: &Array) -> Result<Array> {
        Ok(self.like(of.x, wide(of.x.dtype())))
    }

    fn kl_standard_normal(&self, of: KlInputs<'_>) -> Result<Array> {
        expect_equal("kl_standard_normal", of.mu, &[of.logvar])?;
        Ok(self.array((), wide(of.mu.dtype())))
    }

    fn kl_standard_normal_backward(&self, of: KlInputs<'_>, _: &Array) -> Result<[Array; 2]> {
        Ok([of.mu, of.logvar].map(|array| self.like(array, wide(array.dtype()))))
    }
}
