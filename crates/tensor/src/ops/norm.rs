//! Layer and group normalisation, and unit length.

use super::param_for;
use crate::backend::{Array, GroupShape, NormBackward, NormGrads, NormPass, RmsNormBackward};
use crate::tape::{Grads, Op, Placement, PlacementRule, Tape, Value};
use crate::{Context, Result, TensorError};

/// Checks that `gamma` and `beta` are [channels].
pub(super) fn check_affine(op: &'static str, channels: usize, gamma: &Value, beta: &Value) -> Result<()> {
    if gamma.dims() == [channels] && beta.dims() == [channels] {
        return Ok(());
    }
    let problem =
        format!("expected weight and bias [{channels}], not {:?} and {:?}", gamma.shape(), beta.shape());
    Err(TensorError::shape(op, problem))
}

/// Normalises the last dimension (layer norm, Ba et al. 2016); `gamma` and `beta` are `[C]`.
///
/// # Errors
/// If the shapes do not match.
pub fn layer_norm(tape: &Tape, x: &Value, gamma: &Value, beta: &Value, eps: f64) -> Result<Value> {
    const OP: &str = "layer_norm";
    let width = x.dims().last().copied().unwrap_or(0);
    check_affine(OP, width, gamma, beta)?;
    let (gamma, beta) = (&param_for(tape, gamma, x)?, &param_for(tape, beta, x)?);
    let input = x.contiguous_part()?;
    let (gamma_t, beta_t) = (gamma.contiguous()?, beta.contiguous()?);
    let of = NormPass { x: &input, gamma: &gamma_t, beta: &beta_t, eps };
    let normed = input.backend(tape.context()).layer_norm(of)?;
    let gamma_saved = gamma.save();
    let (mean, inv_std) = (normed.mean, normed.inv_std);
    let (again, affine) = (input.clone(), [copied(tape, &gamma_t)?, copied(tape, &beta_t)?]);
    let compute = move |context: &Context| {
        let of = NormPass { x: &again, gamma: &affine[0], beta: &affine[1], eps };
        Ok(again.backend(context).layer_norm(of)?.output)
    };
    let op = (Op::LayerNorm { eps }, PlacementRule::Elementwise);
    tape.push_remade(op, &[x, gamma, beta], normed.output, compute, move |tape, grad, grads| {
        let (dy, gamma) = (grad.contiguous()?, gamma_saved.contiguous()?);
        let from = NormBackward { x: &input, dy: &dy, gamma: &gamma, mean: &mean, inv_std: &inv_std };
        let before = grads.take_contiguous(0)?;
        hand_in(grads, dy.backend(tape.context()).layer_norm_backward(from, before.as_ref())?)
    })
}

/// Returns a copy of a norm's parameter on a tape that records: strategies release parameters before backward.
fn copied(tape: &Tape, param: &Array) -> Result<Array> {
    if !tape.records() {
        return Ok(param.clone());
    }
    let backend = param.backend(tape.context());
    let copy = backend.unwritten(param.shape(), param.dtype())?;
    backend.copy(&copy, param)?;
    Ok(copy)
}

fn hand_in(grads: &mut Grads<'_>, computed: NormGrads) -> Result<()> {
    grads.add(0, computed.dx)?;
    grads.add(1, computed.dgamma)?;
    grads.add(2, computed.dbeta)
}

/// Normalises [N, C, ..] over `groups` groups of channels (Wu & He 2018); `gamma` and `beta` are `[C]`.
///
/// # Errors
/// If the shapes do not match or the groups do not divide the channels.
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
    let all = gamma.param().map_or(channels, |gamma| gamma.whole_shape().elem_count());
    if channels == 0 || groups == 0 || !all.is_multiple_of(groups) {
        let problem = format!("{groups} groups do not divide the channels of {:?}", x.shape());
        return Err(TensorError::shape(OP, problem));
    }
    check_affine(OP, channels, gamma, beta)?;
    let (groups, rule) = groups_here(OP, x, groups, [gamma, beta])?;
    let (gamma, beta) = (&param_for(tape, gamma, x)?, &param_for(tape, beta, x)?);
    let shape = GroupShape { dims: [batch, channels, rest.iter().product()], groups };
    let input = x.contiguous_part()?;
    let (gamma_t, beta_t) = (gamma.contiguous_part()?, beta.contiguous_part()?);
    let of = NormPass { x: &input, gamma: &gamma_t, beta: &beta_t, eps };
    let normed = input.backend(tape.context()).group_norm(shape, of)?;
    let gamma_saved = gamma.save();
    let (mean, inv_std) = (normed.mean, normed.inv_std);
    let (again, affine) = (input.clone(), [copied(tape, &gamma_t)?, copied(tape, &beta_t)?]);
    let compute = move |context: &Context| {
        let of = NormPass { x: &again, gamma: &affine[0], beta: &affine[1], eps };
        Ok(again.backend(context).group_norm(shape, of)?.output)
    };
    let op = (Op::GroupNorm { groups, eps }, rule);
    tape.push_remade(op, &[x, gamma, beta], normed.output, compute, move |tape, grad, grads| {
        let (dy, gamma) = (grad.contiguous()?, gamma_saved.contiguous()?);
        let from = NormBackward { x: &input, dy: &dy, gamma: &gamma, mean: &mean, inv_std: &inv_std };
        hand_in(grads, dy.backend(tape.context()).group_norm_backward(shape, from)?)
    })
}

