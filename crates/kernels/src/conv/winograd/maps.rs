//! Forward and the input's gradient.

use pulp::{Simd, WithSimd};

use super::super::Conv2dShape;
use super::super::channels_last::images_in_block;
use super::super::channels_last::pack::Weights;
use super::pass::{Pass, TransformWeights};
use super::product::{Panel, Product, WIDEST, panels};
use super::tiles::Tiles;
use super::{POINTS, SKEW, by_panels, few_tiles, transform};
use crate::context::Context;
use crate::transpose::{to_channels_last, to_planes};

/// Elements of the transformed tiles of a block, and the least and the most tiles.
const BLOCK_ELEMENTS: usize = 192 << 10;
const FEWEST: usize = 32;
const MOST: usize = 128;

pub(super) fn forward(context: &Context, shape: &Conv2dShape, x: &[f32], w: &[f32], y: &mut [f32]) {
    let (input, output) = ([shape.height, shape.width], [shape.out_height(), shape.out_width()]);
    let (inputs, outputs) = (shape.in_channels, shape.out_channels);
    let weights = Weights { values: w, per_output: inputs * 9, per_input: 9, window: 9 };
    let pass = Pass {
        context,
        batch: shape.batch,
        inputs,
        outputs,
        tiles: &Tiles::new(input, output, shape.padding),
        weights,
        taps: &[0, 1, 2, 3, 4, 5, 6, 7, 8],
    };
    context.dispatch(Run { pass: &pass, input: x, out: y });
}

pub(super) fn backward_input(context: &Context, shape: &Conv2dShape, dy: &[f32], w: &[f32], dx: &mut [f32]) {
    // The gradient is convolved with the flipped window; its padding is the rest of the window.
    let (input, output) = ([shape.out_height(), shape.out_width()], [shape.height, shape.width]);
    let (inputs, outputs) = (shape.out_channels, shape.in_channels);
    let weights = Weights { values: w, per_output: 9, per_input: outputs * 9, window: 9 };
    let pass = Pass {
        context,
        batch: shape.batch,
        inputs,
        outputs,
        tiles: &Tiles::new(input, output, shape.padding.map(|padding| 2 - padding)),
        weights,
        taps: &[8, 7, 6, 5, 4, 3, 2, 1, 0],
    };
    context.dispatch(Run { pass: &pass, input: dy, out: dx });
}

struct Run<'a> {
    pass: &'a Pass<'a>,
    input: &'a [f32],
    out: &'a mut [f32],
}

impl WithSimd for Run<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Run { pass, input, out } = self;
        let Pass { context, inputs, outputs, tiles, .. } = *pass;
        let vectors = outputs.div_ceil(S::F32_LANES);
        if few_tiles(pass.batch * tiles.per_image(), inputs, outputs) {
            return by_panels::run::<S>(pass, input, out);
        }
        let panels = panels(vectors, vectors.div_ceil(WIDEST));
        let per_vector = POINTS * inputs * S::F32_LANES;
        let mut transformed = context.scratch(vectors * per_vector);
        let (mut items, mut rest) = (Vec::with_capacity(panels.len()), &mut transformed[..]);
        for &panel in &panels {
            let (part, others) = rest.split_at_mut(panel.vectors * per_vector);
            items.push((panel, part));
            rest = others;
        }
        context.run_each(items, |(panel, to)| {
            context.dispatch(TransformWeights { pass, panel, inputs: 0..inputs, to });
        });
        let transformed = &transformed[..];
        let (in_image, out_image) = (tiles.in_plane * inputs, tiles.out_plane * outputs);
        let images = images_in_block(context, pass.batch, in_image.max(out_image), 1);
        context.run_chunks(out, images * out_image, |task, out| {
            let count = out.len() / out_image.max(1);
            let input = &input[task * images * in_image..][..count * in_image];
            context.dispatch(Block { pass, panels: &panels, weights: transformed, input, out });
        });
    }
}

/// A task: some images.
struct Block<'a> {
    pass: &'a Pass<'a>,
    panels: &'a [Panel],
    weights: &'a [f32],
    input: &'a [f32],
    out: &'a mut [f32],
}

impl WithSimd for Block<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Block { pass, panels, weights, input, out } = self;
        let Pass { context, inputs, outputs, tiles, .. } = *pass;
        let (in_stride, out_stride) =
            (inputs.next_multiple_of(S::F32_LANES), outputs.next_multiple_of(S::F32_LANES));
        let (in_image, out_image) = ((tiles.in_plane + 1) * in_stride, (tiles.out_plane + 1) * out_stride);
        let per_image = tiles.per_image();
        let count = input.len() / (inputs * tiles.in_plane);
        let (in_tile, out_tile) = (POINTS * in_stride + SKEW, POINTS * out_stride + SKEW);
        let at_once = (BLOCK_ELEMENTS / (in_tile + out_tile)).clamp(FEWEST, MOST) / 8 * 8;
        let at_once = at_once.min(count * per_image);
        let mut pixels = context.scratch(in_image);
        let mut results = context.scratch(out_image);
        let mut points = context.scratch(at_once * in_tile);
        let mut sums = context.scratch(at_once * out_tile);
        pixels[tiles.in_plane * in_stride..].fill(0.0);
        let (mut transposed, mut finished) = (0, 0);
        let total = count * per_image;
        for first in (0..total).step_by(at_once) {
            let here = at_once.min(total - first);
            for (i, to) in points.chunks_exact_mut(in_tile).take(here).enumerate() {
                let (image, tile) = ((first + i) / per_image, (first + i) % per_image);
                if image == transposed {
                    let size = inputs * tiles.in_plane;
                    let planes = &input[image * size..][..size];
                    let to = &mut pixels[..tiles.in_plane * in_stride];
                    to_channels_last(simd, planes, inputs, tiles.in_plane, to, in_stride);
                    transposed += 1;
                }
                transform::input_tile(simd, &pixels, in_stride, &tiles.reads[tile], to);
            }
            let product = Product {
                points: &points,
                in_tile,
                in_stride,
                out_tile,
                out_stride,
                first: 0,
                inputs,
                count: here,
            };
            product.run(simd, panels, weights, &mut sums);
            for (i, from) in sums.chunks_exact(out_tile).take(here).enumerate() {
                let (image, tile) = ((first + i) / per_image, (first + i) % per_image);
                transform::output_tile(simd, from, out_stride, &tiles.writes[tile], &mut results);
                if tile + 1 == per_image {
                    let size = outputs * tiles.out_plane;
                    let planes = &mut out[image * size..][..size];
                    to_planes(simd, &results, out_stride, outputs, tiles.out_plane, planes);
                    finished += 1;
                }
            }
        }
        debug_assert_eq!([transposed, finished], [count; 2]);
    }
}
