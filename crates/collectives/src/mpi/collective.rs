//! MPI's collective functions on slices whose lengths are checked first. `unsafe` for the calls.
//!
//! Every rank must give the same counts. If they differ, the outcome is MPI's, but it writes no more than the given counts on each
//! rank.

#![allow(unsafe_code)]

use std::ffi::c_int;

use ::mpi::ffi;

use super::raw::{Comm, checked, int, read_from, write_to};
use crate::dtype::{DType, Element, ReduceOp};
use crate::error::Result;

/// A type that MPI can reduce; it has none of 16-bit floats.
pub(super) trait Number: Element {}

impl Number for f32 {}
impl Number for f64 {}
impl Number for i32 {}
impl Number for i64 {}
impl Number for u8 {}

/// Returns MPI's name of a type; for 16-bit floats one of the same size, which suffices to move them.
fn dtype<T: Element>() -> ffi::MPI_Datatype {
    // SAFETY: constants of MPI, which never change.
    unsafe {
        match T::DTYPE {
            DType::F32 => ffi::RSMPI_FLOAT,
            DType::F64 => ffi::RSMPI_DOUBLE,
            DType::F16 | DType::BF16 => ffi::RSMPI_UINT16_T,
            DType::I32 => ffi::RSMPI_INT32_T,
            DType::I64 => ffi::RSMPI_INT64_T,
            DType::U8 => ffi::RSMPI_UINT8_T,
        }
    }
}

/// Returns MPI's name of a reduction. A mean is a sum that its caller divides.
fn operation(op: ReduceOp) -> ffi::MPI_Op {
    // SAFETY: constants of MPI, which never change.
    unsafe {
        match op {
            ReduceOp::Sum | ReduceOp::Mean => ffi::RSMPI_SUM,
            ReduceOp::Min => ffi::RSMPI_MIN,
            ReduceOp::Max => ffi::RSMPI_MAX,
            ReduceOp::Product => ffi::RSMPI_PROD,
        }
    }
}

/// Parts of a buffer, one for each rank, one after the other.
pub(super) struct Parts {
    counts: Vec<c_int>,
    starts: Vec<c_int>,
    total: usize,
}

impl Parts {
    /// Parts of these lengths; an error if an int cannot count them.
    pub(super) fn of(lengths: impl Iterator<Item = usize>) -> Result<Self> {
        let mut parts = Self { counts: Vec::new(), starts: Vec::new(), total: 0 };
        for length in lengths {
            parts.counts.push(int(length)?);
            parts.starts.push(int(parts.total)?);
            parts.total += length;
        }
        int(parts.total)?;
        Ok(parts)
    }

    /// Returns the total length.
    pub(super) fn total(&self) -> usize {
        self.total
    }

    /// Checks that a buffer holds exactly these parts, one for each rank of a world of this size.
    fn check<T>(&self, buffer: &[T], world: usize) {
        assert_eq!((buffer.len(), self.counts.len()), (self.total, world), "parts of a buffer");
    }
}

impl Comm {
    /// Writes the reduction of all ranks' `own` to `all`.
    pub(super) fn all_reduce<T: Number>(&self, own: &[T], all: &mut [T], op: ReduceOp) -> Result<()> {
        assert_eq!(own.len(), all.len(), "buffers of an all-reduce");
        let (count, from, to) = (int(own.len())?, read_from(own), write_to(all));
        // SAFETY: both buffers have `count` elements of the type, and the compiler keeps them apart.
        let code = unsafe { ffi::MPI_Allreduce(from, to, count, dtype::<T>(), operation(op), self.raw) };
        checked("MPI_Allreduce", code)
    }

    /// Writes this rank's part of the reduction of all ranks' `own` to `part`.
    pub(super) fn reduce_scatter<T: Number>(
        &self,
        own: &[T],
        part: &mut [T],
        parts: &Parts,
        op: ReduceOp,
    ) -> Result<()> {
        parts.check(own, self.size);
        assert_eq!(part.len(), parts.counts[self.rank] as usize, "this rank's part");
        let (from, to, counts) = (read_from(own), write_to(part), parts.counts.as_ptr());
        // SAFETY: as above; the counts are one a rank, together the length of `own`, this rank's that of `part`.
        let code =
            unsafe { ffi::MPI_Reduce_scatter(from, to, counts, dtype::<T>(), operation(op), self.raw) };
        checked("MPI_Reduce_scatter", code)
    }

    /// Writes the reduction of all ranks' `own` to `all` at the root; elsewhere it is empty.
    pub(super) fn reduce<T: Number>(
        &self,
        own: &[T],
        all: &mut [T],
        op: ReduceOp,
        root: usize,
    ) -> Result<()> {
        let expected = if self.rank == root { own.len() } else { 0 };
        assert_eq!(all.len(), expected, "the buffer of the result");
        let (count, root, from, to) = (int(own.len())?, int(root)?, read_from(own), write_to(all));
        // SAFETY: as above; MPI writes the result only at the root.
        let code = unsafe { ffi::MPI_Reduce(from, to, count, dtype::<T>(), operation(op), root, self.raw) };
        checked("MPI_Reduce", code)
    }

