//! Randomness in the forward pass: dropout and Gaussian noise, drawn by sample of the *global* batch.
//!
//! Sample i of the global batch gets the same mask and noise on any rank. So several ranks compute the same as one.

use candle_core::{DType, Shape};

use super::cut::split_lens;
use super::rank_split::POSITIONS;
use crate::backend::{Dropout, SamplePart};
use crate::group::even_lens;
use crate::tape::{Placement, PlacementRule, Tape, Value};
use crate::{Result, TensorError};

/// Returns the position in the random stream of this rank's first sample, for a tensor whose first dimension is the
/// batch.
fn start(tape: &Tape, shape: &Shape) -> usize {
    tape.session().sample_offset * shape.dims().iter().skip(1).product::<usize>()
}

/// Returns the dropout of a tape that trains; `None` if nothing is dropped.
pub(super) fn drawn(tape: &Tape, p: f64) -> Result<Option<Dropout>> {
    if !(0.0..1.0).contains(&p) {
        return Err(TensorError::Argument {
            name: "p",
            value: p.to_string(),
            expected: "expected 0 ≤ p < 1",
        });
    }
    let first_sample = tape.session().sample_offset;
    let active = tape.training() && p > 0.0;
    Ok(active.then(|| Dropout { key: tape.next_key(), p, first_sample, part: None }))
}

/// In training, sets each element to zero with probability `p` and divides the others by 1 − p (Srivastava et al.
/// 2014). In evaluation, returns the input. The first dimension is the batch. Backward draws the mask again.
///
/// # Errors
/// If `p` is not in [0, 1).
pub fn dropout(tape: &Tape, x: &Value, p: f64) -> Result<Value> {
    dropout_with(tape, x, p, |x| match (x.placement(), split_lens(tape, x)) {
        (Some(Placement::Shard { dim: POSITIONS }), Some(lens)) => {
            part_of(tape, x, POSITIONS, lens.iter().sum())
        }
        (Some(cut), _) if cut.cut_dim().is_some() => Err(TensorError::placement(format!(
            "dropout: x {:?} is {cut}, and which elements of a sample this rank has is known to `dropout_of_part`",
            x.shape()
        ))),
        _ => Ok(None),
    })
}

/// As [`dropout`], of a value that may be a shard: of `whole` elements of the dimension that is cut, each rank has equally many, or one
/// more.
///
/// # Errors
/// If `p` is not in [0, 1), or this rank has another number of elements.
pub fn dropout_of_part(tape: &Tape, x: &Value, p: f64, whole: usize) -> Result<Value> {
    dropout_with(tape, x, p, |x| match x.placement() {
        Some(Placement::Shard { dim }) => part_of(tape, x, dim, whole),
        _ => Ok(None),
    })
}

/// Runs dropout with the part of each sample that this rank has.
fn dropout_with(
    tape: &Tape,
    x: &Value,
    p: f64,
    part: impl FnOnce(&Value) -> Result<Option<SamplePart>>,
) -> Result<Value> {
    let Some(dropout) = drawn(tape, p)? else { return Ok(x.clone()) };
    let dropout = Dropout { part: part(x)?, ..dropout };
    let input = x.contiguous_part()?;
    let output = input.backend(tape.context()).dropout(&input, dropout)?;
    tape.push_by(PlacementRule::Elementwise, "dropout", &[x], output, move |tape, grad, grads| {
        let grad = grad.contiguous()?;
        grads.add(0, grad.backend(tape.context()).dropout(&grad, dropout)?)
    })
}

/// The elements of each sample that this rank has of a shard of dimension `dim`, whose `whole` elements are cut evenly.
fn part_of(tape: &Tape, x: &Value, dim: usize, whole: usize) -> Result<Option<SamplePart>> {
    let Some(group) = tape.session().tensor_ranks() else { return Ok(None) };
    let (lens, rank) = (even_lens(whole, group.size()), group.rank());
    let own = x.dims().get(dim).copied().unwrap_or(0);
    if dim == 0 || own != lens[rank] {
        let problem =
            format!("{own} elements of dimension {dim} of {:?} are no even part of {whole}", x.shape());
        return Err(TensorError::placement(format!("dropout: {problem}")));
    }
    if group.size() == 1 {
        return Ok(None);
    }
    let inner: usize = x.dims()[dim + 1..].iter().product();
    let first = lens[..rank].iter().sum::<usize>() * inner;
    Ok(Some(SamplePart { first, own: own * inner, all: whole * inner }))
}

/// Draws standard normal noise of a shape whose first dimension is the batch. No gradient flows to it.
///
/// # Errors
/// If the element type is not supported.
pub fn gaussian_noise(tape: &Tape, shape: impl Into<Shape>, dtype: DType) -> Result<Value> {
    let shape = shape.into();
    let start = start(tape, &shape);
    Ok(Value::constant(tape.backend().gaussian_noise(tape.next_key(), start, &shape, dtype)?))
}
