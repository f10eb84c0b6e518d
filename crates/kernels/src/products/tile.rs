//! The innermost product of pairs of bf16 numbers by AVX-512's instruction, by `unsafe`.

#![allow(unsafe_code)]

use std::arch::x86_64::{
    __cpuid, __m512, __m512bh, __m512i, _mm512_dpbf16_ps, _mm512_loadu_ps, _mm512_set1_epi32,
    _mm512_setzero_ps, _mm512_storeu_ps,
};

use pulp::x86::V4;

use super::LANES;

/// The most rows of a tile.
pub(crate) const TALLEST: usize = 8;

/// Proof that the CPU has AVX-512 with bf16 products.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HasBf16(V4);

impl HasBf16 {
    /// Returns the proof on CPUs that have them.
    pub(crate) fn detect() -> Option<Self> {
        let simd = V4::try_new()?;
        is_x86_feature_detected!("avx512bf16").then_some(Self(simd))
    }

    /// Returns the proof on CPUs whose products of pairs are faster than those of f32: those of AMD, where both take a cycle.
    /// On an Intel CPU of the fifth generation pairs take two cycles, and f32 half of one, so 32 multiply-adds take twice as
    /// long in pairs.
    pub(crate) fn detect_fast() -> Option<Self> {
        let vendor = __cpuid(0);
        let is_amd = [vendor.ebx, vendor.edx, vendor.ecx].map(u32::to_le_bytes).concat() == b"AuthenticAMD";
        if is_amd { Self::detect() } else { None }
    }

    /// The vectors of the CPU.
    pub(crate) fn simd(self) -> V4 {
        self.0
    }
}

/// A piece of a sum: pairs of a row of `a` times the same number of rows of `b`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Segment {
    pub(crate) a: usize,
    pub(crate) b: usize,
}

/// A tile of the result: some rows by some vectors of columns.
#[derive(Clone, Copy)]
pub(crate) struct Tile<'a> {
    /// Pairs of numbers along the sum, the first in the lower half.
    pub(crate) a: &'a [u32],
    /// The start of the first row in `a`, and the distance between rows.
    pub(crate) row: usize,
    pub(crate) row_stride: usize,
    /// The distance between the pairs of a row: 1, or the length of lines that each have one pair of all rows, which are 1 apart.
    pub(crate) step: usize,
    /// Rows of `width` pairs, one for every pair of the sum.
    pub(crate) b: &'a [u32],
    pub(crate) segments: &'a [Segment],
    pub(crate) pairs: usize,
    /// The place of the first row's sums in the result, and the distance between rows.
    pub(crate) out: usize,
    pub(crate) out_stride: usize,
    /// True to add to the present sums.
    pub(crate) add: bool,
}

impl Tile<'_> {
    /// Computes `rows` (8, 4, 2 or 1) by `vectors` (1 to 3).
    ///
    /// # Panics
    /// If anything lies outside its slice.
    #[inline]
    pub(crate) fn run(&self, _: HasBf16, rows: usize, vectors: usize, out: &mut [f32]) {
        // SAFETY: a `HasBf16` only exists on CPUs with the instructions that `sums` is compiled for. The
        // functions are safe otherwise: all their accesses are checked.
        unsafe {
            match (rows, vectors) {
                (8, 3) => sums::<8, 3>(self, out),
                (8, 2) => sums::<8, 2>(self, out),
                (8, _) => sums::<8, 1>(self, out),
                (4, 3) => sums::<4, 3>(self, out),
                (4, 2) => sums::<4, 2>(self, out),
                (4, _) => sums::<4, 1>(self, out),
                (2, 3) => sums::<2, 3>(self, out),
                (2, 2) => sums::<2, 2>(self, out),
                (2, _) => sums::<2, 1>(self, out),
                (_, 3) => sums::<1, 3>(self, out),
                (_, 2) => sums::<1, 2>(self, out),
                (_, _) => sums::<1, 1>(self, out),
            }
        }
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bf16")]
fn pairs_of(values: __m512i) -> __m512bh {
    // SAFETY: both types are 64 bytes of plain numbers.
    unsafe { std::mem::transmute::<__m512i, __m512bh>(values) }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bf16")]
fn load_pairs(values: &[u32; LANES]) -> __m512bh {
    // SAFETY: both types are 64 bytes of plain numbers.
    unsafe { std::mem::transmute::<[u32; LANES], __m512bh>(*values) }
}

/// Adds the products of a pair of each row and some vectors of pairs.
#[inline]
#[target_feature(enable = "avx512f,avx512bf16")]
fn add_products<const R: usize, const V: usize>(
    values: &[u32; R],
    b: &[[u32; LANES]; V],
    sums: &mut [[__m512; V]; R],
) {
    let mut vectors = [load_pairs(&b[0]); V];
    for v in 1..V {
        vectors[v] = load_pairs(&b[v]);
    }
    for i in 0..R {
        let value = pairs_of(_mm512_set1_epi32(values[i] as i32));
        for v in 0..V {
            sums[i][v] = _mm512_dpbf16_ps(sums[i][v], value, vectors[v]);
        }
    }
}

#[target_feature(enable = "avx512f,avx512bf16")]
fn sums<const R: usize, const V: usize>(tile: &Tile<'_>, out: &mut [f32]) {
    let mut sums = [[_mm512_setzero_ps(); V]; R];
    let place = |i: usize| tile.out + i * tile.out_stride;
    if tile.add {
        for (i, sums) in sums.iter_mut().enumerate() {
            let from = &out[place(i)..place(i) + V * LANES];
            for (v, sum) in sums.iter_mut().enumerate() {
                // SAFETY: `from` has V vectors, and v is below V.
                *sum = unsafe { _mm512_loadu_ps(from.as_ptr().add(v * LANES)) };
            }
        }
    }
    for segment in tile.segments {
        let b = &tile.b[segment.b..segment.b + tile.pairs * V * LANES];
        let b = &b.as_chunks::<LANES>().0.as_chunks::<V>().0[..tile.pairs];
        if tile.step == 1 {
            let mut rows: [&[u32]; R] = [&[]; R];
            for (i, row) in rows.iter_mut().enumerate() {
                *row = &tile.a[tile.row + i * tile.row_stride + segment.a..][..tile.pairs];
            }
            for (k, b) in b.iter().enumerate() {
                let mut values = [0; R];
                for i in 0..R {
                    values[i] = rows[i][k];
                }
                add_products(&values, b, &mut sums);
            }
        } else {
            for (line, b) in tile.a[tile.row + segment.a..].chunks(tile.step).zip(b) {
                if let Some(values) = line.first_chunk::<R>() {
                    add_products(values, b, &mut sums);
                }
            }
        }
    }
    for (i, sums) in sums.iter().enumerate() {
        let to = &mut out[place(i)..place(i) + V * LANES];
        for (v, sum) in sums.iter().enumerate() {
            // SAFETY: `to` has V vectors, and v is below V.
            unsafe { _mm512_storeu_ps(to.as_mut_ptr().add(v * LANES), *sum) };
        }
    }
    const { assert!(size_of::<__m512>() == LANES * 4) };
}
