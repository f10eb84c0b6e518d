//! Tensors split over the ranks of a group.

use candle_core::{DType, Shape};

use super::underway::{Coming, OpRanks};
use crate::backend::Array;
use crate::group::ProcessGroup;
use crate::{Context, Result, TensorError};
use phalanx_array::wide;

/// The dimension of positions in sequences [N, T, C].
pub(super) const POSITIONS: usize = 1;

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

    /// Returns the split of other lengths over the same ranks.
    pub(super) fn of_lens(&self, lens: Vec<usize>) -> Self {
        Self { start: lens[..self.rank].iter().sum(), lens, ..*self }
    }

    pub(super) fn lens(&self) -> &[usize] {
        &self.lens
    }

    pub(super) fn rank(&self) -> usize {
        self.rank
    }

    /// Moves the dimension to the front, so that a rank's part is contiguous; or back.
    fn in_front(&self, context: &Context, x: &Array) -> Result<Array> {
        let mut dims: Vec<usize> = (0..x.rank()).collect();
        dims.swap(0, self.dim);
        Ok(x.backend(context).permute(x, &dims)?)
    }

    /// Returns the number of elements of each rank's part.
    fn elements(&self, front: &[usize]) -> Vec<usize> {
        let row: usize = front[1..].iter().product();
        self.lens.iter().map(|len| len * row).collect()
    }

    pub(super) fn own_part(&self, context: &Context, whole: &Array) -> Result<Array> {
        Ok(whole.backend(context).narrow(whole, self.dim, self.start, self.lens[self.rank])?)
    }

    /// Gathers the parts of all ranks; `part` is this rank's.
    pub(super) fn gathered(
        &self,
        context: &Context,
        group: &dyn ProcessGroup,
        part: &Array,
        dtype: DType,
    ) -> Result<Array> {
        self.begin_gathered(context, OpRanks::waiting(self.op, group), part)?.finish(context, dtype)
    }

    /// Begins to gather the parts of all ranks.
    pub(super) fn begin_gathered(
        &self,
        context: &Context,
        ranks: OpRanks<'_>,
        part: &Array,
    ) -> Result<Gathering> {
        let backend = part.backend(context);
        let front = self.in_front(context, part)?;
        let (mut dims, slot) = (front.dims().to_vec(), self.slot());
        let row: usize = dims[1..].iter().product();
        let elements = match slot {
            Some(slot) => vec![slot * row; self.lens.len()],
            None => self.elements(&dims),
        };
        let slots = backend.unwritten(&Shape::from(elements.iter().sum::<usize>()), wide(part.dtype()))?;
        let (before, own) = (elements[..self.rank].iter().sum::<usize>(), front.elem_count());
        let front = front.contiguous()?.reshape(own)?;
        if own > 0 {
            backend.copy(&slots.view(before, own)?, &front)?;
        }
        let spare = elements[self.rank] - own;
        if spare > 0 {
            backend.copy(&slots.view(before + own, spare)?, &front.view(own - spare, spare)?)?;
        }
        let coming = ranks.gather(&slots, &elements)?;
        dims[0] = self.lens.iter().sum();
        Ok(Gathering { split: self.clone(), slots, slot, dims, coming })
    }

    /// Returns this rank's part of the sum over ranks.
    pub(super) fn scattered(
        &self,
        context: &Context,
        group: &dyn ProcessGroup,
        whole: &Array,
    ) -> Result<Array> {
        self.begin_scattered(context, OpRanks::waiting(self.op, group), whole)?.finish(context)
    }

    /// Begins to add up the ranks' values, of which each rank gets its part.
    pub(super) fn begin_scattered(
        &self,
        context: &Context,
        ranks: OpRanks<'_>,
        whole: &Array,
    ) -> Result<Scattering> {
        let front = self.in_front(context, whole)?;
        let row: usize = front.dims()[1..].iter().product();
        let (sum, elements, start) = match self.slot() {
            Some(slot) => {
                let slots = self.in_slots(context, &front, slot)?;
                (slots, vec![slot * row; self.lens.len()], self.rank * slot)
            }
            None => (summable(context, &front)?, self.elements(front.dims()), self.start),
        };
        let coming = ranks.scatter(&sum, &elements)?;
        Ok(Scattering { split: self.clone(), sum, start, dtype: whole.dtype(), coming })
    }

    /// The length of slots for all parts, where parts that differ by one have slots of one size: of uneven parts transports would add
    /// up everything on all ranks, and gather them only while all wait.
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
        Ok(slots.reshape(dims)?)
    }
}

/// Parts of all ranks that are being gathered.
pub(super) struct Gathering {
    split: RankSplit,
    /// The parts one after the other, with the dimension in front.
    slots: Array,
    /// The rows of a part's slot, if a part may have a row less.
    slot: Option<usize>,
    /// The sizes of the whole, with the dimension in front.
    dims: Vec<usize>,
    coming: Coming,
}

impl Gathering {
    pub(super) fn split(&self) -> &RankSplit {
        &self.split
    }

    /// Waits for the parts and returns the whole.
    pub(super) fn finish(self, context: &Context, dtype: DType) -> Result<Array> {
        let Self { split, slots, slot, dims, coming } = self;
        coming.wait()?;
        let backend = slots.backend(context);
        let Some(slot) = slot else {
            return Ok(backend.cast(&split.in_front(context, &slots.reshape(dims)?)?, dtype)?);
        };
        let row: usize = dims[1..].iter().product();
        let whole = backend.unwritten(&Shape::from(dims[0] * row), slots.dtype())?;
        let mut start = 0;
        for (rank, len) in split.lens.iter().enumerate() {
            backend.copy(&whole.view(start * row, len * row)?, &slots.view(rank * slot * row, len * row)?)?;
            start += len;
        }
        Ok(backend.cast(&split.in_front(context, &whole.reshape(dims)?)?, dtype)?)
    }
}

/// A sum over ranks that is under way, of which each rank gets its part.
pub(super) struct Scattering {
    split: RankSplit,
    sum: Array,
    /// The first row of this rank's part.
    start: usize,
    dtype: DType,
    coming: Coming,
}

impl Scattering {
    /// Waits for the sum and returns this rank's part.
    pub(super) fn finish(self, context: &Context) -> Result<Array> {
        let Self { split, sum, start, dtype, coming } = self;
        coming.wait()?;
        let backend = sum.backend(context);
        let part = backend.narrow(&sum, 0, start, split.lens[split.rank])?;
        Ok(backend.cast(&split.in_front(context, &part)?, dtype)?)
    }
}

/// Copies the elements to memory of their own, in the type of sums.
pub(super) fn summable(context: &Context, x: &Array) -> Result<Array> {
    let backend = x.backend(context);
    let copy = backend.unwritten(x.shape(), wide(x.dtype()))?;
    backend.copy(&copy, &x.contiguous()?)?;
    Ok(copy)
}
