//! 3×3 convolution without stride by Winograd's minimal filtering F(4×4, 3×3), for f32 (Lavin & Gray 2016).
//!
//! A tile of 4×4 results takes 36 products a channel instead of 144. Tiles of 6×6 input pixels are transformed
//! (B'dB), so are the weights (GgG'), the 36 elements are multiplied and summed over the channels as 36 matrix
//! products, and the sums are transformed back (A'mA). With the channels innermost every transform is plain vector
//! arithmetic.
//!
//! The input's gradient is the same with the window transposed round. The weights' gradient is the adjoint of the same
//! factorisation: G'((Σ B'dB ∘ A dy A'))G, whose sum over tiles is again 36 matrix products.
//!
//! Compared with exact arithmetic the relative error is about 1e-6 to 4e-6 instead of 3e-7; the tests hold it under
//! 1e-5 on most shapes and always under 1e-4.

mod by_panels;
mod maps;
mod product;
mod tiles;
mod transform;
mod weight;
mod weight_by_panels;
mod weight_product;

use super::Conv2dShape;
use crate::context::Context;

/// Elements of a transformed tile.
const POINTS: usize = 36;

/// Transformed tiles begin this many elements further apart than they are long: one cache line, so that the rows
/// of a product do not fall on the same lines of the cache.
const SKEW: usize = 16;

/// Transformed weights that do not stay in the second-level cache.
const MANY_WEIGHTS: usize = 512 << 10;

/// Whether transformed weights are many, and take more room than transformed tiles: then the tiles are kept, and the
/// weights transformed where they are used.
fn few_tiles(tiles: usize, inputs: usize, outputs: usize) -> bool {
    tiles * (inputs + outputs) < 3 * inputs * outputs && POINTS * inputs * outputs > MANY_WEIGHTS
}

/// Whether a convolution is of the kind and worth the transforms: what they cost grows with the tiles and with the
/// weights, what they save with the product of both.
fn suits(shape: &Conv2dShape) -> bool {
    let plain = shape.kernel == [3; 2] && shape.stride == [1; 2] && shape.dilation == [1; 2];
    if !plain || shape.groups != 1 || shape.padding.iter().any(|&padding| padding > 2) || shape.batch < 4 {
        return false;
    }
    let (inputs, outputs) = (shape.in_channels as f64, shape.out_channels as f64);
    let tiles = (shape.batch * shape.out_height().div_ceil(4) * shape.out_width().div_ceil(4)) as f64;
    let inside = |axis| {
        (0..3)
            .map(|tap| {
                let (a, b) = shape.inside(axis, tap);
                b - a
            })
            .sum::<usize>() as f64
    };
    let direct = shape.batch as f64 * inside(0) * inside(1) * inputs * outputs;
    let points = POINTS as f64;
    let here =
        points * (tiles * inputs * outputs + 24.0 * tiles * (inputs + outputs) + 12.0 * inputs * outputs);
    inputs >= 16.0 && outputs >= 16.0 && here < direct
}

/// Whether forward and the input's gradient are done here.
pub(super) fn suits_maps(shape: &Conv2dShape) -> bool {
    suits(shape)
}

/// Whether the gradient of the weights is done here.
pub(super) fn suits_weight(shape: &Conv2dShape) -> bool {
    suits(shape)
}

/// y = x ⋆ w.
pub(super) fn forward(context: &Context, shape: &Conv2dShape, x: &[f32], w: &[f32], y: &mut [f32]) {
    maps::forward(context, shape, x, w, y);
}

/// dx = w ⋆ᵀ dy.
pub(super) fn backward_input(context: &Context, shape: &Conv2dShape, dy: &[f32], w: &[f32], dx: &mut [f32]) {
    maps::backward_input(context, shape, dy, w, dx);
}

/// dw = x ⋆ dy, or dw += with `accumulate`.
pub(super) fn backward_weight(
    context: &Context,
    shape: &Conv2dShape,
    x: &[f32],
    dy: &[f32],
    dw: &mut [f32],
    accumulate: bool,
) {
    weight::run(context, shape, x, dy, dw, accumulate);
}
