//! Clipping gradients by their global norm (Pascanu et al. 2013).

use candle_core::{DType, Shape};
use phalanx_kernels::ExactSquares;

use super::owned;
use crate::backend::{Array, Place};
use crate::store::FlatParam;
use crate::{Context, Result};

/// The sum of squares over the gradients of owned elements, in f64 and a fixed order: a scalar where the gradients lie, on the host
/// if some lie there. Ranks that own shards add theirs up.
///
/// # Errors
/// The back end's.
pub fn grad_sum_of_squares(params: &[FlatParam], context: &Context) -> Result<Array> {
    total(params, (().into(), context), |grads| grads.backend(context).sum_of_squares(grads))
}

/// The sum of squares over the gradients of owned elements, exactly, so that it does not depend on which rank owns which of them: its
/// digits, where [`grad_sum_of_squares`] has the sum. Ranks that own shards add theirs up, and
/// [`exact_squares_value`](crate::backend::Updates::exact_squares_value) says what they mean.
///
/// # Errors
/// If gradients are not f32; and the back end's.
pub fn exact_grad_squares(params: &[FlatParam], context: &Context) -> Result<Array> {
    total(params, (ExactSquares::DIGITS.into(), context), |grads| grads.backend(context).exact_squares(grads))
}

/// What `of` makes of the gradients of each group of owned elements, added up: numbers of f64 of a shape, where the gradients lie, on
/// the host if some lie there.
fn total(
    params: &[FlatParam],
    (shape, context): (Shape, &Context),
    of: impl Fn(&Array) -> Result<Array>,
) -> Result<Array> {
    let mut total: Option<Array> = None;
    let on_host = params.iter().any(|param| param.trainable() && param.home().is_host());
    for param in owned(params) {
        let Some(grads) = param.owned_grads()? else { continue };
        for (at, _) in param.owned_groups() {
            let part = of(grads.narrow(at)?.array())?;
            let part = if on_host { part.to_host()?.into() } else { part };
            match &total {
                Some(total) => total.backend(context).accumulate(total, &part)?,
                None => total = Some(part),
            }
        }
    }
    match total {
        Some(total) => Ok(total),
        None if on_host => Place::host().full(0.0, shape, DType::F64),
        None => params.first().map_or(&Place::host(), FlatParam::place).full(0.0, shape, DType::F64),
    }
}

/// Multiplies the gradients of owned elements by `factor`.
///
/// # Errors
/// The back end's.
pub fn scale_grads(params: &[FlatParam], factor: f64, context: &Context) -> Result<()> {
    for param in owned(params) {
        let Some(grads) = param.owned_grads()? else { continue };
        let backend = grads.array().backend(context);
        let factor = backend.full(factor, &().into(), DType::F64)?;
        backend.scale_by(grads.array(), &factor)?;
    }
    Ok(())
}

/// Scales gradients so that their global L2 norm is at most `max_norm`, and returns the sum of their squares before. Nobody waits
/// for a number: the factor is computed where the gradients lie. A norm that is not finite scales nothing: the caller decides
/// what a broken step means.
///
/// # Errors
/// The back end's.
pub fn clip_grad_norm(params: &[FlatParam], max_norm: f64, context: &Context) -> Result<Array> {
    let squares = grad_sum_of_squares(params, context)?;
    clip_by_squares(params, &squares, max_norm, context)?;
    Ok(squares)
}

/// Scales gradients the sum of whose squares is `squares` so that their global L2 norm is at most `max_norm`, by a factor that is
/// computed where the gradients lie. Ranks that own shards have added their [`grad_sum_of_squares`] up. A norm that is not finite
/// scales nothing.
///
/// # Errors
/// The back end's.
pub fn clip_by_squares(
    params: &[FlatParam],
    squares: &Array,
    max_norm: f64,
    context: &Context,
) -> Result<()> {
    scale_grads_by(params, &squares.backend(context).clip_factor(squares, max_norm)?, context)
}

/// Multiplies the gradients of owned elements by a scalar of f64 that lies where they do, or on the host.
///
/// # Errors
/// The back end's.
pub(super) fn scale_grads_by(params: &[FlatParam], factor: &Array, context: &Context) -> Result<()> {
    for param in owned(params) {
        let Some(grads) = param.owned_grads()? else { continue };
        let factor =
            if factor.is_host() { grads.array().alongside(&factor.tensor()?)? } else { factor.clone() };
        grads.array().backend(context).scale_by(grads.array(), &factor)?;
    }
    Ok(())
}

/// Scales gradients whose global L2 norm is `norm` so that it is at most `max_norm`, and returns `norm`. Ranks that own shards
/// have it as the root of the sum of all their [`grad_sum_of_squares`]. A norm that is not finite scales nothing.
///
/// # Errors
/// The back end's.
pub fn clip_to_norm(params: &[FlatParam], norm: f64, max_norm: f64, context: &Context) -> Result<f64> {
    if norm.is_finite() && norm > max_norm {
        // The small number is PyTorch's, so that both clip alike.
        scale_grads(params, max_norm / (norm + 1e-6), context)?;
    }
    Ok(norm)
}
