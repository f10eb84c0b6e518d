//! Depthwise convolution: every output channel depends on one input channel, so there is no matrix product.
//!
//! f32 runs over framed planes ([`framed`]), or over channels if planes are small ([`small`]). The plain loops are for f64.

mod framed;
mod grid;
mod plain;
mod small;

use super::Conv2dShape;
use super::with_singles;
use crate::context::Context;
use crate::float::Float;

/// True for f32.
fn single<T: Float>() -> bool {
    T::singles(&[]).is_some()
}

pub(super) fn forward<T: Float>(context: &Context, shape: &Conv2dShape, x: &[T], w: &[T], y: &mut [T]) {
    match () {
        () if !single::<T>() => plain::forward(context, shape, x, w, y),
        () if small::suits(shape) => with_singles(x, w, y, |x, w, y| small::forward(context, shape, x, w, y)),
        () => with_singles(x, w, y, |x, w, y| framed::forward(context, shape, x, w, y)),
    }
}

pub(super) fn backward_input<T: Float>(
    context: &Context,
    shape: &Conv2dShape,
    dy: &[T],
    w: &[T],
    dx: &mut [T],
) {
    match () {
        () if !single::<T>() => plain::backward_input(context, shape, dy, w, dx),
        () if small::suits(shape) => {
            with_singles(dy, w, dx, |dy, w, dx| small::backward_input(context, shape, dy, w, dx));
        }
        () => with_singles(dy, w, dx, |dy, w, dx| framed::backward_input(context, shape, dy, w, dx)),
    }
}

pub(super) fn backward_weight<T: Float>(
    context: &Context,
    shape: &Conv2dShape,
    x: &[T],
    dy: &[T],
    dw: &mut [T],
) {
    match () {
        () if !single::<T>() => plain::backward_weight(context, shape, x, dy, dw),
        () if small::suits(shape) => {
            with_singles(x, dy, dw, |x, dy, dw| small::backward_weight(context, shape, x, dy, dw));
        }
        () => with_singles(x, dy, dw, |x, dy, dw| framed::backward_weight(context, shape, x, dy, dw)),
    }
}
