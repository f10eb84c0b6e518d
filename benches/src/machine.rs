//! The peak of this machine: multiply-adds in registers, and copies in memory.

use std::hint::black_box;
use std::time::Instant;

use pulp::{Arch, Simd, WithSimd};

use crate::rounds::median;

/// The limits with a number of threads.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Machine {
    /// f32 operations a second, a fused multiply-add counted as two.
    pub(crate) flops: f64,
    /// Bytes copied a second; each is read once and written once.
    pub(crate) copy: f64,
}

impl Machine {
    /// Measures the limits in about a second.
    pub(crate) fn measure(threads: usize) -> Self {
        let flops =
            median((0..5).map(|_| in_parallel(threads, || Arch::new().dispatch(MultiplyAdds))).collect());
        let copy = median((0..5).map(|_| in_parallel(threads, copies)).collect());
        Self { flops, copy }
    }
}

/// Returns the sum of the rates of concurrent threads.
fn in_parallel(threads: usize, work: impl Fn() -> f64 + Sync) -> f64 {
    std::thread::scope(|scope| {
        let running: Vec<_> = (0..threads).map(|_| scope.spawn(&work)).collect();
        running.into_iter().map(|thread| thread.join().unwrap_or(f64::NAN)).sum()
    })
}

/// Independent chains of fused multiply-adds, enough to fill the pipelines.
struct MultiplyAdds;

const CHAINS: usize = 24;
const LENGTH: usize = 4_000_000;

impl WithSimd for MultiplyAdds {
    type Output = f64;

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> f64 {
        let (factor, term) = (simd.splat_f32s(black_box(0.5)), simd.splat_f32s(black_box(1.0)));
        let mut sums = [simd.splat_f32s(0.0); CHAINS];
        let start = Instant::now();
        for _ in 0..LENGTH {
            for sum in &mut sums {
                *sum = simd.mul_add_f32s(factor, *sum, term);
            }
        }
        let seconds = start.elapsed().as_secs_f64();
        let total = sums.into_iter().fold(0.0, |total, sum| total + simd.reduce_sum_f32s(sum));
        black_box(total);
        (2 * S::F32_LANES * CHAINS * LENGTH) as f64 / seconds
    }
}

/// Copies of a buffer far larger than the caches.
fn copies() -> f64 {
    let from = vec![1_u8; 64 << 20];
    let mut to = vec![2_u8; from.len()];
    let mut rates = Vec::new();
    for _ in 0..5 {
        let start = Instant::now();
        black_box(&mut to).copy_from_slice(black_box(&from));
        rates.push(from.len() as f64 / start.elapsed().as_secs_f64());
    }
    median(rates)
}
