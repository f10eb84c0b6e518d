//! Several buffers in one operation.

use super::{FlatBuffer, SliceMut, slice_mut};
use crate::dtype::{DType, Element, on_dtype};
use crate::error::{BoxError, CommError, Result};

/// Buffers of one type that act as one buffer, so one operation replaces several. The elements are copied to extra memory for the
/// operation and back after it, so this serves small buffers.
///
/// ```
/// use phalanx_collectives::{Coalesced, ReduceOp, threads};
///
/// # fn main() -> Result<(), phalanx_collectives::CommError> {
/// let alone = threads(1)?.remove(0);
/// let mut both = Coalesced::new(vec![vec![1.0_f32, 2.0], vec![3.0]])?;
/// alone.all_reduce(&mut both, ReduceOp::Sum)?;
/// assert_eq!(both.into_inner(), [vec![1.0, 2.0], vec![3.0]]);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Coalesced<B> {
    buffers: Vec<B>,
    dtype: DType,
    len: usize,
}

impl<B: FlatBuffer> Coalesced<B> {
    /// Combines buffers. Without any, the result is an empty buffer of f32.
    ///
    /// # Errors
    /// [`CommError::Argument`] if their types differ, or if one is in GPU memory.
    pub fn new(mut buffers: Vec<B>) -> Result<Self> {
        let dtype = buffers.first().map_or(DType::F32, FlatBuffer::dtype);
        if let Some(other) = buffers.iter().find(|buffer| buffer.dtype() != dtype) {
            let (first, other) = (dtype.name(), other.dtype().name());
            let problem = format!("buffers of one type can go together; there are {first} and {other}");
            return Err(CommError::Argument { operation: "coalescing", problem });
        }
        if let Some(gpu) = buffers.iter_mut().find_map(|buffer| buffer.device().map(|memory| memory.gpu())) {
            let problem = format!(
                "a buffer lies in the memory of GPU {gpu}, and only buffers of the host can be put together here"
            );
            return Err(CommError::Argument { operation: "coalescing", problem });
        }
        let len = buffers.iter().map(FlatBuffer::len).sum();
        Ok(Self { buffers, dtype, len })
    }

    /// Returns the buffers in their original order.
    pub fn into_inner(self) -> Vec<B> {
        self.buffers
    }

    /// Runs `f` on each buffer's elements with their range in the whole.
    fn each<T: Element>(&mut self, f: &mut dyn FnMut(usize, &mut [T])) -> Result<(), BoxError> {
        let mut start = 0;
        for buffer in &mut self.buffers {
            let (dtype, len) = (self.dtype, buffer.len());
            let mut opened = false;
            buffer.with_slice_mut(&mut |mut slice| {
                opened = slice.dtype() == dtype && slice.len() == len;
                if opened {
                    f(start, slice.typed());
                }
            })?;
            if !opened {
                let name = dtype.name();
                return Err(
                    format!("one of several says that it holds {len} {name}, but does not open so").into()
                );
            }
            start += len;
        }
        Ok(())
    }

    fn open<T: Element>(&mut self, f: &mut dyn FnMut(SliceMut<'_>)) -> Result<(), BoxError> {
        let mut all = vec![T::zeroed(); self.len];
        self.each::<T>(&mut |start, values| all[start..start + values.len()].copy_from_slice(values))?;
        f(slice_mut(&mut all));
        self.each::<T>(&mut |start, values| values.copy_from_slice(&all[start..start + values.len()]))
    }
}

impl<B: FlatBuffer> FlatBuffer for Coalesced<B> {
    fn dtype(&self) -> DType {
        self.dtype
    }

    fn len(&self) -> usize {
        self.len
    }

    fn with_slice_mut(&mut self, f: &mut dyn FnMut(SliceMut<'_>)) -> Result<(), BoxError> {
        on_dtype!(self.dtype, T => self.open::<T>(f))
    }

    fn withdraw(&mut self) {
        self.buffers.iter_mut().for_each(FlatBuffer::withdraw);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ReduceOp, threads};

    #[test]
    fn buffers_of_two_types_do_not_go_together() {
        let two: Vec<Box<dyn FlatBuffer>> = vec![Box::new(vec![1.0_f32]), Box::new(vec![1_i32])];
        let error = Coalesced::new(two).map(drop).expect_err("two types").to_string();
        assert!(error.contains("f32 and i32"), "{error}");
    }

    #[test]
    fn none_at_all_are_an_empty_buffer() {
        let alone = threads(1).expect("threads").remove(0);
        let mut none = Coalesced::new(Vec::<Vec<i64>>::new()).expect("of one type");
        assert_eq!(alone.all_reduce(&mut none, ReduceOp::Mean), Ok(()));
        assert_eq!((none.len(), none.into_inner()), (0, Vec::new()));
    }
}
