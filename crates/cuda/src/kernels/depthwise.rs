//! Depthwise convolutions of maps N, C, H, W, channels-first or channels-last. cuDNN's are slow, above all for the weight's
//! gradient. Weights are [O, 1, KH, KW] in both layouts.

use phalanx_kernels::Conv2dShape;

use super::grid::{
    THREADS, check_float, check_len, check_type, launch, narrow_size, over, pack, rows_per_chunk,
};
use super::sources::{CHANNELS_LAST, DEPTHWISE};
use super::sums::sum_over;
use crate::{Gpu, GpuError, Result, Slice, TensorLayout};

/// Returns true if there are kernels for a depthwise convolution: channels-first with windows of 3×3 and 5×5, channels-last with
/// as many outputs as inputs.
pub fn depthwise_supports(layout: TensorLayout, shape: &Conv2dShape) -> bool {
    let one = shape.groups > 1 && shape.groups == shape.in_channels;
    one && match layout {
        TensorLayout::ChannelsFirst => {
            shape.out_channels.is_multiple_of(shape.in_channels) && matches!(shape.kernel, [3, 3] | [5, 5])
        }
        TensorLayout::ChannelsLast => shape.groups == shape.out_channels,
    }
}

/// A supported convolution whose slices were checked.
struct DepthwiseCall<'a> {
    gpu: &'a Gpu,
    layout: TensorLayout,
    shape: &'a Conv2dShape,
}

impl<'a> DepthwiseCall<'a> {
    /// Checks a shape and two slices of one type, given as (name, slice, expected length).
    fn new(
        gpu: &'a Gpu,
        function: &'static str,
        layout: TensorLayout,
        shape: &'a Conv2dShape,
        [(name, slice, len), (other_name, other, other_len)]: [(&str, &Slice, usize); 2],
    ) -> Result<Self> {
        if !depthwise_supports(layout, shape) {
            return Err(GpuError::unsupported(function, format!("{shape:?}, {layout:?}")));
        }
        shape.validate().map_err(|error| GpuError::argument(function, error.to_string()))?;
        narrow_size(function, shape.height * shape.width)?;
        if layout == TensorLayout::ChannelsFirst {
            narrow_size(function, shape.batch * shape.out_height() * shape.out_width())?;
        }
        check_float(function, slice.dtype())?;
        check_type(function, other_name, other, slice.dtype())?;
        check_len(function, name, slice, len)?;
        check_len(function, other_name, other, other_len)?;
        Ok(Self { gpu, layout, shape })
    }

    /// Returns `Depthwise` of the channels-first kernels.
    fn first(&self) -> [i32; 12] {
        let shape = self.shape;
        let ([stride, padding, dilation], channels) =
            ([shape.stride, shape.padding, shape.dilation], shape.in_channels);
        let sizes = [
            shape.height,
            shape.width,
            shape.out_height(),
            shape.out_width(),
            stride[0],
            stride[1],
            padding[0],
            padding[1],
            dilation[0],
            dilation[1],
            channels,
            shape.out_channels / channels,
        ];
        sizes.map(|size| size as i32)
    }

    /// Returns `Depthwise` of the channels-last kernels.
    fn last(&self) -> [i32; 13] {
        let shape = self.shape;
        let ([kernel, stride], [padding, dilation]) =
            ([shape.kernel, shape.stride], [shape.padding, shape.dilation]);
        let sizes = [
            shape.height,
            shape.width,
            shape.out_height(),
            shape.out_width(),
            kernel[0],
            kernel[1],
            stride[0],
            stride[1],
            padding[0],
            padding[1],
            dilation[0],
            dilation[1],
            shape.in_channels,
        ];
        sizes.map(|size| size as i32)
    }

    /// Computes forward, or the input's gradient: `count` elements from maps and weights.
    fn maps(&self, pass: &str, from: &Slice, w: &Slice, count: usize) -> Result<Slice> {
        let (gpu, shape, dtype) = (self.gpu, self.shape, from.dtype());
        let to = gpu.unwritten(dtype, count)?;
        if self.layout == TensorLayout::ChannelsLast {
            // Taps are contiguous, so that neighbouring channels are read together.
            let dims = [shape.in_channels, shape.kernel[0] * shape.kernel[1]];
            let taps = super::permute(gpu, w, &dims, &[1, 0])?;
            let grid = over(count, pack(&[dtype]));
            launch(gpu, &CHANNELS_LAST, &format!("last_{pass}_{dtype}"), grid)
                .slice(from)
                .slice(&taps)
                .slice(&to)
                .number(self.last())
                .number(count as i64)
                .run()?;
            return Ok(to);
        }
        // Forward, a thread computes four neighbours of a row.
        let threads = match pass {
            "depthwise" => {
                shape.batch * shape.out_channels * shape.out_height() * shape.out_width().div_ceil(4)
            }
            _ => count,
        };
        launch(gpu, &DEPTHWISE, &format!("{pass}_{dtype}_k{}", shape.kernel[0]), over(threads, 1))
            .slice(from)
            .slice(w)
            .slice(&to)
            .number(self.first())
            .number(threads as i64)
            .run()?;
        Ok(to)
    }

