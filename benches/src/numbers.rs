//! Operands of measurements.

/// Returns pseudo-random numbers between -0.5 and 0.5.
pub(crate) fn numbers(len: usize) -> Vec<f32> {
    let mut state = 0x9E37_79B9_u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 24) as f32 - 0.5
    };
    (0..len).map(|_| next()).collect()
}
