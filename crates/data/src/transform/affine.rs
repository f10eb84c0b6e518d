//! Affine maps of images of 8 bits, with the arithmetic of Pillow's `Image.transform`.

use image::{Rgb, RgbImage};

/// An affine map from places of the result to places of the image: x = a·x' + b·y' + c, and y = d·x' + e·y' + f.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct AffineMap([f64; 6]);

impl AffineMap {
    /// Shears rows by `by` columns a row, with the first row fixed (torchvision's `shear` of the angle atan(`by`)).
    pub(super) fn shear_x(by: f64) -> Self {
        Self([1.0, tangent(by), 0.0, 0.0, 1.0, 0.0])
    }

    /// Shears columns by `by` rows a column, with the first column fixed.
    pub(super) fn shear_y(by: f64) -> Self {
        Self([1.0, 0.0, 0.0, tangent(by), 1.0, 0.0])
    }

    /// Moves the content by whole pixels, to the right and down.
    pub(super) fn translate(right: f64, down: f64) -> Self {
        Self([1.0, 0.0, -right, 0.0, 1.0, -down])
    }

    /// Turns the content about the centre, in degrees counter-clockwise.
    pub(super) fn rotate(degrees: f64, width: u32, height: u32) -> Self {
        let angle = -degrees.rem_euclid(360.0).to_radians();
        // Pillow rounds to 15 decimals, so that right angles are exact.
        let rounded = |value: f64| (value * 1e15).round_ties_even() / 1e15;
        let (cosine, sine) = (rounded(angle.cos()), rounded(angle.sin()));
        let (x, y) = (f64::from(width) / 2.0, f64::from(height) / 2.0);
        let (c, f) = (cosine * -x + sine * -y + x, -sine * -x + cosine * -y + y);
        Self([cosine, sine, c, -sine, cosine, f])
    }

    /// Applies the map with the nearest pixel, and `fill` outside of the image. Positions are rounded to 1/65536 of a
    /// pixel.
    pub(super) fn nearest(&self, image: &RgbImage, fill: Rgb<u8>) -> RgbImage {
        let (width, height) = image.dimensions();
        let fixed = |value: f64| (value * 65536.0 + 0.5).floor() as i64;
        let [a, b, c, d, e, f] = self.0;
        let steps = [a, b, d, e].map(fixed);
        let (mut x_row, mut y_row) = (fixed(c + a * 0.5 + b * 0.5), fixed(f + d * 0.5 + e * 0.5));
        let (pixels, _) = image.as_chunks::<3>();
        let mut out = RgbImage::from_pixel(width, height, fill);
        for row in out.chunks_exact_mut(3 * width.max(1) as usize) {
            let (mut x, mut y) = (x_row, y_row);
            for to in row.as_chunks_mut::<3>().0 {
                let (column, line) = (x >> 16, y >> 16);
                if (0..i64::from(width)).contains(&column) && (0..i64::from(height)).contains(&line) {
                    *to = pixels[line as usize * width as usize + column as usize];
                }
                (x, y) = (x + steps[0], y + steps[2]);
            }
            (x_row, y_row) = (x_row + steps[1], y_row + steps[3]);
        }
        out
    }

    /// Applies the map with bilinear interpolation, and `fill` outside of the image.
    pub(super) fn bilinear(&self, image: &RgbImage, fill: Rgb<u8>) -> RgbImage {
        let (width, height) = image.dimensions();
        let [a, b, c, d, e, f] = self.0;
        RgbImage::from_fn(width, height, |column, row| {
            let (x, y) = (f64::from(column) + 0.5, f64::from(row) + 0.5);
            let (x, y) = (a * x + b * y + c, d * x + e * y + f);
            let inside = (0.0..f64::from(width)).contains(&x) && (0.0..f64::from(height)).contains(&y);
            if inside { between_pixels(image, x - 0.5, y - 0.5) } else { fill }
        })
    }
}

/// Returns the tangent of the angle whose tangent is `by`, which torchvision takes in degrees.
fn tangent(by: f64) -> f64 {
    by.atan().to_degrees().to_radians().tan()
}

/// Interpolates the colour at a place, where pixels have whole coordinates. Pixels at the edge go on outside.
fn between_pixels(image: &RgbImage, x: f64, y: f64) -> Rgb<u8> {
    let (left, top) = (x.floor(), y.floor());
    let (across, down) = (x - left, y - top);
    let clamp = |at: f64, side: u32| at.clamp(0.0, f64::from(side - 1)) as u32;
    let columns = [left, left + 1.0].map(|at| clamp(at, image.width()));
    let rows = [top, top + 1.0].map(|at| clamp(at, image.height()));
    let corner = |column: usize, row: usize| image.get_pixel(columns[column], rows[row]).0.map(f64::from);
    let corners = [corner(0, 0), corner(1, 0), corner(0, 1), corner(1, 1)];
    let mix = |from: f64, to: f64, part: f64| from + (to - from) * part;
    Rgb(std::array::from_fn(|channel| {
        let [a, b, c, d] = corners.map(|corner| corner[channel]);
        mix(mix(a, b, across), mix(c, d, across), down) as u8
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transform::places_in_colours as image;

    #[test]
    fn whole_translations_and_right_angles_move_pixels() {
        let (image, black) = (image(5, 5), Rgb([0; 3]));
        for map in [AffineMap::nearest, AffineMap::bilinear] {
            let moved = map(&AffineMap::translate(2.0, -1.0), &image, black);
            assert_eq!(moved.get_pixel(2, 0), image.get_pixel(0, 1));
            assert_eq!((moved.get_pixel(1, 0), moved.get_pixel(2, 4)), (&black, &black));
            let turned = map(&AffineMap::rotate(90.0, 5, 5), &image, black);
            assert_eq!(turned.get_pixel(0, 4), image.get_pixel(0, 0), "counter-clockwise");
            assert_eq!(map(&AffineMap::rotate(0.0, 5, 5), &image, black), image);
        }
    }

    #[test]
    fn images_without_pixels_stay_so() {
        let empty = RgbImage::new(0, 0);
        assert_eq!(AffineMap::shear_x(0.3).nearest(&empty, Rgb([1; 3])), empty);
        assert_eq!(AffineMap::shear_x(0.3).bilinear(&empty, Rgb([1; 3])), empty);
    }
}
