//! Convolution as matrix products over lowered blocks.
//!
//! A block is some output rows of one image, or several whole images when their maps are small: a product with
//! few columns wastes the packing of the weights. Blocks are sized so that the columns stay in the cache.

use super::Conv2dShape;
use super::lowering::{Piece, Tap, lower, raise, taps};
use crate::context::Context;
use crate::error::Result;
use crate::float::Float;
use crate::gemm_call::{View, gemm};

/// Elements of columns that a block aims at: 768 KiB of f32, most of a core's second-level cache.
const BLOCK_ELEMENTS: usize = 192 << 10;

/// Columns that a block should have at least, so that packing the weights is paid for.
const MIN_COLUMNS: usize = 128;

/// How the output pixels are cut into blocks.
#[derive(Debug, Clone, Copy)]
struct Blocks {
    /// Whole images in a block, if more than one.
    images: usize,
    /// Output rows in a block, if within one image.
    rows: usize,
    /// How many blocks there are.
    count: usize,
    per_image: usize,
}

/// One block: images `images` (several, whole) or rows `rows` of one image.
#[derive(Debug, Clone, Copy)]
struct Block {
    images: (usize, usize),
    rows: (usize, usize),
}

impl Blocks {
    fn new(shape: &Conv2dShape, depth: usize, threads: usize) -> Self {
        let (height, width) = (shape.out_height(), shape.out_width());
        let weights = depth * (shape.out_channels / shape.groups);
        // Weights that do not fit the cache are read once a block, so blocks grow with them.
        let columns = (BLOCK_ELEMENTS / depth.max(1)).max(MIN_COLUMNS).max((weights / depth.max(1)).min(512));
        let pixels = height * width;
        if pixels * 2 <= columns {
            let even = shape.batch.div_ceil(threads).max(1);
            let images = (columns / pixels.max(1)).clamp(1, even);
            return Self { images, rows: height, count: shape.batch.div_ceil(images), per_image: 1 };
        }
        let rows = (columns / width.max(1)).clamp(1, height);
        // Equal blocks rather than a small last one.
        let per_image = height.div_ceil(rows);
        let rows = height.div_ceil(per_image);
        let per_image = height.div_ceil(rows);
        Self { images: 1, rows, count: shape.batch * per_image, per_image }
    }

    fn get(&self, shape: &Conv2dShape, index: usize) -> Block {
        let height = shape.out_height();
        if self.per_image == 1 {
            let first = index * self.images;
            return Block { images: (first, (first + self.images).min(shape.batch)), rows: (0, height) };
        }
        let image = index / self.per_image;
        let first = index % self.per_image * self.rows;
        Block { images: (image, image + 1), rows: (first, (first + self.rows).min(height)) }
    }
}

impl Block {
    fn columns(&self, shape: &Conv2dShape) -> usize {
        (self.images.1 - self.images.0) * (self.rows.1 - self.rows.0) * shape.out_width()
    }

    /// The pieces of the block's columns, image by image.
    fn pieces(self, shape: &Conv2dShape) -> impl Iterator<Item = (usize, Piece)> {
        let row_len = self.columns(shape);
        let pixels = (self.rows.1 - self.rows.0) * shape.out_width();
        (self.images.0..self.images.1)
            .enumerate()
            .map(move |(i, image)| (image, Piece { rows: self.rows, at: i * pixels, row_len }))
    }
}

/// The sizes that all parts of a convolution share.
struct Plan {
    taps: Vec<Tap>,
    /// Rows of the columns: input channels of a group times taps.
    depth: usize,
    in_group: usize,
    out_group: usize,
    in_plane: usize,
    out_plane: usize,
    /// A 1×1 window with stride 1 and no padding: the image is its own columns.
    pointwise: bool,
}

impl Plan {
    fn new(shape: &Conv2dShape) -> Self {
        let taps = taps(shape);
        let in_group = shape.in_channels / shape.groups;
        Self {
            depth: in_group * taps.len(),
            taps,
            in_group,
            out_group: shape.out_channels / shape.groups,
            in_plane: shape.height * shape.width,
            out_plane: shape.out_height() * shape.out_width(),
            pointwise: shape.kernel == [1, 1] && shape.stride == [1, 1] && shape.padding == [0, 0],
        }
    }

