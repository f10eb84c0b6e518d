//! Operations over ranks, with gradients.
//!
//! The gradient of such an operation depends on the loss, and a wrong one gives plausible numbers. There are two cases, and each
//! op serves one (n ranks; x_r is the input of rank r, y_r its output, and g_r = ∂L/∂y_r on rank r).
//!
//! **The loss is the sum of the ranks' losses**, L = Σ_r L_r, as in data parallelism, where each rank divides its samples'
//! losses by the size of the global batch. Every rank's y counts, so gradients come from all ranks:
//!
//! | op | forward | backward: ∂L/∂x_r |
//! |---|---|---|
//! | [`all_reduce`] | y_r = Σ_s x_s | Σ_s g_s |
//! | [`all_gather`] | y_r = [x_0 … x_(n−1)] | part r of Σ_s g_s |
//! | [`reduce_scatter`] | y_r = part r of Σ_s x_s | [g_0 … g_(n−1)] |
//!
//! **The loss is replicated**: after a tensor-parallel layer every rank does the same computation on the same numbers and gets
//! the same L, which counts once. A tensor that is equal on all ranks is one variable:
//!
//! | op | forward | backward: ∂L/∂x_r |
//! |---|---|---|
//! | [`copy_to_group`], Megatron's f | y_r = x | Σ_s g_s: ranks compute different parts afterwards |
//! | [`reduce_from_group`], Megatron's g | y_r = Σ_s x_s | g_r: equal on all ranks, and counted once |
//! | [`gather_from_group`] | y_r = [x_0 … x_(n−1)] | part r of g_r |
//! | [`split_to_group`] | y_r = part r of x | [g_0 … g_(n−1)] |
//!
//! Where the ranks compute parts of the same layers ([`Session::tensor_group`](crate::Session)), these ops change the placement of a
//! value ([`Placement`]) and refuse other values than theirs: [`copy_to_group`] makes `Copied` of `Same`, [`reduce_from_group`] `Same`
//! of `Partial`, [`all_reduce`] `Copied` of `Partial`, [`gather_from_group`] `Same` and [`all_gather`] `Copied` of `Shard`,
//! [`split_to_group`] `Shard` of `Same`, and [`reduce_scatter`] `Shard` of `Partial`.
//!
//! [`reduce_scatter`] is right in both cases, because each rank has a different part of y. (Shoeybi et al. 2019; Korthikanti et
//! al. 2022.)
//!
//! Sums are in f32 for values of 16 bits, and in f64 for f64. Results have the type of the input.

use std::sync::Arc;

use candle_core::DType;

use super::rank_split::{RankSplit, summable};
use super::underway::OpRanks;
use crate::backend::Array;
use crate::group::ProcessGroup;
use crate::tape::{Placement, PlacementRule, Tape, Value};
use crate::{Context, Result, TensorError};

/// Computes Σ_s x_s on every rank. The loss is the sum of the ranks' losses, so the gradient is the sum of the ranks'
/// gradients.
///
/// # Errors
/// Errors of the transport, also if ranks have different numbers of elements.
pub fn all_reduce(tape: &Tape, x: &Value, group: &Arc<dyn ProcessGroup>) -> Result<Value> {
    const OP: &str = "all_reduce";
    let rule = rule(tape, group, (OP, x), Placement::Partial, Placement::Copied)?;
    let output = summed(OP, tape.context(), group.as_ref(), &x.part()?)?;
    let group = group.clone();
    tape.push_by(rule, OP, &[x], output, move |tape, grad, grads| {
        grads.add(0, summed(OP, tape.context(), group.as_ref(), grad)?)
    })
}

/// Concatenates the ranks' values along `dim`; rank r has `lens[r]`. The loss is the sum of the ranks' losses, so the
/// gradient is this rank's part of the sum of the ranks' gradients.
///
/// # Errors
/// If `lens` does not have one length a rank, or this rank's is not the size of `x` along `dim`. Errors of the
/// transport.
pub fn all_gather(
    tape: &Tape,
    x: &Value,
    dim: usize,
    lens: &[usize],
    group: &Arc<dyn ProcessGroup>,
) -> Result<Value> {
    all_gather_stored(tape, x, (dim, lens), group, x.dtype()?)
}

/// As [`all_gather`], with a result of another type. f32 sums gradients of values of 16 bits before they are rounded.
pub(crate) fn all_gather_stored(
    tape: &Tape,
    x: &Value,
    (dim, lens): (usize, &[usize]),
    group: &Arc<dyn ProcessGroup>,
    dtype: DType,
) -> Result<Value> {
    const OP: &str = "all_gather";
    let split = RankSplit::of_part(OP, group.as_ref(), x.dims(), dim, lens)?;
    let rule = rule(tape, group, (OP, x), Placement::Shard { dim }, Placement::Copied)?;
    let output = split.gathered(tape.context(), group.as_ref(), &x.part()?, dtype)?;
    let group = group.clone();
    tape.push_by(rule, OP, &[x], output, move |tape, grad, grads| {
        grads.add(0, split.scattered(tape.context(), group.as_ref(), grad)?)
    })
}

