//! Two-dimensional convolution over NCHW slices, forward and both gradients, for any kernel, stride, padding, dilation
//! and groups.
//!
//! - [`dense`] is the general path: it lowers blocks of the input to columns that stay in cache and multiplies (Chetlur
//!   et al. 2014). Taps that meet only padding are left out, and a 1×1 convolution multiplies the image itself.
//! - [`channels_last`] is for f32 with enough channels and images: it convolves with the channels innermost.
//! - [`winograd`] is for f32 3×3 windows without stride.
//! - [`pointwise`] is for f32 1×1 windows: it multiplies images without copying them.
//! - [`depthwise`] is for one input channel a group: it runs over whole planes.
//! - [`rounded`] is for bf16, and for f32 operands rounded to bf16.

pub(crate) mod channels_last;
mod dense;
mod depthwise;
mod lane_sums;
mod lowering;
mod pointwise;
mod rounded;
mod shape;
mod transposed;
mod winograd;

pub use rounded::{conv2d_backward_input_bf16, conv2d_backward_weight_bf16, conv2d_forward_bf16};
pub use shape::Conv2dShape;
pub use transposed::{
    ConvTranspose2dShape, conv_transpose2d_backward_input, conv_transpose2d_backward_weight,
    conv_transpose2d_forward,
};

use crate::context::Context;
use crate::error::{Result, check_len};
use crate::float::Float;

/// The method of a pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Path {
    Depthwise,
    /// Operands rounded to bf16.
    Rounded,
    Pointwise,
    Winograd,
    ChannelsLast,
    Dense,
}

impl Path {
    /// The path of forward and the input's gradient.
    fn of_maps<T: Float>(context: &Context, shape: &Conv2dShape) -> Self {
        let single = T::singles(&[]).is_some();
        match () {
            () if shape.is_depthwise() => Self::Depthwise,
            () if single && context.rounds() && rounded::suits(context, shape) => Self::Rounded,
            () if single && pointwise::suits(shape) => Self::Pointwise,
            () if single && winograd::suits_maps(shape) => Self::Winograd,
            () if single && channels_last::suits_gather(shape) => Self::ChannelsLast,
            () => Self::Dense,
        }
    }

    /// The path of the weights' gradient.
    fn of_weights<T: Float>(shape: &Conv2dShape) -> Self {
        let single = T::singles(&[]).is_some();
        match () {
            () if shape.is_depthwise() => Self::Depthwise,
            () if single && pointwise::suits_weight(shape) => Self::Pointwise,
            () if single && winograd::suits_weight(shape) => Self::Winograd,
            () if single && channels_last::suits_weight(shape) => Self::ChannelsLast,
            () => Self::Dense,
        }
    }
}

/// Calls `f` if the slices are f32.
fn with_singles<T: Float>(a: &[T], b: &[T], out: &mut [T], f: impl FnOnce(&[f32], &[f32], &mut [f32])) {
    if let (Some(a), Some(b), Some(out)) = (T::singles(a), T::singles(b), T::singles_mut(out)) {
        f(a, b, out);
    }
}