    /// Whether every tap of the window is used, so that the weights can be read as they lie.
    fn full(&self, shape: &Conv2dShape) -> bool {
        self.taps.len() == shape.kernel[0] * shape.kernel[1]
    }

    /// Start of the channels of group `group` of image `image`, input side.
    fn input_at(&self, shape: &Conv2dShape, image: usize, group: usize) -> usize {
        (image * shape.in_channels + group * self.in_group) * self.in_plane
    }

    /// Start of the channels of group `group` of image `image`, output side.
    fn output_at(&self, shape: &Conv2dShape, image: usize, group: usize) -> usize {
        (image * shape.out_channels + group * self.out_group) * self.out_plane
    }

    /// The weights without the taps that meet only padding, as [O, depth].
    fn compact<T: Float>(&self, shape: &Conv2dShape, w: &[T]) -> Vec<T> {
        let window = shape.kernel[0] * shape.kernel[1];
        w.chunks_exact(window).flat_map(|w| self.taps.iter().map(|tap| w[tap.index])).collect()
    }
}

/// y = w · columns(x).
pub(super) fn forward<T: Float>(
    context: &Context,
    shape: &Conv2dShape,
    x: &[T],
    w: &[T],
    y: &mut [T],
) -> Result<()> {
    let plan = Plan::new(shape);
    if plan.taps.is_empty() {
        // Every window lies in the padding.
        y.fill(T::ZERO);
        return Ok(());
    }
    let compact;
    let w = if plan.full(shape) {
        w
    } else {
        compact = plan.compact(shape, w);
        &compact
    };
    let blocks = Blocks::new(shape, plan.depth, context.parts());
    let weights = |group: usize| View {
        data: &w[group * plan.out_group * plan.depth..(group + 1) * plan.out_group * plan.depth],
        row_stride: plan.depth,
        col_stride: 1,
    };
    // Blocks within an image write interleaved parts of its output, so a thread takes whole images.
    let images_per_task =
        if blocks.per_image == 1 { blocks.images } else { shape.batch.div_ceil(context.parts() * 4).max(1) };
    let failure = Failure::default();
    context.run_chunks(y, images_per_task * shape.out_channels * plan.out_plane, |task, y| {
        let base = task * images_per_task * shape.out_channels * plan.out_plane;
        let images = (task * images_per_task, ((task + 1) * images_per_task).min(shape.batch));
        let indices = if blocks.per_image == 1 {
            task..task + 1
        } else {
            images.0 * blocks.per_image..images.1 * blocks.per_image
        };
        for (group, index) in indices.flat_map(|index| (0..shape.groups).map(move |group| (group, index))) {
            let block = blocks.get(shape, index);
            let columns = block.columns(shape);
            let single = block.images.1 - block.images.0 == 1;
            let out_at =
                plan.output_at(shape, block.images.0, group) - base + block.rows.0 * shape.out_width();
            let size = [plan.out_group, columns, plan.depth];
            if plan.pointwise && single {
                let start = plan.input_at(shape, block.images.0, group);
                let from = &x[start..start + plan.in_group * plan.in_plane];
                let from = &from[block.rows.0 * shape.width..];
                let view = View { data: from, row_stride: plan.in_plane, col_stride: 1 };
                let end = (out_at + (plan.out_group - 1) * plan.out_plane + columns).min(y.len());
                failure.note(gemm(size, weights(group), view, &mut y[out_at..end], plan.out_plane, false));
                continue;
            }
            context.with_scratch(plan.depth * columns, |lowered: &mut [T]| {
                context.simd(
                    #[inline(always)]
                    || {
                        for (image, piece) in block.pieces(shape) {
                            let start = plan.input_at(shape, image, group);
                            let from = &x[start..start + plan.in_group * plan.in_plane];
                            lower(shape, &plan.taps, from, piece, lowered);
                        }
                    },
                );
                let view = View { data: lowered, row_stride: columns, col_stride: 1 };
                if single {
                    let end = (out_at + (plan.out_group - 1) * plan.out_plane + columns).min(y.len());
                    failure.note(gemm(
                        size,
                        weights(group),
                        view,
                        &mut y[out_at..end],
                        plan.out_plane,
                        false,
                    ));
                    return;
                }
                context.with_scratch(plan.out_group * columns, |product: &mut [T]| {
                    failure.note(gemm(size, weights(group), view, product, columns, false));
                    for (image, piece) in block.pieces(shape) {
                        let start = plan.output_at(shape, image, group) - base;
                        let to = &mut y[start..start + plan.out_group * plan.out_plane];
                        for (to, from) in
                            to.chunks_exact_mut(plan.out_plane).zip(product.chunks_exact(columns))
                        {
                            to.copy_from_slice(&from[piece.at..piece.at + plan.out_plane]);
                        }
                    }
                });
            });
        }
    });
    failure.take()
}