/// Returns this rank's part along `dim` of Σ_s x_s; rank r gets `lens[r]`. Its gradient is the concatenation of the
/// ranks' gradients, for either loss.
///
/// # Errors
/// If `lens` does not have one length a rank or does not add up to the size of `x` along `dim`. Errors of the
/// transport.
pub fn reduce_scatter(
    tape: &Tape,
    x: &Value,
    dim: usize,
    lens: &[usize],
    group: &Arc<dyn ProcessGroup>,
) -> Result<Value> {
    const OP: &str = "reduce_scatter";
    let split = RankSplit::of_whole(OP, group.as_ref(), x.dims(), dim, lens)?;
    let rule = rule(tape, group, (OP, x), Placement::Partial, Placement::Shard { dim })?;
    let output = split.scattered(tape.context(), group.as_ref(), &x.part()?)?;
    let group = group.clone();
    tape.push_by(rule, OP, &[x], output, move |tape, grad, grads| {
        grads.add(0, split.gathered(tape.context(), group.as_ref(), grad, grad.dtype())?)
    })
}

/// Megatron's f: passes a replicated value to a computation that is split over ranks, such as the columns of a
/// weight. The gradient is the sum of the ranks' gradients; the loss is replicated.
///
/// # Errors
/// Errors of the transport, in backward.
pub fn copy_to_group(tape: &Tape, x: &Value, group: &Arc<dyn ProcessGroup>) -> Result<Value> {
    const OP: &str = "copy_to_group";
    let rule = rule(tape, group, (OP, x), Placement::Same, Placement::Copied)?;
    let output = x.part()?;
    let group = group.clone();
    tape.push_by(rule, OP, &[x], output, move |tape, grad, grads| {
        if group.size() == 1 {
            return grads.share(0, grad.clone());
        }
        let sum = summable(tape.context(), grad)?;
        let coming = OpRanks::new(OP, tape, &group).sum(&sum)?;
        grads.run_pending(tape)?;
        coming.wait()?;
        grads.add(0, grad.backend(tape.context()).cast(&sum, grad.dtype())?)
    })
}

/// Megatron's g: returns Σ_s x_s on every rank, for a replicated computation. The gradient is the rank's own,
/// unchanged; the loss is replicated.
///
/// # Errors
/// Errors of the transport.
pub fn reduce_from_group(tape: &Tape, x: &Value, group: &Arc<dyn ProcessGroup>) -> Result<Value> {
    const OP: &str = "reduce_from_group";
    let rule = rule(tape, group, (OP, x), Placement::Partial, Placement::Same)?;
    let output = summed(OP, tape.context(), group.as_ref(), &x.part()?)?;
    tape.push_by(rule, OP, &[x], output, |_, grad, grads| grads.share(0, grad.clone()))
}

/// Concatenates the ranks' values along `dim`, for a replicated computation; rank r has `lens[r]`. The gradient is
/// this rank's part of its own gradient; the loss is replicated.
///
/// # Errors
/// As [`all_gather`].
pub fn gather_from_group(
    tape: &Tape,
    x: &Value,
    dim: usize,
    lens: &[usize],
    group: &Arc<dyn ProcessGroup>,
) -> Result<Value> {
    const OP: &str = "gather_from_group";
    let split = RankSplit::of_part(OP, group.as_ref(), x.dims(), dim, lens)?;
    let rule = rule(tape, group, (OP, x), Placement::Shard { dim }, Placement::Same)?;
    let part = x.part()?;
    let output = split.gathered(tape.context(), group.as_ref(), &part, part.dtype())?;
    tape.push_by(rule, OP, &[x], output, move |tape, grad, grads| {
        grads.share(0, split.own_part(tape.context(), grad)?)
    })
}

/// Returns this rank's part along `dim` of a replicated value; rank r gets `lens[r]`. The gradient is the
/// concatenation of the ranks' gradients; the loss is replicated.
///
/// # Errors
/// As [`reduce_scatter`].
pub fn split_to_group(
    tape: &Tape,
    x: &Value,
    dim: usize,
    lens: &[usize],
    group: &Arc<dyn ProcessGroup>,
) -> Result<Value> {
    const OP: &str = "split_to_group";
    let split = RankSplit::of_whole(OP, group.as_ref(), x.dims(), dim, lens)?;
    let rule = rule(tape, group, (OP, x), Placement::Same, Placement::Shard { dim })?;
    let output = split.own_part(tape.context(), &x.part()?)?;
    let group = group.clone();
    tape.push_by(rule, OP, &[x], output, move |tape, grad, grads| {
        grads.add(0, split.gathered(tape.context(), group.as_ref(), grad, grad.dtype())?)
    })
}

/// Returns the rule of an operation over `group`. Over the ranks that compute parts of the same layers it takes a value of
/// placement `from` and makes one of `to`; over others it takes whole values.
fn rule(
    tape: &Tape,
    group: &Arc<dyn ProcessGroup>,
    (op, x): (&'static str, &Value),
    from: Placement,
    to: Placement,
) -> Result<PlacementRule> {
    let own = tape.session().tensor_ranks();
    if !own.is_some_and(|own| Arc::ptr_eq(own, group)) {
        return Ok(PlacementRule::Whole);
    }
    match x.placement() {
        Some(found) if found != from => {
            Err(TensorError::placement(format!("{op}: the input is {found}, and it takes {from}")))
        }
        _ => Ok(PlacementRule::Own(to)),
    }
}

fn summed(op: &'static str, context: &Context, group: &dyn ProcessGroup, x: &Array) -> Result<Array> {
    if group.size() == 1 {
        return Ok(x.clone());
    }
    let sum = summable(context, x)?;
    group.all_reduce(&sum).map_err(TensorError::hook(op))?;
    Ok(x.backend(context).cast(&sum, x.dtype())?)
}