pub(crate) fn check<T>(
    kernel: &'static str,
    shape: &Conv2dShape,
    x: (&'static str, &[T]),
    w: (&'static str, &[T]),
    y: (&'static str, &[T]),
) -> Result<()> {
    shape.validate()?;
    check_len(kernel, x.0, shape.input_len(), x.1.len())?;
    check_len(kernel, w.0, shape.weight_len(), w.1.len())?;
    check_len(kernel, y.0, shape.output_len(), y.1.len())
}

/// Computes y = x ⋆ w + bias. `x` is [N, C, H, W], `w` [O, C/groups, KH, KW], `bias` `[O]`, `y` [N, O, H', W'].
///
/// # Errors
/// If a length does not match the shape.
pub fn conv2d_forward<T: Float>(
    context: &Context,
    shape: &Conv2dShape,
    x: &[T],
    w: &[T],
    bias: Option<&[T]>,
    y: &mut [T],
) -> Result<()> {
    const KERNEL: &str = "conv2d_forward";
    check(KERNEL, shape, ("x", x), ("w", w), ("y", y))?;
    if let Some(bias) = bias {
        check_len(KERNEL, "bias", shape.out_channels, bias.len())?;
    }
    match Path::of_maps::<T>(context, shape) {
        Path::Depthwise => depthwise::forward(context, shape, x, w, y),
        Path::Rounded => with_singles(x, w, y, |x, w, y| rounded::forward_rounded(context, shape, x, w, y)),
        Path::Pointwise => with_singles(x, w, y, |x, w, y| pointwise::forward(context, shape, x, w, y)),
        Path::Winograd => with_singles(x, w, y, |x, w, y| winograd::forward(context, shape, x, w, y)),
        Path::ChannelsLast => {
            with_singles(x, w, y, |x, w, y| channels_last::forward(context, shape, x, w, y));
        }
        Path::Dense => dense::forward(context, shape, x, w, y)?,
    }
    add_bias(context, shape, bias, y);
    Ok(())
}

/// Adds a bias `[O]` to [N, O, H', W'].
pub(crate) fn add_bias<T: Float>(context: &Context, shape: &Conv2dShape, bias: Option<&[T]>, y: &mut [T]) {
    let plane = shape.out_height() * shape.out_width();
    let Some(bias) = bias.filter(|_| plane > 0) else { return };
    context.run_chunks(y, plane * shape.out_channels, |_, y| {
        for (y, bias) in y.chunks_exact_mut(plane).zip(bias) {
            y.iter_mut().for_each(|y| *y += *bias);
        }
    });
}

/// True if bf16 products would be faster than f32: with enough channels, and no better method.
pub(crate) fn suits_bf16(shape: &Conv2dShape) -> bool {
    channels_last::suits_gather(shape) && !winograd::suits_maps(shape)
}

/// Computes the gradient of the input: `dy` is [N, O, H', W'], `dx` [N, C, H, W] is overwritten.
///
/// # Errors
/// If a length does not match the shape.
pub fn conv2d_backward_input<T: Float>(
    context: &Context,
    shape: &Conv2dShape,
    dy: &[T],
    w: &[T],
    dx: &mut [T],
) -> Result<()> {
    check("conv2d_backward_input", shape, ("dx", dx), ("w", w), ("dy", dy))?;
    match Path::of_maps::<T>(context, shape) {
        Path::Depthwise => depthwise::backward_input(context, shape, dy, w, dx),
        Path::Rounded => {
            with_singles(dy, w, dx, |dy, w, dx| rounded::backward_input_rounded(context, shape, dy, w, dx));
        }
        Path::Pointwise => {
            with_singles(dy, w, dx, |dy, w, dx| pointwise::backward_input(context, shape, dy, w, dx));
        }
        Path::Winograd => {
            with_singles(dy, w, dx, |dy, w, dx| winograd::backward_input(context, shape, dy, w, dx));
        }
        Path::ChannelsLast => {
            with_singles(dy, w, dx, |dy, w, dx| channels_last::backward_input(context, shape, dy, w, dx));
        }
        Path::Dense => dense::backward_input(context, shape, dy, w, dx)?,
    }
    Ok(())
}

/// Computes the gradient of the weights and writes it to `dw`, or adds it with `accumulate`.
///
/// # Errors
/// If a length does not match the shape.
pub fn conv2d_backward_weight<T: Float>(
    context: &Context,
    shape: &Conv2dShape,
    x: &[T],
    dy: &[T],
    dw: &mut [T],
    accumulate: bool,
) -> Result<()> {
    check("conv2d_backward_weight", shape, ("x", x), ("dw", dw), ("dy", dy))?;
    let path = Path::of_weights::<T>(shape);
    if !accumulate && !matches!(path, Path::Winograd | Path::ChannelsLast) {
        // The other paths overwrite by themselves.
        dw.fill(T::ZERO);
    }
    match path {
        Path::Depthwise => depthwise::backward_weight(context, shape, x, dy, dw),
        Path::Pointwise => {
            with_singles(x, dy, dw, |x, dy, dw| pointwise::backward_weight(context, shape, x, dy, dw));
        }
        Path::Winograd => with_singles(x, dy, dw, |x, dy, dw| {
            winograd::backward_weight(context, shape, x, dy, dw, accumulate);
        }),
        Path::ChannelsLast => {
            with_singles(x, dy, dw, |x, dy, dw| {
                channels_last::backward_weight(context, shape, x, dy, dw, accumulate);
            });
        }
        Path::Dense | Path::Rounded => dense::backward_weight(context, shape, x, dy, dw)?,
    }
    Ok(())
}

/// Computes the gradient of the bias, the sum of `dy` over batch and pixels, and writes it to `db` or adds it.
///
/// # Errors
/// If a length does not match the shape.
pub fn conv2d_backward_bias<T: Float>(
    context: &Context,
    shape: &Conv2dShape,
    dy: &[T],
    db: &mut [T],
    accumulate: bool,
) -> Result<()> {
    const KERNEL: &str = "conv2d_backward_bias";
    shape.validate()?;
    check_len(KERNEL, "dy", shape.output_len(), dy.len())?;
    check_len(KERNEL, "db", shape.out_channels, db.len())?;
    let plane = shape.out_height() * shape.out_width();
    let channels = shape.out_channels;
    context.run_chunks(db, channels.div_ceil(context.parts()), |task, db| {
        let first = task * channels.div_ceil(context.parts());
        for (offset, db) in db.iter_mut().enumerate() {
            let sum: f64 = (0..shape.batch)
                .map(|n| {
                    let start = (n * channels + first + offset) * plane;
                    context.simd(
                        #[inline(always)]
                        || crate::reduce::sum_slice(&dy[start..start + plane]),
                    )
                })
                .sum();
            *db = T::from_f64(sum) + if accumulate { *db } else { T::ZERO };
        }
    });
    Ok(())
}
