//! Sums of products, lane by lane, that stay in registers.

use pulp::Simd;

/// Adds to a tile the products of its channels' vectors of pixels.
///
/// # Panics
/// If the channels do not have equally many vectors. The compiler knows it then, and the loop has no other checks.
#[expect(clippy::needless_range_loop, reason = "iterators leave checks in the loop, and the tile in memory")]
#[inline(always)]
pub(super) fn add_products<S: Simd, const R: usize, const C: usize>(
    simd: S,
    left: [&[S::f32s]; R],
    right: [&[S::f32s]; C],
    mut tile: [[S::f32s; C]; R],
) -> [[S::f32s; C]; R] {
    let vectors = right[0].len();
    for i in 0..R {
        assert!(left[i].len() == vectors);
    }
    for j in 0..C {
        assert!(right[j].len() == vectors);
    }
    for at in 0..vectors {
        for i in 0..R {
            let left = left[i][at];
            for j in 0..C {
                tile[i][j] = simd.mul_add_f32s(left, right[j][at], tile[i][j]);
            }
        }
    }
    tile
}
