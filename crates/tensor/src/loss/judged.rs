//! Losses of logits and their most probable labels, without a gradient: for evaluations.

use phalanx_array::wide;
use phalanx_kernels::{cross_entropy_of_parts, weight_of_most_probable};

use super::cross_entropy::{CrossEntropyOptions, HostTargets, RowTargets};
use crate::backend::{CrossEntropy, CutCrossEntropy};
use crate::tape::{Tape, Value};
use crate::{Result, TensorError};

const OP: &str = "judge_rows";

/// Measures of rows of logits against their targets.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct JudgedRows {
    /// The loss.
    pub loss: f64,
    /// The weights of the rows whose label is the first of the largest logits, all of which are numbers.
    pub right: f64,
}

/// Computes the loss of [`cross_entropy_of_rows`](super::cross_entropy_of_rows) without a gradient, and the weight of the labels that
/// are the most probable ones. Five numbers of each row are read from the device. Both are 0 on a back end without numbers.
///
/// # Errors
/// As [`cross_entropy_of_rows`](super::cross_entropy_of_rows).
pub fn judge_rows(
    tape: &Tape,
    logits: &Value,
    targets: &RowTargets<'_>,
    options: CrossEntropyOptions,
) -> Result<JudgedRows> {
    let Some((width, lead)) = logits.dims().split_last() else {
        return Err(TensorError::shape(OP, "expected logits [.., K], not a scalar"));
    };
    let rows: usize = lead.iter().product();
    let input = logits.contiguous()?;
    let backend = input.backend(tape.context());
    let targets = targets.on(backend, rows, options)?;
    let (labels, weights) = targets.part(0, rows)?;
    let of = CrossEntropy { labels: &labels, weights: weights.as_ref(), options, factor: targets.factor };
    let of = CutCrossEntropy { rows: of, first: 0, columns: *width };
    let wide = backend.cast(&input, wide(input.dtype()))?.reshape((rows, *width))?;
    let parts = backend.cross_entropy_parts(&wide, of)?;
    if !backend.has_numbers() {
        return Ok(JudgedRows { loss: 0.0, right: 0.0 });
    }
    let (parts, of_all) = (parts.to_host()?.flatten_all()?.to_vec1::<f64>()?, HostTargets::read(of)?);
    let loss = cross_entropy_of_parts(of_all.columns(of), &parts)?.0;
    Ok(JudgedRows { loss, right: weight_of_most_probable(of_all.columns(of), &parts)? })
}
