//! The threads and the scratch memory of a caller.

use std::fmt;
use std::num::NonZeroUsize;
use std::sync::{Mutex, PoisonError};

use pulp::Arch;

use crate::error::Result;
use crate::fork_join::ForkJoin;
use crate::level::{Level, unsupported};
use crate::products::{HasBf16, Products};
use crate::vectorized::Vectorized as _;

/// The threads that kernels may use, and scratch memory that they reuse between calls.
///
/// Ranks share a machine, so each has its own context with its share of the cores. With one thread everything runs on
/// the caller.
pub struct Context {
    threads: usize,
    /// The number of parts of the work, if it is not the number of threads.
    parts: Option<NonZeroUsize>,
    pool: Option<ForkJoin>,
    arch: Arch,
    has_bf16: Option<HasBf16>,
    products: Products,
    singles: Mutex<Vec<Vec<f32>>>,
    doubles: Mutex<Vec<Vec<f64>>>,
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context").field("threads", &self.threads).finish_non_exhaustive()
    }
}

/// An element type whose scratch buffers a context keeps.
pub trait Scratch: Sized {
    #[doc(hidden)]
    fn shelf(context: &Context) -> &Mutex<Vec<Vec<Self>>>;
}

impl Scratch for f32 {
    fn shelf(context: &Context) -> &Mutex<Vec<Vec<Self>>> {
        &context.singles
    }
}

impl Scratch for f64 {
    fn shelf(context: &Context) -> &Mutex<Vec<Vec<Self>>> {
        &context.doubles
    }
}

impl Context {
    /// Creates a context of `threads`, the caller's among them; 0 counts as 1. It has fewer threads if the system
    /// refuses some.
    pub fn new(threads: usize) -> Self {
        Self::with_arch(threads, Arch::new())
    }

    /// Creates a context of `threads` with the instruction set that `PHALANX_SIMD` names, if it is set: `portable`, `avx2`,
    /// `avx512` or `neon`. The `gemm` crate chooses its instruction set itself.
    ///
    /// # Errors
    /// If the name is unknown, or this CPU does not have the instruction set.
    pub fn from_env(threads: usize) -> Result<Self> {
        Self::with_level(threads, Level::from_env()?)
    }

    /// Creates a context of `threads` with a given instruction set.
    ///
    /// # Errors
    /// If this CPU does not have it.
    pub fn with_level(threads: usize, level: Level) -> Result<Self> {
        match level.arch() {
            Some(arch) => Ok(Self::with_arch(threads, arch)),
            None => Err(unsupported(level)),
        }
    }

    /// Sets the precision of matrix products.
    #[must_use]
    pub fn with_products(self, products: Products) -> Self {
        Self { products, ..self }
    }

    /// Uses the CPU's instruction for pairs of bf16 numbers if it has one, also where f32 is faster: for tests.
    #[doc(hidden)]
    #[must_use]
    pub fn with_pairs(self) -> Self {
        let has = if Level::of(self.arch) == Level::Avx512 { HasBf16::detect() } else { None };
        Self { has_bf16: has, ..self }
    }

    /// Divides work into `parts` instead of one part for each thread, so that the same input gives the same bits on any
    /// number of threads. Kernels that sum images part by part keep a copy of their sums for each.
    #[must_use]
    pub fn with_parts(self, parts: NonZeroUsize) -> Self {
        Self { parts: Some(parts), ..self }
    }

    /// A context with the same vectors and products, for work on the caller's thread alone.
    pub(crate) fn on_this_thread(&self) -> Self {
        let Self { arch, has_bf16, products, .. } = *self;
        let (singles, doubles) = Default::default();
        Self { threads: 1, parts: None, pool: None, arch, has_bf16, products, singles, doubles }
    }

    fn with_arch(threads: usize, arch: Arch) -> Self {
        let threads = threads.max(1);
        let pool = (threads > 1).then(|| ForkJoin::new(threads - 1));
        let threads = pool.as_ref().map_or(1, ForkJoin::threads);
        let has_bf16 = if Level::of(arch) == Level::Avx512 { HasBf16::detect_fast() } else { None };
        let products = Products::default();
        let parts = None;
        Self {
            threads,
            parts,
            pool,
            arch,
            has_bf16,
            products,
            singles: Mutex::default(),
            doubles: Mutex::default(),
        }
    }

    /// The number of threads.
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// The number of parts of the work: the number of threads, or that of [`Context::with_parts`].
    pub(crate) fn parts(&self) -> usize {
        self.parts.map_or(self.threads, NonZeroUsize::get)
    }

    /// The precision of matrix products.
    pub fn products(&self) -> Products {
        self.products
    }

    /// The instruction set in use.
    pub(crate) fn arch(&self) -> Arch {
        self.arch
    }

    /// The CPU's bf16 products, if it has fast ones and the instruction set in use allows them.
    pub(crate) fn bf16(&self) -> Option<HasBf16> {
        self.has_bf16
    }

    /// True if operands may be rounded to bf16 and the CPU has fast products of them.
    pub(crate) fn rounds(&self) -> bool {
        self.products == Products::Bf16 && self.has_bf16.is_some()
    }

    /// Runs `f` compiled for the instruction set in use. Only code inlined into `f` is compiled for it.
    pub(crate) fn simd<R>(&self, f: impl FnOnce() -> R) -> R {
        f.dispatched(self.arch)
    }

