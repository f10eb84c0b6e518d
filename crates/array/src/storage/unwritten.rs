//! Uninitialised memory for results that an op overwrites completely: this crate's one module with `unsafe`.
//!
//! Filling it with zeros first would take a seventh of a MobileNetV2 training step. Kernels that write `MaybeUninit`
//! would need neither zeros nor the assembly below, and be no faster. But kernels also add to their outputs, read
//! them back (an activation after a product, overlapping tiles) and pass them to the `gemm` crate as initialised
//! slices. So each kernel would have to exist twice. A slice of uninitialised numbers that is only cast is undefined
//! behaviour.

#![allow(unsafe_code)]

use phalanx_kernels::{bf16, f16};

/// Number types of which any bits are a value.
pub(crate) trait AnyBits: Copy {
    /// The value of unwritten elements in builds with debug assertions.
    #[cfg_attr(not(debug_assertions), allow(dead_code))]
    const MARK: Self;
}

impl AnyBits for f32 {
    const MARK: Self = Self::NAN;
}

impl AnyBits for f64 {
    const MARK: Self = Self::NAN;
}

impl AnyBits for bf16 {
    const MARK: Self = Self::NAN;
}

impl AnyBits for f16 {
    const MARK: Self = Self::NAN;
}

/// Allocates `len` elements of unspecified value, for kernels that write every one. Builds with debug assertions fill
/// it with NaN, so that tests see an element that was not written.
pub(crate) fn unwritten<T: AnyBits>(len: usize) -> Vec<T> {
    #[cfg(any(debug_assertions, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
    let values = vec![T::MARK; len];
    #[cfg(all(not(debug_assertions), any(target_arch = "x86_64", target_arch = "aarch64")))]
    let values = {
        let mut values = Vec::<T>::with_capacity(len);
        // SAFETY: the capacity is at least `len`. The empty assembly gets a pointer to the memory. The compiler must
        // assume that it has written any bytes there. So the elements count as initialised, with unspecified values.
        // Any bits are a value of the four number types that are `AnyBits`.
        unsafe {
            std::arch::asm!("/* {} */", in(reg) values.as_mut_ptr(), options(nostack, preserves_flags));
            values.set_len(len);
        }
        values
    };
    values
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_as_long_as_asked() {
        for len in [0, 1, 1000] {
            let mut values = unwritten::<f32>(len);
            values.fill(2.0);
            assert_eq!(values, vec![2.0; len]);
        }
    }
}
