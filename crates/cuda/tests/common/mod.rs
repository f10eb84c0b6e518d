//! What tests on a whole GPU, the software one or a real one, begin with.

use phalanx_cuda::{Gpu, Options};

use crate::software;

/// The first GPU, whose kernels are compiled once for all tests.
pub(crate) fn gpu() -> Gpu {
    let options = match software::is_real() {
        true => Options::default(),
        false => Options { cache: Some(software::cache()), ..Options::default() },
    };
    Gpu::new(0, &options).expect("a GPU")
}

/// Numbers that look random.
pub(crate) fn drawn(seed: u64, len: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) + 1;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..len).map(|_| next()).collect()
}
