//! Transposition between planes of pixels and pixels of channels.

use pulp::{Simd, WithSimd};

use crate::vectorized::Vectorized as _;

/// The side of a square that is transposed at once: its lines of both sides fit the first-level cache.
pub(crate) const SIDE: usize = 16;

/// [`SIDE`] rows of [`SIDE`] elements.
pub(crate) type Square = [[f32; SIDE]; SIDE];

/// The transposition of squares on this CPU.
#[derive(Clone, Copy)]
pub(crate) struct Transposer {
    #[cfg(target_arch = "x86_64")]
    avx512: Option<pulp::x86::V4>,
}

impl Transposer {
    /// Returns the fastest method that the vectors of `S` allow.
    #[inline(always)]
    pub(crate) fn new<S: Simd>() -> Self {
        Self {
            #[cfg(target_arch = "x86_64")]
            avx512: if S::F32_LANES == SIDE { pulp::x86::V4::try_new() } else { None },
        }
    }

    #[inline(always)]
    pub(crate) fn transpose(self, lines: [&[f32; SIDE]; SIDE]) -> Square {
        #[cfg(target_arch = "x86_64")]
        if let Some(simd) = self.avx512 {
            return transpose_in_registers(simd, lines);
        }
        std::array::from_fn(|j| std::array::from_fn(|i| lines[i][j]))
    }
}

/// Exchanges pairs, then fours, then quarters of vectors: 64 shuffles for 256 elements.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn transpose_in_registers(simd: pulp::x86::V4, lines: [&[f32; SIDE]; SIDE]) -> Square {
    // Loops rather than closures: code that is not inlined here is not compiled for these instructions.
    let f = simd.avx512f;
    let mut rows = [f._mm512_setzero_ps(); SIDE];
    for (row, line) in rows.iter_mut().zip(lines) {
        *row = pulp::cast(*line);
    }
    let mut pairs = rows;
    for i in 0..SIDE / 2 {
        pairs[2 * i] = f._mm512_unpacklo_ps(rows[2 * i], rows[2 * i + 1]);
        pairs[2 * i + 1] = f._mm512_unpackhi_ps(rows[2 * i], rows[2 * i + 1]);
    }
    // In each quarter of fours[4g + j] lie four rows' elements of one column, which is j within that quarter.
    let mut fours = pairs;
    for first in [0, 4, 8, 12] {
        for half in [0, 1] {
            let a = f._mm512_castps_pd(pairs[first + half]);
            let b = f._mm512_castps_pd(pairs[first + half + 2]);
            fours[first + 2 * half] = f._mm512_castpd_ps(f._mm512_unpacklo_pd(a, b));
            fours[first + 2 * half + 1] = f._mm512_castpd_ps(f._mm512_unpackhi_pd(a, b));
        }
    }
    let mut transposed = [[0.0; SIDE]; SIDE];
    for j in 0..4 {
        let a = f._mm512_shuffle_f32x4::<0x88>(fours[j], fours[4 + j]);
        let b = f._mm512_shuffle_f32x4::<0x88>(fours[8 + j], fours[12 + j]);
        let c = f._mm512_shuffle_f32x4::<0xdd>(fours[j], fours[4 + j]);
        let d = f._mm512_shuffle_f32x4::<0xdd>(fours[8 + j], fours[12 + j]);
        transposed[j] = pulp::cast(f._mm512_shuffle_f32x4::<0x88>(a, b));
        transposed[4 + j] = pulp::cast(f._mm512_shuffle_f32x4::<0x88>(c, d));
        transposed[8 + j] = pulp::cast(f._mm512_shuffle_f32x4::<0xdd>(a, b));
        transposed[12 + j] = pulp::cast(f._mm512_shuffle_f32x4::<0xdd>(c, d));
    }
    transposed
}

/// Transposes `rows` rows of `cols` elements into `cols` rows of `to_stride` elements, of which the first `rows` are
/// written; rows of `from` begin `from_stride` apart.
pub(crate) fn transpose<S: Simd>(
    simd: S,
    from: &[f32],
    from_stride: usize,
    size: [usize; 2],
    to: &mut [f32],
    to_stride: usize,
) {
    Transposition { from, from_stride, size, to, to_stride }.vectorized(simd);
}

