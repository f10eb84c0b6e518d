//! Attention with the CPU kernels.

use candle_core::Shape;
use phalanx_kernels::{
    AttentionGrads, AttentionInputs as KernelInputs, AttentionMask as KernelMask,
    AttentionOperands as KernelOperands, AttentionShape as KernelShape, attention_backward,
    attention_forward,
};

use super::random::dropout_of;
use crate::backend::{
    Array, Attention, AttentionBackward, AttentionGradients, AttentionInputs, AttentionOperands,
    AttentionOutput, AttentionShape,
};
use crate::storage::{Contiguous, Indices, Scalar, dispatch, operand, stored, tensor_from, unwritten, wide};
use crate::{ArrayError, Context, Result};

const OP: &str = "attention";

/// The inputs of attention, locked for reading.
struct Locked<'a> {
    of: AttentionInputs<'a>,
    operands: Vec<Contiguous<'a>>,
    lengths: Option<Indices<'a>>,
    starts: Option<Indices<'a>>,
}

impl<'a> Locked<'a> {
    fn new(context: &Context, of: AttentionInputs<'a>) -> Result<Self> {
        let arrays = match &of.operands {
            AttentionOperands::Joined(all) => std::slice::from_ref(all),
            AttentionOperands::Apart(parts) => &parts[..],
        };
        let read = |array: &&'a Array| operand(OP, context, of.precision, array.host(OP)?);
        let indices = |array: &'a Option<Array>| {
            array.as_ref().map(|array| Indices::of(OP, array.host(OP)?)).transpose()
        };
        Ok(Self {
            operands: arrays.iter().map(read).collect::<Result<_>>()?,
            lengths: indices(&of.mask.lengths)?,
            starts: indices(&of.mask.starts)?,
            of,
        })
    }

    /// Returns the inputs of the kernels.
    fn inputs<T: Scalar>(&self) -> Result<KernelInputs<'_, T>> {
        let AttentionInputs { shape, mask, dropout, .. } = self.of;
        let AttentionShape { batch, heads, key_heads, length, keys, dim } = shape;
        let operands = match &self.operands[..] {
            [q, k, v] => KernelOperands::Apart { q: q.slice()?, k: k.slice()?, v: v.slice()? },
            [all] => KernelOperands::Joined(all.slice()?),
            other => return Err(ArrayError::shape(OP, format!("{} operands", other.len()))),
        };
        Ok(KernelInputs {
            shape: KernelShape { samples: batch, heads, key_heads, length, keys, dim },
            mask: KernelMask {
                causal: mask.causal,
                window: mask.window,
                lengths: self.lengths.as_ref().map(Indices::slice).transpose()?,
                starts: self.starts.as_ref().map(Indices::slice).transpose()?,
            },
            dropout: dropout.map(dropout_of),
            operands,
        })
    }
}

impl Attention for Context {
    fn attention(&self, of: AttentionInputs<'_>) -> Result<AttentionOutput> {
        let AttentionShape { batch, heads, length, dim, .. } = of.shape;
        let dtype = dtype_of(&of);
        let locked = Locked::new(self, of)?;
        dispatch!(OP, dtype, T => {
            let queries = batch * heads * length;
            let (mut out, mut log_sums) = (unwritten::<T>(queries * dim), unwritten::<T>(queries));
            attention_forward(self, locked.inputs()?, &mut out, &mut log_sums)?;
            let output = stored(self, out, of.shape.queries(), of.precision.product(wide(dtype)))?.into();
            let saved = tensor_from(log_sums, Shape::from((batch, heads, length)))?.into();
            Ok(AttentionOutput { output, saved })
        })
    }

    fn attention_backward(&self, of: AttentionBackward<'_>) -> Result<AttentionGradients> {
        let AttentionBackward { inputs, output, saved, grad, wants } = of;
        let dtype = dtype_of(&inputs);
        let locked = Locked::new(self, inputs)?;
        let out = Contiguous::by(OP, self, output.host(OP)?)?;
        let dy = operand(OP, self, inputs.precision, grad.host(OP)?)?;
        let log_sums = Contiguous::by(OP, self, saved.host(OP)?)?;
        dispatch!(OP, dtype, T => {
            let rows = [out.slice::<T>()?, dy.slice::<T>()?];
            let log_sums = log_sums.slice::<T>()?;
            if let AttentionOperands::Joined(_) = inputs.operands {
                let shape = inputs.shape.joined();
                let mut made = unwritten::<T>(shape.elem_count());
                let grads = AttentionGrads::Joined(&mut made);
                attention_backward(self, locked.inputs()?, rows, log_sums, grads)?;
                return Ok(AttentionGradients::Joined(tensor_from(made, shape)?.into()));
            }
            let shapes = [inputs.shape.queries(), inputs.shape.positions(), inputs.shape.positions()];
            let mut made = [None, None, None];
            for ((made, shape), wanted) in made.iter_mut().zip(&shapes).zip(wants) {
                *made = wanted.then(|| unwritten::<T>(shape.elem_count()));
            }
            let [q, k, v] = made.each_mut().map(|made| made.as_deref_mut());
            attention_backward(self, locked.inputs()?, rows, log_sums, AttentionGrads::Apart { q, k, v })?;
            let mut grads = [None, None, None];
            for ((grad, made), shape) in grads.iter_mut().zip(made).zip(shapes) {
                *grad = made.map(|made| tensor_from(made, shape)).transpose()?.map(Array::from);
            }
            Ok(AttentionGradients::Apart(grads))
        })
    }
}

/// Returns the element type of the operands.
fn dtype_of(of: &AttentionInputs<'_>) -> candle_core::DType {
    match of.operands {
        AttentionOperands::Joined(all) => all.dtype(),
        AttentionOperands::Apart([q, ..]) => q.dtype(),
    }
}
