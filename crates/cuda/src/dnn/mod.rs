//! Convolutions by cuDNN: forward, and the gradients of input and weight. A transposed convolution uses the same three in another
//! order.
//!
//! Each shape has one plan. With [`Options::repeatable`](crate::Options::repeatable) it is the deterministic algorithm that
//! cuDNN's heuristics rank first. Otherwise all algorithms are timed, and the fastest is used.

mod raw;

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash as _};
use std::sync::{Arc, Mutex, PoisonError};

use crate::device::{Stream, Work};
pub use crate::element::TensorLayout;
use crate::gpu::Gpu;
use crate::libraries::Library;
use crate::memory::{Kind, Slice, counted_as, issue, issue_repeatable};
use crate::{ElementType, GpuError, Result};

/// The maximum workspace of an algorithm, in bytes.
const WORKSPACE: usize = 1 << 30;

/// The sizes of a convolution (a cross-correlation).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Convolution {
    /// Images.
    pub batch: usize,
    /// Channels of an input image.
    pub in_channels: usize,
    /// Height of an input image.
    pub height: usize,
    /// Width of an input image.
    pub width: usize,
    /// Channels of an output image.
    pub out_channels: usize,
    /// Size of the window.
    pub kernel: [usize; 2],
    /// Step between windows.
    pub stride: [usize; 2],
    /// Zeros around the input.
    pub padding: [usize; 2],
    /// Step between the taps of a window.
    pub dilation: [usize; 2],
    /// Independent convolutions over equal parts of the channels. Equal to the channels for a depthwise one.
    pub groups: usize,
}

impl Convolution {
    /// Returns height and width of an output image. None if the window does not fit, or a size is invalid.
    pub fn output(&self) -> Option<[usize; 2]> {
        let along = |axis: usize, size: usize| {
            let reach = self.dilation[axis].checked_mul(self.kernel[axis].checked_sub(1)?)? + 1;
            let steps = (size + 2 * self.padding[axis]).checked_sub(reach)?;
            Some(steps.checked_div(self.stride[axis])? + 1)
        };
        Some([along(0, self.height)?, along(1, self.width)?])
    }

    /// Returns the elements of the input.
    pub fn input_len(&self) -> usize {
        self.batch * self.in_channels * self.height * self.width
    }

    /// Returns the elements of the weight.
    pub fn weight_len(&self) -> usize {
        self.out_channels * (self.in_channels / self.groups.max(1)) * self.kernel[0] * self.kernel[1]
    }

    /// Returns the elements of the output.
    pub fn output_len(&self) -> usize {
        self.output().map_or(0, |[height, width]| self.batch * self.out_channels * height * width)
    }
}

/// The layout and the precision of a convolution's operands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ConvolutionFormat {
    /// The memory layout.
    pub layout: TensorLayout,
    /// Round f32 operands to 10 bits of mantissa (TF32), for tensor cores.
    pub tf32: bool,
}

/// A pass of a convolution.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Pass {
    Forward,
    BackwardInput,
    BackwardWeight,
}

impl Pass {
    fn name(self) -> &'static str {
        match self {
            Self::Forward => "convolution",
            Self::BackwardInput => "convolution's input gradient",
            Self::BackwardWeight => "convolution's weight gradient",
        }
    }
}

/// The key of a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Key {
    pass: Pass,
    convolution: Convolution,
    format: ConvolutionFormat,
    dtype: ElementType,
}

/// Convolutions on a GPU's compute stream.
#[derive(Debug)]
pub struct Dnn {
    inner: Arc<Mutex<Inner>>,
    gpu: Gpu,
}

#[derive(Debug)]
struct Inner {
    // Dropped before the handle that made them.
    plans: HashMap<Key, raw::Plan>,
    handle: raw::Handle,
}

impl Dnn {
    /// Opens cuDNN for a GPU.
    ///
    /// # Errors
    /// [`GpuError::MissingLibrary`] if cuDNN is not installed; [`GpuError::Capture`] while a graph is captured.
    pub fn new(gpu: &Gpu) -> Result<Self> {
        gpu.device().first_use("opening cuDNN")?;
        Library::Cudnn.require()?;
        let inner = Inner { plans: HashMap::new(), handle: raw::Handle::new(gpu)? };
        Ok(Self { inner: Arc::new(Mutex::new(inner)), gpu: gpu.clone() })
    }

    /// Computes y = x ⋆ w. All are of one type; 16-bit elements are summed in f32.
    ///
    /// # Errors
    /// [`GpuError::Argument`] if lengths, types or sizes do not match; [`GpuError::Unsupported`] for types other than f32, f64,
    /// bf16 and f16; [`GpuError::Capture`] if a graph is captured and it is the first convolution of its sizes.
    pub fn forward(
        &self,
        of: &Convolution,
        format: ConvolutionFormat,
        x: &Slice,
        w: &Slice,
        y: &Slice,
    ) -> Result<()> {
        self.run(Pass::Forward, of, format, [x, w, y], false)
    }

    /// Computes the gradient of the input from that of the output.
    ///
    /// # Errors
    /// As [`Dnn::forward`].
    pub fn backward_input(
        &self,
        of: &Convolution,
        format: ConvolutionFormat,
        dy: &Slice,
        w: &Slice,
        dx: &Slice,
    ) -> Result<()> {
        self.run(Pass::BackwardInput, of, format, [dx, w, dy], false)
    }

