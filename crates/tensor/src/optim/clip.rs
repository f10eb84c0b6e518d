//! Clipping gradients by their global norm (Pascanu et al. 2013).

use candle_core::{DType, Shape};
use phalanx_kernels::ExactSquares;

use super::trained;
use crate::backend::{Array, ComputeDevice};
use crate::store::ParamBucket;
use crate::{Context, Result};

/// Returns the sum of squares of the gradients of owned elements, in f64 and a fixed order: a scalar on their device,
/// or on the host if some are there. Ranks with shards add theirs up. Elements that count on another rank are left out.
///
/// # Errors
/// Errors of the back end.
pub fn grad_sum_of_squares(params: &[ParamBucket], context: &Context) -> Result<Array> {
    total(params, (().into(), context), |grads| Ok(grads.backend(context).sum_of_squares(grads)?))
}

/// Returns the exact sum of squares of the gradients of owned elements as digits, so that it does not depend on the
/// sharding. Its device is that of [`grad_sum_of_squares`]. Ranks with shards add the digits up, and
/// [`exact_squares_value`](crate::backend::Updates::exact_squares_value) converts them.
///
/// # Errors
/// If gradients are not f32; and errors of the back end.
pub fn exact_grad_squares(params: &[ParamBucket], context: &Context) -> Result<Array> {
    total(params, (ExactSquares::DIGITS.into(), context), |grads| {
        Ok(grads.backend(context).exact_squares(grads)?)
    })
}

/// Returns the sum of `of` over the gradients of each group of owned elements: f64 of a shape, on their device, or on
/// the host if some are there.
fn total(
    params: &[ParamBucket],
    (shape, context): (Shape, &Context),
    of: impl Fn(&Array) -> Result<Array>,
) -> Result<Array> {
    let mut total: Option<Array> = None;
    let on_host = params.iter().any(|param| param.trainable() && param.storage_device().is_host());
    for param in trained(params) {
        let Some(grads) = param.owned_grads()? else { continue };
        for group in param.owned_groups().into_iter().filter(|group| group.counts) {
            let part = of(grads.narrow(group.range)?.array())?;
            let part = if on_host { part.to_host()?.into() } else { part };
            match &total {
                Some(total) => total.backend(context).accumulate(total, &part)?,
                None => total = Some(part),
            }
        }
    }
    match total {
        Some(total) => Ok(total),
        None if on_host => Ok(ComputeDevice::host().full(0.0, shape, DType::F64)?),
        None => Ok(params.first().map_or(&ComputeDevice::host(), ParamBucket::device).full(
            0.0,
            shape,
            DType::F64,
        )?),
    }
}

/// Multiplies the gradients of owned elements by `factor`.
///
/// # Errors
/// Errors of the back end.
pub fn scale_grads(params: &[ParamBucket], factor: f64, context: &Context) -> Result<()> {
    for param in trained(params) {
        let Some(grads) = param.owned_grads()? else { continue };
        let backend = grads.array().backend(context);
        let factor = backend.full(factor, &().into(), DType::F64)?;
        backend.scale_by(grads.array(), &factor)?;
    }
    Ok(())
}

/// Scales gradients to a global L2 norm of at most `max_norm`, and returns their sum of squares before. The host does
/// not wait: the gradients' device computes the factor. A norm that is not finite scales nothing; the caller decides
/// about such a step.
///
/// # Errors
/// Errors of the back end.
pub fn clip_grad_norm(params: &[ParamBucket], max_norm: f64, context: &Context) -> Result<Array> {
    let squares = grad_sum_of_squares(params, context)?;
    clip_by_squares(params, &squares, max_norm, context)?;
    Ok(squares)
}

/// Scales gradients with sum of squares `squares` to a global L2 norm of at most `max_norm`. The gradients' device
/// computes the factor. Ranks with shards have added up their [`grad_sum_of_squares`]. A norm that is not finite
/// scales nothing.
///
/// # Errors
/// Errors of the back end.
pub fn clip_by_squares(
    params: &[ParamBucket],
    squares: &Array,
    max_norm: f64,
    context: &Context,
) -> Result<()> {
    scale_grads_by(params, &squares.backend(context).clip_factor(squares, max_norm)?, context)
}

/// Multiplies the gradients of owned elements by a scalar of f64 on their device or on the host.
///
/// # Errors
/// Errors of the back end.
pub(super) fn scale_grads_by(params: &[ParamBucket], factor: &Array, context: &Context) -> Result<()> {
    for param in trained(params) {
        let Some(grads) = param.owned_grads()? else { continue };
        let factor =
            if factor.is_host() { grads.array().alongside(&factor.tensor()?)? } else { factor.clone() };
        grads.array().backend(context).scale_by(grads.array(), &factor)?;
    }
    Ok(())
}

/// Scales gradients with global L2 norm `norm` to at most `max_norm`, and returns `norm`. Ranks with shards take the
/// root of the sum of all their [`grad_sum_of_squares`]. A norm that is not finite scales nothing.
///
/// # Errors
/// Errors of the back end.
pub fn clip_to_norm(params: &[ParamBucket], norm: f64, max_norm: f64, context: &Context) -> Result<f64> {
    if norm.is_finite() && norm > max_norm {
        // PyTorch adds the same small number.
        scale_grads(params, max_norm / (norm + 1e-6), context)?;
    }
    Ok(norm)
}
