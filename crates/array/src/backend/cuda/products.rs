//! Matrix products by cuBLASLt, and softmax by the kernels.

use candle_core::DType;
use phalanx_cuda::blas::{Matrix, Product};
use phalanx_cuda::{ElementType, Slice, kernels};

use super::{Cuda, element_type};
use crate::backend::{
    Array, BinaryOp, Destination, LinearProduct, LinearWeightGrad, MatrixProduct, Products,
};
use crate::{Precision, Result};

impl Cuda {
    /// Multiplies factors of one type and stores the products as another.
    fn multiply(
        &self,
        sizes: [usize; 4],
        (a, b): (Matrix<'_>, Matrix<'_>),
        bias: Option<&Slice>,
        precision: Precision,
        dtype: ElementType,
    ) -> Result<Slice> {
        let tf32 = precision == Precision::Tf32;
        let gpu = self.gpu();
        let factors = a.slice.dtype();
        // An extra pass rounds results that the library cannot store.
        let given = if dtype == factors || dtype == factors.wide() { dtype } else { factors.wide() };
        let [batch, m, n, _] = sizes;
        let to = gpu.unwritten(given, batch * m * n)?;
        let fused = bias.filter(|_| factors != ElementType::F64);
        let fused = fused.map(|bias| kernels::convert(gpu, bias, given)).transpose()?;
        self.blas().matmul(&Product { sizes, a, b, to: &to, add: false, bias: fused.as_ref(), tf32 })?;
        let to = match bias.filter(|_| factors == ElementType::F64) {
            Some(bias) => {
                let (rows, row) = ([batch * m, n], [n]);
                kernels::binary(gpu, BinaryOp::Add, (&to, &rows), (bias, &row), given)?
            }
            None => to,
        };
        Ok(kernels::convert(gpu, &to, dtype)?)
    }
}

impl Products for Cuda {
    fn rounded(&self, x: &Array, precision: Precision) -> Result<Array> {
        Ok(self.array(self.operand("round", precision, x)?, x.shape().clone()))
    }

    fn matmul(&self, of: MatrixProduct<'_>) -> Result<Array> {
        let MatrixProduct { sizes, a, b, shape, precision, dtype } = of;
        const OP: &str = "matmul";
        let (left, right) = (self.operand(OP, precision, a.array)?, self.operand(OP, precision, b.array)?);
        let left = Matrix { slice: &left, transposed: a.transposed };
        let right = Matrix { slice: &right, transposed: b.transposed };
        let to = self.multiply(sizes, (left, right), None, precision, element_type(OP, dtype)?)?;
        Ok(self.array(to, shape.clone()))
    }

    fn linear(&self, of: LinearProduct<'_>) -> Result<Array> {
        let LinearProduct { sizes: [rows, inputs, outputs], x, weight, bias, shape, precision, dtype } = of;
        const OP: &str = "linear";
        let (x, w) = (self.operand(OP, precision, x)?, self.operand(OP, precision, weight.array)?);
        let bias = self.slice_if(OP, bias)?;
        let factors = (Matrix::plain(&x), Matrix { slice: &w, transposed: weight.transposed });
        let to =
            self.multiply([1, rows, outputs, inputs], factors, bias, precision, element_type(OP, dtype)?)?;
        Ok(self.array(to, shape.clone()))
    }

    fn linear_backward_weight(&self, of: LinearWeightGrad<'_>, to: &Destination) -> Result<()> {
        let LinearWeightGrad { sizes: [rows, inputs, outputs], dy, x, precision } = of;
        const OP: &str = "linear";
        let (dy, x) = (self.operand(OP, precision, dy)?, self.operand(OP, precision, x)?);
        let (sizes, factors) = ([1, outputs, inputs, rows], (Matrix::transposed(&dy), Matrix::plain(&x)));
        let target = self.slice(OP, &to.array)?;
        if [x.dtype(), x.dtype().wide()].contains(&target.dtype()) {
            let ((a, b), tf32) = (factors, precision == Precision::Tf32);
            return Ok(self.blas().matmul(&Product {
                sizes,
                a,
                b,
                to: target,
                add: to.add,
                bias: None,
                tf32,
            })?);
        }
        let dw = self.multiply(sizes, factors, None, precision, x.dtype().wide())?;
        self.write(OP, &dw, to)
    }

    fn linear_backward_bias(&self, [rows, _, outputs]: [usize; 3], dy: &Array) -> Result<Array> {
        let dy = self.slice("linear", dy)?;
        Ok(self.array(kernels::sum_over(self.gpu(), dy, [1, rows, outputs], dy.dtype().wide())?, outputs))
    }

    fn softmax(&self, x: &Array, dtype: DType) -> Result<Array> {
        const OP: &str = "softmax";
        let from = self.open(OP, x)?;
        let y = kernels::softmax(self.gpu(), from.slice()?, from.width(), element_type(OP, dtype)?)?;
        Ok(self.array(y, x.shape().clone()))
    }

    fn softmax_backward(&self, y: &Array, dy: &Array) -> Result<Array> {
        const OP: &str = "softmax";
        let (from, grad) = (self.open(OP, y)?, self.slice(OP, dy)?);
        let dx = kernels::softmax_backward(self.gpu(), from.slice()?, grad, from.width())?;
        Ok(self.array(dx, y.shape().clone()))
    }
}