    /// Runs `work`, which is generic over the vectors, with those of the instruction set in use.
    pub(crate) fn dispatch<W: pulp::WithSimd>(&self, work: W) -> W::Output {
        work.dispatched(self.arch)
    }

    /// Splits `data` into pieces of `len` elements and runs `task(index, piece)` on the threads.
    pub(crate) fn run_chunks<T: Send>(
        &self,
        data: &mut [T],
        len: usize,
        task: impl Fn(usize, &mut [T]) + Sync + Send,
    ) {
        let len = len.max(1);
        match &self.pool {
            Some(pool) if data.len() > len => pool.run_chunks(data, len, task),
            _ => data.chunks_mut(len).enumerate().for_each(|(i, c)| task(i, c)),
        }
    }

    /// Runs `task(index, plane)` for every plane of `len` elements; a thread takes several small ones at a time.
    pub(crate) fn run_planes<T: Send>(
        &self,
        data: &mut [T],
        len: usize,
        task: impl Fn(usize, &mut [T]) + Sync + Send,
    ) {
        let len = len.max(1);
        let planes = (data.len() / len).div_ceil(self.parts() * 4).max(1);
        self.run_chunks(data, planes * len, |index, data| {
            for (offset, plane) in data.chunks_mut(len).enumerate() {
                task(index * planes + offset, plane);
            }
        });
    }

    /// Runs `task` for every item on the threads.
    pub(crate) fn run_each<I: Send>(&self, items: Vec<I>, task: impl Fn(I) + Sync + Send) {
        match &self.pool {
            Some(pool) if items.len() > 1 => {
                let mut items: Vec<_> = items.into_iter().map(Some).collect();
                pool.run_chunks(&mut items, 1, |_, item| {
                    item.iter_mut().filter_map(Option::take).for_each(&task);
                });
            }
            _ => items.into_iter().for_each(task),
        }
    }

    /// Returns the length of pieces for elementwise work on `len` elements, a multiple of `unit`: a few pieces for each
    /// thread, none so small that its dispatch costs more than its work.
    pub(crate) fn piece(&self, len: usize, unit: usize) -> usize {
        const SMALLEST: usize = 1 << 14;
        if self.parts() == 1 {
            return len.max(1);
        }
        let wanted = (len / (self.parts() * 2)).max(SMALLEST);
        wanted.div_ceil(unit.max(1)) * unit.max(1)
    }

    /// Runs `f` with `len` elements of scratch memory of unspecified content, from the beginning of a cache line on.
    pub(crate) fn with_scratch<T: Scratch + Default + Clone, R>(
        &self,
        len: usize,
        f: impl FnOnce(&mut [T]) -> R,
    ) -> R {
        let shelf = T::shelf(self);
        let mut buffer = take(shelf, len);
        let start = make_room(&mut buffer, len);
        let result = f(&mut buffer[start..start + len]);
        shelf.lock().unwrap_or_else(PoisonError::into_inner).push(buffer);
        result
    }

    /// Borrows `len` elements of scratch memory as [`Context::with_scratch`] does. For vector code, which must not run in a closure
    /// because it is compiled for its instruction set only where it is inlined.
    pub(crate) fn scratch(&self, len: usize) -> ScratchGuard<'_> {
        let mut buffer = take(&self.singles, len);
        let start = make_room(&mut buffer, len);
        ScratchGuard { context: self, buffer, start, len }
    }
}

/// The bytes of a cache line, and of the widest vectors: those that begin within a line are read at half the rate.
const LINE: usize = 64;

/// Takes the smallest buffer that is long enough from a shelf, or else the longest. If it were any, each would grow to the
/// largest length that is ever needed.
fn take<T>(shelf: &Mutex<Vec<Vec<T>>>, len: usize) -> Vec<T> {
    let mut shelf = shelf.lock().unwrap_or_else(PoisonError::into_inner);
    let needed = len + LINE / size_of::<T>();
    let lens = || shelf.iter().map(Vec::len).enumerate();
    let fitting = lens().filter(|(_, len)| *len >= needed).min_by_key(|(_, len)| *len);
    match fitting.or_else(|| lens().max_by_key(|(_, len)| *len)) {
        Some((at, _)) => shelf.swap_remove(at),
        None => Vec::new(),
    }
}

/// Makes a buffer long enough for `len` elements from the beginning of a cache line on, and returns their start.
fn make_room<T: Default + Clone>(buffer: &mut Vec<T>, len: usize) -> usize {
    let extra = LINE / size_of::<T>();
    if buffer.len() < len + extra {
        buffer.resize(len + extra, T::default());
    }
    buffer.as_ptr().align_offset(LINE).min(extra)
}

/// Borrowed scratch memory; see [`Context::scratch`].
pub(crate) struct ScratchGuard<'a> {
    context: &'a Context,
    buffer: Vec<f32>,
    start: usize,
    len: usize,
}

impl std::ops::Deref for ScratchGuard<'_> {
    type Target = [f32];

    #[inline(always)]
    fn deref(&self) -> &[f32] {
        &self.buffer[self.start..self.start + self.len]
    }
}

impl std::ops::DerefMut for ScratchGuard<'_> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut [f32] {
        &mut self.buffer[self.start..self.start + self.len]
    }
}

impl Drop for ScratchGuard<'_> {
    fn drop(&mut self) {
        let buffer = std::mem::take(&mut self.buffer);
        self.context.singles.lock().unwrap_or_else(PoisonError::into_inner).push(buffer);
    }
}
