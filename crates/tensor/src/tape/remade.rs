//! Results that backward computes again instead of keeping them.
//!
//! An activation or a norm keeps its input for its own backward, and the product that follows needs its output. The output is as
//! large as the input, and computing it again costs little next to the product: so it is computed again when the product's
//! backward asks for it. In a layer of a language model that is more than a third of what forward leaves behind.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use crate::Result;
use crate::backend::Array;

/// Returns a result whose making has begun.
pub(crate) type FinishFn = Box<dyn FnOnce() -> Result<Array> + Send>;

/// A result that is computed again when backward reads it.
pub(crate) struct Remade {
    begin: Box<dyn Fn() -> Result<FinishFn> + Send + Sync>,
    /// True if something of it is under way between its beginning and its end.
    begins_early: bool,
    state: Mutex<State>,
}

/// The readers that are to come, and the result between the first and the last of them.
#[derive(Default)]
struct State {
    readers: usize,
    begun: Option<FinishFn>,
    array: Option<Array>,
}

impl Remade {
    /// Makes one that `compute` repeats: with the same bits at every call, from arrays that the op keeps anyway.
    pub(crate) fn new(compute: impl Fn() -> Result<Array> + Send + Sync + 'static) -> Arc<Self> {
        let compute = Arc::new(compute);
        let begin = move || {
            let compute = compute.clone();
            Ok(Box::new(move || compute()) as FinishFn)
        };
        Arc::new(Self { begin: Box::new(begin), begins_early: false, state: Mutex::default() })
    }

    /// Makes one from parts of other ranks, which are on their way between the beginning and the end.
    pub(crate) fn gathered(begin: impl Fn() -> Result<FinishFn> + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Self { begin: Box::new(begin), begins_early: true, state: Mutex::default() })
    }

    /// Begins to make the result, if something can be under way from then on. A reader follows.
    pub(super) fn begin(&self) -> Result<()> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if self.begins_early && state.array.is_none() && state.begun.is_none() {
            state.begun = Some((self.begin)()?);
        }
        Ok(())
    }

    /// Announces a reader.
    pub(super) fn expect_reader(&self) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).readers += 1;
    }

    /// Returns the result. It stays in memory until the last announced reader has it.
    pub(super) fn array(&self) -> Result<Array> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let array = match (state.array.take(), state.begun.take()) {
            (Some(array), _) => array,
            (None, Some(finish)) => finish()?,
            (None, None) => (self.begin)()?()?,
        };
        state.readers = state.readers.saturating_sub(1);
        state.array = (state.readers > 0).then(|| array.clone());
        Ok(array)
    }
}

impl fmt::Debug for Remade {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Remade").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use candle_core::{DType, Device, Tensor};

    use super::*;

    #[test]
    fn announced_readers_share_one_computation() {
        let times = Arc::new(AtomicUsize::new(0));
        let counted = times.clone();
        let remade = Remade::new(move || {
            counted.fetch_add(1, Ordering::Relaxed);
            Ok(Tensor::ones(3, DType::F32, &Device::Cpu)?.into())
        });
        (0..2).for_each(|_| remade.expect_reader());
        for (reads, expected) in [(1, 1), (2, 1), (3, 2), (4, 3)] {
            remade.array().expect("ones");
            assert_eq!(times.load(Ordering::Relaxed), expected, "after {reads} reads");
        }
    }
}
