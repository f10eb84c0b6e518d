//! Uninitialised memory for results that an op overwrites completely: this crate's one module with `unsafe`.
//!
//! Filling it with zeros first would take a seventh of a MobileNetV2 training step. Kernels that write `MaybeUninit`
//! would need neither zeros nor the assembly below, and be no faster. But kernels also add to their outputs, read
//! them back (an activation after a product, overlapping tiles) and pass them to the `gemm` crate as initialised
//! slices. So each kernel would have to exist twice. A slice of uninitialised numbers that is only cast is undefined
//! behaviour.

#![allow(unsafe_code)]

use super::Scalar;

/// Allocates `len` elements of unspecified value, for kernels that write every one. Builds with debug assertions fill
/// it with NaN, so that tests see an element that was not written.
pub(crate) fn unwritten<T: Scalar>(len: usize) -> Vec<T> {
    #[cfg(any(debug_assertions, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
    let values = vec![<T as phalanx_kernels::Float>::from_f64(f64::NAN); len];
    #[cfg(all(not(debug_assertions), any(target_arch = "x86_64", target_arch = "aarch64")))]
    let values = {
        let mut values = Vec::<T>::with_capacity(len);
        // SAFETY: the capacity is at least `len`. The empty assembly gets a pointer to the memory. The compiler must
        // assume that it has written any bytes there. So the elements count as initialised, with unspecified values.
        // Every bit pattern is a value of f32 and f64, the only types of this sealed trait.
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
