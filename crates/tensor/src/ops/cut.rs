//! Values on their way into and out of layers that are cut over ranks ([`Session::tensor_group`](crate::Session)).

use std::sync::Arc;

use super::collective::{copy_to_group, gather_from_group, reduce_from_group, split_to_group};
use super::overlap::product_of_gathered;
use super::rank_split::{POSITIONS, RankSplit};
use super::underway::OpRanks;
use crate::backend::Array;
use crate::group::{ProcessGroup, even_lens};
use crate::tape::{FinishFn, Placement, PlacementRule, Tape, Value};
use crate::{Context, Result, TensorError};

const GATHER: &str = "gather_sequence";

/// Returns a value that ranks compute different parts with: a copy, whose gradients are summed over the ranks, of all positions if each
/// rank has some. Layers that read the same value share a copy.
pub(crate) fn copy_for_parts(tape: &Tape, x: &Value) -> Result<Value> {
    copied(tape, x, |ranks, split, part| {
        split.begin_gathered(tape.context(), ranks, part)?.finish(tape.context(), part.dtype())
    })
}

/// A value that ranks compute different parts with, and its product with a weight if that was computed while the value was gathered.
pub(super) struct CopyAndProduct {
    pub(super) copy: Value,
    pub(super) product: Option<Array>,
}

/// As [`copy_for_parts`]. A copy that is gathered is multiplied on its way.
pub(super) fn copy_for_product(
    tape: &Tape,
    x: &Value,
    multiply: impl Fn(&Array) -> Result<Array>,
) -> Result<CopyAndProduct> {
    let mut product = None;
    let copy = copied(tape, x, |ranks, split, part| {
        let gathering = split.begin_gathered(tape.context(), ranks, part)?;
        let gathered = product_of_gathered(tape.context(), part, gathering, multiply)?;
        product = Some(gathered.product);
        Ok(gathered.whole)
    })?;
    Ok(CopyAndProduct { copy, product })
}

