//! Convolution as matrix products over lowered blocks.
//!
//! A block is some output rows of one image, or several whole images when their maps are small: a product with
//! few columns wastes the packing of the weights. Blocks are sized so that the columns stay in the cache.
//!
//! The three passes are products of the same three matrices of a panel: the weights [out_group, depth], the columns
//! of the input [depth, columns], and the output [out_group, columns]. The functions here find or make the matrix of
//! a map and multiply.

mod plan;

use std::sync::OnceLock;

use super::Conv2dShape;
use super::lowering::{lower, raise};
use crate::context::Context;
use crate::error::{KernelError, Result};
use crate::float::Float;
use crate::gemm_call::{View, gemm};
use plan::{Panel, Plan};

/// Computes y = w · columns(x).
pub(super) fn forward<T: Float>(
    context: &Context,
    shape: &Conv2dShape,
    x: &[T],
    w: &[T],
    y: &mut [T],
) -> Result<()> {
    let Some(plan) = Plan::new(shape, context.parts()) else {
        y.fill(T::ZERO);
        return Ok(());
    };
    let w = plan.used_weights(w);
    let image_len = shape.out_channels * plan.out_plane;
    for_each_task(context, &plan, y, image_len, |mut images| {
        plan.panels(images.blocks()).try_for_each(|panel| {
            let size = [plan.out_group, panel.columns, plan.depth];
            with_columns(context, &plan, &panel, x, |columns| {
                write_output(context, &panel, &mut images, |y, row_stride| {
                    gemm(size, plan.weights(&w, panel.group), columns, y, row_stride, false)
                })
            })
        })
    })
}

/// Computes dx = raise(wᵀ · dy).
pub(super) fn backward_input<T: Float>(
    context: &Context,
    shape: &Conv2dShape,
    dy: &[T],
    w: &[T],
    dx: &mut [T],
) -> Result<()> {
    let Some(plan) = Plan::new(shape, context.parts()) else {
        dx.fill(T::ZERO);
        return Ok(());
    };
    let w = plan.used_weights(w);
    let image_len = shape.in_channels * plan.in_plane;
    for_each_task(context, &plan, dx, image_len, |mut images| {
        if !plan.pointwise {
            images.data.fill(T::ZERO);
        }
        plan.panels(images.blocks()).try_for_each(|panel| {
            let size = [plan.depth, panel.columns, plan.out_group];
            let weights = plan.weights(&w, panel.group).transposed();
            add_columns(context, &panel, &mut images, |columns, row_stride| {
                with_output(context, &plan, &panel, dy, |dy| {
                    gemm(size, weights, dy, columns, row_stride, false)
                })
            })
        })
    })
}

/// Computes dw += dy · columns(x)ᵀ.
pub(super) fn backward_weight<T: Float>(
    context: &Context,
    shape: &Conv2dShape,
    x: &[T],
    dy: &[T],
    dw: &mut [T],
) -> Result<()> {
    let Some(plan) = Plan::new(shape, context.parts()) else { return Ok(()) };
    // Every task sums its blocks into its own copy. The copies are added in order, so that the result depends
    // on the number of parts but not on the timing of threads.
    let count = plan.blocks.count;
    let tasks = context.parts().min(count).max(1);
    let len = shape.out_channels * plan.depth;
    let failure = Failure::default();
    let mut partial = vec![T::ZERO; tasks * len];
    context.run_chunks(&mut partial, len, |task, partial| {
        let blocks = task * count / tasks..(task + 1) * count / tasks;
        failure.note(plan.panels(blocks).try_for_each(|panel| {
            let to = &mut partial[plan.group_weights(panel.group)];
            let size = [plan.out_group, plan.depth, panel.columns];
            with_columns(context, &plan, &panel, x, |columns| {
                with_output(context, &plan, &panel, dy, |dy| {
                    gemm(size, dy, columns.transposed(), to, plan.depth, true)
                })
            })
        }));
    });
    let window = shape.kernel[0] * shape.kernel[1];
    for partial in partial.chunks_exact(len) {
        for (dw, partial) in dw.chunks_exact_mut(window).zip(partial.chunks_exact(plan.taps.len())) {
            plan.taps.iter().zip(partial).for_each(|(tap, partial)| dw[tap.index] += *partial);
        }
    }
    failure.take()
}

/// The images of a map that one task writes.
struct Images<'a, T> {
    plan: &'a Plan<'a>,
    task: usize,
    data: &'a mut [T],
}

impl<T> Images<'_, T> {
    /// The blocks of the task.
    fn blocks(&self) -> std::ops::Range<usize> {
        self.plan.blocks_of_task(self.task)
    }

    /// The first image.
    fn first(&self) -> usize {
        self.task * self.plan.images_per_task()
    }
}

