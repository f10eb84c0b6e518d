//! Lowering of images to matrices with one row for each tap, and its adjoint.

use super::Conv2dShape;
use crate::float::Float;

/// A tap of the window that reads at least one pixel, with the output positions where it does.
#[derive(Debug, Clone, Copy)]
pub(super) struct Tap {
    /// Its index in the weights' window, row-major.
    pub(super) index: usize,
    /// Offset of the input row or column from `output · stride`; may be negative.
    offset: [isize; 2],
    /// Output rows and columns at which it falls inside the image.
    rows: (usize, usize),
    cols: (usize, usize),
}

impl Tap {
    /// Returns the index of the first pixel that it reads in output row `oy`.
    #[inline(always)]
    fn first_pixel(&self, shape: &Conv2dShape, oy: usize) -> usize {
        let iy = (oy * shape.stride[0]) as isize + self.offset[0];
        let ix = (self.cols.0 * shape.stride[1]) as isize + self.offset[1];
        iy as usize * shape.width + ix as usize
    }
}

/// Returns the taps that read a pixel: one of nine for a 3×3 window on a 1×1 map.
pub(super) fn taps(shape: &Conv2dShape) -> Vec<Tap> {
    let mut taps = Vec::new();
    for ky in 0..shape.kernel[0] {
        for kx in 0..shape.kernel[1] {
            let (rows, cols) = (shape.inside(0, ky), shape.inside(1, kx));
            if rows.0 < rows.1 && cols.0 < cols.1 {
                let offset = |tap: usize, axis: usize| {
                    (tap * shape.dilation[axis]) as isize - shape.padding[axis] as isize
                };
                let index = ky * shape.kernel[1] + kx;
                taps.push(Tap { index, offset: [offset(ky, 0), offset(kx, 1)], rows, cols });
            }
        }
    }
    taps
}

/// Some output rows of one image, and their piece of the columns.
#[derive(Debug, Clone, Copy)]
pub(super) struct OutputRows {
    /// Output rows.
    pub(super) rows: (usize, usize),
    /// The start of the piece in each row of the matrix.
    pub(super) at: usize,
    /// Elements between rows of the matrix.
    pub(super) row_len: usize,
}

/// Copies the pixels under each tap of each channel: row `c · taps + t` of `columns` gets the piece.
///
/// `image` is the channels of one group of one image.
#[inline(always)]
pub(super) fn lower<T: Float>(
    shape: &Conv2dShape,
    taps: &[Tap],
    image: &[T],
    piece: OutputRows,
    columns: &mut [T],
) {
    let (plane, out_width) = (shape.height * shape.width, shape.out_width());
    let stride = shape.stride;
    let len = (piece.rows.1 - piece.rows.0) * out_width;
    for (c, image) in image.chunks_exact(plane).enumerate() {
        for (t, tap) in taps.iter().enumerate() {
            let start = (c * taps.len() + t) * piece.row_len + piece.at;
            let row = &mut columns[start..start + len];
            for (oy, out) in (piece.rows.0..piece.rows.1).zip(row.chunks_exact_mut(out_width)) {
                if oy < tap.rows.0 || oy >= tap.rows.1 {
                    out.fill(T::ZERO);
                    continue;
                }
                lower_row(&image[tap.first_pixel(shape, oy)..], stride[1], tap.cols, out);
            }
        }
    }
}

/// Copies the pixels `from` of a tap, `stride` apart, to the columns from `first` to `last`, and fills the others with zeros.
#[inline(always)]
fn lower_row<T: Float>(from: &[T], stride: usize, (first, last): (usize, usize), out: &mut [T]) {
    out[..first].fill(T::ZERO);
    out[last..].fill(T::ZERO);
    let inside = &mut out[first..last];
    if stride == 1 {
        inside.copy_from_slice(&from[..inside.len()]);
    } else {
        for (to, from) in inside.iter_mut().zip(from.iter().step_by(stride)) {
            *to = *from;
        }
    }
}

/// The adjoint of [`lower`]: adds every element of the columns to its pixel.
#[inline(always)]
pub(super) fn raise<T: Float>(
    shape: &Conv2dShape,
    taps: &[Tap],
    columns: &[T],
    piece: OutputRows,
    image: &mut [T],
) {
    let (plane, out_width) = (shape.height * shape.width, shape.out_width());
    let stride = shape.stride;
    let len = (piece.rows.1 - piece.rows.0) * out_width;
    for (c, image) in image.chunks_exact_mut(plane).enumerate() {
        for (t, tap) in taps.iter().enumerate() {
            let start = (c * taps.len() + t) * piece.row_len + piece.at;
            let row = &columns[start..start + len];
            for (oy, from) in (piece.rows.0..piece.rows.1).zip(row.chunks_exact(out_width)) {
                if oy < tap.rows.0 || oy >= tap.rows.1 {
                    continue;
                }
                let (first, last) = tap.cols;
                let to = &mut image[tap.first_pixel(shape, oy)..];
                let from = &from[first..last];
                if stride[1] == 1 {
                    to[..from.len()].iter_mut().zip(from).for_each(|(to, from)| *to += *from);
                } else {
                    to.iter_mut().step_by(stride[1]).zip(from).for_each(|(to, from)| *to += *from);
                }
            }
        }
    }
}
