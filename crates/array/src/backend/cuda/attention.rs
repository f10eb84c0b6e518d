//! Attention by one fused kernel, or by products of cuBLASLt.
//!
//! The fused kernel keeps no attention weights, reads operands where a projection wrote them, and is faster for operands
//! of 16 bits on tensor cores. In f32 the library's products are faster, as long as the weights fit in memory. They take
//! copies by heads.

use candle_core::Shape;
use phalanx_cuda::kernels::{
    AttentionGradients as KernelGradients, AttentionInputs as KernelInputs, AttentionMask as KernelMask,
    AttentionOperands as KernelOperands, AttentionSizes,
};
use phalanx_cuda::{ElementType, Gpu, Slice, kernels};

use super::random::dropout_of;
use super::{Cuda, element_type};
use crate::backend::{
    Array, Attention, AttentionBackward, AttentionGradients, AttentionInputs, AttentionMask,
    AttentionOperands, AttentionOutput, AttentionShape, Dropout, Factor, MatrixProduct, Products as _,
    Shapes as _,
};
use crate::storage::wide;
use crate::{Precision, Result};

const OP: &str = "attention";

/// The number of f32 attention weights from which on the fused kernel saves memory, although products are faster.
const MOST_WEIGHTS: usize = 1 << 28;

/// The order of dimensions that exchanges positions and heads.
const BY_HEADS: [usize; 4] = [0, 2, 1, 3];

impl Attention for Cuda {
    fn attention(&self, of: AttentionInputs<'_>) -> Result<AttentionOutput> {
        let wide = wide(dtype_of(&of));
        let dtype = of.precision.product(wide);
        if in_one_pass(self.gpu(), of.shape, element_type(OP, dtype)?) {
            return self.attention_in_one_pass(of);
        }
        let shape = of.shape;
        let [q, k, v] = self.by_heads(&of)?;
        let product = Grouped { shape, precision: of.precision };
        let scores = product.pairs(self, &q, &k)?;
        let (from, factor) = (self.slice(OP, &scores)?, 1.0 / (shape.dim as f64).sqrt());
        let sizes = sizes_of(&of);
        kernels::scale_and_mask(self.gpu(), from, &sizes, self.mask_of(of.mask)?, factor)?;
        let weights = kernels::softmax(self.gpu(), from, shape.keys, element_type(OP, dtype)?)?;
        let saved = self.array(weights, pairs(shape));
        drop(scores);
        let dropped = self.dropped(&saved, &sizes, of.dropout)?;
        let output = product.rows(self, Factor::plain(&dropped), Factor::plain(&v), dtype)?;
        Ok(AttentionOutput { output: self.permute(&output, &BY_HEADS)?, saved })
    }

    fn attention_backward(&self, of: AttentionBackward<'_>) -> Result<AttentionGradients> {
        // The fused kernel saves a number a row, and products save all weights.
        if of.saved.dims().len() == 3 {
            return self.attention_in_one_pass_backward(of);
        }
        let AttentionBackward { inputs, saved, grad, mut wants, .. } = of;
        let (shape, joined) = (inputs.shape, matches!(inputs.operands, AttentionOperands::Joined(_)));
        wants = wants.map(|wanted| wanted || joined);
        let [q, k, v] = self.by_heads(&inputs)?;
        let grad = self.permute(grad, &BY_HEADS)?;
        let product = Grouped { shape, precision: inputs.precision };
        let sizes = sizes_of(&inputs);
        let mut grads = [None, None, None];
        if wants[2] {
            let dropped = self.dropped(saved, &sizes, inputs.dropout)?;
            grads[2] = Some(product.columns(self, &dropped, &grad)?);
        }
        if wants[0] || wants[1] {
            let grad_weights = product.pairs(self, &grad, &v)?;
            let grad_weights = self.dropped(&grad_weights, &sizes, inputs.dropout)?;
            // Hidden weights are zero, and softmax's gradient is multiplied by them, so the mask needs no step.
            let (weights, from) = (self.slice(OP, saved)?, self.slice(OP, &grad_weights)?);
            let scores = kernels::softmax_backward(self.gpu(), weights, from, shape.keys)?;
            let plain = AttentionSizes { causal: false, window: None, ..sizes };
            let factor = 1.0 / (shape.dim as f64).sqrt();
            kernels::scale_and_mask(self.gpu(), &scores, &plain, KernelMask::default(), factor)?;
            let scores = self.array(scores, pairs(shape));
            if wants[0] {
                let dtype = wide(scores.dtype());
                grads[0] = Some(product.rows(self, Factor::plain(&scores), Factor::plain(&k), dtype)?);
            }
            if wants[1] {
                grads[1] = Some(product.columns(self, &scores, &q)?);
            }
        }
        let mut to = [None, None, None];
        for (to, grad) in to.iter_mut().zip(grads) {
            *to = grad.map(|grad| self.permute(&grad, &BY_HEADS)).transpose()?;
        }
        if !joined {
            return Ok(AttentionGradients::Apart(to));
        }
        let parts: Vec<Array> = to.into_iter().flatten().collect();
        let all = self.cat(&parts, 2)?;
        Ok(AttentionGradients::Joined(self.array(self.slice(OP, &all)?.clone(), shape.joined())))
    }
}

