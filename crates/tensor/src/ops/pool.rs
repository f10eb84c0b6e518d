//! Pooling and nearest-neighbour up-sampling, with exact gradients at any kernel, stride, padding and size.

use crate::backend::Pool2dShape;
use crate::tape::{Op, Placement, PlacementRule, Tape, Value};
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
    let input = x.contiguous_part()?;
    let (output, positions) = input.backend(tape.context()).max_pool2d(&shape, &input)?;
    tape.push_by(by_channels(x), Op::MaxPool2d(shape), &[x], output, move |tape, grad, grads| {
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
    let input = x.contiguous_part()?;
    let output = input.backend(tape.context()).avg_pool2d(&shape, count_include_pad, &input)?;
    tape.push_by(
        by_channels(x),
        Op::AvgPool2d { shape, count_include_pad },
        &[x],
        output,
        move |tape, grad, grads| {
            let grad = grad.contiguous()?;
            grads.add(0, grad.backend(tape.context()).avg_pool2d_backward(&shape, count_include_pad, &grad)?)
        },
    )
}

/// Returns the rule for placements: channels do not depend on each other, so ranks may have some of them. The largest of parts of sums
/// is not a part of the largest sum.
fn by_channels(x: &Value) -> PlacementRule {
    match x.placement() {
        Some(is @ Placement::Shard { dim: 1 }) => PlacementRule::Own(is),
        _ => PlacementRule::Whole,
    }
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
    let input = x.contiguous_part()?;
    let output = input.backend(tape.context()).upsample_nearest2d(dims, factor, &input)?;
    tape.push_by(by_channels(x), Op::UpsampleNearest2d(factor), &[x], output, move |tape, grad, grads| {
        let grad = grad.contiguous()?;
        grads.add(0, grad.backend(tape.context()).upsample_nearest2d_backward(dims, factor, &grad)?)
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use candle_core::{DType, Device, Tensor};

    use super::*;
    use crate::{Context, Key, OutlineGroup, ProcessGroup, Session};

    #[test]
    fn ranks_may_have_some_channels_and_no_parts_of_sums() {
        let ranks: Arc<dyn ProcessGroup> = Arc::new(OutlineGroup::new(0, 2));
        let session = Session::training(Arc::new(Context::new(1)), Key::new(0));
        let tape = Tape::recording(Session { tensor_group: Some(ranks.into()), ..session });
        let images = Tensor::zeros((1, 2, 4, 4), DType::F32, &Device::Cpu).expect("small");
        let pool = |placement| {
            let x = Value::constant(&images).placed(Some(placement));
            let options = PoolOptions::new(2, 2, 0);
            [
                max_pool2d(&tape, &x, options),
                avg_pool2d(&tape, &x, options, true),
                upsample_nearest2d(&tape, &x, 2),
            ]
        };
        let channels = Placement::Shard { dim: 1 };
        for pooled in pool(channels) {
            assert_eq!(pooled.expect("each channel by itself").placement(), Some(channels));
        }
        for placement in [Placement::Partial, Placement::Shard { dim: 2 }] {
            assert!(pool(placement).iter().all(Result::is_err), "{placement}");
        }
    }
}
