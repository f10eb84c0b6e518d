//! GPUs and pseudo-random input for tests.

use phalanx_cuda::{Gpu, Options};

use crate::software;

/// The definition of `KERNEL` for test sources without the crate's prelude. Fibres define it themselves.
pub(crate) const KERNEL_MACRO: &str = "#ifndef PHALANX_FIBRES
#define KERNEL(name, threads, ...) extern \"C\" __global__ void __launch_bounds__(threads) name(__VA_ARGS__)
#endif\n";

/// Opens software GPU `index`, or the machine's own one. Kernels that were compiled for the software GPU are cached on disk.
pub(crate) fn gpu_at(index: usize) -> Gpu {
    let options = match software::is_real() {
        true => Options::default(),
        false => Options { cache: Some(software::cache()), ..Options::default() },
    };
    Gpu::new(index, &options).unwrap_or_else(|error| panic!("GPU {index}: {error}"))
}

/// Opens the first GPU.
pub(crate) fn gpu() -> Gpu {
    gpu_at(0)
}

/// Returns pseudo-random numbers in [−1, 1).
pub(crate) fn random(seed: u64, len: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) + 1;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..len).map(|_| next()).collect()
}
