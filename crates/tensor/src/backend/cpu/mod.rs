//! The CPU's back end: candle's tensors, and the kernels of `phalanx-kernels` on a context's threads. A file a family.

mod memory;

use super::ArrayBackend;
use crate::Context;

impl ArrayBackend for Context {
    fn name(&self) -> &'static str {
        "the CPU"
    }
}
