//! One pass from map to map, and its transformed weights.

use std::ops::Range;

use pulp::{Simd, WithSimd};

use super::product::Panel;
use super::tiles::Tiles;
use super::transform;
use crate::context::Context;
use crate::conv::channels_last::pack::{PackPanel, Weights};

/// A convolution from [batch, inputs, ..] to [batch, outputs, ..]: forward, or the input's gradient.
pub(super) struct Pass<'a> {
    pub(super) context: &'a Context,
    pub(super) batch: usize,
    pub(super) inputs: usize,
    pub(super) outputs: usize,
    pub(super) tiles: &'a Tiles,
    pub(super) weights: Weights<'a>,
    /// The window's taps in the order in which they meet the pixels.
    pub(super) taps: &'a [usize; 9],
}

/// Transforms the weights of a panel of outputs and some inputs to [point, input, output].
pub(super) struct TransformWeights<'a> {
    pub(super) pass: &'a Pass<'a>,
    pub(super) panel: Panel,
    pub(super) inputs: Range<usize>,
    pub(super) to: &'a mut [f32],
}

impl WithSimd for TransformWeights<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { pass, panel, inputs, to } = self;
        let weights = &pass.weights;
        let weights = Weights { values: &weights.values[inputs.start * weights.per_input..], ..*weights };
        let (width, inputs) = (panel.vectors * S::F32_LANES, inputs.len());
        let mut packed = pass.context.scratch(9 * inputs * width);
        let pack = PackPanel {
            weights,
            taps: pass.taps,
            channels: [pass.outputs, inputs],
            first: panel.first * S::F32_LANES,
            width,
            packed: &mut packed,
        };
        pass.context.dispatch(pack);
        for at in (0..inputs * width).step_by(S::F32_LANES) {
            let points = transform::weight(
                simd,
                #[inline(always)]
                |tap| transform::vector::<S>(&packed, tap * inputs * width + at),
            );
            for (i, point) in points.as_flattened().iter().enumerate() {
                let start = i * inputs * width + at;
                S::as_mut_simd_f32s(&mut to[start..start + S::F32_LANES]).0[0] = *point;
            }
        }
    }
}