/// Products over the heads of queries that share a head of keys, whose rows are those of one matrix.
struct Grouped {
    shape: AttentionShape,
    precision: Precision,
}

impl Grouped {
    /// Returns sizes of products by each head of keys, with all positions of the heads of queries that it serves.
    fn sizes(&self, [m, n, k]: [usize; 3]) -> [usize; 4] {
        [self.shape.batch * self.shape.key_heads, m, n, k]
    }

    /// Positions of the heads of queries that share a head of keys.
    fn queries(&self) -> usize {
        self.shape.heads / self.shape.key_heads * self.shape.length
    }

    /// Computes the product of each query with each key.
    fn pairs(&self, cuda: &Cuda, queries: &Array, keys: &Array) -> Result<Array> {
        cuda.matmul(MatrixProduct {
            sizes: self.sizes([self.queries(), self.shape.keys, self.shape.dim]),
            a: Factor::plain(queries),
            b: Factor::transposed(keys),
            shape: &pairs(self.shape),
            precision: self.precision,
            dtype: wide(queries.dtype()),
        })
    }

    /// Computes sums of keys or values for each query, [N, heads, T, D].
    fn rows(&self, cuda: &Cuda, a: Factor<'_>, b: Factor<'_>, dtype: candle_core::DType) -> Result<Array> {
        let AttentionShape { batch, heads, length, keys, dim, .. } = self.shape;
        let sizes = self.sizes([self.queries(), dim, keys]);
        let shape = &Shape::from((batch, heads, length, dim));
        cuda.matmul(MatrixProduct { sizes, a, b, shape, precision: self.precision, dtype })
    }

    /// Computes sums of queries or of the output's gradient for each key, [N, key_heads, S, D].
    fn columns(&self, cuda: &Cuda, weights: &Array, of: &Array) -> Result<Array> {
        let AttentionShape { batch, key_heads, keys, dim, .. } = self.shape;
        let sizes = self.sizes([keys, dim, self.queries()]);
        let (a, b, dtype) = (Factor::transposed(weights), Factor::plain(of), wide(weights.dtype()));
        let shape = &Shape::from((batch, key_heads, keys, dim));
        cuda.matmul(MatrixProduct { sizes, a, b, shape, precision: self.precision, dtype })
    }
}

impl Cuda {
    /// Returns queries, keys and values by heads, [N, heads, T, D].
    fn by_heads(&self, of: &AttentionInputs<'_>) -> Result<[Array; 3]> {
        let AttentionShape { batch, heads, key_heads, length, dim, .. } = of.shape;
        match of.operands {
            AttentionOperands::Apart([q, k, v]) => {
                Ok([self.permute(q, &BY_HEADS)?, self.permute(k, &BY_HEADS)?, self.permute(v, &BY_HEADS)?])
            }
            AttentionOperands::Joined(all) => {
                let slice = self.slice(OP, all)?.clone();
                let all = self.array(slice, (batch, length, heads + 2 * key_heads, dim));
                let part = |first: usize, count: usize| {
                    self.permute(&self.narrow(&all, 2, first, count)?, &BY_HEADS)
                };
                Ok([part(0, heads)?, part(heads, key_heads)?, part(heads + key_heads, key_heads)?])
            }
        }
    }