/// The arguments of [`transpose`].
#[doc(hidden)]
#[derive(Debug)]
pub struct Transposition<'a, T> {
    pub(crate) from: &'a [T],
    pub(crate) from_stride: usize,
    pub(crate) size: [usize; 2],
    pub(crate) to: &'a mut [T],
    pub(crate) to_stride: usize,
}

impl WithSimd for Transposition<'_, f32> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Self { from, from_stride, size: [rows, cols], to, to_stride } = self;
        if cols == 1 && from_stride == 1 {
            to[..rows].copy_from_slice(&from[..rows]);
        } else if rows == 1 && to_stride == 1 {
            to[..cols].copy_from_slice(&from[..cols]);
        } else if cols == 4 && from_stride == 4 && rows >= SIDE {
            from_fours(from, rows, to, to_stride);
        } else if rows == 4 && to_stride == 4 && cols >= SIDE {
            to_fours(from, from_stride, cols, to);
        } else {
            by_squares(Transposer::new::<S>(), from, from_stride, [rows, cols], to, to_stride);
        }
    }
}

/// Transposes rows of 4 elements, such as planes of 2×2 pixels: sixteen rows are 64 elements in a line.
#[inline(always)]
fn from_fours(from: &[f32], rows: usize, to: &mut [f32], to_stride: usize) {
    let whole = rows / SIDE * SIDE;
    for (row, line) in from[..whole * 4].as_chunks::<{ 4 * SIDE }>().0.iter().enumerate() {
        for j in 0..4 {
            let mut transposed = [0.0; SIDE];
            for i in 0..SIDE {
                transposed[i] = line[i * 4 + j];
            }
            to[j * to_stride + row * SIDE..][..SIDE].copy_from_slice(&transposed);
        }
    }
    for row in whole..rows {
        for j in 0..4 {
            to[j * to_stride + row] = from[row * 4 + j];
        }
    }
}

/// Transposes 4 rows into rows of 4 elements; the inverse of [`from_fours`].
#[inline(always)]
fn to_fours(from: &[f32], from_stride: usize, cols: usize, to: &mut [f32]) {
    let whole = cols / SIDE * SIDE;
    for (col, line) in to[..whole * 4].as_chunks_mut::<{ 4 * SIDE }>().0.iter_mut().enumerate() {
        let mut lines = [[0.0; SIDE]; 4];
        for (i, line) in lines.iter_mut().enumerate() {
            line.copy_from_slice(&from[i * from_stride + col * SIDE..][..SIDE]);
        }
        for j in 0..SIDE {
            for i in 0..4 {
                line[j * 4 + i] = lines[i][j];
            }
        }
    }
    for col in whole..cols {
        for i in 0..4 {
            to[col * 4 + i] = from[i * from_stride + col];
        }
    }
}

/// Transposes square by square.
#[inline(always)]
fn by_squares(
    transposer: Transposer,
    from: &[f32],
    from_stride: usize,
    [rows, cols]: [usize; 2],
    to: &mut [f32],
    to_stride: usize,
) {
    for col in (0..cols).step_by(SIDE) {
        for row in (0..rows).step_by(SIDE) {
            let (some_rows, some_cols) = (SIDE.min(rows - row), SIDE.min(cols - col));
            let transposed = if some_cols == SIDE {
                let mut lines = [&[0.0; SIDE]; SIDE];
                for (i, line) in lines.iter_mut().enumerate().take(some_rows) {
                    let start = (row + i) * from_stride + col;
                    *line = from[start..start + SIDE].try_into().unwrap_or(line);
                }
                transposer.transpose(lines)
            } else {
                let mut filled = [[0.0; SIDE]; SIDE];
                for (i, filled) in filled.iter_mut().enumerate().take(some_rows) {
                    let start = (row + i) * from_stride + col;
                    filled[..some_cols].copy_from_slice(&from[start..start + some_cols]);
                }
                let mut lines = [&[0.0; SIDE]; SIDE];
                for (line, filled) in lines.iter_mut().zip(&filled) {
                    *line = filled;
                }
                transposer.transpose(lines)
            };
            let to = to[col * to_stride..].chunks_mut(to_stride).take(some_cols);
            if some_rows == SIDE {
                for (to, transposed) in to.zip(&transposed) {
                    to[row..row + SIDE].copy_from_slice(transposed);
                }
            } else {
                for (to, transposed) in to.zip(&transposed) {
                    to[row..row + some_rows].copy_from_slice(&transposed[..some_rows]);
                }
            }
        }
    }
}

