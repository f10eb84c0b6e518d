//! Inputs and measures that the tests share.

use phalanx_kernels::{Context, Float, Level};

/// Returns reproducible random numbers in [-1, 1): the same for each element type.
pub(crate) fn random<T: Float>(seed: u64, len: usize) -> Vec<T> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    (0..len)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            T::from_f64((state >> 40) as f64 / (1_u64 << 23) as f64 - 1.0)
        })
        .collect()
}

/// Converts to f64.
pub(crate) fn wide<T: Float>(values: &[T]) -> Vec<f64> {
    values.iter().map(|value| value.to_f64()).collect()
}

/// Returns the relative L2 distance from a reference.
pub(crate) fn distance<T: Float>(values: &[T], reference: &[f64]) -> f64 {
    assert_eq!(values.len(), reference.len());
    let off: f64 = values.iter().zip(reference).map(|(v, r)| (v.to_f64() - r).powi(2)).sum();
    let size: f64 = reference.iter().map(|r| r * r).sum();
    (off / size.max(1e-30)).sqrt()
}

/// A context for each instruction set of the machine.
pub(crate) fn contexts(threads: usize) -> impl Iterator<Item = (Level, Context)> {
    Level::ALL.iter().filter_map(move |&level| Some((level, Context::with_level(threads, level).ok()?)))
}