    /// Computes the gradient of the weight from that of the output. With `add` it is added to `dw`.
    ///
    /// # Errors
    /// As [`Dnn::forward`].
    pub fn backward_weight(
        &self,
        of: &Convolution,
        format: ConvolutionFormat,
        x: &Slice,
        dy: &Slice,
        dw: &Slice,
        add: bool,
    ) -> Result<()> {
        self.run(Pass::BackwardWeight, of, format, [x, dw, dy], add)
    }

    /// Runs a pass over input, weight and output, or their gradients.
    fn run(
        &self,
        pass: Pass,
        of: &Convolution,
        format: ConvolutionFormat,
        slices: [&Slice; 3],
        add: bool,
    ) -> Result<()> {
        let dtype = check(pass, of, slices)?;
        let written = match pass {
            Pass::Forward => slices[2],
            Pass::BackwardInput => slices[0],
            Pass::BackwardWeight => slices[1],
        };
        if slices.iter().any(|slice| slice.is_empty()) {
            return if add { Ok(()) } else { written.zero_on(Stream::Compute) };
        }
        let tf32 = dtype == ElementType::F32 && format.tf32;
        let key = Key { pass, convolution: *of, format: ConvolutionFormat { tf32, ..format }, dtype };
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        if !inner.plans.contains_key(&key) {
            self.gpu.device().first_use(&format!("a {} of {of:?}", pass.name()))?;
            let plan = match self.gpu.options().repeatable {
                true => inner.handle.plan_by_heuristics(&key, WORKSPACE)?,
                false => self.fastest(&inner.handle, &key, slices, written)?,
            };
            inner.plans.insert(key, plan);
        }
        let plan = &inner.plans[&key];
        let workspace = self.workspace(plan.workspace())?;
        let used: Vec<&Slice> = slices.into_iter().chain(workspace.as_ref()).collect();
        let what = |hasher: &mut DefaultHasher| (key, add, Arc::as_ptr(&self.inner)).hash(hasher);
        issue_repeatable(self.gpu.device(), pass.name(), &used, &Work::Fixed(&what), |stream| {
            inner.handle.run(&key, plan, slices, add, workspace.as_ref(), stream)
        })?;
        self.gpu.device().keep_for_graph(&self.inner);
        Ok(())
    }

    fn workspace(&self, bytes: usize) -> Result<Option<Slice>> {
        let allocate = || self.gpu.unwritten(ElementType::U8, bytes);
        (bytes > 0).then(|| counted_as(Kind::Workspace, allocate)).transpose()
    }

    /// Times all algorithms on the arguments, and returns the fastest plan. Results go to scratch memory. That memory is released
    /// to the system, as it is large and not needed again.
    fn fastest(
        &self,
        handle: &raw::Handle,
        key: &Key,
        slices: [&Slice; 3],
        written: &Slice,
    ) -> Result<raw::Plan> {
        let before = self.gpu.pool().reserved()?;
        let plan = {
            let scratch = || self.gpu.unwritten(key.dtype, written.len());
            let scratch = counted_as(Kind::Workspace, scratch)?;
            let (free, _) = self.gpu.device().memory()?;
            let workspace = self.workspace((free / 2).min(WORKSPACE))?;
            let used: Vec<&Slice> = slices.into_iter().chain([&scratch]).chain(workspace.as_ref()).collect();
            issue(self.gpu.device(), Stream::Compute, key.pass.name(), &used, |_| {
                handle.plan_by_timing(key, slices, &scratch, workspace.as_ref())
            })?
        };
        self.gpu.pool().trim(before)?;
        Ok(plan)
    }
}

fn check(pass: Pass, of: &Convolution, slices: [&Slice; 3]) -> Result<ElementType> {
    let name = pass.name();
    let grouped = of.groups > 0
        && of.in_channels.is_multiple_of(of.groups)
        && of.out_channels.is_multiple_of(of.groups);
    if !grouped || of.output().is_none() {
        return Err(GpuError::argument(name, format!("invalid sizes: {of:?}")));
    }
    let dtype = slices[0].dtype();
    if !matches!(dtype, ElementType::F32 | ElementType::F64 | ElementType::Bf16 | ElementType::F16) {
        return Err(GpuError::unsupported(name, format!("elements of {dtype}")));
    }
    let expected = [("input", of.input_len()), ("weight", of.weight_len()), ("output", of.output_len())];
    for (slice, (what, right)) in slices.into_iter().zip(expected) {
        if slice.len() != right || slice.dtype() != dtype {
            let problem = format!(
                "{} elements of {} for an {what} of {right} of {dtype}: {of:?}",
                slice.len(),
                slice.dtype()
            );
            return Err(GpuError::argument(name, problem));
        }
    }
    Ok(dtype)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_of_outputs() {
        let of = Convolution {
            batch: 2,
            in_channels: 4,
            height: 9,
            width: 8,
            out_channels: 6,
            kernel: [3, 2],
            stride: [2, 1],
            padding: [1, 0],
            dilation: [2, 3],
            groups: 2,
        };
        assert_eq!(of.output(), Some([4, 5]));
        assert_eq!((of.input_len(), of.weight_len(), of.output_len()), (576, 72, 240));
        assert_eq!(Convolution { width: 3, ..of }.output(), None);
        assert_eq!(Convolution { stride: [0, 1], ..of }.output(), None);
    }
}
