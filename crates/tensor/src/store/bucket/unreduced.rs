//! Local gradients, moved out of a bucket and back: a virtual rank computes those of each part of a batch separately.

use std::collections::BTreeSet;

use super::{FlatStorage, GradState, ParamBucket};
use crate::Result;

/// The local gradients of one part of a batch while backward computes another part; at first none.
#[derive(Debug, Default)]
pub struct UnreducedGrads {
    full: Option<FlatStorage>,
    /// The entries with a gradient.
    written: BTreeSet<usize>,
}

impl UnreducedGrads {
    /// Makes empty gradients that will use `memory`, which has as many elements as the bucket and is overwritten.
    pub fn with_memory(memory: FlatStorage) -> Self {
        Self { full: Some(memory), written: BTreeSet::new() }
    }

    /// The size of the memory in bytes.
    pub fn bytes(&self) -> usize {
        self.full.as_ref().map_or(0, FlatStorage::bytes)
    }
}

impl ParamBucket {
    /// Exchanges the accumulated gradients and their memory with others: Empty or Accumulating → Empty or
    /// Accumulating.
    ///
    /// # Errors
    /// [`crate::TensorError::BucketState`] from another state; and if the others have another number of elements.
    pub fn swap_unreduced(&self, other: &mut UnreducedGrads) -> Result<()> {
        if let Some(full) = &other.full {
            self.check(full, self.len())?;
        }
        let gradients = &mut self.memory_mut().gradients;
        self.require_unreduced(gradients)?;
        std::mem::swap(&mut gradients.full, &mut other.full);
        std::mem::swap(&mut gradients.written, &mut other.written);
        gradients.state = match gradients.written.is_empty() {
            true => GradState::Empty,
            false => GradState::Accumulating,
        };
        Ok(())
    }

    /// Takes all gradients, zero for entries without one, with their memory: Empty or Accumulating → Empty.
    ///
    /// # Errors
    /// [`crate::TensorError::BucketState`] from another state; and if memory cannot be allocated.
    pub fn take_unreduced(&self) -> Result<FlatStorage> {
        let gradients = &mut self.memory_mut().gradients;
        self.require_unreduced(gradients)?;
        let full = self.settled(gradients)?;
        gradients.full = None;
        gradients.written.clear();
        gradients.state = GradState::Empty;
        Ok(full)
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{Device, Tensor};

    use super::*;
    use crate::backend::Destination;
    use crate::host::copy_host;
    use crate::{BuildOptions, Init, StoreBuilder};

    #[test]
    fn gradients_of_two_parts_do_not_meet() {
        let builder = StoreBuilder::new(BuildOptions::default());
        let scope = builder.root().pp("a").block();
        scope.param("w", 2, Init::ZEROS).expect("a new name");
        scope.param("b", 3, Init::ZEROS).expect("a new name");
        let bucket = builder.build().expect("small").buckets()[0].clone();
        let add = |entry: usize, value: f32| {
            let len = bucket.entries()[entry].range.len();
            let grad = Tensor::full(value, len, &Device::Cpu).expect("small");
            let Destination { array, add } = bucket.grad_destination(entry).expect("unreduced");
            let to = array.host("test").expect("of the host");
            let sum = if add { (to + grad).expect("fits") } else { grad };
            copy_host(to, &sum).expect("fits");
        };
        let read =
            |memory: &FlatStorage| memory.tensor().expect("of the host").to_vec1::<f32>().expect("f32");
        let mut other = UnreducedGrads::default();
        add(0, 1.0);
        bucket.swap_unreduced(&mut other).expect("unreduced");
        assert_eq!((bucket.grad_state(), other.bytes()), (GradState::Empty, 20));
        add(1, 5.0);
        add(1, 1.0);
        bucket.swap_unreduced(&mut other).expect("unreduced");
        add(0, 2.0);
        let first = bucket.take_unreduced().expect("unreduced");
        assert_eq!(read(&first), [3.0, 3.0, 0.0, 0.0, 0.0]);
        assert_eq!((bucket.grad_state(), bucket.held_bytes()[1]), (GradState::Empty, 0));
        bucket.swap_unreduced(&mut other).expect("unreduced");
        assert_eq!(read(&bucket.take_unreduced().expect("unreduced")), [0.0, 0.0, 6.0, 6.0, 6.0]);
        // Reused memory does not show its old contents.
        bucket.swap_unreduced(&mut UnreducedGrads::with_memory(first)).expect("as many");
        add(0, 7.0);
        assert_eq!(read(&bucket.take_unreduced().expect("unreduced")), [7.0, 7.0, 0.0, 0.0, 0.0]);
        let few = FlatStorage::zeros(4, candle_core::DType::F32, bucket.device()).expect("small");
        assert!(bucket.swap_unreduced(&mut UnreducedGrads::with_memory(few)).is_err());
        bucket.begin_reduce(false).expect("unreduced");
        assert!(bucket.take_unreduced().is_err() && bucket.swap_unreduced(&mut other).is_err());
    }
}
