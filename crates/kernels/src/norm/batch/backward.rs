//! Gradients of batch norm.

use super::{ActivationMask, Affine, Part, Sizes, planes, small_planes, with_activation};
use crate::columns::{ColumnBlock, column_blocks};
use crate::context::Context;
use crate::error::{Result, check_len};
use crate::float::Float;

/// The inputs of the backward of a batch norm.
#[derive(Debug, Clone, Copy)]
pub struct BatchNormBackward<'a, T> {
    /// The input of forward.
    pub x: &'a [T],
    /// The gradient of the output.
    pub dy: &'a [T],
    /// The statistics and parameters of forward.
    pub affine: Affine<'a, T>,
    /// The elements that the activation blocked.
    pub mask: ActivationMask<'a, T>,
}

impl<T> BatchNormBackward<'_, T> {
    fn check(&self, kernel: &'static str, sizes: Sizes) -> Result<()> {
        check_len(kernel, "x", sizes.len(), self.x.len())?;
        check_len(kernel, "dy", sizes.len(), self.dy.len())?;
        if let Some(output) = self.mask.output {
            check_len(kernel, "output", sizes.len(), output.len())?;
        }
        self.affine.check(kernel, sizes.channels)
    }
}

#[inline(always)]
fn sums<T: Float>(
    part: Part<'_, T>,
    affine: Affine<'_, T>,
    mask: ActivationMask<'_, T>,
    dy: &[T],
    sum_dy: &mut [f64],
    sum_dy_xhat: &mut [f64],
) {
    let small = small_planes::suits(part.sizes.plane);
    with_activation!(mask.activation, A => if small {
        small_planes::sums::<T, A>(part, affine, mask.output, dy, sum_dy, sum_dy_xhat);
    } else {
        planes::sums::<T, A>(part, affine, mask.output, dy, sum_dy, sum_dy_xhat);
    });
}

#[inline(always)]
fn input<T: Float>(
    part: Part<'_, T>,
    affine: Affine<'_, T>,
    mask: ActivationMask<'_, T>,
    dy: &[T],
    means: [&[f64]; 2],
    dx: &mut ColumnBlock<'_, T>,
    residual: Option<&mut ColumnBlock<'_, T>>,
) {
    let small = small_planes::suits(part.sizes.plane);
    with_activation!(mask.activation, A => if small {
        small_planes::input::<T, A>(part, affine, mask.output, dy, means, dx, residual);
    } else {
        planes::input::<T, A>(part, affine, mask.output, dy, means, dx, residual);
    });
}

/// Computes Σ dy and Σ dy·x̂ of each channel, the gradients of beta and gamma.
///
/// x̂ = (x − mean)·inv_std, and dy is zero where the activation blocked it.
///
/// # Errors
/// If a length does not match the shape.
pub fn batch_norm_backward_sums<T: Float>(
    context: &Context,
    [batch, channels, plane]: [usize; 3],
    from: BatchNormBackward<'_, T>,
    [sum_dy, sum_dy_xhat]: [&mut [f64]; 2],
) -> Result<()> {
    const KERNEL: &str = "batch_norm_backward_sums";
    let sizes = Sizes { batch, channels, plane };
    from.check(KERNEL, sizes)?;
    let BatchNormBackward { x, dy, affine, mask } = from;
    check_len(KERNEL, "sum_dy", channels, sum_dy.len())?;
    check_len(KERNEL, "sum_dy_xhat", channels, sum_dy_xhat.len())?;
    let per_task = sizes.per_task(context);
    let items = sum_dy.chunks_mut(per_task).zip(sum_dy_xhat.chunks_mut(per_task)).enumerate().collect();
    context.run_each(items, |(task, (sum_dy, sum_dy_xhat))| {
        let first = task * per_task;
        let part = Part { sizes, first, count: sum_dy.len(), x };
        context.simd(
            #[inline(always)]
            || sums(part, affine.some(first, part.count), mask, dy, sum_dy, sum_dy_xhat),
        );
    });
    Ok(())
}

/// The gradients of the maps of a batch norm. All elements are overwritten.
#[derive(Debug)]
pub struct BatchNormGrads<'a, T> {
    /// The gradient of the input.
    pub dx: &'a mut [T],
    /// The gradient of the residual: dy, zero where the activation blocked it.
    pub residual: Option<&'a mut [T]>,
}

impl<'a, T> BatchNormGrads<'a, T> {
    fn check(&self, kernel: &'static str, sizes: Sizes) -> Result<()> {
        check_len(kernel, "dx", sizes.len(), self.dx.len())?;
        let residual = self.residual.as_ref();
        residual.map_or(Ok(()), |residual| check_len(kernel, "residual", sizes.len(), residual.len()))
    }

