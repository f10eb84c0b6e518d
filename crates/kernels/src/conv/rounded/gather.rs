//! Pixels as weighted sums of their sources, in pairs of channels; the bf16 counterpart of
//! [`crate::conv::channels_last`].

use pulp::{Simd, WithSimd};

use crate::bfloat::pairs::{ToBf16, transpose_pairs, zip_rows};
use crate::context::Context;
use crate::conv::Conv2dShape;
use crate::conv::channels_last::images_in_block;
use crate::conv::channels_last::pack::{PackPanel, Weights};
use crate::conv::channels_last::sources::{Sources, of_inputs, of_outputs};
use crate::products::tile::{HasBf16, Segment, TALLEST, Tile};
use crate::products::{LANES, WIDEST};
use crate::transpose::to_planes;
use crate::vectorized::Vectorized as _;

/// Pairs of input channels that are added at a time: the weights of a tap and panel stay in the first-level cache.
const PAIRS: usize = 64;

/// Computes y = x ⋆ w; `w` is rounded to bf16.
pub(super) fn forward<T: ToBf16>(context: &Context, shape: &Conv2dShape, x: &[T], w: &[f32], y: &mut [f32]) {
    let window = shape.kernel[0] * shape.kernel[1];
    let inputs = shape.in_channels;
    let weights = Weights { values: w, per_output: inputs * window, per_input: window, window };
    let pass = Pass {
        batch: shape.batch,
        channels: [inputs, shape.out_channels],
        in_plane: shape.height * shape.width,
        sources: of_outputs(shape),
    };
    run(context, pass, x, weights, y);
}

/// Computes dx = w ⋆ᵀ dy.
pub(super) fn backward_input<T: ToBf16>(
    context: &Context,
    shape: &Conv2dShape,
    dy: &[T],
    w: &[f32],
    dx: &mut [f32],
) {
    let window = shape.kernel[0] * shape.kernel[1];
    let weights = Weights { values: w, per_output: window, per_input: shape.in_channels * window, window };
    let pass = Pass {
        batch: shape.batch,
        channels: [shape.out_channels, shape.in_channels],
        in_plane: shape.out_height() * shape.out_width(),
        sources: of_inputs(shape),
    };
    run(context, pass, dy, weights, dx);
}

/// A convolution from map to map.
struct Pass {
    batch: usize,
    /// Channels of the input and of the result.
    channels: [usize; 2],
    /// Pixels of the input.
    in_plane: usize,
    sources: Sources,
}

fn run<T: ToBf16>(context: &Context, pass: Pass, input: &[T], weights: Weights<'_>, out: &mut [f32]) {
    let Pass { batch, channels, in_plane, mut sources } = pass;
    let [inputs, outputs] = channels;
    let Some(has) = context.bf16() else { return };
    let taps = sources.renumber_taps();
    let (pairs, vectors) = (inputs.div_ceil(2), outputs.div_ceil(LANES));
    let depth = taps.len() * pairs;
    let per_panel = WIDEST * LANES * depth;
    let mut packed = context.scratch(vectors * LANES * depth);
    context.run_chunks(&mut packed, per_panel.max(1), |panel, to| {
        let first = panel * WIDEST * LANES;
        Pack { context, weights, taps: &taps, channels, first, to }.vectorized(has.simd());
    });
    let packed = pulp::bytemuck::cast_slice::<f32, u32>(&packed);
    let out_plane = sources.pixels();
    let (in_image, out_image) = (in_plane * inputs, out_plane * outputs);
    let images = images_in_block(context, batch, in_image.max(out_image), TALLEST);
    context.run_chunks(out, (images * out_image).max(1), |task, out| {
        let count = out.len() / out_image.max(1);
        let input = &input[task * images * in_image..][..count * in_image];
        let block = Block { has, context, channels, in_plane, sources: &sources, packed, depth, input, out };
        block.vectorized(has.simd());
    });
}

/// Packs the weights of a panel of outputs as [tap, pair of inputs, output].
struct Pack<'a> {
    context: &'a Context,
    weights: Weights<'a>,
    taps: &'a [usize],
    channels: [usize; 2],
    first: usize,
    to: &'a mut [f32],
}

impl WithSimd for Pack<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Pack { context, weights, taps, channels: [inputs, outputs], first, to } = self;
        let pairs = inputs.div_ceil(2);
        let width = to.len() / (taps.len() * pairs).max(1);
        let mut packed = context.scratch(taps.len() * inputs * width);
        let channels = [outputs, inputs];
        PackPanel { weights, taps, channels, first, width, packed: &mut packed }.vectorized(simd);
        for (tap, to) in to.chunks_exact_mut((pairs * width).max(1)).enumerate() {
            let rows = &packed[tap * inputs * width..][..inputs * width];
            for (pair, to) in to.chunks_exact_mut(width).enumerate() {
                let row = |index: usize| &rows[index * width..][..width];
                zip_rows(row(2 * pair), (2 * pair + 1 < inputs).then(|| row(2 * pair + 1)), to);
            }
        }
    }
}

/// A task: some images.
struct Block<'a, T> {
    has: HasBf16,
    context: &'a Context,
    channels: [usize; 2],
    in_plane: usize,
    sources: &'a Sources,
    packed: &'a [u32],
    /// Pairs of all taps.
    depth: usize,
    input: &'a [T],
    out: &'a mut [f32],
}

impl<T: ToBf16> WithSimd for Block<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Block { has, context, channels: [inputs, outputs], in_plane, sources, packed, depth, input, out } =
            self;
        let (pairs, out_stride) = (inputs.div_ceil(2), outputs.next_multiple_of(LANES));
        let out_plane = sources.pixels();
        let (in_image, out_image) = (in_plane * pairs, out_plane * out_stride);
        let count = input.len() / (inputs * in_plane);
        let mut pixels = context.scratch(count * in_image);
        let mut scratch = context.scratch(pairs * in_plane);
        let images = input.chunks_exact(inputs * in_plane);
        for (image, pixels) in images.zip(pixels.chunks_exact_mut(in_image)) {
            transpose_pairs(simd, image, in_plane, [inputs, in_plane], pixels, pairs, &mut scratch);
        }
        let pixels = pulp::bytemuck::cast_slice::<f32, u32>(&pixels);
        let mut result = context.scratch(count * out_image);
        let mut segments = Vec::new();
        for start in (0..pairs).step_by(PAIRS) {
            for column in (0..out_stride).step_by(WIDEST * LANES) {
                let vectors = WIDEST.min((out_stride - column) / LANES);
                let width = vectors * LANES;
                for pixel in 0..out_plane {
                    segments.clear();
                    segments.extend(sources.of(pixel).iter().map(|source| Segment {
                        a: source.pixel as usize * pairs + start,
                        b: column * depth + (source.tap as usize * pairs + start) * width,
                    }));
                    let mut image = 0;
                    while image < count {
                        let some = [8, 4, 2, 1].into_iter().find(|&some| image + some <= count).unwrap_or(1);
                        let tile = Tile {
                            a: pixels,
                            row: image * in_image,
                            row_stride: in_image,
                            step: 1,
                            b: packed,
                            segments: &segments,
                            pairs: PAIRS.min(pairs - start),
                            out: image * out_image + pixel * out_stride + column,
                            out_stride: out_image,
                            add: start > 0,
                        };
                        tile.run(has, some, vectors, &mut result);
                        image += some;
                    }
                }
            }
        }
        for (result, image) in result.chunks_exact(out_image).zip(out.chunks_exact_mut(out_plane * outputs)) {
            to_planes(simd, result, out_stride, outputs, out_plane, image);
        }
    }
}
