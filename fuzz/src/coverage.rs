//! Which code a case has reached: counters that the compiler puts at every edge between basic blocks, if it is asked to
//! (`cargo xtask fuzz --guided`). LLVM's SanitizerCoverage, which stable compilers have too. `unsafe` for these counters.

#![allow(unsafe_code)]

use std::ptr::{copy_nonoverlapping, with_exposed_provenance_mut, write_bytes};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Where the counters begin, and where they end.
static START: AtomicUsize = AtomicUsize::new(usize::MAX);
static END: AtomicUsize = AtomicUsize::new(0);

/// What every compiled piece of an instrumented program calls before `main`, with the ends of the counters.
///
/// # Safety
/// Called by code that LLVM writes, which gives the ends of one section of static memory.
// SAFETY: nobody else has this name: a program that is fuzzed by this crate is not linked with libFuzzer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __sanitizer_cov_8bit_counters_init(start: *mut u8, end: *mut u8) {
    START.fetch_min(start.expose_provenance(), Ordering::Relaxed);
    END.fetch_max(end.expose_provenance(), Ordering::Relaxed);
}

/// The counters' memory, and how many they are: none in a program without them.
fn section() -> (*mut u8, usize) {
    let (start, end) = (START.load(Ordering::Relaxed), END.load(Ordering::Relaxed));
    (with_exposed_provenance_mut(start), end.saturating_sub(start))
}

/// How many edges are counted: 0 in a program that was not built for it.
pub fn edges() -> usize {
    section().1
}

/// Sets all counters to 0.
pub fn clear() {
    let (start, len) = section();
    if len > 0 {
        // SAFETY: the section is static memory of this program that only counters are in, and whose every value is valid. Other
        // threads may count meanwhile, by plain additions of a byte: a count may be lost by that, which only guides.
        unsafe { write_bytes(start, 0, len) };
    }
}

/// Copies the counters: how often each edge was passed since they were cleared, modulo 256.
pub fn read(counters: &mut Vec<u8>) {
    let (start, len) = section();
    counters.resize(len, 0);
    if len > 0 {
        // SAFETY: `counters` has room for `len` bytes and is not the section, which is as above.
        unsafe { copy_nonoverlapping(start, counters.as_mut_ptr(), len) };
    }
}