    /// Splits both into blocks of `width` columns.
    fn blocks(
        self,
        row: usize,
        width: usize,
    ) -> impl Iterator<Item = (ColumnBlock<'a, T>, Option<ColumnBlock<'a, T>>)> {
        let dx = column_blocks(self.dx, row, width);
        let residual = self.residual.map(|residual| column_blocks(residual, row, width));
        let mut residual = residual.map(Vec::into_iter);
        dx.into_iter().map(move |dx| (dx, residual.as_mut().and_then(Iterator::next)))
    }
}

/// Computes dx = gamma·inv_std·(dy − mean_dy − x̂·mean_dy_xhat), with dy zero where the activation blocked it.
///
/// `means` are mean_dy and mean_dy_xhat over all elements of the statistics; zeros if the statistics were fixed.
///
/// # Errors
/// If a length does not match the shape.
pub fn batch_norm_backward_input<T: Float>(
    context: &Context,
    [batch, channels, plane]: [usize; 3],
    from: BatchNormBackward<'_, T>,
    means: [&[f64]; 2],
    to: BatchNormGrads<'_, T>,
) -> Result<()> {
    const KERNEL: &str = "batch_norm_backward_input";
    let sizes = Sizes { batch, channels, plane };
    from.check(KERNEL, sizes)?;
    let BatchNormBackward { x, dy, affine, mask } = from;
    to.check(KERNEL, sizes)?;
    check_len(KERNEL, "mean_dy", channels, means[0].len())?;
    check_len(KERNEL, "mean_dy_xhat", channels, means[1].len())?;
    let per_task = sizes.per_task(context);
    let items = to.blocks(sizes.row(), per_task * plane).enumerate().collect();
    context.run_each(items, |(task, (mut dx, mut residual))| {
        let first = task * per_task;
        let part = Part { sizes, first, count: per_task.min(channels - first), x };
        let means = means.map(|means| &means[first..first + part.count]);
        let affine = affine.some(first, part.count);
        context.simd(
            #[inline(always)]
            || input(part, affine, mask, dy, means, &mut dx, residual.as_mut()),
        );
    });
    Ok(())
}

/// Computes the backward of batch norm in training: [`batch_norm_backward_sums`] and [`batch_norm_backward_input`] for each
/// channel while it is in the cache.
///
/// # Errors
/// If a length does not match the shape.
pub fn batch_norm_train_backward<T: Float>(
    context: &Context,
    [batch, channels, plane]: [usize; 3],
    from: BatchNormBackward<'_, T>,
    [sum_dy, sum_dy_xhat]: [&mut [f64]; 2],
    to: BatchNormGrads<'_, T>,
) -> Result<()> {
    const KERNEL: &str = "batch_norm_train_backward";
    let sizes = Sizes { batch, channels, plane };
    from.check(KERNEL, sizes)?;
    let BatchNormBackward { x, dy, affine, mask } = from;
    to.check(KERNEL, sizes)?;
    check_len(KERNEL, "sum_dy", channels, sum_dy.len())?;
    check_len(KERNEL, "sum_dy_xhat", channels, sum_dy_xhat.len())?;
    let per_task = sizes.per_task(context);
    let both = sum_dy.chunks_mut(per_task).zip(sum_dy_xhat.chunks_mut(per_task));
    let items = to.blocks(sizes.row(), per_task * plane).zip(both).enumerate().collect();
    context.run_each(items, |(task, ((mut dx, mut residual), (sum_dy, sum_dy_xhat)))| {
        let at_once = if small_planes::suits(plane) { small_planes::CHUNK / plane } else { 1 };
        let chunks = sum_dy.chunks_mut(at_once).zip(sum_dy_xhat.chunks_mut(at_once));
        for (index, (sum_dy, sum_dy_xhat)) in chunks.enumerate() {
            let offset = index * at_once;
            let part = Part { sizes, first: task * per_task + offset, count: sum_dy.len(), x };
            let affine = affine.some(part.first, part.count);
            let columns = (offset * plane, part.count * plane);
            let mut dx = dx.some(columns.0, columns.1);
            let mut residual = residual.as_mut().map(|residual| residual.some(columns.0, columns.1));
            context.simd(
                #[inline(always)]
                || {
                    sums(part, affine, mask, dy, sum_dy, sum_dy_xhat);
                    let mut means = [[0.0; small_planes::CHUNK]; 2];
                    for i in 0..part.count {
                        means[0][i] = sum_dy[i] / sizes.count();
                        means[1][i] = sum_dy_xhat[i] / sizes.count();
                    }
                    input(part, affine, mask, dy, [&means[0], &means[1]], &mut dx, residual.as_mut());
                },
            );
        }
    });
    Ok(())
}
