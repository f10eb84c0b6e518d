//! Pooling and nearest-neighbour up-sampling, with exact gradients at any kernel, stride, padding and size.

use super::cut::moved;
use crate::backend::Pool2dShape;
use crate::tape::{Op, PlacementRule, Tape, Value};
use crate::{Result, TensorError};

/// A pooling window, each size as [height, width].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolOptions {
    /// Window.
    pub kernel: [usize; 2],
    /// Step between windows.
    pub stride: [usize; 2],
    /// Border added on each side.
    pub padding: [usize; 2],
}

impl PoolOptions {
    /// Makes a square window.
    pub fn new(kernel: usize, stride: usize, padding: usize) -> Self {
        Self { kernel: [kernel; 2], stride: [stride; 2], padding: [padding; 2] }
    }
}

fn pool_shape(op: &'static str, x: &Value, options: PoolOptions) -> Result<Pool2dShape> {
    let &[batch, channels, height, width] = x.dims() else {
        return Err(TensorError::shape(op, format!("expected [N, C, H, W], not {:?}", x.shape())));
    };
    let PoolOptions { kernel, stride, padding } = options;
    let shape = Pool2dShape { batch, channels, height, width, kernel, stride, padding };
    shape.validate()?;
    Ok(shape)
}

/// Returns the largest element of every window of [N, C, H, W]; the border counts as −∞.
///
/// # Errors
/// If a window does not fit.
pub fn max_pool2d(tape: &Tape, x: &Value, options: PoolOptions) -> Result<Value> {
    const OP: &str = "max_pool2d";
    let shape = pool_shape(OP, x, options)?;
    let input = x.part()?.contiguous()?;
    let (output, positions) = input.backend(tape.context()).max_pool2d(&shape, &input)?;
    tape.push_by(by_channels(OP, x)?, Op::MaxPool2d(shape), &[x], output, move |tape, grad, grads| {
        let grad = grad.contiguous()?;
        grads.add(0, grad.backend(tape.context()).max_pool2d_backward(&shape, &grad, &positions)?)
    })
}

/// Returns the mean of every window of [N, C, H, W]. With `count_include_pad` the border counts as zeros (PyTorch's
/// default), else it does not count.
///
/// # Errors
/// If a window does not fit.
pub fn avg_pool2d(tape: &Tape, x: &Value, options: PoolOptions, count_include_pad: bool) -> Result<Value> {
    const OP: &str = "avg_pool2d";
    let shape = pool_shape(OP, x, options)?;
    let input = x.part()?.contiguous()?;
    let output = input.backend(tape.context()).avg_pool2d(&shape, count_include_pad, &input)?;
    tape.push_by(
        by_channels(OP, x)?,
        Op::AvgPool2d { shape, count_include_pad },
        &[x],
        output,
        move |tape, grad, grads| {
            let grad = grad.contiguous()?;
            grads.add(0, grad.backend(tape.context()).avg_pool2d_backward(&shape, count_include_pad, &grad)?)
        },
    )
}

/// Returns the rule for placements: channels do not depend on each other, so ranks may have some of them.
fn by_channels(op: &'static str, x: &Value) -> Result<PlacementRule> {
    moved(op, x, |dim| (dim == 1).then_some(dim))
}

/// Averages over height and width: [N, C, H, W] to [N, C].
///
/// # Errors
/// If `x` is not four-dimensional or has no elements.
pub fn global_avg_pool2d(tape: &Tape, x: &Value) -> Result<Value> {
    let &[batch, channels, height, width] = x.dims() else {
        return Err(TensorError::shape(
            "global_avg_pool2d",
            format!("expected [N, C, H, W], not {:?}", x.shape()),
        ));
    };
    let options = PoolOptions { kernel: [height, width], stride: [1, 1], padding: [0, 0] };
    let pooled = avg_pool2d(tape, x, options, true)?;
    super::reshape(tape, &pooled, (batch, channels))
}

/// Repeats each pixel `factor` times in both directions: [N, C, H, W] to [N, C, H·factor, W·factor].
///
/// # Errors
/// If `x` is not four-dimensional.
pub fn upsample_nearest2d(tape: &Tape, x: &Value, factor: usize) -> Result<Value> {
    const OP: &str = "upsample_nearest2d";
    let &[batch, channels, height, width] = x.dims() else {
        return Err(TensorError::shape(OP, format!("expected [N, C, H, W], not {:?}", x.shape())));
    };
    if factor == 0 {
        return Err(TensorError::Argument {
            name: "factor",
            value: "0".into(),
            expected: "expected at least 1",
        });
    }
    let dims = [batch, channels, height, width];
    let input = x.part()?.contiguous()?;
    let output = input.backend(tape.context()).upsample_nearest2d(dims, factor, &input)?;
    tape.push_by(
        by_channels(OP, x)?,
        Op::UpsampleNearest2d(factor),
        &[x],
        output,
        move |tape, grad, grads| {
            let grad = grad.contiguous()?;
            grads.add(0, grad.backend(tape.context()).upsample_nearest2d_backward(dims, factor, &grad)?)
        },
    )
}
