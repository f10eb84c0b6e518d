//! Layer and group normalisation, and unit length.

use candle_core::WithDType as _;
use phalanx_kernels::{group_norm_backward, group_norm_forward, layer_norm_backward, layer_norm_forward};

use crate::storage::unwritten;
use crate::storage::{Contiguous, dispatch, stored, tensor_from};
use crate::tape::{Tape, Value};
use crate::{Result, TensorError};

/// Checks that `gamma` and `beta` are [channels].
pub(super) fn check_affine(op: &'static str, channels: usize, gamma: &Value, beta: &Value) -> Result<()> {
    if gamma.dims() == [channels] && beta.dims() == [channels] {
        return Ok(());
    }
    let problem =
        format!("expected weight and bias [{channels}], not {:?} and {:?}", gamma.shape(), beta.shape());
    Err(TensorError::shape(op, problem))
}

/// Layer normalisation over the last dimension (Ba et al. 2016); `gamma` and `beta` are `[C]`.
///
/// # Errors
/// If the shapes do not go together.
pub fn layer_norm(tape: &Tape, x: &Value, gamma: &Value, beta: &Value, eps: f64) -> Result<Value> {
    const OP: &str = "layer_norm";
    let width = x.dims().last().copied().unwrap_or(0);
    check_affine(OP, width, gamma, beta)?;
    let input = x.tensor()?.contiguous()?;
    let dtype = input.dtype();
    let rows = input.elem_count() / width.max(1);
    let (gamma_t, beta_t) = (gamma.tensor()?, beta.tensor()?);
    let (output, mean, inv_std) = {
        let x = Contiguous::by(OP, tape.context(), &input)?;
        let (g, b) =
            (Contiguous::by(OP, tape.context(), &gamma_t)?, Contiguous::by(OP, tape.context(), &beta_t)?);
        dispatch!(OP, dtype, T => {
            let x = x.slice::<T>()?;
            let mut y = unwritten::<T>(x.len());
            let (mut mean, mut inv_std) = (vec![T::default(); rows], vec![T::default(); rows]);
            let (g, b) = (g.slice::<T>()?, b.slice::<T>()?);
            layer_norm_forward(tape.context(), rows, width, x, g, b, eps, &mut y, &mut mean, &mut inv_std)?;
            Ok::<_, TensorError>((
                stored(tape.context(), y, input.shape().clone(), dtype)?,
                tensor_from(mean, rows)?,
                tensor_from(inv_std, rows)?,
            ))
        })?
    };
    let gamma_saved = gamma.save();
    tape.push(OP, &[x, gamma, beta], output, move |tape, grad, grads| {
        let grad = &grad.tensor()?;
        let grad = grad.contiguous()?;
        let gamma_t = gamma_saved.array()?.tensor()?;
        let (x, dy, g) = (
            Contiguous::by(OP, tape.context(), &input)?,
            Contiguous::by(OP, tape.context(), &grad)?,
            Contiguous::by(OP, tape.context(), &gamma_t)?,
        );
        let (m, s) =
            (Contiguous::by(OP, tape.context(), &mean)?, Contiguous::by(OP, tape.context(), &inv_std)?);
        dispatch!(OP, dtype, T => {
            let (x, dy) = (x.slice::<T>()?, dy.slice::<T>()?);
            let mut dx = unwritten::<T>(x.len());
            let (mut dgamma, mut dbeta) = (vec![T::default(); width], vec![T::default(); width]);
            layer_norm_backward(
                tape.context(), rows, width, x, dy, g.slice::<T>()?, m.slice::<T>()?, s.slice::<T>()?,
                &mut dx, &mut dgamma, &mut dbeta,
            )?;
            grads.add(0, tensor_from(dx, input.shape().clone())?)?;
            grads.add(1, tensor_from(dgamma, width)?)?;
            grads.add(2, tensor_from(dbeta, width)?)
        })
    })
}

