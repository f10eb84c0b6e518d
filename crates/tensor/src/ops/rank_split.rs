//! Tensors split over the ranks of a group.

use candle_core::{DType, Shape};

use crate::backend::Array;
use crate::group::ProcessGroup;
use crate::storage::wide;
use crate::{Context, Result, TensorError};

/// The split of a tensor over the ranks of a group along one dimension.
#[derive(Clone)]
pub(super) struct RankSplit {
    op: &'static str,
    dim: usize,
    /// The start of this rank's part.
    start: usize,
    /// Lengths by rank.
    lens: Vec<usize>,
    rank: usize,
}

impl RankSplit {
    fn new(
        op: &'static str,
        group: &dyn ProcessGroup,
        dims: &[usize],
        dim: usize,
        lens: &[usize],
    ) -> Result<Self> {
        if lens.len() != group.size() {
            let problem = format!("{} lengths for {} ranks; expected one each", lens.len(), group.size());
            return Err(TensorError::shape(op, problem));
        }
        if dim >= dims.len() {
            return Err(TensorError::shape(op, format!("there is no dimension {dim} in shape {dims:?}")));
        }
        let rank = group.rank();
        Ok(Self { op, dim, start: lens[..rank].iter().sum(), lens: lens.to_vec(), rank })
    }

    /// Makes the split from this rank's part of shape `dims`.
    pub(super) fn of_part(
        op: &'static str,
        group: &dyn ProcessGroup,
        dims: &[usize],
        dim: usize,
        lens: &[usize],
    ) -> Result<Self> {
        let split = Self::new(op, group, dims, dim, lens)?;
        let (found, expected) = (dims[dim], lens[split.rank]);
        match found == expected {
            true => Ok(split),
            false => Err(TensorError::shape(
                op,
                format!("rank {} has {found} along dimension {dim}; {lens:?} has {expected}", split.rank),
            )),
        }
    }

    /// Makes the split of a whole of shape `dims`.
    pub(super) fn of_whole(
        op: &'static str,
        group: &dyn ProcessGroup,
        dims: &[usize],
        dim: usize,
        lens: &[usize],
    ) -> Result<Self> {
        let split = Self::new(op, group, dims, dim, lens)?;
        let (found, expected) = (dims[dim], lens.iter().sum::<usize>());
        match found == expected {
            true => Ok(split),
            false => Err(TensorError::shape(
                op,
                format!("dimension {dim} has size {found}; {lens:?} adds up to {expected}"),
            )),
        }
    }

    /// Moves the dimension to the front, so that a rank's part is contiguous; or back.
    fn in_front(&self, context: &Context, x: &Array) -> Result<Array> {
        let mut dims: Vec<usize> = (0..x.rank()).collect();
        dims.swap(0, self.dim);
        x.backend(context).permute(x, &dims)
    }

    /// Returns the number of elements of each rank's part.
    fn elements(&self, front: &[usize]) -> Vec<usize> {
        let row: usize = front[1..].iter().product();
        self.lens.iter().map(|len| len * row).collect()
    }

    pub(super) fn own_part(&self, context: &Context, whole: &Array) -> Result<Array> {
        whole.backend(context).narrow(whole, self.dim, self.start, self.lens[self.rank])
    }

    /// Gathers the parts of all ranks; `part` is this rank's.
    pub(super) fn gathered(
        &self,
        context: &Context,
        group: &dyn ProcessGroup,
        part: &Array,
        dtype: DType,
    ) -> Result<Array> {
        let backend = part.backend(context);
        let front = self.in_front(context, part)?;
        let mut dims = front.dims().to_vec();
        let elements = self.elements(&dims);
        dims[0] = self.lens.iter().sum();
        let whole = backend.unwritten(&Shape::from(elements.iter().sum::<usize>()), wide(part.dtype()))?;
        let own = elements[self.rank];
        if own > 0 {
            let before = elements[..self.rank].iter().sum();
            backend.copy(&whole.view(before, own)?, &front.reshape(own)?)?;
        }
        group.all_gather(&whole, &elements).map_err(TensorError::hook(self.op))?;
        backend.cast(&self.in_front(context, &whole.reshape(dims)?)?, dtype)
    }

    /// Returns this rank's part of the sum over ranks.
    pub(super) fn scattered(
        &self,
        context: &Context,
        group: &dyn ProcessGroup,
        whole: &Array,
    ) -> Result<Array> {
        let backend = whole.backend(context);
        let front = self.in_front(context, whole)?;
        let row: usize = front.dims()[1..].iter().product();
        let (sum, elements, start) = match self.slot() {
            Some(slot) => {
                let slots = self.in_slots(context, &front, slot)?;
                (slots, vec![slot * row; self.lens.len()], self.rank * slot)
            }
            None => (summable(context, &front)?, self.elements(front.dims()), self.start),
        };
        group.reduce_scatter(&sum, &elements).map_err(TensorError::hook(self.op))?;
        let part = backend.narrow(&sum, 0, start, self.lens[self.rank])?;
        backend.cast(&self.in_front(context, &part)?, whole.dtype())
    }

    /// The length of slots for all parts, where parts that differ by one are scattered in slots of one size: transports have even parts
    /// only, and would add up everything on all ranks.
    fn slot(&self) -> Option<usize> {
        let (least, most) = (self.lens.iter().min()?, self.lens.iter().max()?);
        (*least > 0 && *most == least + 1).then_some(*most)
    }

    /// Copies the parts to slots of one size, in the type of sums. A slot with a row to spare repeats its last one.
    fn in_slots(&self, context: &Context, front: &Array, slot: usize) -> Result<Array> {
        let backend = front.backend(context);
        let mut dims = front.dims().to_vec();
        let row: usize = dims[1..].iter().product();
        dims[0] = slot * self.lens.len();
        let flat = front.contiguous()?.reshape(front.elem_count())?;
        let slots = backend.unwritten(&Shape::from(dims[0] * row), wide(front.dtype()))?;
        let mut start = 0;
        for (rank, len) in self.lens.iter().enumerate() {
            let copy = |to: usize, from: usize, rows: usize| {
                let to = slots.view((rank * slot + to) * row, rows * row)?;
                backend.copy(&to, &flat.view(from * row, rows * row)?)
            };
            copy(0, start, *len)?;
            if *len < slot {
                copy(*len, start + len - 1, 1)?;
            }
            start += len;
        }
        slots.reshape(dims)
    }
}

/// Copies the elements to memory of their own, in the type of sums.
pub(super) fn summable(context: &Context, x: &Array) -> Result<Array> {
    let backend = x.backend(context);
    let copy = backend.unwritten(x.shape(), wide(x.dtype()))?;
    backend.copy(&copy, &x.contiguous()?)?;
    Ok(copy)
}
