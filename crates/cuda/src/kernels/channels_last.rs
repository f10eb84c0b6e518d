//! Maps that are channels-last, [N, H, W, C], as tensor cores read them: what differs from [N, C, H, W].
//!
//! Shapes and dimensions are given in the order N, C, H, W all the same. What works on elements one by one does not care how they
//! lie; batch norm takes such maps as [N·H·W, C, 1]; arrays one after the other along the channels are those of
//! [`cat`](super::cat) along the last of [N·H·W, C].

use phalanx_kernels::{Conv2dShape, Pool2dShape};

use super::grid::{
    THREADS, check, check_float, check_len, check_type, launch, narrow_size, over, pack, rows_per_chunk,
};
use super::row_norms::NormInputs;
use super::sources::CHANNELS_LAST;
use super::sums::sum_over;
use crate::{ElementType, Gpu, GpuError, Result, Slice};

/// Group normalisation as [`group_norm`](super::group_norm).
///
/// # Errors
/// If lengths or types do not go together, or the groups do not divide the channels.
pub fn group_norm(
    gpu: &Gpu,
    dims: [usize; 3],
    groups: usize,
    x: &Slice,
    gamma: &Slice,
    beta: &Slice,
    eps: f64,
) -> Result<[Slice; 3]> {
    super::group_norm::forward(gpu, dims, groups, x, [gamma, beta], eps, true)
}

/// The gradients of [`group_norm`].
///
/// # Errors
/// If lengths or types do not go together.
pub fn group_norm_backward(
    gpu: &Gpu,
    dims: [usize; 3],
    groups: usize,
    from: NormInputs<'_>,
) -> Result<[Slice; 3]> {
    super::group_norm::backward(gpu, dims, groups, from, true)
}

/// `Pool` of the kernels.
fn pool(function: &'static str, shape: &Pool2dShape) -> Result<[i32; 11]> {
    let sizes = super::pooling::sizes(function, shape)?;
    let mut all = [0; 11];
    all[..10].copy_from_slice(&sizes);
    all[10] = narrow_size(function, shape.channels)?;
    Ok(all)
}

/// The largest element of every window, and their places in their planes.
///
/// # Errors
/// If the length is not the shape's, or the elements are not floats.
pub fn max_pool2d(gpu: &Gpu, shape: &Pool2dShape, x: &Slice) -> Result<(Slice, Slice)> {
    const FUNCTION: &str = "max_pool2d";
    let pool = pool(FUNCTION, shape)?;
    check_float(FUNCTION, x.dtype())?;
    check_len(FUNCTION, "x", x, shape.input_len())?;
    let count = shape.output_len();
    let (y, positions) = (gpu.unwritten(x.dtype(), count)?, gpu.unwritten(ElementType::U32, count)?);
    let grid = over(count, pack(&[x.dtype()]));
    launch(gpu, &CHANNELS_LAST, &format!("last_max_pool2d_{}", x.dtype()), grid)
        .slice(x)
        .slice(&y)
        .slice(&positions)
        .number(pool)
        .number(count as i64)
        .run()?;
    Ok((y, positions))
}

/// The gradient of the input of [`max_pool2d`], of dy's type.
///
/// # Errors
/// If lengths are not the shape's, or types do not go together.
pub fn max_pool2d_backward(gpu: &Gpu, shape: &Pool2dShape, dy: &Slice, positions: &Slice) -> Result<Slice> {
    const FUNCTION: &str = "max_pool2d_backward";
    let pool = pool(FUNCTION, shape)?;
    check_float(FUNCTION, dy.dtype())?;
    check_len(FUNCTION, "dy", dy, shape.output_len())?;
    check(FUNCTION, "positions", positions, ElementType::U32, shape.output_len())?;
    let count = shape.input_len();
    let dx = gpu.unwritten(dy.dtype(), count)?;
    let grid = over(count, pack(&[dy.dtype()]));
    launch(gpu, &CHANNELS_LAST, &format!("last_max_pool2d_backward_{}", dy.dtype()), grid)
        .slice(dy)
        .slice(positions)
        .slice(&dx)
        .number(pool)
        .number(count as i64)
        .run()?;
    Ok(dx)
}

