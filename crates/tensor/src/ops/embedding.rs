//! Embedding lookups, and the selection of positions.

use candle_core::{DType, Device, Shape, Tensor};

use super::Indices;
use super::cut::sum_of_parts;
use crate::backend::Array;
use crate::tape::{Placement, PlacementRule, Tape, Value};
use crate::{Result, TensorError};
use phalanx_array::wide;

const OP: &str = "embedding";

/// Looks up rows of a table: `table` is [V, C], `ids` any shape of u32 below V. The result is [..ids, C], of the type
/// of the tape's activations. Where layers are cut over ranks, each rank may have some of the rows.
///
/// # Errors
/// If an id is out of range, named with its position, where the back end can tell.
pub fn embedding<'a>(tape: &Tape, table: &Value, ids: impl Into<Indices<'a>>) -> Result<Value> {
    if table.dims().len() != 2 {
        return Err(TensorError::shape(OP, format!("the table must be [V, C], not {:?}", table.shape())));
    }
    let ids = ids.into();
    if !matches!(table.placement(), Some(Placement::Shard { dim: 0 })) {
        return lookup(tape, table, &ids, PlacementRule::Whole);
    }
    let is_alone = tape.session().tensor_ranks().is_some_and(|ranks| ranks.size() == 1);
    let part = match is_alone {
        true => lookup(tape, table, &ids, PlacementRule::Own(Placement::Partial))?,
        false => embedding_of_portion(tape, table, &ids)?,
    };
    sum_of_parts(tape, &part)
}

/// Looks up rows of a table of which this rank has all.
fn lookup(tape: &Tape, table: &Value, ids: &Indices<'_>, rule: PlacementRule) -> Result<Value> {
    let (rows, width) = (table.dims()[0], table.dims()[1]);
    let shape = ids.dims().into_iter().chain([width]).collect::<Vec<_>>().into();
    let values = table.contiguous_part()?;
    let backend = values.backend(tape.context());
    let ids = ids.on(OP, backend)?;
    let (dtype, stored) = (wide(values.dtype()), tape.session().precision.stored(values.dtype()));
    let output = backend.embedding(&values, &ids, &shape, stored)?;
    tape.push_by(rule, OP, &[table], output, move |tape, grad, grads| {
        let grad = grad.contiguous()?;
        let backend = grad.backend(tape.context());
        grads.write(backend, [(0, &[rows, width])], dtype, |[to]| match to {
            Some(to) => Ok(backend.embedding_backward(&grad, &ids, to)?),
            None => Ok(()),
        })
    })
}

/// Looks up the rows that this rank has of a table; those of other ranks are zeros. The result is a part of a sum.
fn embedding_of_portion(tape: &Tape, table: &Value, ids: &Indices<'_>) -> Result<Value> {
    let portion = table.param().and_then(|param| param.portion());
    let Some((own, rows)) =
        portion.and_then(|portion| Some((portion.kept().first()?, portion.whole().dims()[0])))
    else {
        return Err(TensorError::placement("embedding: ranks have parts of a table that is no parameter"));
    };
    let (dims, width) = (ids.dims(), table.dims()[1]);
    let host = ids.on(OP, tape.context())?.to_host()?.flatten_all()?.to_vec1::<u32>()?;
    if let Some((at, id)) = host.iter().enumerate().find(|(_, id)| **id as usize >= rows) {
        return Err(TensorError::shape(
            OP,
            format!("id {id} at {at} is not below the {rows} rows of the table"),
        ));
    }
    let place = |id: &u32| (*id as usize).checked_sub(own.start).filter(|row| *row < own.len());
    let there: Vec<f32> = host.iter().map(|id| if place(id).is_some() { 1.0 } else { 0.0 }).collect();
    let local: Vec<u32> = host.iter().map(|id| place(id).unwrap_or(0) as u32).collect();
    let with_last = |last: usize| dims.iter().copied().chain([last]).collect::<Vec<_>>();
    let values = table.contiguous_part()?;
    let backend = values.backend(tape.context());
    let there = backend
        .from_host(&Tensor::from_vec(there, with_last(1), &Device::Cpu)?.to_dtype(wide(values.dtype()))?)?;
    let local = backend.from_host(&Tensor::from_vec(local, dims.as_slice(), &Device::Cpu)?)?;
    let (dtype, stored) = (wide(values.dtype()), tape.session().precision.stored(values.dtype()));
    let shape = Shape::from(with_last(width));
    let found = backend.embedding(&values, &local, &shape, stored)?;
    let output = backend.mul_backward(&found, &there, &shape)?;
    let own_rows = own.len();
    tape.push_by(PlacementRule::Own(Placement::Partial), OP, &[table], output, move |tape, grad, grads| {
        let backend = grad.backend(tape.context());
        let grad = backend.mul_backward(grad, &there, &shape)?.contiguous()?;
        grads.write(backend, [(0, &[own_rows, width])], dtype, |[to]| match to {
            Some(to) => Ok(backend.embedding_backward(&grad, &local, to)?),
            None => Ok(()),
        })
    })
}