/// Returns the number of groups that this rank has of the channels of `x`, and the rule for placements: groups do not depend on each
/// other, so ranks may have some of them.
fn groups_here(
    op: &'static str,
    x: &Value,
    groups: usize,
    affine: [&Value; 2],
) -> Result<(usize, PlacementRule)> {
    let channels = x.dims()[1];
    let cut = Some(Placement::Shard { dim: 0 });
    let portion = affine[0].param().and_then(|gamma| gamma.portion());
    let (Some(portion), Some(is @ Placement::Shard { dim: 1 })) = (portion, x.placement()) else {
        return Ok((groups, PlacementRule::Elementwise));
    };
    let size = portion.whole().elem_count() / groups;
    let whole = portion.kept().iter().all(|range| range.start % size == 0 && range.end % size == 0);
    if affine.iter().any(|of| of.placement() != cut) || !whole {
        let problem = format!(
            "{op}: this rank has channels {:?} of {}, and groups of {size} stay together",
            portion.kept(),
            portion.whole().elem_count()
        );
        return Err(TensorError::placement(problem));
    }
    Ok((channels / size, PlacementRule::Own(is)))
}

/// Divides the last dimension by √(mean x² + eps) and multiplies it by `gamma` `[C]` (RMS norm, Zhang & Sennrich 2019).
///
/// # Errors
/// If the shapes do not match.
pub fn rms_norm(tape: &Tape, x: &Value, gamma: &Value, eps: f64) -> Result<Value> {
    const OP: &str = "rms_norm";
    let width = x.dims().last().copied().unwrap_or(0);
    if gamma.dims() != [width] {
        let problem = format!("expected a weight [{width}], not {:?}", gamma.shape());
        return Err(TensorError::shape(OP, problem));
    }
    let gamma = &param_for(tape, gamma, x)?;
    let (input, gamma_t) = (x.contiguous_part()?, gamma.contiguous()?);
    let [output, inv_rms] = input.backend(tape.context()).rms_norm(&input, &gamma_t, eps)?;
    let gamma_saved = gamma.save();
    let (again, kept_gamma) = (input.clone(), copied(tape, &gamma_t)?);
    let compute = move |context: &Context| {
        let [output, _] = again.backend(context).rms_norm(&again, &kept_gamma, eps)?;
        Ok(output)
    };
    let op = (OP, PlacementRule::Elementwise);
    tape.push_remade(op, &[x, gamma], output, compute, move |tape, grad, grads| {
        let (dy, gamma) = (grad.contiguous()?, gamma_saved.contiguous()?);
        let from = RmsNormBackward { x: &input, dy: &dy, gamma: &gamma, inv_rms: &inv_rms };
        let before = grads.take_contiguous(0)?;
        let computed = dy.backend(tape.context()).rms_norm_backward(from, before.as_ref())?;
        grads.add(0, computed.dx)?;
        grads.add(1, computed.dgamma)
    })
}

/// Divides every row (last dimension) by its Euclidean length; a row of zeros stays zero.
///
/// # Errors
/// If memory cannot be allocated.
pub fn l2_normalise(tape: &Tape, x: &Value) -> Result<Value> {
    let input = x.contiguous()?;
    let (output, inverses) = input.backend(tape.context()).l2_normalise(&input)?;
    let saved = output.clone();
    tape.push("l2_normalise", &[x], output, move |tape, grad, grads| {
        let grad = grad.contiguous()?;
        grads.add(0, grad.backend(tape.context()).l2_normalise_backward(&saved, &grad, &inverses)?)
    })
}
