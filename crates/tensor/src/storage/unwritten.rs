//! Memory for results that an op overwrites wholly: the tensor crate's one module with `unsafe`.
//!
//! Filling it with zeros first takes a seventh of a MobileNetV2 training step. Kernels that write `MaybeUninit` would need
//! neither zeros nor the assembly below, and be no faster; but their outputs are also what they add to, read back (an
//! activation after a product, tiles that overlap) and hand to the `gemm` crate as initialised slices, so that each would have
//! to exist twice. And a slice of uninitialised numbers cast to one of numbers, without more, is what the language leaves
//! undefined.

#![allow(unsafe_code)]

use super::Scalar;

/// A vector of `len` elements of unspecified value, for kernels that write every one of them. Builds with debug
/// assertions fill it with NaN, so that a test sees an element that was not written.
pub(crate) fn unwritten<T: Scalar>(len: usize) -> Vec<T> {
    #[cfg(any(debug_assertions, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
    let values = vec![<T as phalanx_kernels::Float>::from_f64(f64::NAN); len];
    #[cfg(all(not(debug_assertions), any(target_arch = "x86_64", target_arch = "aarch64")))]
    let values = {
        let mut values = Vec::<T>::with_capacity(len);
        // SAFETY: the capacity is at least `len`. The empty assembly gets a pointer to the memory and may, as far as
        // the compiler knows, have written any bytes there; so the elements count as initialised, with unspecified
        // values. Every bit pattern is a value of f32 and f64, the only types of this sealed trait.
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