/// dx = raise(wᵀ · dy).
pub(super) fn backward_input<T: Float>(
    context: &Context,
    shape: &Conv2dShape,
    dy: &[T],
    w: &[T],
    dx: &mut [T],
) -> Result<()> {
    let plan = Plan::new(shape);
    if plan.taps.is_empty() {
        dx.fill(T::ZERO);
        return Ok(());
    }
    let compact;
    let w = if plan.full(shape) {
        w
    } else {
        compact = plan.compact(shape, w);
        &compact
    };
    let blocks = Blocks::new(shape, plan.depth, context.parts());
    let weights = |group: usize| View {
        data: &w[group * plan.out_group * plan.depth..(group + 1) * plan.out_group * plan.depth],
        row_stride: 1,
        col_stride: plan.depth,
    };
    let images_per_task =
        if blocks.per_image == 1 { blocks.images } else { shape.batch.div_ceil(context.parts() * 4).max(1) };
    let failure = Failure::default();
    context.run_chunks(dx, images_per_task * shape.in_channels * plan.in_plane, |task, dx| {
        let base = task * images_per_task * shape.in_channels * plan.in_plane;
        let images = (task * images_per_task, ((task + 1) * images_per_task).min(shape.batch));
        let indices = if blocks.per_image == 1 {
            task..task + 1
        } else {
            images.0 * blocks.per_image..images.1 * blocks.per_image
        };
        if !plan.pointwise {
            dx.fill(T::ZERO);
        }
        for (group, index) in indices.flat_map(|index| (0..shape.groups).map(move |group| (group, index))) {
            let block = blocks.get(shape, index);
            let columns = block.columns(shape);
            let single = block.images.1 - block.images.0 == 1;
            let size = [plan.depth, columns, plan.out_group];
            let gather_and_multiply = |lowered: &mut [T], row_stride: usize| {
                if single {
                    let start =
                        plan.output_at(shape, block.images.0, group) + block.rows.0 * shape.out_width();
                    let view = View { data: &dy[start..], row_stride: plan.out_plane, col_stride: 1 };
                    failure.note(gemm(size, weights(group), view, lowered, row_stride, false));
                    return;
                }
                context.with_scratch(plan.out_group * columns, |gathered: &mut [T]| {
                    for (image, piece) in block.pieces(shape) {
                        let start = plan.output_at(shape, image, group);
                        let from = &dy[start..start + plan.out_group * plan.out_plane];
                        for (to, from) in
                            gathered.chunks_exact_mut(columns).zip(from.chunks_exact(plan.out_plane))
                        {
                            to[piece.at..piece.at + plan.out_plane].copy_from_slice(from);
                        }
                    }
                    let view = View { data: gathered, row_stride: columns, col_stride: 1 };
                    failure.note(gemm(size, weights(group), view, lowered, row_stride, false));
                });
            };
            if plan.pointwise && single {
                let start = plan.input_at(shape, block.images.0, group) - base + block.rows.0 * shape.width;
                let end = (start + (plan.in_group - 1) * plan.in_plane + columns).min(dx.len());
                gather_and_multiply(&mut dx[start..end], plan.in_plane);
                continue;
            }
            context.with_scratch(plan.depth * columns, |lowered: &mut [T]| {
                gather_and_multiply(lowered, columns);
                for (image, piece) in block.pieces(shape) {
                    let start = plan.input_at(shape, image, group) - base;
                    let to = &mut dx[start..start + plan.in_group * plan.in_plane];
                    if plan.pointwise {
                        to.fill(T::ZERO);
                    }
                    context.simd(
                        #[inline(always)]
                        || raise(shape, &plan.taps, lowered, piece, to),
                    );
                }
            });
        }
    });
    failure.take()
}

