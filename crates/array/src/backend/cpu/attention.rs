//! Attention with the CPU kernels.

use candle_core::{DType, Device, Shape, Tensor, WithDType};
use phalanx_kernels::{
    AttentionElement, AttentionGrads, AttentionInputs as KernelInputs, AttentionMask as KernelMask,
    AttentionOperands as KernelOperands, AttentionShape as KernelShape, attention_backward,
    attention_forward, bf16, f16,
};

use super::random::dropout_of;
use crate::backend::{
    Array, Attention, AttentionBackward, AttentionGradients, AttentionInputs, AttentionOperands,
    AttentionOutput, AttentionShape,
};
use crate::storage::{
    AnyBits, Contiguous, Indices, Scalar, TypedElements, cast, tensor_from, unwritten, wide,
};
use crate::{ArrayError, Context, Result};

const OP: &str = "attention";

/// An element type that operands are read in and results are stored in.
trait Element: AttentionElement<Float: Scalar> + WithDType + AnyBits {}
impl Element for f32 {}
impl Element for f64 {}
impl Element for bf16 {}
impl Element for f16 {}

/// Runs `$body` with `$t` as the type of the operands and results.
macro_rules! by_element {
    ($dtype:expr, $t:ident => $body:expr) => {
        match $dtype {
            DType::F32 => by_element!(f32 as $t => $body),
            DType::F64 => by_element!(f64 as $t => $body),
            DType::BF16 => by_element!(bf16 as $t => $body),
            DType::F16 => by_element!(f16 as $t => $body),
            other => Err(ArrayError::dtype(OP, other)),
        }
    };
    ($element:ident as $t:ident => $body:expr) => {{
        type $t = $element;
        $body
    }};
}

/// Inputs of attention, and their operands in the type that they are read in.
struct Typed<'a> {
    of: AttentionInputs<'a>,
    operands: Vec<Tensor>,
}

impl<'a> Typed<'a> {
    fn new(context: &Context, of: AttentionInputs<'a>) -> Result<Self> {
        let arrays = match &of.operands {
            AttentionOperands::Joined(all) => std::slice::from_ref(all),
            AttentionOperands::Apart(parts) => &parts[..],
        };
        let dtype = dtype_of(&of);
        let read = |array: &&Array| match (array.dtype() == DType::F64) == (dtype == DType::F64) {
            true => cast(context, array.host(OP)?, dtype),
            false => Err(ArrayError::dtype(OP, array.dtype())),
        };
        Ok(Self { of, operands: arrays.iter().map(read).collect::<Result<_>>()? })
    }

    /// Locks everything for reading.
    fn locked<E: Element>(&self) -> Result<Locked<'_, E>> {
        let indices = |array: &'a Option<Array>| {
            array.as_ref().map(|array| Indices::of(OP, array.host(OP)?)).transpose()
        };
        let operands = self.operands.iter().map(|operand| TypedElements::of(OP, operand));
        Ok(Locked {
            of: self.of,
            operands: operands.collect::<Result<_>>()?,
            lengths: indices(&self.of.mask.lengths)?,
            starts: indices(&self.of.mask.starts)?,
        })
    }
}

/// The inputs of attention, locked for reading.
struct Locked<'a, E> {
    of: AttentionInputs<'a>,
    operands: Vec<TypedElements<'a, E>>,
    lengths: Option<Indices<'a>>,
    starts: Option<Indices<'a>>,
}

impl<E: Element> Locked<'_, E> {
    /// Returns the inputs of the kernels.
    fn inputs(&self) -> Result<KernelInputs<'_, E>> {
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

    fn forward(&self, context: &Context) -> Result<AttentionOutput> {
        let AttentionShape { batch, heads, length, dim, .. } = self.of.shape;
        let queries = batch * heads * length;
        let (mut out, mut log_sums) = (unwritten::<E>(queries * dim), unwritten::<E::Float>(queries));
        attention_forward(context, self.inputs()?, &mut out, &mut log_sums)?;
        let saved = tensor_from(log_sums, Shape::from((batch, heads, length)))?.into();
        Ok(AttentionOutput { output: array_from(out, self.of.shape.queries())?, saved })
    }

    /// Computes the gradients from those of the output.
    fn backward(
        &self,
        context: &Context,
        [out, dy]: [&Tensor; 2],
        saved: &Tensor,
        wants: [bool; 3],
    ) -> Result<AttentionGradients> {
        let (out, dy) = (TypedElements::of(OP, out)?, TypedElements::of(OP, dy)?);
        let rows: [&[E]; 2] = [out.slice()?, dy.slice()?];
        let log_sums = Contiguous::by(OP, context, saved)?;
        let (inputs, log_sums) = (self.inputs()?, log_sums.slice::<E::Float>()?);
        if let KernelOperands::Joined(_) = inputs.operands {
            let shape = self.of.shape.joined();
            let mut made = unwritten::<E>(shape.elem_count());
            attention_backward(context, inputs, rows, log_sums, AttentionGrads::Joined(&mut made))?;
            return Ok(AttentionGradients::Joined(array_from(made, shape)?));
        }
        let shapes = [self.of.shape.queries(), self.of.shape.positions(), self.of.shape.positions()];
        let mut made = [None, None, None];
        for ((made, shape), wanted) in made.iter_mut().zip(&shapes).zip(wants) {
            *made = wanted.then(|| unwritten::<E>(shape.elem_count()));
        }
        let [q, k, v] = made.each_mut().map(|made| made.as_deref_mut());
        attention_backward(context, inputs, rows, log_sums, AttentionGrads::Apart { q, k, v })?;
        let mut grads = [None, None, None];
        for ((grad, made), shape) in grads.iter_mut().zip(made).zip(shapes) {
            *grad = made.map(|made| array_from(made, shape)).transpose()?;
        }
        Ok(AttentionGradients::Apart(grads))
    }
}

impl Attention for Context {
    fn attention(&self, of: AttentionInputs<'_>) -> Result<AttentionOutput> {
        let typed = Typed::new(self, of)?;
        by_element!(dtype_of(&of), E => typed.locked::<E>()?.forward(self))
    }

    fn attention_backward(&self, of: AttentionBackward<'_>) -> Result<AttentionGradients> {
        let AttentionBackward { inputs, output, saved, grad, wants } = of;
        let (dtype, typed) = (dtype_of(&inputs), Typed::new(self, inputs)?);
        let rows = [cast(self, output.host(OP)?, dtype)?, cast(self, grad.host(OP)?, dtype)?];
        let saved = saved.host(OP)?;
        by_element!(dtype, E => typed.locked::<E>()?.backward(self, rows.each_ref(), saved, wants))
    }
}

fn array_from<E: Element>(values: Vec<E>, shape: Shape) -> Result<Array> {
    Ok(Tensor::from_vec(values, shape, &Device::Cpu)?.into())
}

/// Returns the type that operands are read in: products round them to the type of the precision.
fn dtype_of(of: &AttentionInputs<'_>) -> DType {
    let dtype = match of.operands {
        AttentionOperands::Joined(all) => all.dtype(),
        AttentionOperands::Apart([q, ..]) => q.dtype(),
    };
    of.precision.product(wide(dtype))
}