/// Runs `each` on the threads for whole images of `image_len` elements of a map; returns the first error.
fn for_each_task<T: Float>(
    context: &Context,
    plan: &Plan<'_>,
    map: &mut [T],
    image_len: usize,
    each: impl Fn(Images<'_, T>) -> Result<()> + Sync + Send,
) -> Result<()> {
    let failure = Failure::default();
    context.run_chunks(map, plan.images_per_task() * image_len, |task, data| {
        failure.note(each(Images { plan, task, data }));
    });
    failure.take()
}

/// Calls `f` with the columns of a panel of `x`, [depth, columns].
fn with_columns<T: Float>(
    context: &Context,
    plan: &Plan<'_>,
    panel: &Panel,
    x: &[T],
    f: impl FnOnce(View<'_, T>) -> Result<()>,
) -> Result<()> {
    if plan.pointwise && panel.is_single() {
        let start = plan.input_at(panel.images.start, panel.group) + panel.rows.0 * plan.shape.width;
        return f(View { data: &x[start..], row_stride: plan.in_plane, col_stride: 1 });
    }
    context.with_scratch(plan.depth * panel.columns, |lowered: &mut [T]| {
        context.simd(
            #[inline(always)]
            || {
                for (image, piece) in panel.pieces() {
                    let start = plan.input_at(image, panel.group);
                    let from = &x[start..start + plan.in_group * plan.in_plane];
                    lower(plan.shape, &plan.taps, from, piece, lowered);
                }
            },
        );
        f(View { data: lowered, row_stride: panel.columns, col_stride: 1 })
    })
}

/// Calls `f` with a panel of the output's gradient, [out_group, columns].
fn with_output<T: Float>(
    context: &Context,
    plan: &Plan<'_>,
    panel: &Panel,
    dy: &[T],
    f: impl FnOnce(View<'_, T>) -> Result<()>,
) -> Result<()> {
    let columns = panel.columns;
    if panel.is_single() {
        let start = plan.output_at(panel.images.start, panel.group) + panel.rows.0 * plan.shape.out_width();
        return f(View { data: &dy[start..], row_stride: plan.out_plane, col_stride: 1 });
    }
    context.with_scratch(plan.out_group * columns, |gathered: &mut [T]| {
        for (image, piece) in panel.pieces() {
            let start = plan.output_at(image, panel.group);
            let from = &dy[start..start + plan.out_group * plan.out_plane];
            for (to, from) in gathered.chunks_exact_mut(columns).zip(from.chunks_exact(plan.out_plane)) {
                to[piece.at..piece.at + plan.out_plane].copy_from_slice(from);
            }
        }
        f(View { data: gathered, row_stride: columns, col_stride: 1 })
    })
}

/// Writes a panel of the output: `multiply` gets the place for [out_group, columns] and the distance between its rows.
fn write_output<T: Float>(
    context: &Context,
    panel: &Panel,
    images: &mut Images<'_, T>,
    multiply: impl FnOnce(&mut [T], usize) -> Result<()>,
) -> Result<()> {
    let (plan, columns, base) = (images.plan, panel.columns, images.first());
    if panel.is_single() {
        let start = plan.output_at(panel.images.start - base, panel.group);
        let start = start + panel.rows.0 * plan.shape.out_width();
        let end = (start + (plan.out_group - 1) * plan.out_plane + columns).min(images.data.len());
        return multiply(&mut images.data[start..end], plan.out_plane);
    }
    context.with_scratch(plan.out_group * columns, |product: &mut [T]| {
        multiply(product, columns)?;
        for (image, piece) in panel.pieces() {
            let start = plan.output_at(image - base, panel.group);
            let to = &mut images.data[start..start + plan.out_group * plan.out_plane];
            for (to, from) in to.chunks_exact_mut(plan.out_plane).zip(product.chunks_exact(columns)) {
                to.copy_from_slice(&from[piece.at..piece.at + plan.out_plane]);
            }
        }
        Ok(())
    })
}

/// Adds a panel of columns to the pixels of the input's gradient: `multiply` gets the place for [depth, columns] and the
/// distance between its rows. A pointwise convolution overwrites its pixels.
fn add_columns<T: Float>(
    context: &Context,
    panel: &Panel,
    images: &mut Images<'_, T>,
    multiply: impl FnOnce(&mut [T], usize) -> Result<()>,
) -> Result<()> {
    let (plan, columns, base) = (images.plan, panel.columns, images.first());
    if plan.pointwise && panel.is_single() {
        let start = plan.input_at(panel.images.start - base, panel.group) + panel.rows.0 * plan.shape.width;
        let end = (start + (plan.in_group - 1) * plan.in_plane + columns).min(images.data.len());
        return multiply(&mut images.data[start..end], plan.in_plane);
    }
    context.with_scratch(plan.depth * columns, |lowered: &mut [T]| {
        multiply(lowered, columns)?;
        for (image, piece) in panel.pieces() {
            let start = plan.input_at(image - base, panel.group);
            let to = &mut images.data[start..start + plan.in_group * plan.in_plane];
            if plan.pointwise {
                to.fill(T::ZERO);
            }
            context.simd(
                #[inline(always)]
                || raise(plan.shape, &plan.taps, lowered, piece, to),
            );
        }
        Ok(())
    })
}

/// The first error of any thread.
#[derive(Default)]
struct Failure(OnceLock<KernelError>);

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
