//! From planes of pixels to pixels of channels, and back.

/// Rows and columns of a block that is turned at once: its lines of both sides fit the first-level cache.
const SIDE: usize = 16;

/// Turns `rows` rows of `cols` elements into `cols` rows of `to_stride` elements, of which the first `rows` are
/// written; rows of `from` begin `from_stride` apart.
#[inline(always)]
fn turn(from: &[f32], from_stride: usize, [rows, cols]: [usize; 2], to: &mut [f32], to_stride: usize) {
    for col in (0..cols).step_by(SIDE) {
        for row in (0..rows).step_by(SIDE) {
            if row + SIDE <= rows && col + SIDE <= cols {
                let lines: [&[f32; SIDE]; SIDE] = std::array::from_fn(|i| {
                    let start = (row + i) * from_stride + col;
                    from[start..start + SIDE].try_into().unwrap_or(&[0.0; SIDE])
                });
                for (j, to) in to[col * to_stride..].chunks_mut(to_stride).take(SIDE).enumerate() {
                    let turned: [f32; SIDE] = std::array::from_fn(|i| lines[i][j]);
                    to[row..row + SIDE].copy_from_slice(&turned);
                }
                continue;
            }
            for j in col..(col + SIDE).min(cols) {
                for i in row..(row + SIDE).min(rows) {
                    to[j * to_stride + i] = from[i * from_stride + j];
                }
            }
        }
    }
}

/// Copies an image [channels, plane] to [plane, stride]; the elements from `channels` to `stride` become 0.
#[inline(always)]
pub(in crate::conv) fn to_channels_last(
    image: &[f32],
    channels: usize,
    plane: usize,
    to: &mut [f32],
    stride: usize,
) {
    turn(image, plane, [channels, plane], to, stride);
    if stride > channels {
        to.chunks_exact_mut(stride).take(plane).for_each(|pixel| pixel[channels..].fill(0.0));
    }
}

/// Copies pixels [plane, stride] to an image [channels, plane].
#[inline(always)]
pub(in crate::conv) fn to_planes(
    pixels: &[f32],
    stride: usize,
    channels: usize,
    plane: usize,
    image: &mut [f32],
) {
    turn(pixels, stride, [plane, channels], image, plane);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_and_back_is_the_same() {
        for (channels, plane, stride) in [(1, 1, 16), (3, 7, 16), (16, 16, 16), (33, 40, 48), (20, 64, 32)] {
            let image: Vec<f32> = (0..channels * plane).map(|i| i as f32 + 1.0).collect();
            let mut pixels = vec![-1.0; plane * stride];
            to_channels_last(&image, channels, plane, &mut pixels, stride);
            assert_eq!(pixels[(plane - 1) * stride], image[plane - 1]);
            assert!(pixels.chunks(stride).all(|pixel| pixel[channels..].iter().all(|&rest| rest == 0.0)));
            let mut back = vec![0.0; image.len()];
            to_planes(&pixels, stride, channels, plane, &mut back);
            assert_eq!(image, back);
        }
    }
}
