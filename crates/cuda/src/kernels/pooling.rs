//! Pooling and nearest up-sampling of [N, C, H, W].

use phalanx_kernels::Pool2dShape;

use super::grid::{check, check_float, check_len, launch, narrow_size, over, pack, warps};
use super::sources::POOLING;
use crate::{ElementType, Gpu, GpuError, Result, Slice};

/// `Pool` of the kernels.
pub(super) fn sizes(function: &'static str, shape: &Pool2dShape) -> Result<[i32; 10]> {
    shape.validate().map_err(|error| GpuError::argument(function, error.to_string()))?;
    narrow_size(function, shape.height * shape.width)?;
    narrow_size(function, shape.out_height() * shape.out_width())?;
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
    ];
    Ok(sizes.map(|size| size as i32))
}

/// The largest element of every window, and their places in their planes.
///
/// # Errors
/// If the length is not the shape's, or the elements are not floats.
pub fn max_pool2d(gpu: &Gpu, shape: &Pool2dShape, x: &Slice) -> Result<(Slice, Slice)> {
    const FUNCTION: &str = "max_pool2d";
    let sizes = sizes(FUNCTION, shape)?;
    check_float(FUNCTION, x.dtype())?;
    check_len(FUNCTION, "x", x, shape.input_len())?;
    let count = shape.output_len();
    let (y, positions) = (gpu.unwritten(x.dtype(), count)?, gpu.unwritten(ElementType::U32, count)?);
    launch(gpu, &POOLING, &format!("max_pool2d_{}", x.dtype()), over(count, 1))
        .slice(x)
        .slice(&y)
        .slice(&positions)
        .number(sizes)
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
    let sizes = sizes(FUNCTION, shape)?;
    check_float(FUNCTION, dy.dtype())?;
    check_len(FUNCTION, "dy", dy, shape.output_len())?;
    check(FUNCTION, "positions", positions, ElementType::U32, shape.output_len())?;
    let count = shape.input_len();
    let dx = gpu.unwritten(dy.dtype(), count)?;
    launch(gpu, &POOLING, &format!("max_pool2d_backward_{}", dy.dtype()), over(count, 1))
        .slice(dy)
        .slice(positions)
        .slice(&dx)
        .number(sizes)
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
    let sizes = sizes(FUNCTION, shape)?;
    check_float(FUNCTION, x.dtype())?;
    check_len(FUNCTION, "x", x, shape.input_len())?;
    let count = shape.output_len();
    let y = gpu.unwritten(x.dtype(), count)?;
    if shape.kernel == [shape.height, shape.width] && shape.padding == [0, 0] {
        launch(gpu, &POOLING, &format!("avg_pool2d_whole_{}", x.dtype()), warps(count))
            .slice(x)
            .slice(&y)
            .number(count as i64)
            .number((shape.height * shape.width) as i32)
            .run()?;
        return Ok(y);
    }
    launch(gpu, &POOLING, &format!("avg_pool2d_{}", x.dtype()), over(count, 1))
        .slice(x)
        .slice(&y)
        .number(sizes)
        .number(i32::from(count_padding))
        .number(count as i64)
        .run()?;
    Ok(y)
}

/// The gradient of the input of [`avg_pool2d`], of dy's type.
///
/// # Errors
/// If the length is not the shape's, or the elements are not floats.
pub fn avg_pool2d_backward(gpu: &Gpu, shape: &Pool2dShape, count_padding: bool, dy: &Slice) -> Result<Slice> {
    const FUNCTION: &str = "avg_pool2d_backward";
    let sizes = sizes(FUNCTION, shape)?;
    check_float(FUNCTION, dy.dtype())?;
    check_len(FUNCTION, "dy", dy, shape.output_len())?;
    let count = shape.input_len();
    let dx = gpu.unwritten(dy.dtype(), count)?;
    launch(gpu, &POOLING, &format!("avg_pool2d_backward_{}", dy.dtype()), over(count, 1))
        .slice(dy)
        .slice(&dx)
        .number(sizes)
        .number(i32::from(count_padding))
        .number(count as i64)
        .run()?;
    Ok(dx)
}

/// Each pixel of [N, C, H, W] repeated `factor` times in both directions.
///
/// # Errors
/// If the length is not the dimensions', or the elements are not floats.
pub fn upsample_nearest2d(gpu: &Gpu, dims: [usize; 4], factor: usize, x: &Slice) -> Result<Slice> {
    const FUNCTION: &str = "upsample_nearest2d";
    check_float(FUNCTION, x.dtype())?;
    check_len(FUNCTION, "x", x, dims.iter().product())?;
    let count = x.len() * factor * factor;
    let y = gpu.unwritten(x.dtype(), count)?;
    // Packs are 16 bytes here for f64 too.
    let packs = pack(&[x.dtype()]).max(2);
    launch(gpu, &POOLING, &format!("upsample_nearest2d_{}", x.dtype()), over(count, packs))
        .slice(x)
        .slice(&y)
        .number(narrow_size(FUNCTION, factor)?)
        .number(narrow_size(FUNCTION, dims[3] * factor)?)
        .number(narrow_size(FUNCTION, dims[2] * factor)?)
        .number(count as i64)
        .run()?;
    Ok(y)
}

/// The gradient of the input of [`upsample_nearest2d`], of sizes `dims` and dy's type.
///
/// # Errors
/// If the length is not the dimensions', or the elements are not floats.
pub fn upsample_nearest2d_backward(gpu: &Gpu, dims: [usize; 4], factor: usize, dy: &Slice) -> Result<Slice> {
    const FUNCTION: &str = "upsample_nearest2d_backward";
    check_float(FUNCTION, dy.dtype())?;
    let count = dims.iter().product::<usize>();
    check_len(FUNCTION, "dy", dy, count * factor * factor)?;
    let dx = gpu.unwritten(dy.dtype(), count)?;
    launch(gpu, &POOLING, &format!("upsample_nearest2d_backward_{}", dy.dtype()), over(count, 1))
        .slice(dy)
        .slice(&dx)
        .number(narrow_size(FUNCTION, factor)?)
        .number(narrow_size(FUNCTION, dims[3])?)
        .number(count as i64)
        .run()?;
    Ok(dx)
}
