//! Looking rows up: token embeddings, and the position that a sequence is read at.

use candle_core::{DType, Tensor};

use crate::storage::{Contiguous, dispatch, stored, wide, with_slice_mut};
use crate::tape::{Tape, Value};
use crate::{Result, TensorError};

/// Rows of a table: `table` is [V, C], `ids` any shape of u32 below V; the result is [..ids, C], stored as
/// the tape's precision stores activations.
///
/// # Errors
/// If an id is out of range, named with its position.
pub fn embedding(tape: &Tape, table: &Value, ids: &Tensor) -> Result<Value> {
    const OP: &str = "embedding";
    let &[rows, width] = table.dims() else {
        return Err(TensorError::shape(OP, format!("the table must be [V, C], not {:?}", table.shape())));
    };
    let index = ids.to_dtype(DType::U32)?.flatten_all()?.to_vec1::<u32>()?;
    if let Some(at) = index.iter().position(|id| *id as usize >= rows) {
        let problem = format!("id {} at position {at} is out of range; the table has {rows} rows", index[at]);
        return Err(TensorError::shape(OP, problem));
    }
    let mut dims = ids.dims().to_vec();
    dims.push(width);
    let values = table.tensor()?.contiguous()?;
    let dtype = values.dtype();
    let output = dispatch!(OP, dtype, T => {
        let read = Contiguous::by(OP, tape.context(), &values)?;
        let from = read.slice::<T>()?;
        let mut out = Vec::with_capacity(index.len() * width);
        for id in &index {
            out.extend_from_slice(&from[*id as usize * width..(*id as usize + 1) * width]);
        }
        stored(tape.context(), out, dims, tape.session().precision.stored(dtype))
    })?;
    tape.push(OP, &[table], output, move |tape, grad, grads| {
        let grad = &grad.tensor()?;
        let grad = grad.contiguous()?;
        let table_grad = Tensor::zeros((rows, width), wide(dtype), grad.device())?;
        dispatch!(OP, dtype, T => {
            let read = Contiguous::by(OP, tape.context(), &grad)?;
            let from = read.slice::<T>()?;
            with_slice_mut::<T, _>(OP, &table_grad, |to| {
                for (id, row) in index.iter().zip(from.chunks_exact(width)) {
                    let to = &mut to[*id as usize * width..(*id as usize + 1) * width];
                    to.iter_mut().zip(row).for_each(|(to, from)| *to += *from);
                }
                Ok(())
            })
        })?;
        grads.add(0, table_grad)
    })
}

/// One position of each sequence: `x` is [N, T, C], `positions` one index below T a row; the result is [N, C].
///
/// # Errors
/// If a position is out of range or their number is not N.
pub fn select_positions(tape: &Tape, x: &Value, positions: &[usize]) -> Result<Value> {
    const OP: &str = "select_positions";
    let &[batch, length, width] = x.dims() else {
        return Err(TensorError::shape(OP, format!("expected [N, T, C], not {:?}", x.shape())));
    };
    if positions.len() != batch || positions.iter().any(|p| *p >= length) {
        let problem = format!("positions {positions:?} for {batch} sequences of length {length}");
        return Err(TensorError::shape(OP, problem));
    }
    let rows = positions.iter().enumerate().map(|(row, p)| (row * length + p) as u32).collect::<Vec<_>>();
    let flat = super::reshape(tape, x, (batch * length, width))?;
    let rows = Tensor::from_vec(rows, batch, &candle_core::Device::Cpu)?;
    embedding(tape, &flat, &rows)
}
