//! 3×3 convolution without stride by Winograd's minimal filtering F(4×4, 3×3), for f32 (Lavin & Gray 2016).
//!
//! A tile of 4×4 results takes 36 products a channel instead of 144. Tiles of 6×6 input pixels (B'dB) and the weights
//! (GgG') are transformed. The 36 elements are multiplied and summed over the channels as 36 matrix products, and the sums
//! are transformed back (A'mA). With the channels innermost every transform is plain vector arithmetic.
//!
//! The input's gradient is the same with the flipped window. The weights' gradient is the adjoint of the same
//! factorisation: G'((Σ B'dB ∘ A dy A'))G, whose sum over tiles is again 36 matrix products.
//!
//! The relative error is about 1e-6 to 4e-6 instead of 3e-7. The tests bound it by 1e-5 on most shapes and always by 1e-4.

mod by_panels;
mod maps;
mod pass;
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

/// Elements between transformed tiles: one cache line, so that the rows of a product do not map to the same cache sets.
const SKEW: usize = 16;

/// The number of transformed weights that exceeds the second-level cache.
const MANY_WEIGHTS: usize = 512 << 10;

/// True if transformed weights exceed the cache and the transformed tiles. Then the tiles are stored, and the weights are
/// transformed where they are used.
fn few_tiles(tiles: usize, inputs: usize, outputs: usize) -> bool {
    tiles * (inputs + outputs) < 3 * inputs * outputs && POINTS * inputs * outputs > MANY_WEIGHTS
}

/// True if the method applies and saves more than the transforms cost. The cost grows with the tiles and with the weights,
/// the saving with the product of both.
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

/// True if forward and the input's gradient are computed here.
pub(super) fn suits_maps(shape: &Conv2dShape) -> bool {
    suits(shape)
}

/// True if the gradient of the weights is computed here.
pub(super) fn suits_weight(shape: &Conv2dShape) -> bool {
    suits(shape)
}

/// Computes y = x ⋆ w.
pub(super) fn forward(context: &Context, shape: &Conv2dShape, x: &[f32], w: &[f32], y: &mut [f32]) {
    maps::forward(context, shape, x, w, y);
}

/// Computes dx = w ⋆ᵀ dy.
pub(super) fn backward_input(context: &Context, shape: &Conv2dShape, dy: &[f32], w: &[f32], dx: &mut [f32]) {
    maps::backward_input(context, shape, dy, w, dx);
}

/// Computes dw = x ⋆ dy, or adds it with `accumulate`.
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
