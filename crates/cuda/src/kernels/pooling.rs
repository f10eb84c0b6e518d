//! Pooling and nearest up-sampling of maps N, C, H, W, channels-first or channels-last.

use phalanx_kernels::Pool2dShape;

use super::grid::{check, check_float, check_len, launch, narrow_size, over, pack, warps};
use super::sources::{CHANNELS_LAST, Family, POOLING};
use crate::launch::Launch;
use crate::{ElementType, Gpu, GpuError, Result, Slice, TensorLayout};

/// The kernel for `count` elements of maps in a layout, and its grid. Channels-last it moves packs of channels.
struct Kernel {
    family: &'static Family,
    name: String,
    grid: [usize; 3],
}

impl Kernel {
    fn of(layout: TensorLayout, function: &str, dtype: ElementType, count: usize) -> Self {
        match layout {
            TensorLayout::ChannelsFirst => {
                Self { family: &POOLING, name: format!("{function}_{dtype}"), grid: over(count, 1) }
            }
            TensorLayout::ChannelsLast => Self {
                family: &CHANNELS_LAST,
                name: format!("last_{function}_{dtype}"),
                grid: over(count, pack(&[dtype])),
            },
        }
    }

    fn launch<'a>(&'a self, gpu: &'a Gpu) -> Launch<'a> {
        launch(gpu, self.family, &self.name, self.grid)
    }
}

/// Pooling windows over maps in a layout.
struct Windows {
    layout: TensorLayout,
    /// `Pool` of the kernels. Channels-first kernels do not take the channels.
    sizes: [i32; 11],
}

impl Windows {
    fn new(function: &'static str, layout: TensorLayout, shape: &Pool2dShape) -> Result<Self> {
        shape.validate().map_err(|error| GpuError::argument(function, error.to_string()))?;
        narrow_size(function, shape.height * shape.width)?;
        narrow_size(function, shape.out_height() * shape.out_width())?;
        narrow_size(function, shape.channels)?;
        let [kernel, stride, padding] = [shape.kernel, shape.stride, shape.padding];
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
            shape.channels,
        ];
        Ok(Self { layout, sizes: sizes.map(|size| size as i32) })
    }

    /// Adds the windows as the next argument of a launch.
    fn argument<'a>(&self, launch: Launch<'a>) -> Launch<'a> {
        let [first @ .., _] = self.sizes;
        match self.layout {
            TensorLayout::ChannelsFirst => launch.number(first),
            TensorLayout::ChannelsLast => launch.number(self.sizes),
        }
    }
}

/// Returns the maximum of every window, and its position in its plane.
///
/// # Errors
/// If the length is not the shape's, or the elements are not floats.
pub fn max_pool2d(gpu: &Gpu, layout: TensorLayout, shape: &Pool2dShape, x: &Slice) -> Result<(Slice, Slice)> {
    const FUNCTION: &str = "max_pool2d";
    let windows = Windows::new(FUNCTION, layout, shape)?;
    check_float(FUNCTION, x.dtype())?;
    check_len(FUNCTION, "x", x, shape.input_len())?;
    let count = shape.output_len();
    let (y, positions) = (gpu.unwritten(x.dtype(), count)?, gpu.unwritten(ElementType::U32, count)?);
    let kernel = Kernel::of(layout, FUNCTION, x.dtype(), count);
    let launch = kernel.launch(gpu).slice(x).slice(&y).slice(&positions);
    windows.argument(launch).number(count as i64).run()?;
    Ok((y, positions))
}

/// Computes the gradient of the input of [`max_pool2d`], of dy's type.
///
/// # Errors
/// If lengths are not the shape's, or types do not match.
pub fn max_pool2d_backward(
    gpu: &Gpu,
    layout: TensorLayout,
    shape: &Pool2dShape,
    dy: &Slice,
    positions: &Slice,
) -> Result<Slice> {
    const FUNCTION: &str = "max_pool2d_backward";
    let windows = Windows::new(FUNCTION, layout, shape)?;
    check_float(FUNCTION, dy.dtype())?;
    check_len(FUNCTION, "dy", dy, shape.output_len())?;
    check(FUNCTION, "positions", positions, ElementType::U32, shape.output_len())?;
    let count = shape.input_len();
    let dx = gpu.unwritten(dy.dtype(), count)?;
    let kernel = Kernel::of(layout, FUNCTION, dy.dtype(), count);
    let launch = kernel.launch(gpu).slice(dy).slice(positions).slice(&dx);
    windows.argument(launch).number(count as i64).run()?;
    Ok(dx)
}