    /// Replaces every rank's values by the root's.
    pub(super) fn broadcast<T: Element>(&self, values: &mut [T], root: usize) -> Result<()> {
        let (count, root, values) = (int(values.len())?, int(root)?, write_to(values));
        // SAFETY: the buffer has `count` elements of the type.
        let code = unsafe { ffi::MPI_Bcast(values, count, dtype::<T>(), root, self.raw) };
        checked("MPI_Bcast", code)
    }

    /// Writes the values of all ranks, which are equally many, to `all`.
    pub(super) fn all_gather<T: Element>(&self, own: &[T], all: &mut [T]) -> Result<()> {
        assert_eq!(all.len(), own.len() * self.size, "the buffer of the result");
        let (count, from, to, of) = (int(own.len())?, read_from(own), write_to(all), dtype::<T>());
        // SAFETY: `all` has `count` elements for each rank.
        let code = unsafe { ffi::MPI_Allgather(from, count, of, to, count, of, self.raw) };
        checked("MPI_Allgather", code)
    }

    /// Writes the values of all ranks, whose numbers are in `parts`, to `all`.
    pub(super) fn all_gather_parts<T: Element>(&self, own: &[T], all: &mut [T], parts: &Parts) -> Result<()> {
        parts.check(all, self.size);
        assert_eq!(own.len(), parts.counts[self.rank] as usize, "this rank's part");
        let (count, from, to, of) = (int(own.len())?, read_from(own), write_to(all), dtype::<T>());
        let (counts, starts) = (parts.counts.as_ptr(), parts.starts.as_ptr());
        // SAFETY: the parts are one a rank, and inside `all`.
        let code = unsafe { ffi::MPI_Allgatherv(from, count, of, to, counts, starts, of, self.raw) };
        checked("MPI_Allgatherv", code)
    }

    /// Writes the bytes of all ranks to `all` at the root; elsewhere it is empty, and `parts` is ignored.
    pub(super) fn gather(&self, own: &[u8], all: &mut [u8], parts: &Parts, root: usize) -> Result<()> {
        if self.rank == root {
            parts.check(all, self.size);
        }
        let (count, root, from, to) = (int(own.len())?, int(root)?, read_from(own), write_to(all));
        let (counts, starts, of) = (parts.counts.as_ptr(), parts.starts.as_ptr(), dtype::<u8>());
        // SAFETY: the parts are one a rank, and inside `all`, where MPI reads and writes them: at the root.
        let code = unsafe { ffi::MPI_Gatherv(from, count, of, to, counts, starts, of, root, self.raw) };
        checked("MPI_Gatherv", code)
    }

    /// Writes this rank's part of the root's `all` to `own`; elsewhere `all` is empty, and `parts` is ignored.
    pub(super) fn scatter(&self, all: &[u8], parts: &Parts, own: &mut [u8], root: usize) -> Result<()> {
        if self.rank == root {
            parts.check(all, self.size);
        }
        let (count, root, from, to) = (int(own.len())?, int(root)?, read_from(all), write_to(own));
        let (counts, starts, of) = (parts.counts.as_ptr(), parts.starts.as_ptr(), dtype::<u8>());
        // SAFETY: as above, the other way.
        let code = unsafe { ffi::MPI_Scatterv(from, counts, starts, of, to, count, of, root, self.raw) };
        checked("MPI_Scatterv", code)
    }

    /// Writes this rank's element of rank `r`'s `own` to element `r` of `theirs`.
    pub(super) fn all_to_all(&self, own: &[i64], theirs: &mut [i64]) -> Result<()> {
        assert_eq!((own.len(), theirs.len()), (self.size, self.size), "one number a rank");
        let (from, to, of) = (read_from(own), write_to(theirs), dtype::<i64>());
        // SAFETY: both buffers have one element a rank.
        let code = unsafe { ffi::MPI_Alltoall(from, 1, of, to, 1, of, self.raw) };
        checked("MPI_Alltoall", code)
    }

    /// Writes this rank's part of rank `r`'s `own` to part `r` of `theirs`.
    pub(super) fn all_to_all_parts(&self, own: (&[u8], &Parts), theirs: (&mut [u8], &Parts)) -> Result<()> {
        let ((own, parts), (theirs, of_theirs)) = (own, theirs);
        parts.check(own, self.size);
        of_theirs.check(theirs, self.size);
        let (from, counts, starts) = (read_from(own), parts.counts.as_ptr(), parts.starts.as_ptr());
        let (to, back, places) = (write_to(theirs), of_theirs.counts.as_ptr(), of_theirs.starts.as_ptr());
        let of = dtype::<u8>();
        // SAFETY: the parts are one a rank, and inside the buffers.
        let code = unsafe { ffi::MPI_Alltoallv(from, counts, starts, of, to, back, places, of, self.raw) };
        checked("MPI_Alltoallv", code)
    }
}