/// dw += dy · columns(x)ᵀ.
pub(super) fn backward_weight<T: Float>(
    context: &Context,
    shape: &Conv2dShape,
    x: &[T],
    dy: &[T],
    dw: &mut [T],
) -> Result<()> {
    let plan = Plan::new(shape);
    if plan.taps.is_empty() {
        return Ok(());
    }
    let blocks = Blocks::new(shape, plan.depth, context.parts());
    // Every thread sums its blocks into its own copy; the copies are added in order, so that the result
    // depends on the number of threads but not on their timing.
    let tasks = context.parts().min(blocks.count).max(1);
    let len = shape.out_channels * plan.depth;
    let failure = Failure::default();
    let mut partial = vec![T::ZERO; tasks * len];
    context.run_chunks(&mut partial, len, |task, partial| {
        let range = task * blocks.count / tasks..(task + 1) * blocks.count / tasks;
        for (group, index) in range.flat_map(|index| (0..shape.groups).map(move |group| (group, index))) {
            let block = blocks.get(shape, index);
            let columns = block.columns(shape);
            let single = block.images.1 - block.images.0 == 1;
            let to =
                &mut partial[group * plan.out_group * plan.depth..(group + 1) * plan.out_group * plan.depth];
            let size = [plan.out_group, plan.depth, columns];
            let mut multiply = |columns_view: View<'_, T>| {
                if single {
                    let start =
                        plan.output_at(shape, block.images.0, group) + block.rows.0 * shape.out_width();
                    let view = View { data: &dy[start..], row_stride: plan.out_plane, col_stride: 1 };
                    failure.note(gemm(size, view, columns_view, to, plan.depth, true));
                    return;
                }
                context.with_scratch(plan.out_group * columns, |gathered: &mut [T]| {
                    for (image, piece) in block.pieces(shape) {
                        let start = plan.output_at(shape, image, group);
                        let from = &dy[start..start + plan.out_group * plan.out_plane];
                        for (to, from) in
                            gathered.chunks_exact_mut(columns).zip(from.chunks_exact(plan.out_plane))
                        {
                            to[piece.at..piece.at + plan.out_plane].copy_from_slice(from);
                        }
                    }
                    let view = View { data: gathered, row_stride: columns, col_stride: 1 };
                    failure.note(gemm(size, view, columns_view, to, plan.depth, true));
                });
            };
            if plan.pointwise && single {
                let start = plan.input_at(shape, block.images.0, group) + block.rows.0 * shape.width;
                multiply(View { data: &x[start..], row_stride: 1, col_stride: plan.in_plane });
                continue;
            }
            context.with_scratch(plan.depth * columns, |lowered: &mut [T]| {
                context.simd(
                    #[inline(always)]
                    || {
                        for (image, piece) in block.pieces(shape) {
                            let start = plan.input_at(shape, image, group);
                            let from = &x[start..start + plan.in_group * plan.in_plane];
                            lower(shape, &plan.taps, from, piece, lowered);
                        }
                    },
                );
                multiply(View { data: lowered, row_stride: 1, col_stride: columns });
            });
        }
    });
    let window = shape.kernel[0] * shape.kernel[1];
    for partial in partial.chunks_exact(len) {
        for (dw, partial) in dw.chunks_exact_mut(window).zip(partial.chunks_exact(plan.taps.len())) {
            plan.taps.iter().zip(partial).for_each(|(tap, partial)| dw[tap.index] += *partial);
        }
    }
    failure.take()
}

/// The first error of any thread.
#[derive(Default)]
struct Failure(std::sync::OnceLock<crate::KernelError>);

impl Failure {
    fn note(&self, result: Result<()>) {
        if let Err(error) = result {
            // A later error says no more than the first.
            let _ = self.0.set(error);
        }
    }

    fn take(self) -> Result<()> {
        self.0.into_inner().map_or(Ok(()), Err)
    }
}