/// The mean of every window; with `count_padding` the border counts as zeros.
///
/// # Errors
/// If the length is not the shape's, or the elements are not floats.
pub fn avg_pool2d(gpu: &Gpu, shape: &Pool2dShape, count_padding: bool, x: &Slice) -> Result<Slice> {
    const FUNCTION: &str = "avg_pool2d";
    check_len(FUNCTION, "x", x, shape.input_len())?;
    averaged(gpu, FUNCTION, shape, count_padding, x, shape.output_len())
}

/// The gradient of the input of [`avg_pool2d`], of dy's type.
///
/// # Errors
/// If the length is not the shape's, or the elements are not floats.
pub fn avg_pool2d_backward(gpu: &Gpu, shape: &Pool2dShape, count_padding: bool, dy: &Slice) -> Result<Slice> {
    const FUNCTION: &str = "avg_pool2d_backward";
    check_len(FUNCTION, "dy", dy, shape.output_len())?;
    averaged(gpu, FUNCTION, shape, count_padding, dy, shape.input_len())
}

fn averaged(
    gpu: &Gpu,
    function: &'static str,
    shape: &Pool2dShape,
    count_padding: bool,
    from: &Slice,
    count: usize,
) -> Result<Slice> {
    let pool = pool(function, shape)?;
    check_float(function, from.dtype())?;
    let to = gpu.unwritten(from.dtype(), count)?;
    let grid = over(count, pack(&[from.dtype()]));
    launch(gpu, &CHANNELS_LAST, &format!("last_{function}_{}", from.dtype()), grid)
        .slice(from)
        .slice(&to)
        .number(pool)
        .number(i32::from(count_padding))
        .number(count as i64)
        .run()?;
    Ok(to)
}

/// Each pixel of maps of sizes N, C, H, W repeated `factor` times in both directions.
///
/// # Errors
/// If the length is not the dimensions', or the elements are not floats.
pub fn upsample_nearest2d(gpu: &Gpu, dims: [usize; 4], factor: usize, x: &Slice) -> Result<Slice> {
    const FUNCTION: &str = "upsample_nearest2d";
    check_len(FUNCTION, "x", x, dims.iter().product())?;
    let [_, channels, height, width] = dims;
    let sizes = [factor, height * factor, width * factor, channels];
    repeated(gpu, FUNCTION, sizes, x, x.len() * factor * factor)
}

/// The gradient of the input of [`upsample_nearest2d`], of sizes `dims` and dy's type.
///
/// # Errors
/// If the length is not the dimensions', or the elements are not floats.
pub fn upsample_nearest2d_backward(gpu: &Gpu, dims: [usize; 4], factor: usize, dy: &Slice) -> Result<Slice> {
    const FUNCTION: &str = "upsample_nearest2d_backward";
    let [_, channels, height, width] = dims;
    let count = dims.iter().product::<usize>();
    check_len(FUNCTION, "dy", dy, count * factor * factor)?;
    repeated(gpu, FUNCTION, [factor, height, width, channels], dy, count)
}

fn repeated(
    gpu: &Gpu,
    function: &'static str,
    sizes: [usize; 4],
    from: &Slice,
    count: usize,
) -> Result<Slice> {
    check_float(function, from.dtype())?;
    let to = gpu.unwritten(from.dtype(), count)?;
    let name = format!("last_{function}_{}", from.dtype());
    let mut launch =
        launch(gpu, &CHANNELS_LAST, &name, over(count, pack(&[from.dtype()]))).slice(from).slice(&to);
    for size in sizes {
        launch = launch.number(narrow_size(function, size)?);
    }
    launch.number(count as i64).run()?;
    Ok(to)
}

/// Whether a convolution looks at one channel for each output, and has as many of both.
pub fn depthwise_supports(shape: &Conv2dShape) -> bool {
    shape.groups > 1 && shape.groups == shape.in_channels && shape.groups == shape.out_channels
}

