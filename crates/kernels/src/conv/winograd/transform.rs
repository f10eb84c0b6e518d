//! The transforms of F(4×4, 3×3) with the points 0, 1, −1, 2, −2, ∞, on vectors of channels.

use pulp::Simd;

use super::POINTS;
use crate::vectorized::MOST_LANES;

/// B'd: six input pixels to six points.
#[inline(always)]
fn input_line<S: Simd>(simd: S, d: [S::f32s; 6]) -> [S::f32s; 6] {
    let (two, four, five) = (simd.splat_f32s(2.0), simd.splat_f32s(4.0), simd.splat_f32s(-5.0));
    let minus_four = simd.splat_f32s(-4.0);
    let even = simd.mul_add_f32s(minus_four, d[2], d[4]);
    let odd = simd.mul_add_f32s(minus_four, d[1], d[3]);
    let outer = simd.sub_f32s(d[4], d[2]);
    let inner = simd.mul_f32s(two, simd.sub_f32s(d[3], d[1]));
    [
        simd.mul_add_f32s(four, d[0], simd.mul_add_f32s(five, d[2], d[4])),
        simd.add_f32s(even, odd),
        simd.sub_f32s(even, odd),
        simd.add_f32s(outer, inner),
        simd.sub_f32s(outer, inner),
        simd.mul_add_f32s(four, d[1], simd.mul_add_f32s(five, d[3], d[5])),
    ]
}

/// A'm: six points to four results.
#[inline(always)]
fn output_line<S: Simd>(simd: S, m: [S::f32s; 6]) -> [S::f32s; 4] {
    let (two, four, eight) = (simd.splat_f32s(2.0), simd.splat_f32s(4.0), simd.splat_f32s(8.0));
    let (sum, difference) = (simd.add_f32s(m[1], m[2]), simd.sub_f32s(m[1], m[2]));
    let (far_sum, far_difference) = (simd.add_f32s(m[3], m[4]), simd.sub_f32s(m[3], m[4]));
    [
        simd.add_f32s(simd.add_f32s(m[0], sum), far_sum),
        simd.mul_add_f32s(two, far_difference, difference),
        simd.mul_add_f32s(four, far_sum, sum),
        simd.mul_add_f32s(eight, far_difference, simd.add_f32s(difference, m[5])),
    ]
}

/// Gg: three taps to six points.
#[inline(always)]
fn weight_line<S: Simd>(simd: S, g: [S::f32s; 3]) -> [S::f32s; 6] {
    let (quarter, sixth) = (simd.splat_f32s(0.25), simd.splat_f32s(-1.0 / 6.0));
    let (small, twelfth) = (simd.splat_f32s(1.0 / 24.0), simd.splat_f32s(1.0 / 12.0));
    let outer = simd.mul_f32s(sixth, simd.add_f32s(g[0], g[2]));
    let middle = simd.mul_f32s(sixth, g[1]);
    let far = simd.neg_f32s(simd.mul_f32s(sixth, g[2]));
    let far = simd.mul_add_f32s(small, g[0], far);
    let slope = simd.mul_f32s(twelfth, g[1]);
    [
        simd.mul_f32s(quarter, g[0]),
        simd.add_f32s(outer, middle),
        simd.sub_f32s(outer, middle),
        simd.add_f32s(far, slope),
        simd.sub_f32s(far, slope),
        g[2],
    ]
}

/// A y: four results' gradients to six points; the adjoint of [`output_line`].
#[inline(always)]
fn output_adjoint_line<S: Simd>(simd: S, y: [S::f32s; 4]) -> [S::f32s; 6] {
    let (two, four, eight) = (simd.splat_f32s(2.0), simd.splat_f32s(4.0), simd.splat_f32s(8.0));
    let (even, odd) = (simd.add_f32s(y[0], y[2]), simd.add_f32s(y[1], y[3]));
    let far_even = simd.mul_add_f32s(four, y[2], y[0]);
    let far_odd = simd.mul_add_f32s(two, y[1], simd.mul_f32s(eight, y[3]));
    [
        y[0],
        simd.add_f32s(even, odd),
        simd.sub_f32s(even, odd),
        simd.add_f32s(far_even, far_odd),
        simd.sub_f32s(far_even, far_odd),
        y[3],
    ]
}

/// G'u: six points to three taps; the adjoint of [`weight_line`].
#[inline(always)]
fn weight_adjoint_line<S: Simd>(simd: S, u: [S::f32s; 6]) -> [S::f32s; 3] {
    let (quarter, sixth) = (simd.splat_f32s(0.25), simd.splat_f32s(1.0 / 6.0));
    let (small, twelfth) = (simd.splat_f32s(1.0 / 24.0), simd.splat_f32s(1.0 / 12.0));
    let near = simd.mul_f32s(sixth, simd.add_f32s(u[1], u[2]));
    let far = simd.add_f32s(u[3], u[4]);
    let slope = simd.mul_f32s(sixth, simd.sub_f32s(u[2], u[1]));
    [
        simd.mul_add_f32s(small, far, simd.sub_f32s(simd.mul_f32s(quarter, u[0]), near)),
        simd.mul_add_f32s(twelfth, simd.sub_f32s(u[3], u[4]), slope),
        simd.mul_add_f32s(sixth, far, simd.sub_f32s(u[5], near)),
    ]
}