    fn mask_of<'a>(&self, mask: &'a AttentionMask) -> Result<KernelMask<'a>> {
        let slice = |array: &'a Option<Array>| array.as_ref().map(|array| self.slice(OP, array)).transpose();
        Ok(KernelMask { lengths: slice(&mask.lengths)?, starts: slice(&mask.starts)? })
    }

    /// Returns weights, or their gradients, after dropout.
    fn dropped(&self, weights: &Array, sizes: &AttentionSizes, dropout: Option<Dropout>) -> Result<Array> {
        let Some(dropout) = dropout else { return Ok(weights.clone()) };
        let dropped =
            kernels::drop_weights(self.gpu(), self.slice(OP, weights)?, sizes, dropout_of(dropout))?;
        Ok(self.array(dropped, weights.shape().clone()))
    }

    /// Computes attention with the fused kernel. Backward reads the log-sums of exponentials and the output.
    fn attention_in_one_pass(&self, of: AttentionInputs<'_>) -> Result<AttentionOutput> {
        let rounded = self.rounded(&of)?;
        let inputs = self.kernel_inputs(&of, &rounded)?;
        let [output, log_sums] = kernels::attention(self.gpu(), &inputs)?;
        let rows = Shape::from((of.shape.batch, of.shape.heads, of.shape.length));
        Ok(AttentionOutput {
            output: self.array(output, of.shape.queries()),
            saved: self.array(log_sums, rows),
        })
    }

    fn attention_in_one_pass_backward(&self, of: AttentionBackward<'_>) -> Result<AttentionGradients> {
        let AttentionBackward { inputs, output, saved, grad, wants } = of;
        let rounded = self.rounded(&inputs)?;
        let saved = [self.slice(OP, output)?, self.slice(OP, saved)?];
        let inputs_of_kernel = self.kernel_inputs(&inputs, &rounded)?;
        let shape = inputs.shape;
        match kernels::attention_backward(self.gpu(), &inputs_of_kernel, saved, self.slice(OP, grad)?, wants)?
        {
            KernelGradients::Joined(grad) => Ok(AttentionGradients::Joined(self.array(grad, shape.joined()))),
            KernelGradients::Apart([q, k, v]) => {
                let array = |grad: Option<Slice>, shape: Shape| grad.map(|grad| self.array(grad, shape));
                let positions = shape.positions();
                let (k, v) = (array(k, positions.clone()), array(v, positions));
                Ok(AttentionGradients::Apart([array(q, shape.queries()), k, v]))
            }
        }
    }

    /// Returns the operands in the type of the products.
    fn rounded(&self, of: &AttentionInputs<'_>) -> Result<Vec<Slice>> {
        let arrays = match &of.operands {
            AttentionOperands::Joined(all) => std::slice::from_ref(all),
            AttentionOperands::Apart(parts) => &parts[..],
        };
        arrays.iter().map(|array| self.operand(OP, of.precision, array)).collect()
    }

    fn kernel_inputs<'a>(&self, of: &AttentionInputs<'a>, rounded: &'a [Slice]) -> Result<KernelInputs<'a>> {
        let operands = match rounded {
            [q, k, v] => KernelOperands::Apart([q, k, v]),
            all => KernelOperands::Joined(&all[0]),
        };
        let mask = self.mask_of(of.mask)?;
        Ok(KernelInputs { sizes: sizes_of(of), mask, dropout: of.dropout.map(dropout_of), operands })
    }
}

/// True if the fused kernel computes attention for this operand type.
fn in_one_pass(gpu: &Gpu, shape: AttentionShape, operands: ElementType) -> bool {
    let weights = shape.batch * shape.heads * shape.length * shape.keys;
    kernels::attention_supports(gpu, operands, shape.dim) && (operands.is_half() || weights >= MOST_WEIGHTS)
}

fn sizes_of(of: &AttentionInputs<'_>) -> AttentionSizes {
    let AttentionShape { batch, heads, key_heads, length, keys, dim } = of.shape;
    let AttentionMask { causal, window, .. } = *of.mask;
    AttentionSizes { samples: batch, heads, key_heads, length, keys, dim, causal, window }
}

/// Returns the element type of the operands.
fn dtype_of(of: &AttentionInputs<'_>) -> candle_core::DType {
    match of.operands {
        AttentionOperands::Joined(all) => all.dtype(),
        AttentionOperands::Apart([q, ..]) => q.dtype(),
    }
}

/// Returns the shape of scores.
fn pairs(shape: AttentionShape) -> Shape {
    Shape::from((shape.batch, shape.heads, shape.length, shape.keys))
}