/// Group normalisation of [N, C, ..] over `groups` groups of channels (Wu & He 2018); `gamma` and `beta` are `[C]`.
///
/// # Errors
/// If the shapes do not go together or the groups do not divide the channels.
pub fn group_norm(
    tape: &Tape,
    x: &Value,
    groups: usize,
    gamma: &Value,
    beta: &Value,
    eps: f64,
) -> Result<Value> {
    const OP: &str = "group_norm";
    let (&[batch, channels], rest) = x
        .dims()
        .split_at_checked(2)
        .map_or((&[0, 0], &[][..]), |(a, b)| (a.try_into().unwrap_or(&[0, 0]), b));
    if channels == 0 || groups == 0 || channels % groups != 0 {
        let problem = format!("{groups} groups do not divide the channels of {:?}", x.shape());
        return Err(TensorError::shape(OP, problem));
    }
    check_affine(OP, channels, gamma, beta)?;
    let dims = [batch, channels, rest.iter().product()];
    let input = x.tensor()?.contiguous()?;
    let dtype = input.dtype();
    let count = batch * groups;
    let (gamma_t, beta_t) = (gamma.tensor()?, beta.tensor()?);
    let (output, mean, inv_std) = {
        let x = Contiguous::by(OP, tape.context(), &input)?;
        let (g, b) =
            (Contiguous::by(OP, tape.context(), &gamma_t)?, Contiguous::by(OP, tape.context(), &beta_t)?);
        dispatch!(OP, dtype, T => {
            let x = x.slice::<T>()?;
            let mut y = unwritten::<T>(x.len());
            let (mut mean, mut inv_std) = (vec![T::default(); count], vec![T::default(); count]);
            let (g, b) = (g.slice::<T>()?, b.slice::<T>()?);
            group_norm_forward(tape.context(), dims, groups, x, g, b, eps, &mut y, &mut mean, &mut inv_std)?;
            Ok::<_, TensorError>((
                stored(tape.context(), y, input.shape().clone(), dtype)?,
                tensor_from(mean, count)?,
                tensor_from(inv_std, count)?,
            ))
        })?
    };
    let gamma_saved = gamma.save();
    tape.push(OP, &[x, gamma, beta], output, move |tape, grad, grads| {
        let grad = &grad.tensor()?;
        let grad = grad.contiguous()?;
        let gamma_t = gamma_saved.array()?.tensor()?;
        let (x, dy, g) = (
            Contiguous::by(OP, tape.context(), &input)?,
            Contiguous::by(OP, tape.context(), &grad)?,
            Contiguous::by(OP, tape.context(), &gamma_t)?,
        );
        let (m, s) =
            (Contiguous::by(OP, tape.context(), &mean)?, Contiguous::by(OP, tape.context(), &inv_std)?);
        dispatch!(OP, dtype, T => {
            let (x, dy) = (x.slice::<T>()?, dy.slice::<T>()?);
            let mut dx = unwritten::<T>(x.len());
            let (mut dgamma, mut dbeta) = (vec![T::default(); channels], vec![T::default(); channels]);
            group_norm_backward(
                tape.context(), dims, groups, x, dy, g.slice::<T>()?, m.slice::<T>()?, s.slice::<T>()?,
                &mut dx, &mut dgamma, &mut dbeta,
            )?;
            grads.add(0, tensor_from(dx, input.shape().clone())?)?;
            grads.add(1, tensor_from(dgamma, channels)?)?;
            grads.add(2, tensor_from(dbeta, channels)?)
        })
    })
}

/// Every row (last dimension) divided by its Euclidean length; a row of zeros stays zero.
///
/// # Errors
/// If memory cannot be allocated.
pub fn l2_normalise(tape: &Tape, x: &Value) -> Result<Value> {
    const OP: &str = "l2_normalise";
    let input = x.tensor()?.contiguous()?;
    let width = input.dims().last().copied().unwrap_or(1).max(1);
    let dtype = input.dtype();
    let (output, inverse) = {
        let x = Contiguous::by(OP, tape.context(), &input)?;
        dispatch!(OP, dtype, T => {
            let x = x.slice::<T>()?;
            let mut y = Vec::with_capacity(x.len());
            let mut inverse = Vec::with_capacity(x.len() / width);
            for row in x.chunks_exact(width) {
                let length = row.iter().map(|v| v.to_f64() * v.to_f64()).sum::<f64>().sqrt();
                let factor = if length > 0.0 { 1.0 / length } else { 0.0 };
                y.extend(row.iter().map(|v| T::from_f64(v.to_f64() * factor)));
                inverse.push(factor);
            }
            Ok::<_, TensorError>((stored(tape.context(), y, input.shape().clone(), dtype)?, inverse))
        })?
    };
    let saved = output.clone();
    tape.push(OP, &[x], output, move |tape, grad, grads| { let grad = &grad.tensor()?;
        let grad = grad.contiguous()?;
        let (y, dy) = (Contiguous::by(OP, tape.context(), &saved)?, Contiguous::by(OP, tape.context(), &grad)?);
        dispatch!(OP, dtype, T => {
            let (y, dy) = (y.slice::<T>()?, dy.slice::<T>()?);
            let mut dx = Vec::with_capacity(y.len());
            for ((y, dy), factor) in y.chunks_exact(width).zip(dy.chunks_exact(width)).zip(&inverse) {
                // dx = (dy − y·⟨y, dy⟩)/‖x‖: the part along the row does not change its direction.
                let along: f64 = y.iter().zip(dy).map(|(y, dy)| y.to_f64() * dy.to_f64()).sum();
                dx.extend(y.iter().zip(dy).map(|(y, dy)| T::from_f64((dy.to_f64() - y.to_f64() * along) * factor)));
            }
            grads.add(0, tensor_from(dx, saved.shape().clone())?)
        })
    })
}