    /// Computes the weight's gradient, channels-first.
    fn weight_first(&self, function: &'static str, x: &Slice, dy: &Slice) -> Result<Slice> {
        let (gpu, shape, wide) = (self.gpu, self.shape, x.dtype().wide());
        // Enough blocks for the whole GPU, and enough work for each to pay for its sums over taps.
        let pixels = shape.out_height() * shape.out_width();
        let least = (8 * THREADS).div_ceil(pixels);
        let per_chunk = shape.batch.div_ceil((2048 / shape.out_channels).max(1)).max(least);
        let chunks = shape.batch.div_ceil(per_chunk);
        let parts = gpu.unwritten(wide, chunks * shape.weight_len())?;
        let grid = [shape.out_channels, chunks, 1];
        launch(gpu, &DEPTHWISE, &format!("depthwise_weight_{}_k{}", x.dtype(), shape.kernel[0]), grid)
            .slice(x)
            .slice(dy)
            .slice(&parts)
            .number(self.first())
            .number(narrow_size(function, shape.batch)?)
            .number(narrow_size(function, per_chunk)?)
            .run()?;
        sum_over(gpu, &parts, [1, chunks, shape.weight_len()], wide)
    }

    /// Computes the weight's gradient, channels-last.
    fn weight_last(&self, x: &Slice, dy: &Slice) -> Result<Slice> {
        let (gpu, shape, wide) = (self.gpu, self.shape, x.dtype().wide());
        let pixels = shape.batch * shape.out_height() * shape.out_width();
        let (channels, taps) = (shape.in_channels, shape.kernel[0] * shape.kernel[1]);
        let tiles = channels.div_ceil(32);
        let per_chunk = rows_per_chunk(pixels, tiles * taps);
        let chunks = pixels.div_ceil(per_chunk);
        let parts = gpu.unwritten(wide, chunks * taps * channels)?;
        let grid = [tiles, chunks, taps];
        launch(gpu, &CHANNELS_LAST, &format!("last_depthwise_weight_{}", x.dtype()), grid)
            .blocks(grid, [32, THREADS / 32, 1])
            .slice(x)
            .slice(dy)
            .slice(&parts)
            .number(self.last())
            .number(pixels as i64)
            .number(per_chunk as i64)
            .run()?;
        let sums = sum_over(gpu, &parts, [1, chunks, taps * channels], wide)?;
        super::permute(gpu, &sums, &[taps, channels], &[1, 0])
    }
}

/// Computes the cross-correlation of `x` with `w`, both of one type, as that type.
///
/// # Errors
/// If lengths or types do not match, or [`depthwise_supports`] is false.
pub fn depthwise(
    gpu: &Gpu,
    layout: TensorLayout,
    shape: &Conv2dShape,
    x: &Slice,
    w: &Slice,
) -> Result<Slice> {
    let slices = [("x", x, shape.input_len()), ("w", w, shape.weight_len())];
    let of = DepthwiseCall::new(gpu, "depthwise", layout, shape, slices)?;
    of.maps("depthwise", x, w, shape.output_len())
}

/// Computes the gradient of the input, of the type of dy and the weight.
///
/// # Errors
/// If lengths or types do not match, or [`depthwise_supports`] is false.
pub fn depthwise_backward_input(
    gpu: &Gpu,
    layout: TensorLayout,
    shape: &Conv2dShape,
    dy: &Slice,
    w: &Slice,
) -> Result<Slice> {
    let slices = [("dy", dy, shape.output_len()), ("w", w, shape.weight_len())];
    let of = DepthwiseCall::new(gpu, "depthwise_backward_input", layout, shape, slices)?;
    of.maps("depthwise_input", dy, w, shape.input_len())
}

/// Computes the gradient of the weight, in the compute type.
///
/// # Errors
/// If lengths or types do not match, or [`depthwise_supports`] is false.
pub fn depthwise_backward_weight(
    gpu: &Gpu,
    layout: TensorLayout,
    shape: &Conv2dShape,
    x: &Slice,
    dy: &Slice,
) -> Result<Slice> {
    const FUNCTION: &str = "depthwise_backward_weight";
    let slices = [("x", x, shape.input_len()), ("dy", dy, shape.output_len())];
    let of = DepthwiseCall::new(gpu, FUNCTION, layout, shape, slices)?;
    if shape.output_len() == 0 {
        return gpu.zeros(x.dtype().wide(), shape.weight_len());
    }
    match layout {
        TensorLayout::ChannelsFirst => of.weight_first(FUNCTION, x, dy),
        TensorLayout::ChannelsLast => of.weight_last(x, dy),
    }
}
