//! Kernels that compute rows by themselves, on tensors of any float type.

use std::ops::Range;

use candle_core::{CpuStorage, DType, Device, Shape, Storage, Tensor};
use phalanx_kernels::{self as kernels, Context, Stored, StoredMut, bf16, f16};

use super::{Contiguous, Elements, Scalar, tensor_from, unsupported_device, unwritten};
use crate::{ArrayError, Result};

/// A kernel in f32 and in f64, of which a row's result does not depend on other rows.
pub(crate) trait RowKernel<const I: usize, const O: usize>: Sync {
    /// Computes some rows: all elements of `outputs`, which have the same rows of each output as `inputs` of each input.
    fn run<T: Scalar>(
        &self,
        context: &Context,
        rows: Range<usize>,
        inputs: [&[T]; I],
        outputs: [&mut [T]; O],
    ) -> Result<()>;
}

/// A [`RowKernel`] that adds up numbers over all rows too, such as the gradients of parameters.
pub(crate) trait SummingRowKernel<const I: usize, const O: usize>: Sync {
    /// Computes some rows, and writes the sums over them.
    fn run<T: Scalar>(
        &self,
        context: &Context,
        rows: Range<usize>,
        inputs: [&[T]; I],
        outputs: [&mut [T]; O],
        sums: &mut [T],
    ) -> Result<()>;
}

/// A kernel of rows that sums nothing.
struct WithoutSums<'a, K>(&'a K);

impl<const I: usize, const O: usize, K: RowKernel<I, O>> SummingRowKernel<I, O> for WithoutSums<'_, K> {
    fn run<T: Scalar>(
        &self,
        context: &Context,
        rows: Range<usize>,
        inputs: [&[T]; I],
        outputs: [&mut [T]; O],
        _: &mut [T],
    ) -> Result<()> {
        self.0.run(context, rows, inputs, outputs)
    }
}

/// The results of a [`SummingRowKernel`].
#[derive(Debug)]
pub(crate) struct RowsAndSums<const O: usize> {
    pub(crate) outputs: [Tensor; O],
    /// The sums, in f32, or in f64 for inputs of f64.
    pub(crate) sums: Tensor,
}

/// The shape and the element type of a result. For inputs of f64 that is f64.
#[derive(Debug, Clone)]
pub(crate) struct Output {
    pub(crate) shape: Shape,
    pub(crate) dtype: DType,
}

/// Runs a kernel on all of `count` rows of contiguous CPU tensors. Elements of 16 bits are computed in f32.
pub(crate) fn by_rows<const I: usize, const O: usize>(
    op: &'static str,
    context: &Context,
    count: usize,
    inputs: [&Tensor; I],
    outputs: [Output; O],
    kernel: &impl RowKernel<I, O>,
) -> Result<[Tensor; O]> {
    Ok(by_rows_with_sums(op, context, count, inputs, outputs, 0, &WithoutSums(kernel))?.outputs)
}

/// Runs a kernel on all of `count` rows of contiguous CPU tensors, and adds up `sums` numbers over the rows.
pub(crate) fn by_rows_with_sums<const I: usize, const O: usize>(
    op: &'static str,
    context: &Context,
    count: usize,
    inputs: [&Tensor; I],
    outputs: [Output; O],
    sums: usize,
    kernel: &impl SummingRowKernel<I, O>,
) -> Result<RowsAndSums<O>> {
    let reads = try_map(op, inputs, |input| Contiguous::locked(op, input))?;
    if inputs.iter().any(|input| input.dtype() == DType::F64) {
        let slices = try_map(op, reads.each_ref(), |read| read.slice::<f64>())?;
        let mut made = outputs.each_ref().map(|output| unwritten::<f64>(output.shape.elem_count()));
        let mut of_rows = vec![0.0; sums];
        kernel.run(context, 0..count, slices, made.each_mut().map(|made| &mut made[..]), &mut of_rows)?;
        let mut made = made.into_iter();
        let outputs =
            try_map(op, outputs, |output| tensor_from(made.next().unwrap_or_default(), output.shape))?;
        return Ok(RowsAndSums { outputs, sums: tensor_from(of_rows, sums)? });
    }
    let stored = try_map(op, reads.each_ref(), Contiguous::stored)?;
    let mut made = try_map(op, outputs.each_ref(), |output| OutputBuffer::new(op, output))?;
    let run = |context: &Context, rows, inputs: [&[f32]; I], outputs: [&mut [f32]; O], sums: &mut [f32]| {
        kernel.run(context, rows, inputs, outputs, sums)
    };
    let (mut of_rows, targets) = (vec![0.0; sums], made.each_mut().map(OutputBuffer::target));
    kernels::by_rows_with_sums(context, count, stored, targets, &mut of_rows, run)?;
    let mut made = made.into_iter();
    let outputs = try_map(op, outputs, |output| match made.next() {
        Some(OutputBuffer::F32(values)) => tensor_from(values, output.shape),
        Some(OutputBuffer::Bf16(values)) => Ok(Tensor::from_vec(values, output.shape, &Device::Cpu)?),
        Some(OutputBuffer::F16(values)) => Ok(Tensor::from_vec(values, output.shape, &Device::Cpu)?),
        None => Err(ArrayError::shape(op, "a result is missing")),
    })?;
    Ok(RowsAndSums { outputs, sums: tensor_from(of_rows, sums)? })
}

/// Maps each element.
fn try_map<T, U, const N: usize>(
    op: &'static str,
    values: [T; N],
    map: impl FnMut(T) -> Result<U>,
) -> Result<[U; N]> {
    let mapped: Vec<U> = values.into_iter().map(map).collect::<Result<_>>()?;
    mapped.try_into().map_err(|_| ArrayError::shape(op, "an element is missing"))
}

/// The elements of a result.
enum OutputBuffer {
    F32(Vec<f32>),
    Bf16(Vec<bf16>),
    F16(Vec<f16>),
}

impl OutputBuffer {
    fn new(op: &'static str, output: &Output) -> Result<Self> {
        let len = output.shape.elem_count();
        match output.dtype {
            DType::F32 => Ok(Self::F32(unwritten(len))),
            DType::BF16 => Ok(Self::Bf16(unwritten(len))),
            DType::F16 => Ok(Self::F16(unwritten(len))),
            other => Err(ArrayError::dtype(op, other)),
        }
    }

    fn target(&mut self) -> StoredMut<'_> {
        match self {
            Self::F32(values) => StoredMut::F32(values),
            Self::Bf16(values) => StoredMut::Bf16(values),
            Self::F16(values) => StoredMut::F16(values),
        }
    }
}

impl Contiguous<'_> {
    /// The elements as they are stored: of f32 or of 16 bits.
    fn stored(&self) -> Result<Stored<'_>> {
        let (storage, range) = match &self.elements {
            Elements::Wide(values) => return Ok(Stored::F32(values)),
            Elements::Locked { storage, range } => (storage, range.clone()),
        };
        match &**storage {
            Storage::Cpu(CpuStorage::F32(values)) => Ok(Stored::F32(&values[range])),
            Storage::Cpu(CpuStorage::BF16(values)) => Ok(Stored::Bf16(&values[range])),
            Storage::Cpu(CpuStorage::F16(values)) => Ok(Stored::F16(&values[range])),
            Storage::Cpu(_) => Err(ArrayError::dtype(self.op, storage.dtype())),
            _ => Err(unsupported_device(self.op, &storage.device())),
        }
    }
}