/// `Depthwise` of the kernels.
fn depthwise_sizes(function: &'static str, shape: &Conv2dShape) -> Result<[i32; 13]> {
    if !depthwise_supports(shape) {
        return Err(GpuError::unsupported(function, format!("{shape:?}")));
    }
    shape.validate().map_err(|error| GpuError::argument(function, error.to_string()))?;
    narrow_size(function, shape.height * shape.width)?;
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
    Ok(sizes.map(|size| size as i32))
}

/// Depthwise convolution of `x` with weights [C, 1, KH, KW], both of one type, as that type.
///
/// # Errors
/// If lengths or types do not go together, or [`depthwise_supports`] says no.
pub fn depthwise(gpu: &Gpu, shape: &Conv2dShape, x: &Slice, w: &Slice) -> Result<Slice> {
    const FUNCTION: &str = "depthwise";
    check_len(FUNCTION, "x", x, shape.input_len())?;
    convolved(gpu, FUNCTION, shape, x, w, shape.output_len())
}

/// The gradient of the input, of dy's type, which is the weight's.
///
/// # Errors
/// If lengths or types do not go together, or [`depthwise_supports`] says no.
pub fn depthwise_backward_input(gpu: &Gpu, shape: &Conv2dShape, dy: &Slice, w: &Slice) -> Result<Slice> {
    const FUNCTION: &str = "depthwise_input";
    check_len(FUNCTION, "dy", dy, shape.output_len())?;
    convolved(gpu, FUNCTION, shape, dy, w, shape.input_len())
}

fn convolved(
    gpu: &Gpu,
    function: &'static str,
    shape: &Conv2dShape,
    from: &Slice,
    w: &Slice,
    count: usize,
) -> Result<Slice> {
    let sizes = depthwise_sizes(function, shape)?;
    check_float(function, from.dtype())?;
    check(function, "w", w, from.dtype(), shape.weight_len())?;
    // Taps one after the other, so that neighbouring channels are read together.
    let taps = super::permute(gpu, w, &[shape.in_channels, shape.kernel[0] * shape.kernel[1]], &[1, 0])?;
    let to = gpu.unwritten(from.dtype(), count)?;
    let grid = over(count, pack(&[from.dtype()]));
    launch(gpu, &CHANNELS_LAST, &format!("last_{function}_{}", from.dtype()), grid)
        .slice(from)
        .slice(&taps)
        .slice(&to)
        .number(sizes)
        .number(count as i64)
        .run()?;
    Ok(to)
}

/// The gradient of the weight [C, 1, KH, KW], in the type that is computed in.
///
/// # Errors
/// If lengths or types do not go together, or [`depthwise_supports`] says no.
pub fn depthwise_backward_weight(gpu: &Gpu, shape: &Conv2dShape, x: &Slice, dy: &Slice) -> Result<Slice> {
    const FUNCTION: &str = "depthwise_weight";
    let sizes = depthwise_sizes(FUNCTION, shape)?;
    check_float(FUNCTION, x.dtype())?;
    check_type(FUNCTION, "dy", dy, x.dtype())?;
    check_len(FUNCTION, "x", x, shape.input_len())?;
    check_len(FUNCTION, "dy", dy, shape.output_len())?;
    let (wide, channels) = (x.dtype().wide(), shape.in_channels);
    let (pixels, taps) =
        (shape.batch * shape.out_height() * shape.out_width(), shape.kernel[0] * shape.kernel[1]);
    if pixels == 0 {
        return gpu.zeros(wide, shape.weight_len());
    }
    let tiles = channels.div_ceil(32);
    let per_chunk = rows_per_chunk(pixels, tiles * taps);
    let chunks = pixels.div_ceil(per_chunk);
    let parts = gpu.unwritten(wide, chunks * taps * channels)?;
    let grid = [tiles, chunks, taps];
    launch(gpu, &CHANNELS_LAST, &format!("last_{FUNCTION}_{}", x.dtype()), grid)
        .blocks(grid, [32, THREADS / 32, 1])
        .slice(x)
        .slice(dy)
        .slice(&parts)
        .number(sizes)
        .number(pixels as i64)
        .number(per_chunk as i64)
        .run()?;
    let sums = sum_over(gpu, &parts, [1, chunks, taps * channels], wide)?;
    super::permute(gpu, &sums, &[taps, channels], &[1, 0])
}
