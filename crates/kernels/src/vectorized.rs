//! Functions that are compiled once for each instruction set.

use pulp::{Arch, Simd, WithSimd};

/// The most lanes of a vector of f32, on any CPU.
pub(crate) const MOST_LANES: usize = 16;

/// Work that is a call of its own, however many callers it has.
///
/// `Arch::dispatch` and `Simd::vectorize` are inlined. So the portable version of the work would be compiled in every caller,
/// and again for each instruction set of the caller. The methods here are calls. They are methods of the work, so the
/// compiler puts them into the codegen unit of the work's module. Functions of this module would all share one unit, which
/// one thread compiles.
pub(crate) trait Vectorized: WithSimd + Sized {
    /// Runs the work with the vectors of `arch`.
    #[inline(never)]
    fn dispatched(self, arch: Arch) -> Self::Output {
        arch.dispatch(self)
    }

    /// Runs the work with the vectors that its caller is compiled for.
    #[inline(never)]
    fn vectorized<S: Simd>(self, simd: S) -> Self::Output {
        simd.vectorize(self)
    }
}

impl<W: WithSimd> Vectorized for W {}