/// Applies a line transform to the columns and then to the rows of a square, whose values `read` returns by their index. The
/// lists are the indices of a line before and after. Both squares are written out: the compiler would otherwise fill the
/// arrays with zeros first, and keep them in memory.
macro_rules! square_transform {
    ($(#[$doc:meta])* $name:ident, $line:ident, $size:literal: [$($from:literal)*] to $to_size:literal: [$($to:literal)*]) => {
        $(#[$doc])*
        #[inline(always)]
        pub(super) fn $name<S: Simd>(
            simd: S,
            read: impl Fn(usize) -> S::f32s,
        ) -> [[S::f32s; $to_size]; $to_size] {
            let columns = [$({
                let mut column = [simd.splat_f32s(0.0); $size];
                for i in 0..$size {
                    column[i] = read(i * $size + $from);
                }
                $line(simd, column)
            }),*];
            [$({
                let mut row = [simd.splat_f32s(0.0); $size];
                for j in 0..$size {
                    row[j] = columns[j][$to];
                }
                $line(simd, row)
            }),*]
        }
    };
}

square_transform!(
    /// B'dB.
    input, input_line, 6: [0 1 2 3 4 5] to 6: [0 1 2 3 4 5]
);
square_transform!(
    /// A'mA.
    output, output_line, 6: [0 1 2 3 4 5] to 4: [0 1 2 3]
);
square_transform!(
    /// GgG'.
    weight, weight_line, 3: [0 1 2] to 6: [0 1 2 3 4 5]
);
square_transform!(
    /// A y A'.
    output_adjoint, output_adjoint_line, 4: [0 1 2 3] to 6: [0 1 2 3 4 5]
);
square_transform!(
    /// G'uG.
    weight_adjoint, weight_adjoint_line, 6: [0 1 2 3 4 5] to 3: [0 1 2]
);

/// The vector that begins at `start`.
#[inline(always)]
pub(super) fn vector<S: Simd>(values: &[f32], start: usize) -> S::f32s {
    S::as_simd_f32s(&values[start..start + S::F32_LANES]).0[0]
}

/// Writes the points of one vector of channels, `stride` apart.
#[inline(always)]
fn store_points<S: Simd>(points: &[[S::f32s; 6]; 6], to: &mut [f32], stride: usize, channel: usize) {
    for (i, point) in points.as_flattened().iter().enumerate() {
        let start = i * stride + channel;
        S::as_mut_simd_f32s(&mut to[start..start + S::F32_LANES]).0[0] = *point;
    }
}

/// Transforms one tile of an image [pixels + a zero pixel, stride] to [points, stride].
#[inline(always)]
pub(super) fn input_tile<S: Simd>(
    simd: S,
    pixels: &[f32],
    stride: usize,
    places: &[u32; POINTS],
    to: &mut [f32],
) {
    for channel in (0..stride).step_by(S::F32_LANES) {
        let points = input(
            simd,
            #[inline(always)]
            |i| vector::<S>(pixels, places[i] as usize * stride + channel),
        );
        store_points::<S>(&points, to, stride, channel);
    }
}

/// Transforms the gradient of one tile of results [pixels + a zero pixel, stride] to [points, stride].
#[inline(always)]
pub(super) fn output_adjoint_tile<S: Simd>(
    simd: S,
    pixels: &[f32],
    stride: usize,
    places: &[u32; 16],
    to: &mut [f32],
) {
    for channel in (0..stride).step_by(S::F32_LANES) {
        let points = output_adjoint(
            simd,
            #[inline(always)]
            |i| vector::<S>(pixels, places[i] as usize * stride + channel),
        );
        store_points::<S>(&points, to, stride, channel);
    }
}

/// Transforms sums [points, stride] back to the pixels of one tile of an image [pixels + a dropped pixel, stride].
#[inline(always)]
pub(super) fn output_tile<S: Simd>(
    simd: S,
    from: &[f32],
    stride: usize,
    places: &[u32; 16],
    pixels: &mut [f32],
) {
    for channel in (0..stride).step_by(S::F32_LANES) {
        let results = output(
            simd,
            #[inline(always)]
            |i| vector::<S>(from, i * stride + channel),
        );
        for (result, &place) in results.as_flattened().iter().zip(places) {
            let start = place as usize * stride + channel;
            S::as_mut_simd_f32s(&mut pixels[start..start + S::F32_LANES]).0[0] = *result;
        }
    }
}

/// Adds copies of sums [points, inputs], transforms them to taps, and writes them to weights [inputs, taps] or adds them. The
/// sums of consecutive points are `apart` elements apart.
#[inline(always)]
pub(super) fn weight_adjoint_to<'a, S: Simd>(
    simd: S,
    copies: &(impl Iterator<Item = &'a [f32]> + Clone),
    apart: usize,
    dw: &mut [f32],
    accumulate: bool,
) {
    for (index, dw) in dw.chunks_mut(9 * S::F32_LANES).enumerate() {
        let mut points = [simd.splat_f32s(0.0); POINTS];
        for copy in copies.clone() {
            for (point, value) in points.iter_mut().enumerate() {
                *value = simd.add_f32s(*value, vector::<S>(copy, point * apart + index * S::F32_LANES));
            }
        }
        let results = weight_adjoint(
            simd,
            #[inline(always)]
            |i| points[i],
        );
        let mut taps = [[0.0; MOST_LANES]; 9];
        for (values, to) in results.as_flattened().iter().zip(&mut taps) {
            S::as_mut_simd_f32s(&mut to[..S::F32_LANES]).0[0] = *values;
        }
        for (lane, dw) in dw.as_chunks_mut::<9>().0.iter_mut().enumerate().take(MOST_LANES) {
            for (dw, tap) in dw.iter_mut().zip(&taps) {
                *dw = if accumulate { *dw + tap[lane] } else { tap[lane] };
            }
        }
    }
}
