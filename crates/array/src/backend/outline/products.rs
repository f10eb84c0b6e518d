//! Matrix products without numbers.

use candle_core::DType;

use super::{Outlines, expect_equal, expect_len};
use crate::backend::{
    Array, Destination, LinearProduct, LinearWeightGrad, MatrixProduct, Memory as _, Products,
};
use crate::storage::wide;
use crate::{Precision, Result};

impl Products for Outlines {
    fn rounded(&self, x: &Array, precision: Precision) -> Result<Array> {
        self.cast(x, precision.product(x.dtype()))
    }

    fn matmul(&self, of: MatrixProduct<'_>) -> Result<Array> {
        const OP: &str = "matmul";
        let MatrixProduct { sizes: [batch, m, n, k], a, b, shape, dtype, .. } = of;
        expect_len(OP, a.array, batch * m * k)?;
        expect_len(OP, b.array, batch * k * n)?;
        let product = self.array(shape.clone(), dtype);
        expect_len(OP, &product, batch * m * n)?;
        Ok(product)
    }

    fn linear(&self, of: LinearProduct<'_>) -> Result<Array> {
        const OP: &str = "linear";
        let LinearProduct { sizes: [rows, inputs, outputs], x, weight, bias, shape, dtype, .. } = of;
        expect_len(OP, x, rows * inputs)?;
        expect_len(OP, weight.array, inputs * outputs)?;
        bias.map_or(Ok(()), |bias| expect_len(OP, bias, outputs))?;
        let y = self.array(shape.clone(), dtype);
        expect_len(OP, &y, rows * outputs)?;
        Ok(y)
    }

    fn linear_backward_weight(&self, of: LinearWeightGrad<'_>, to: &Destination) -> Result<()> {
        const OP: &str = "linear";
        let LinearWeightGrad { sizes: [rows, inputs, outputs], dy, x, .. } = of;
        expect_len(OP, dy, rows * outputs)?;
        expect_len(OP, x, rows * inputs)?;
        expect_len(OP, &to.array, inputs * outputs)
    }

    fn linear_backward_bias(&self, [rows, _, outputs]: [usize; 3], dy: &Array) -> Result<Array> {
        expect_len("linear", dy, rows * outputs)?;
        Ok(self.array(outputs, wide(dy.dtype())))
    }

    fn softmax(&self, x: &Array, dtype: DType) -> Result<Array> {
        Ok(self.like(x, dtype))
    }

    fn softmax_backward(&self, y: &Array, dy: &Array) -> Result<Array> {
        expect_equal("softmax", y, &[dy])?;
        Ok(self.like(y, wide(y.dtype())))
    }
}
