//! The CPU's back end: candle's tensors, and the kernels of `phalanx-kernels` on a context's threads. One file a
//! family.

mod attention;
mod batch_norms;
mod convolutions;
mod elementwise;
mod gated;
mod images;
mod layerwise;
mod lookups;
mod losses;
mod memory;
mod norms;
mod pooling;
mod products;
mod random;
mod rotary;
mod shapes;
mod updates;

use super::ArrayBackend;
use crate::Context;

impl ArrayBackend for Context {
    fn name(&self) -> &'static str {
        "the CPU"
    }
}
