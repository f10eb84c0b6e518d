//! mimalloc with a longer delay, by `unsafe`: the trait of allocators and the options of a C library require it.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout};
use std::ffi::c_long;
use std::sync::atomic::{AtomicBool, Ordering};

use libmimalloc_sys::{mi_option_set_default, mi_option_t};
use mimalloc::MiMalloc;

/// The number of mimalloc's option `purge_delay`, for which the bindings have no name.
const PURGE_DELAY: mi_option_t = 15;

/// Milliseconds after which freed memory returns to the system. Much longer than a step: clearing all of a program's memory once
/// in this time costs less than 1 %.
const DELAY: c_long = 60_000;

/// Bytes of the first allocation that sets the delay. Programs with none as large have no use for it.
const LARGE: usize = 1 << 20;

static DELAYED: AtomicBool = AtomicBool::new(false);

/// mimalloc, which keeps freed memory for a minute.
#[derive(Debug, Clone, Copy, Default)]
pub struct Allocator;

impl Allocator {
    /// Sets the delay before the first large allocation.
    #[inline]
    fn prepare(size: usize) {
        if size >= LARGE && !DELAYED.load(Ordering::Relaxed) {
            DELAYED.store(true, Ordering::Relaxed);
            // SAFETY: the call takes two numbers and may be made at any time. The option exists: there are more than 15. A thread
            // that reads it at the same time finds the old value or the new one. A value from the environment stays.
            unsafe { mi_option_set_default(PURGE_DELAY, DELAY) };
        }
    }
}

// SAFETY: each call is passed on to mimalloc's implementation, whose pointers are returned as they are. `prepare` does not allocate.
unsafe impl GlobalAlloc for Allocator {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        Self::prepare(layout.size());
        // SAFETY: the caller keeps the trait's contract, which is the same.
        unsafe { MiMalloc.alloc(layout) }
    }

    #[inline]
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the same.
        unsafe { MiMalloc.dealloc(pointer, layout) }
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        Self::prepare(layout.size());
        // SAFETY: the same.
        unsafe { MiMalloc.alloc_zeroed(layout) }
    }

    #[inline]
    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        Self::prepare(size);
        // SAFETY: the same.
        unsafe { MiMalloc.realloc(pointer, layout, size) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// mimalloc's default of this option is a second, which no other option has.
    #[test]
    fn the_option_is_the_delay() {
        // SAFETY: the call takes a number of an option.
        let before = unsafe { libmimalloc_sys::mi_option_get(PURGE_DELAY) };
        assert_eq!(before, 1000);
        Allocator::prepare(LARGE);
        // SAFETY: the same.
        assert_eq!(unsafe { libmimalloc_sys::mi_option_get(PURGE_DELAY) }, DELAY);
    }
}
