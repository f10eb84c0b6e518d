//! Gradients that are not summed over the ranks yet, taken out of a flat parameter and put back: for whoever computes those of
//! several parts of a batch apart from each other.

use std::collections::BTreeSet;

use super::{FlatParam, FlatStorage, GradState};
use crate::Result;

/// What backward has come to with the gradients of one part of a batch, while those of another part are computed; at first
/// nothing.
#[derive(Debug, Default)]
pub struct UnreducedGrads {
    full: Option<FlatStorage>,
    /// The entries that a gradient has come to.
    written: BTreeSet<usize>,
}

impl UnreducedGrads {
    /// Nothing yet, with memory for what comes: as many elements as the flat parameter has. What is in it is overwritten.
    pub fn room(memory: FlatStorage) -> Self {
        Self { full: Some(memory), written: BTreeSet::new() }
    }

    /// Bytes that are held.
    pub fn bytes(&self) -> usize {
        self.full.as_ref().map_or(0, FlatStorage::bytes)
    }
}

impl FlatParam {
    /// Exchanges the gradients that backward adds to, and their memory, for others: Empty or Accumulating → Empty or Accumulating.
    ///
    /// # Errors
    /// [`crate::TensorError::FlatState`] from another state; and if the others are of another number of elements.
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

    /// Takes all gradients, zero where none came, with their memory: Empty or Accumulating → Empty.
    ///
    /// # Errors
    /// [`crate::TensorError::FlatState`] from another state; and if the memory cannot be had.
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
    use crate::{BuildOptions, Init, StoreBuilder, storage};

    #[test]
    fn gradients_of_two_parts_do_not_meet() {
        let builder = StoreBuilder::new(BuildOptions::default());
        let scope = builder.root().pp("a").block();
        scope.param("w", 2, Init::ZEROS).expect("a new name");
        scope.param("b", 3, Init::ZEROS).expect("a new name");
        let flat = builder.build().expect("small").flat_params()[0].clone();
        let add = |entry: usize, value: f32| {
            let len = flat.entries()[entry].range.len();
            let grad = Tensor::full(value, len, &Device::Cpu).expect("small");
            let Destination { array, add } = flat.grad_destination(entry).expect("unreduced");
            let to = array.host("test").expect("of the host");
            if add { storage::add_in_place(to, &grad) } else { storage::copy_in_place(to, &grad) }
                .expect("fits");
        };
        let read = |flat: &FlatStorage| flat.tensor().expect("of the host").to_vec1::<f32>().expect("f32");
        let mut other = UnreducedGrads::default();
        add(0, 1.0);
        flat.swap_unreduced(&mut other).expect("unreduced");
        assert_eq!((flat.grad_state(), other.bytes()), (GradState::Empty, 20));
        add(1, 5.0);
        add(1, 1.0);
        flat.swap_unreduced(&mut other).expect("unreduced");
        add(0, 2.0);
        let first = flat.take_unreduced().expect("unreduced");
        assert_eq!(read(&first), [3.0, 3.0, 0.0, 0.0, 0.0]);
        assert_eq!((flat.grad_state(), flat.held_bytes()[1]), (GradState::Empty, 0));
        flat.swap_unreduced(&mut other).expect("unreduced");
        assert_eq!(read(&flat.take_unreduced().expect("unreduced")), [0.0, 0.0, 6.0, 6.0, 6.0]);
        // Memory that is used again does not show what was in it.
        flat.swap_unreduced(&mut UnreducedGrads::room(first)).expect("as many");
        add(0, 7.0);
        assert_eq!(read(&flat.take_unreduced().expect("unreduced")), [7.0, 7.0, 0.0, 0.0, 0.0]);
        let few = FlatStorage::zeros(4, candle_core::DType::F32, flat.place()).expect("small");
        assert!(flat.swap_unreduced(&mut UnreducedGrads::room(few)).is_err());
        flat.begin_reduce(false).expect("unreduced");
        assert!(flat.take_unreduced().is_err() && flat.swap_unreduced(&mut other).is_err());
    }
}
