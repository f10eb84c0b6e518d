//! Depthwise convolution of [N, C, H, W], whose library kernels for channels-first are slow, above all for the weight's gradient.

use phalanx_kernels::Conv2dShape;

use super::grid::{THREADS, check_float, check_len, check_type, launch, narrow_size, over};
use super::sources::DEPTHWISE;
use super::sums::sum_over;
use crate::{Gpu, GpuError, Result, Slice};

/// Whether a convolution looks at one channel for each output, through a window that there are kernels for.
pub fn depthwise_supports(shape: &Conv2dShape) -> bool {
    shape.groups == shape.in_channels
        && shape.groups > 1
        && shape.out_channels.is_multiple_of(shape.in_channels)
        && matches!(shape.kernel, [3, 3] | [5, 5])
}

/// `Depthwise` of the kernels.
fn sizes(function: &'static str, shape: &Conv2dShape) -> Result<[i32; 12]> {
    if !depthwise_supports(shape) {
        return Err(GpuError::unsupported(function, format!("{shape:?}")));
    }
    shape.validate().map_err(|error| GpuError::argument(function, error.to_string()))?;
    narrow_size(function, shape.height * shape.width)?;
    narrow_size(function, shape.batch * shape.out_height() * shape.out_width())?;
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
    Ok(sizes.map(|size| size as i32))
}

/// The cross-correlation of `x` with `w`, both of one type, as that type.
///
/// # Errors
/// If lengths or types do not go together, or [`depthwise_supports`] says no.
pub fn depthwise(gpu: &Gpu, shape: &Conv2dShape, x: &Slice, w: &Slice) -> Result<Slice> {
    const FUNCTION: &str = "depthwise";
    let sizes = sizes(FUNCTION, shape)?;
    check_float(FUNCTION, x.dtype())?;
    check_type(FUNCTION, "w", w, x.dtype())?;
    check_len(FUNCTION, "x", x, shape.input_len())?;
    check_len(FUNCTION, "w", w, shape.weight_len())?;
    let y = gpu.unwritten(x.dtype(), shape.output_len())?;
    let quads = shape.batch * shape.out_channels * shape.out_height() * shape.out_width().div_ceil(4);
    launch(gpu, &DEPTHWISE, &format!("depthwise_{}_k{}", x.dtype(), shape.kernel[0]), over(quads, 1))
        .slice(x)
        .slice(w)
        .slice(&y)
        .number(sizes)
        .number(quads as i64)
        .run()?;
    Ok(y)
}

/// The gradient of the input, of dy's type, which is the weight's.
///
/// # Errors
/// If lengths or types do not go together, or [`depthwise_supports`] says no.
pub fn depthwise_backward_input(gpu: &Gpu, shape: &Conv2dShape, dy: &Slice, w: &Slice) -> Result<Slice> {
    const FUNCTION: &str = "depthwise_backward_input";
    let sizes = sizes(FUNCTION, shape)?;
    check_float(FUNCTION, dy.dtype())?;
    check_type(FUNCTION, "w", w, dy.dtype())?;
    check_len(FUNCTION, "dy", dy, shape.output_len())?;
    check_len(FUNCTION, "w", w, shape.weight_len())?;
    let dx = gpu.unwritten(dy.dtype(), shape.input_len())?;
    launch(
        gpu,
        &DEPTHWISE,
        &format!("depthwise_input_{}_k{}", dy.dtype(), shape.kernel[0]),
        over(dx.len(), 1),
    )
    .slice(dy)
    .slice(w)
    .slice(&dx)
    .number(sizes)
    .number(dx.len() as i64)
    .run()?;
    Ok(dx)
}

/// The gradient of the weight, in the type that is computed in.
///
/// # Errors
/// If lengths or types do not go together, or [`depthwise_supports`] says no.
pub fn depthwise_backward_weight(gpu: &Gpu, shape: &Conv2dShape, x: &Slice, dy: &Slice) -> Result<Slice> {
    const FUNCTION: &str = "depthwise_backward_weight";
    let sizes = sizes(FUNCTION, shape)?;
    check_float(FUNCTION, x.dtype())?;
    check_type(FUNCTION, "dy", dy, x.dtype())?;
    check_len(FUNCTION, "x", x, shape.input_len())?;
    check_len(FUNCTION, "dy", dy, shape.output_len())?;
    let wide = x.dtype().wide();
    if shape.output_len() == 0 {
        return gpu.zeros(wide, shape.weight_len());
    }
    // Enough blocks for all of a GPU, and enough for each to do that its sums over taps are paid for.
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
        .number(sizes)
        .number(narrow_size(FUNCTION, shape.batch)?)
        .number(narrow_size(FUNCTION, per_chunk)?)
        .run()?;
    sum_over(gpu, &parts, [1, chunks, shape.weight_len()], wide)
}