/// Returns a copy for different parts; `gather` makes it of positions that each rank has.
fn copied(
    tape: &Tape,
    x: &Value,
    gather: impl FnOnce(OpRanks<'_>, &RankSplit, &Array) -> Result<Array>,
) -> Result<Value> {
    let Some(group) = tape.session().tensor_ranks() else { return Ok(x.clone()) };
    match (x.placement(), split_lens(tape, x)) {
        (Some(Placement::Same), _) => tape.copied_once(x, || copy_to_group(tape, x, group)),
        (Some(Placement::Shard { dim: POSITIONS }), Some(lens)) => tape.copied_once(x, || {
            let split = RankSplit::of_part(GATHER, &**group, x.dims(), POSITIONS, &lens)?;
            let output = gather(OpRanks::new(GATHER, tape, group), &split, &x.part()?)?;
            record_gathered(tape, x, (split, group), output)
        }),
        _ => Ok(x.clone()),
    }
}

/// Records the positions of all ranks for ranks that compute different parts with them. Backward gathers them again rather than keep
/// them, and leaves each rank the sum of the gradients of its positions, during which gradients of weights are computed.
fn record_gathered(
    tape: &Tape,
    x: &Value,
    (split, group): (RankSplit, &Arc<dyn ProcessGroup>),
    output: Array,
) -> Result<Value> {
    let (again, part) = (split.clone(), x.save());
    let ranks = tape.session().tensor_group.clone().unwrap_or_else(|| group.clone().into());
    let begin = move |context: &Arc<Context>| {
        let part = part.array()?;
        let gathering = again.begin_gathered(context, OpRanks::of(GATHER, &ranks), &part)?;
        let (context, dtype) = (context.clone(), part.dtype());
        Ok(Box::new(move || gathering.finish(&context, dtype)) as FinishFn)
    };
    let (op, group) = ((GATHER, PlacementRule::Own(Placement::Copied)), group.clone());
    tape.push_gathered(op, &[x], output, begin, move |tape, grad, grads| {
        let coming = split.begin_scattered(tape.context(), OpRanks::new(GATHER, tape, &group), grad)?;
        grads.run_pending(tape)?;
        grads.add(0, coming.finish(tape.context())?)
    })
}

/// The positions that each rank has of sequences [N, T, C] between layers; `None` if ranks have all.
pub(super) fn split_lens(tape: &Tape, x: &Value) -> Option<Vec<usize>> {
    let ranks = tape.session().tensor_ranks()?.size();
    tape.split_length().filter(|_| x.dims().len() == 3).map(|length| even_lens(length, ranks))
}

/// Gives each rank some positions of sequences [N, T, C], equal on all ranks, if the session says so
/// ([`TensorGroup::splits_sequences`](crate::TensorGroup)) and there are as many as ranks. Until [`join_sequence`], layers that are cut
/// over ranks gather their input and leave each rank the sums of its positions.
///
/// # Errors
/// If the value is not equal on all ranks.
pub fn split_sequence(tape: &Tape, x: &Value) -> Result<Value> {
    let group = tape.session().tensor_group.as_ref().filter(|group| group.splits_sequences);
    let (Some(group), &[_, length, _]) = (group, x.dims()) else { return Ok(x.clone()) };
    if length < group.ranks.size() {
        return Ok(x.clone());
    }
    tape.set_split_length(Some(length));
    split_to_group(tape, x, POSITIONS, &even_lens(length, group.ranks.size()), &group.ranks)
}

/// Brings the positions of sequences together that [`split_sequence`] has given to the ranks: equal on all ranks.
///
/// # Errors
/// If the value has other positions, and those of the transport.
pub fn join_sequence(tape: &Tape, x: &Value) -> Result<Value> {
    let lens = split_lens(tape, x);
    tape.set_split_length(None);
    match (lens, tape.session().tensor_ranks()) {
        (Some(lens), Some(group)) => gather_from_group(tape, x, POSITIONS, &lens, group),
        _ => Ok(x.clone()),
    }
}

/// Returns sequences with all positions, if each rank has some, for ranks that compute different parts with them, such as some heads of
/// attention.
///
/// # Errors
/// Errors of the transport.
pub fn gather_sequence(tape: &Tape, x: &Value) -> Result<Value> {
    match split_lens(tape, x) {
        Some(_) => copy_for_parts(tape, x),
        None => Ok(x.clone()),
    }
}

/// Runs a function on sequences with all positions, if each rank has some: it may look at any of them. Each rank gets its positions of
/// the result.
///
/// # Errors
/// Errors of the function, and those of [`split_sequence`] and [`join_sequence`].
pub fn with_whole_sequences(
    tape: &Tape,
    x: &Value,
    run: impl FnOnce(&Value) -> Result<Value>,
) -> Result<Value> {
    match split_lens(tape, x) {
        None => run(x),
        Some(_) => split_sequence(tape, &run(&join_sequence(tape, x)?)?),
    }
}

/// Returns a whole parameter for an op with `x`. If ranks compute different parts with it, its gradients are summed over them.
pub(crate) fn param_for(tape: &Tape, param: &Value, x: &Value) -> Result<Value> {
    let apart = x.placement().is_some_and(|is| is == Placement::Copied || is.cut_dim().is_some());
    match (param.placement(), tape.session().tensor_ranks()) {
        (Some(Placement::Same), Some(_)) if apart && !param.needs_grad() => {
            Ok(param.clone().placed(Some(Placement::Copied)))
        }
        (Some(Placement::Same), Some(group)) if apart => copy_to_group(tape, param, group),
        _ => Ok(param.clone()),
    }
}

/// Returns the sum of the ranks' parts, in the type of products.
pub(crate) fn sum_of_parts(tape: &Tape, x: &Value) -> Result<Value> {
    match tape.session().tensor_ranks() {
        Some(group) => reduce_from_group(tape, x, group),
        None => Err(no_ranks("a parameter is cut over ranks")),
    }
}

/// Brings the ranks' shards of dimension `dim` together, of size `len` and cut evenly. A whole value stays as it is.
///
/// # Errors
/// If the value is a shard of another dimension or size, and those of the transport.
pub fn gathered(tape: &Tape, x: &Value, dim: usize, len: usize) -> Result<Value> {
    match (x.placement(), tape.session().tensor_ranks()) {
        (Some(Placement::Shard { .. }), Some(group)) => {
            gather_from_group(tape, x, dim, &even_lens(len, group.size()), group)
        }
        _ => Ok(x.clone()),
    }
}

/// The error of a shard without ranks to compute with.
pub(crate) fn no_ranks(what: &str) -> TensorError {
    TensorError::placement(format!("{what}, and the session has no `tensor_group`"))
}

/// Returns the rule of an op that moves elements; `to` is where a dimension goes, if it stays whole.
pub(super) fn moved(
    op: &'static str,
    x: &Value,
    to: impl FnOnce(usize) -> Option<usize>,
) -> Result<PlacementRule> {
    match x.placement() {
        Some(cut @ (Placement::Shard { dim } | Placement::Joint { dim, .. })) => match to(dim) {
            Some(dim) => Ok(PlacementRule::Own(cut.along(dim))),
            None => {
                let problem = format!("{op}: ranks have shards of dimension {dim} of {:?}", x.shape());
                Err(TensorError::placement(format!("{problem}, which would be mixed with other dimensions")))
            }
        },
        Some(Placement::Partial) => Ok(PlacementRule::Own(Placement::Partial)),
        _ => Ok(PlacementRule::Whole),
    }
}

/// Returns the dimension of shape `to` that has the elements of dimension `dim` of shape `from`, after a change of shape.
pub(super) fn reshaped(from: &[usize], to: &[usize], dim: usize) -> Option<usize> {
    if to.len() > dim && from[..dim] == to[..dim] {
        return Some(dim);
    }
    let before: usize = from[..dim].iter().product();
    (0..to.len()).find(|at| to[..*at].iter().product::<usize>() == before)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dimension_is_found_in_another_shape() {
        for (from, to, dim, found) in [
            (&[2, 3, 8][..], &[2, 3, 2, 4][..], 2, Some(2)),
            (&[2, 3, 2, 4], &[2, 3, 8], 2, Some(2)),
            (&[2, 1, 8], &[2, 1, 1, 8], 2, Some(2)),
            (&[2, 3, 8], &[6, 8], 2, Some(1)),
            (&[6, 8], &[2, 3, 8], 1, Some(2)),
            (&[2, 4, 3], &[8, 3], 1, None),
            (&[2, 4, 3], &[24], 1, None),
        ] {
            assert_eq!(reshaped(from, to, dim), found, "{from:?} to {to:?}");
        }
    }
}