/// Returns the mean of every window. With `count_padding` the border counts as zeros.
///
/// # Errors
/// If the length is not the shape's, or the elements are not floats.
pub fn avg_pool2d(
    gpu: &Gpu,
    layout: TensorLayout,
    shape: &Pool2dShape,
    count_padding: bool,
    x: &Slice,
) -> Result<Slice> {
    const FUNCTION: &str = "avg_pool2d";
    let whole = shape.kernel == [shape.height, shape.width] && shape.padding == [0, 0];
    if layout == TensorLayout::ChannelsLast || !whole {
        check_len(FUNCTION, "x", x, shape.input_len())?;
        return averages(gpu, FUNCTION, layout, (shape, count_padding), x, shape.output_len());
    }
    Windows::new(FUNCTION, layout, shape)?;
    check_float(FUNCTION, x.dtype())?;
    check_len(FUNCTION, "x", x, shape.input_len())?;
    // A plane is contiguous, so that one warp sums it.
    let count = shape.output_len();
    let y = gpu.unwritten(x.dtype(), count)?;
    launch(gpu, &POOLING, &format!("avg_pool2d_whole_{}", x.dtype()), warps(count))
        .slice(x)
        .slice(&y)
        .number(count as i64)
        .number((shape.height * shape.width) as i32)
        .run()?;
    Ok(y)
}

/// Computes the gradient of the input of [`avg_pool2d`], of dy's type.
///
/// # Errors
/// If the length is not the shape's, or the elements are not floats.
pub fn avg_pool2d_backward(
    gpu: &Gpu,
    layout: TensorLayout,
    shape: &Pool2dShape,
    count_padding: bool,
    dy: &Slice,
) -> Result<Slice> {
    const FUNCTION: &str = "avg_pool2d_backward";
    check_len(FUNCTION, "dy", dy, shape.output_len())?;
    averages(gpu, FUNCTION, layout, (shape, count_padding), dy, shape.input_len())
}

fn averages(
    gpu: &Gpu,
    function: &'static str,
    layout: TensorLayout,
    (shape, count_padding): (&Pool2dShape, bool),
    from: &Slice,
    count: usize,
) -> Result<Slice> {
    let windows = Windows::new(function, layout, shape)?;
    check_float(function, from.dtype())?;
    let to = gpu.unwritten(from.dtype(), count)?;
    let kernel = Kernel::of(layout, function, from.dtype(), count);
    let launch = windows.argument(kernel.launch(gpu).slice(from).slice(&to));
    launch.number(i32::from(count_padding)).number(count as i64).run()?;
    Ok(to)
}

/// Repeats each pixel of maps N, C, H, W `factor` times in both directions.
///
/// # Errors
/// If the length is not that of the dimensions, or the elements are not floats.
pub fn upsample_nearest2d(
    gpu: &Gpu,
    layout: TensorLayout,
    dims: [usize; 4],
    factor: usize,
    x: &Slice,
) -> Result<Slice> {
    const FUNCTION: &str = "upsample_nearest2d";
    check_float(FUNCTION, x.dtype())?;
    check_len(FUNCTION, "x", x, dims.iter().product())?;
    let ([_, channels, height, width], count) = (dims, x.len() * factor * factor);
    match layout {
        // Packs are 16 bytes here for f64, too.
        TensorLayout::ChannelsFirst => {
            let grid = over(count, pack(&[x.dtype()]).max(2));
            let kernel = Kernel { grid, ..Kernel::of(layout, FUNCTION, x.dtype(), count) };
            repeats(gpu, FUNCTION, &kernel, &[factor, width * factor, height * factor], x, count)
        }
        TensorLayout::ChannelsLast => {
            let kernel = Kernel::of(layout, FUNCTION, x.dtype(), count);
            repeats(gpu, FUNCTION, &kernel, &[factor, height * factor, width * factor, channels], x, count)
        }
    }
}

/// Computes the gradient of the input of [`upsample_nearest2d`], of sizes `dims` and dy's type.
///
/// # Errors
/// If the length is not that of the dimensions, or the elements are not floats.
pub fn upsample_nearest2d_backward(
    gpu: &Gpu,
    layout: TensorLayout,
    dims: [usize; 4],
    factor: usize,
    dy: &Slice,
) -> Result<Slice> {
    const FUNCTION: &str = "upsample_nearest2d_backward";
    check_float(FUNCTION, dy.dtype())?;
    let ([_, channels, height, width], count) = (dims, dims.iter().product::<usize>());
    check_len(FUNCTION, "dy", dy, count * factor * factor)?;
    let kernel = Kernel::of(layout, FUNCTION, dy.dtype(), count);
    match layout {
        TensorLayout::ChannelsFirst => repeats(gpu, FUNCTION, &kernel, &[factor, width], dy, count),
        TensorLayout::ChannelsLast => {
            repeats(gpu, FUNCTION, &kernel, &[factor, height, width, channels], dy, count)
        }
    }
}

fn repeats(
    gpu: &Gpu,
    function: &'static str,
    kernel: &Kernel,
    sizes: &[usize],
    from: &Slice,
    count: usize,
) -> Result<Slice> {
    let to = gpu.unwritten(from.dtype(), count)?;
    let mut launch = kernel.launch(gpu).slice(from).slice(&to);
    for size in sizes {
        launch = launch.number(narrow_size(function, *size)?);
    }
    launch.number(count as i64).run()?;
    Ok(to)
}