/// Copies an image [channels, plane] to [plane, stride]; the elements from `channels` to `stride` become 0.
#[inline(always)]
pub(crate) fn to_channels_last<S: Simd>(
    simd: S,
    image: &[f32],
    channels: usize,
    plane: usize,
    to: &mut [f32],
    stride: usize,
) {
    transpose(simd, image, plane, [channels, plane], to, stride);
    if stride > channels {
        to.chunks_exact_mut(stride).take(plane).for_each(|pixel| pixel[channels..].fill(0.0));
    }
}

/// Writes the first `count` of each tap of `values` [taps, stride] to `to` [count, window], tap t at `places[t]` of the
/// window, or adds them with `add`.
#[expect(clippy::too_many_arguments, reason = "each argument is a parameter of the kernel")]
#[inline(always)]
pub(crate) fn to_windows<S: Simd>(
    _: S,
    values: &[f32],
    stride: usize,
    places: &[usize],
    count: usize,
    window: usize,
    to: &mut [f32],
    add: bool,
) {
    let transposer = Transposer::new::<S>();
    for (first, places) in places.chunks(SIDE).enumerate() {
        let values = &values[first * SIDE * stride..];
        for start in (0..count).step_by(SIDE) {
            let some = SIDE.min(count - start);
            let mut filled = [[0.0; SIDE]; SIDE];
            for (filled, line) in filled.iter_mut().zip(values.chunks(stride)).take(places.len()) {
                filled[..some].copy_from_slice(&line[start..start + some]);
            }
            let mut lines = [&[0.0; SIDE]; SIDE];
            for (line, filled) in lines.iter_mut().zip(&filled) {
                *line = filled;
            }
            let transposed = transposer.transpose(lines);
            let windows = to[start * window..].chunks_exact_mut(window).take(some);
            for (to, values) in windows.zip(&transposed) {
                write_places(to, places, values, add);
            }
        }
    }
}

/// Writes the values to these places of a window, or adds them with `add`.
#[inline(always)]
fn write_places(window: &mut [f32], places: &[usize], values: &[f32; SIDE], add: bool) {
    for (&place, value) in places.iter().zip(values) {
        window[place] = if add { window[place] + *value } else { *value };
    }
}

/// Copies pixels [plane, stride] to an image [channels, plane].
#[inline(always)]
pub(crate) fn to_planes<S: Simd>(
    simd: S,
    pixels: &[f32],
    stride: usize,
    channels: usize,
    plane: usize,
    image: &mut [f32],
) {
    transpose(simd, pixels, stride, [plane, channels], image, plane);
}

#[cfg(test)]
mod tests {
    use super::*;

    struct RoundTrip;

    impl WithSimd for RoundTrip {
        type Output = ();

        #[inline(always)]
        fn with_simd<S: Simd>(self, simd: S) {
            for (channels, plane, stride) in
                [(1, 1, 16), (5, 1, 16), (3, 7, 16), (16, 16, 16), (33, 40, 48), (20, 64, 32)]
            {
                let image: Vec<f32> = (0..channels * plane).map(|i| i as f32 + 1.0).collect();
                let mut pixels = vec![-1.0; plane * stride];
                to_channels_last(simd, &image, channels, plane, &mut pixels, stride);
                for (pixel, values) in pixels.chunks(stride).enumerate() {
                    for (channel, value) in values.iter().enumerate() {
                        let expected = if channel < channels { image[channel * plane + pixel] } else { 0.0 };
                        assert_eq!(*value, expected, "{channels} {plane} {pixel} {channel}");
                    }
                }
                let mut back = vec![0.0; image.len()];
                to_planes(simd, &pixels, stride, channels, plane, &mut back);
                assert_eq!(image, back);
            }
        }
    }

    #[test]
    fn there_and_back_is_the_same() {
        pulp::Arch::new().dispatch(RoundTrip);
        RoundTrip.with_simd(pulp::Scalar);
    }
}
