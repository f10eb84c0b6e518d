//! Embedding lookups on the CPU.

use candle_core::{DType, Device, Shape, Tensor};
use phalanx_kernels::embedding_backward;

use crate::backend::{Array, Destination, Lookups};
use crate::storage::{Contiguous, Indices, dispatch, stored, with_slice_mut};
use crate::{ArrayError, Context, Result};

const OP: &str = "embedding";

impl Lookups for Context {
    fn progression(&self, start: u32, step: u32, len: usize) -> Result<Array> {
        let numbers: Vec<u32> = (0..len).map(|i| start + step * i as u32).collect();
        Ok(Tensor::from_vec(numbers, len, &Device::Cpu)?.into())
    }

    fn embedding(&self, table: &Array, ids: &Array, shape: &Shape, dtype: DType) -> Result<Array> {
        let table = table.host(OP)?;
        let (rows, width) = table.dims2()?;
        let ids = Indices::of(OP, ids.host(OP)?)?;
        let ids = ids.slice()?;
        if let Some(at) = ids.iter().position(|id| *id as usize >= rows) {
            let problem =
                format!("id {} at position {at} is out of range; the table has {rows} rows", ids[at]);
            return Err(ArrayError::shape(OP, problem));
        }
        let read = Contiguous::by(OP, self, table)?;
        dispatch!(OP, table.dtype(), T => {
            let from = read.slice::<T>()?;
            let mut out = Vec::with_capacity(ids.len() * width);
            for id in ids {
                out.extend_from_slice(&from[*id as usize * width..(*id as usize + 1) * width]);
            }
            Ok(stored(self, out, shape.clone(), dtype)?.into())
        })
    }

    fn embedding_backward(&self, dy: &Array, ids: &Array, to: &Destination) -> Result<()> {
        let (dy, table) = (dy.host(OP)?, to.array.host(OP)?);
        let width = dy.dims().last().copied().unwrap_or(1);
        let ids = Indices::of(OP, ids.host(OP)?)?;
        let (ids, read) = (ids.slice()?, Contiguous::by(OP, self, dy)?);
        dispatch!(OP, table.dtype(), T => {
            let from = read.slice::<T>()?;
            with_slice_mut::<T, _>(OP, table, |table| {
                Ok(embedding_backward(self, width, ids, from, table, to.add)?)
            })
        })
    }
}
