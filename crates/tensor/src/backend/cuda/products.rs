//! Matrix products by cuBLASLt, softmax by the kernels, and attention by either.
//!
//! The fused kernel keeps no attention weights, and is faster for operands of 16 bits on tensor cores. In f32 the
//! library's products are faster, as long as the weights fit in memory.

use candle_core::{DType, Shape};
use phalanx_cuda::blas::{Matrix, Product};
use phalanx_cuda::kernels::AttentionSizes;
use phalanx_cuda::{ElementType, Gpu, Slice, kernels};

use super::{Cuda, CudaArray, element_type};
use crate::backend::{
    Array, AttentionBackward, AttentionInputs, AttentionOutput, AttentionShape, BinaryOp, Destination,
    Factor, LinearProduct, LinearWeightGrad, MatrixProduct, Products,
};
use crate::storage::wide;
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

    fn attention(&self, of: AttentionInputs<'_>) -> Result<AttentionOutput> {
        let AttentionInputs { shape, q, k, v, precision } = of;
        const OP: &str = "attention";
        let AttentionShape { length, keys, dim, causal, .. } = shape;
        let wide = wide(q.dtype());
        if in_one_pass(self.gpu(), shape, element_type(OP, precision.product(wide))?) {
            return self.attention_in_one_pass(of);
        }
        let scores = self.matmul(MatrixProduct {
            sizes: scores_sizes(shape),
            a: Factor::plain(q),
            b: Factor::transposed(k),
            shape: &pairs(shape),
            precision,
            dtype: wide,
        })?;
        let dtype = precision.product(wide);
        let (from, factor) = (self.open(OP, &scores)?, 1.0 / (dim as f64).sqrt());
        kernels::scale_and_mask(self.gpu(), from.slice()?, [length, keys], factor, causal)?;
        let weights = kernels::softmax(self.gpu(), from.slice()?, keys, element_type(OP, dtype)?)?;
        let saved = self.array(weights, pairs(shape));
        drop(scores);
        let sizes = [shape.batch * shape.heads, length, dim, keys];
        let (a, b, shape) = (Factor::plain(&saved), Factor::plain(v), &outer(shape, length));
        let output = self.matmul(MatrixProduct { sizes, a, b, shape, precision, dtype })?;
        Ok(AttentionOutput { output, saved })
    }

    fn attention_backward(&self, of: AttentionBackward<'_>) -> Result<[Option<Array>; 3]> {
        let AttentionBackward { inputs, saved, grad, wants } = of;
        let AttentionInputs { shape, q, k, v, precision } = inputs;
        const OP: &str = "attention";
        let AttentionShape { length, keys, dim, .. } = shape;
        if let Some(output) = self.open(OP, saved)?.attached() {
            let operand = |array| self.operand(OP, precision, array);
            let (q, k, v) = (operand(q)?, operand(k)?, operand(v)?);
            let (kept, grad) = ([output, self.slice(OP, saved)?], self.slice(OP, grad)?);
            let sizes = sizes_of(shape);
            let grads = kernels::attention_backward(self.gpu(), sizes, [&q, &k, &v], kept, grad, wants)?;
            let [dq, dk, dv] = grads;
            let array = |grad: Option<Slice>, rows| grad.map(|grad| self.array(grad, outer(shape, rows)));
            return Ok([array(dq, length), array(dk, keys), array(dv, keys)]);
        }
        // A product of `rows` rows, summed over `over`.
        let product = |rows: usize, over: usize, a: Factor<'_>, b: Factor<'_>| {
            let sizes = [shape.batch * shape.heads, rows, dim, over];
            let (shape, dtype) = (&outer(shape, rows), wide(a.array.dtype()));
            self.matmul(MatrixProduct { sizes, a, b, shape, precision, dtype })
        };
        let mut grads = [None, None, None];
        if wants[2] {
            grads[2] = Some(product(keys, length, Factor::transposed(saved), Factor::plain(grad))?);
        }
        if !wants[0] && !wants[1] {
            return Ok(grads);
        }
        let grad_weights = self.matmul(MatrixProduct {
            sizes: scores_sizes(shape),
            a: Factor::plain(grad),
            b: Factor::transposed(v),
            shape: &pairs(shape),
            precision,
            dtype: wide(grad.dtype()),
        })?;
        // Masked weights are zero, and softmax's gradient is multiplied by them, so the mask needs no step.
        let (weights, factor) = (self.open(OP, saved)?, 1.0 / (dim as f64).sqrt());
        let from = self.slice(OP, &grad_weights)?;
        let scores = kernels::softmax_backward(self.gpu(), weights.slice()?, from, keys)?;
        kernels::scale_and_mask(self.gpu(), &scores, [length, keys], factor, false)?;
        let grad_scores = self.array(scores, pairs(shape));
        if wants[0] {
            grads[0] = Some(product(length, keys, Factor::plain(&grad_scores), Factor::plain(k))?);
        }
        if wants[1] {
            grads[1] = Some(product(keys, length, Factor::transposed(&grad_scores), Factor::plain(q))?);
        }
        Ok(grads)
    }
}

/// The number of f32 attention weights from which on the fused kernel saves memory, although products are faster.
const MOST_WEIGHTS: usize = 1 << 28;

/// True if the fused kernel computes attention for this operand type.
fn in_one_pass(gpu: &Gpu, shape: AttentionShape, operands: ElementType) -> bool {
    let weights = shape.batch * shape.heads * shape.length * shape.keys;
    kernels::attention_supports(gpu, operands, shape.dim) && (operands.is_half() || weights >= MOST_WEIGHTS)
}

fn sizes_of(shape: AttentionShape) -> AttentionSizes {
    let AttentionShape { batch, heads, length, keys, dim, causal } = shape;
    AttentionSizes { matrices: batch * heads, length, keys, dim, causal }
}

impl Cuda {
    /// Computes attention with the fused kernel. Backward reads the log-sums of exponentials and the output.
    fn attention_in_one_pass(&self, of: AttentionInputs<'_>) -> Result<AttentionOutput> {
        let AttentionInputs { shape, q, k, v, precision } = of;
        let operand = |array| self.operand("attention", precision, array);
        let (q, k, v) = (operand(q)?, operand(k)?, operand(v)?);
        let [output, log_sums] = kernels::attention(self.gpu(), sizes_of(shape), &q, &k, &v)?;
        let rows = Shape::from((shape.batch, shape.heads, shape.length));
        let saved = CudaArray::new(self.clone(), log_sums, rows).with(output.clone());
        Ok(AttentionOutput {
            output: self.array(output, outer(shape, shape.length)),
            saved: Array::of_device(saved),
        })
    }
}

fn scores_sizes(shape: AttentionShape) -> [usize; 4] {
    [shape.batch * shape.heads, shape.length, shape.keys, shape.dim]
}

/// Returns the shape of scores.
fn pairs(shape: AttentionShape) -> Shape {
    Shape::from((shape.batch, shape.heads, shape.length, shape.keys))
}

/// Returns the shape of `rows` positions.
fn outer(shape: AttentionShape, rows: usize) -> Shape {
    Shape::from((shape.batch, shape.heads, rows, shape.dim))
}
