//! Matrix products by cuBLASLt; softmax and attention by the kernels.

use candle_core::{DType, Shape};
use phalanx_cuda::blas::{Matrix, Product};
use phalanx_cuda::kernels::AttentionSizes;
use phalanx_cuda::{ElementType, GpuError, Slice, kernels};

use super::{Cuda, CudaArray, element_type};
use crate::backend::{Array, Attended, AttentionShape, Destination, Factor, Products};
use crate::{Precision, Result};

impl Cuda {
    /// Products of factors that are of one type, as another.
    fn multiply(
        &self,
        sizes: [usize; 4],
        (a, b): (Matrix<'_>, Matrix<'_>),
        bias: Option<&Slice>,
        dtype: ElementType,
    ) -> Result<Slice> {
        let gpu = self.gpu();
        let factors = a.slice.dtype();
        // What the library does not give is rounded apart.
        let given = if dtype == factors || dtype == factors.wide() { dtype } else { factors.wide() };
        let [batch, m, n, _] = sizes;
        let to = gpu.unwritten(given, batch * m * n)?;
        let fused = bias.filter(|_| factors != ElementType::F64);
        let fused = fused.map(|bias| kernels::convert(gpu, bias, given)).transpose()?;
        self.blas().matmul(&Product { sizes, a, b, to: &to, add: false, bias: fused.as_ref() })?;
        let to = match bias.filter(|_| factors == ElementType::F64) {
            Some(bias) => {
                let (rows, row) = ([batch * m, n], [n]);
                kernels::binary(gpu, kernels::BinaryOp::Add, (&to, &rows), (bias, &row), given)?
            }
            None => to,
        };
        Ok(kernels::convert(gpu, &to, dtype)?)
    }
}

impl Products for Cuda {
    fn matmul(
        &self,
        sizes: [usize; 4],
        a: Factor<'_>,
        b: Factor<'_>,
        shape: &Shape,
        precision: Precision,
        dtype: DType,
    ) -> Result<Array> {
        const OP: &str = "matmul";
        let (left, right) = (self.operand(OP, precision, a.array)?, self.operand(OP, precision, b.array)?);
        let left = Matrix { slice: &left, transposed: a.transposed };
        let right = Matrix { slice: &right, transposed: b.transposed };
        let to = self.multiply(sizes, (left, right), None, element_type(OP, dtype)?)?;
        Ok(self.array(to, shape.clone()))
    }

    fn linear(
        &self,
        [rows, inputs, outputs]: [usize; 3],
        x: &Array,
        weight: &Array,
        bias: Option<&Array>,
        shape: &Shape,
        precision: Precision,
        dtype: DType,
    ) -> Result<Array> {
        const OP: &str = "linear";
        let (x, w) = (self.operand(OP, precision, x)?, self.operand(OP, precision, weight)?);
        let bias = self.slice_if(OP, bias)?;
        let factors = (Matrix::plain(&x), Matrix::transposed(&w));
        let to = self.multiply([1, rows, outputs, inputs], factors, bias, element_type(OP, dtype)?)?;
        Ok(self.array(to, shape.clone()))
    }

    fn linear_backward_weight(
        &self,
        [rows, inputs, outputs]: [usize; 3],
        dy: &Array,
        x: &Array,
        precision: Precision,
        to: &Destination,
    ) -> Result<()> {
        const OP: &str = "linear";
        let (dy, x) = (self.operand(OP, precision, dy)?, self.operand(OP, precision, x)?);
        let (sizes, factors) = ([1, outputs, inputs, rows], (Matrix::transposed(&dy), Matrix::plain(&x)));
        let target = self.slice(OP, &to.array)?;
        if [x.dtype(), x.dtype().wide()].contains(&target.dtype()) {
            let (a, b) = factors;
            return Ok(self.blas().matmul(&Product { sizes, a, b, to: target, add: to.add, bias: None })?);
        }
        let dw = self.multiply(sizes, factors, None, x.dtype().wide())?;
        self.write(OP, &dw, to)
    }

    fn linear_backward_bias(&self, [rows, _, outputs]: [usize; 3], dy: &Array) -> Result<Array> {
        let dy = self.slice("linear", dy)?;
        Ok(self.array(kernels::sum_over(self.gpu(), dy, [1, rows, outputs], dy.dtype().wide())?, outputs))
    }

    fn softmax(&self, x: &Array, dtype: DType) -> Result<Array> {
        const OP: &str = "softmax";
        let from = self.open(OP, x)?;
        let y = kernels::softmax(self.gpu(), from.slice(), from.width(), element_type(OP, dtype)?)?;
        Ok(self.array(y, x.shape().clone()))
    }

    fn softmax_backward(&self, y: &Array, dy: &Array) -> Result<Array> {
        const OP: &str = "softmax";
        let (from, grad) = (self.open(OP, y)?, self.slice(OP, dy)?);
        let dx = kernels::softmax_backward(self.gpu(), from.slice(), grad, from.width())?;
        Ok(self.array(dx, y.shape().clone()))
    }

    fn attention(
        &self,
        shape: AttentionShape,
        q: &Array,
        k: &Array,
        v: &Array,
        precision: Precision,
    ) -> Result<Attended> {
        const OP: &str = "attention";
        let operand = |array| self.operand(OP, precision, array);
        let factors = [operand(q)?, operand(k)?, operand(v)?];
        let attended = kernels::attention(self.gpu(), sizes(shape), &factors[0], &factors[1], &factors[2]);
        if let Err(GpuError::Unsupported { .. }) = attended {
            return self.attention_by_products(shape, [q, k, v], precision);
        }
        let [output, log_sums] = attended?;
        let rows = log_sums.len();
        let saved = CudaArray::new(self.clone(), log_sums, rows.into()).with(output.clone());
        let dims = (shape.batch, shape.heads, shape.length, shape.dim);
        Ok(Attended { output: self.array(output, dims), saved: Array::of_device(saved) })
    }

    fn attention_backward(
        &self,
        shape: AttentionShape,
        [q, k, v]: [&Array; 3],
        saved: &Array,
        grad: &Array,
        precision: Precision,
        wants: [bool; 3],
    ) -> Result<[Option<Array>; 3]> {
        const OP: &str = "attention";
        let weights = saved;
        let saved = self.open(OP, saved)?;
        let Some(output) = saved.beside() else {
            let inputs = [q, k, v];
            return self.attention_by_products_backward(shape, inputs, weights, grad, precision, wants);
        };
        let operand = |array| self.operand(OP, precision, array);
        let (inputs, grad) = ([&operand(q)?, &operand(k)?, &operand(v)?], self.slice(OP, grad)?);
        let forward = [output, saved.slice()];
        let grads = kernels::attention_backward(self.gpu(), sizes(shape), inputs, forward, grad, wants)?;
        let [dq, dk, dv] = grads;
        let array =
            |slice: Option<Slice>, of: &Array| slice.map(|slice| self.array(slice, of.shape().clone()));
        Ok([array(dq, q), array(dk, k), array(dv, v)])
    }
}

fn sizes(shape: AttentionShape) -> AttentionSizes {
    AttentionSizes {
        matrices: shape.batch * shape.heads,
        length: shape.length,
        keys: shape.keys,
        dim: shape.dim,
        causal: shape.causal,
    }
}
