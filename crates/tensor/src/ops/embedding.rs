//! Embedding lookups, and the selection of positions.

use super::Indices;
use crate::storage::wide;
use crate::tape::{Tape, Value};
use crate::{Result, TensorError};

/// Looks up rows of a table: `table` is [V, C], `ids` any shape of u32 below V. The result is [..ids, C], of the type
/// of the tape's activations.
///
/// # Errors
/// If an id is out of range, named with its position, where the back end can tell.
pub fn embedding<'a>(tape: &Tape, table: &Value, ids: impl Into<Indices<'a>>) -> Result<Value> {
    const OP: &str = "embedding";
    let &[rows, width] = table.dims() else {
        return Err(TensorError::shape(OP, format!("the table must be [V, C], not {:?}", table.shape())));
    };
    let ids = ids.into();
    let mut dims = ids.dims();
    dims.push(width);
    let values = table.array()?.contiguous()?;
    let backend = values.backend(tape.context());
    let ids = ids.on(OP, backend)?;
    let (dtype, stored) = (wide(values.dtype()), tape.session().precision.stored(values.dtype()));
    let output = backend.embedding(&values, &ids, &dims.into(), stored)?;
    tape.push(OP, &[table], output, move |tape, grad, grads| {
        let grad = grad.contiguous()?;
        let backend = grad.backend(tape.context());
        grads.write(backend, [(0, &[rows, width])], dtype, |[to]| match to {
            Some(to) => backend.embedding_backward(&grad, &ids, to),
            None => Ok(()),
        })
    })
}

/// Selects one position of each sequence: `x` is [N, T, C], `positions` has one index below T a row. The result is
/// [N, C].
///
/// # Errors
/// If a position is out of range or their number is not N.
pub fn select_positions(tape: &Tape, x: &Value, positions: &[usize]) -> Result<Value> {
    const OP: &str = "select_positions";
    let &[batch, length, _] = x.dims() else {
        return Err(TensorError::shape(OP, format!("expected [N, T, C], not {:?}", x.shape())));
    };
    if positions.len() != batch || positions.iter().any(|p| *p >= length) {
        let problem = format!("positions {positions:?} for {batch} sequences of length {length}");
        return Err(TensorError::shape(OP, problem));
    }
    let rows: Vec<u32> = positions.iter().enumerate().map(|(row, p)| (row * length + p) as u32).collect();
    select_rows(tape, x, &rows)
}

/// Selects rows of the last dimension: `x` is [.., C], `rows` count all C-tuples in order. The result is [rows, C].
///
/// # Errors
/// If a row is out of range, where the back end can tell, or `x` has no dimension.
pub fn select_rows(tape: &Tape, x: &Value, rows: &[u32]) -> Result<Value> {
    let Some(&width) = x.dims().last() else {
        return Err(TensorError::shape("select_rows", "a scalar has no rows"));
    };
    let all = x.shape().elem_count() / width.max(1);
    embedding(tape, &super::reshape(tape, x, (all, width))?, rows)
}