/// Looks up rows as [`embedding`] does, where lookups of the id `fixed` have no gradient: tables with a padding token, as
/// `torch.nn.Embedding` with its `padding_idx`.
///
/// # Errors
/// If an id is out of range, named with its position, where the back end can tell.
pub fn embedding_with_fixed(tape: &Tape, table: &Value, ids: &Array, fixed: u32) -> Result<Value> {
    const OP: &str = "embedding_with_fixed";
    let rows = embedding(tape, table, ids)?;
    let host = ids.to_host()?.to_dtype(DType::U32)?.flatten_all()?.to_vec1::<u32>()?;
    if !rows.needs_grad() || !host.contains(&fixed) {
        return Ok(rows);
    }
    let mut dims = ids.dims().to_vec();
    dims.push(1);
    let moves: Vec<f32> = host.iter().map(|id| if *id == fixed { 0.0 } else { 1.0 }).collect();
    let moves = Tensor::from_vec(moves, dims, &Device::Cpu)?;
    let (shape, output) = (rows.shape().clone(), rows.array()?);
    tape.push(OP, &[&rows], output, move |tape, grad, grads| {
        let backend = grad.backend(tape.context());
        let moves = backend.from_host(&moves.to_dtype(wide(grad.dtype()))?)?;
        grads.add(0, backend.mul_backward(grad, &moves, &shape)?)
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{BuildOptions, Context, Init, Key, Session, StoreBuilder, ops};

    #[test]
    fn a_fixed_row_has_the_gradient_of_other_uses_only() {
        let builder = StoreBuilder::new(BuildOptions::default());
        let table =
            builder.root().param("table", (4, 2), Init::Normal { mean: 0.0, std: 1.0 }).expect("a name");
        let store = builder.build().expect("small");
        let ids = Array::from(&Tensor::new(&[[1_u32, 3, 3], [0, 1, 2]], &Device::Cpu).expect("small"));
        let grad = |fixed: u32| {
            store.zero_grads();
            let tape = Tape::recording(Session::training(Arc::new(Context::new(1)), Key::new(0)));
            let table = tape.param(&table).expect("built");
            let rows = embedding_with_fixed(&tape, &table, &ids, fixed).expect("in range");
            assert_eq!(rows.dims(), [2, 3, 2]);
            // The table is also multiplied: that gradient stays.
            let all = ops::add(
                &tape,
                &ops::sum(&tape, &rows).expect("sound"),
                &ops::sum(&tape, &table).expect("sound"),
            );
            tape.backward(&all.expect("scalars")).expect("sound");
            let grad = store.param("table").expect("built").grad().expect("is there").expect("some");
            grad.to_vec2::<f32>().expect("two dimensions")
        };
        assert_eq!(grad(3), [[2.0, 2.0], [3.0, 3.0], [2.0, 2.0], [1.0, 1.0]]);
        assert_eq!(grad(1), [[2.0, 2.0], [1.0, 1.0], [2.0, 2.0], [3.0, 3.0]]);
    }
}
