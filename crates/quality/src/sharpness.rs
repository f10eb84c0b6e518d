//! The sharpness of images.

use image::RgbImage;
use image::imageops::grayscale;

/// Computes the variance of the Laplacian of an image's brightness (0 to 255), without the border: large for clear edges, small for blurred
/// images (Pech-Pacheco et al. 2000). Compare only images of one size. 0 for images of fewer than 3 pixels a side.
#[must_use]
pub fn sharpness(picture: &RgbImage) -> f64 {
    let grey = grayscale(picture);
    let (width, height) = grey.dimensions();
    let at = |x: u32, y: u32| f64::from(grey.get_pixel(x, y).0[0]);
    let (mut sum, mut squares, mut count) = (0.0, 0.0, 0.0);
    for y in 1..height.saturating_sub(1) {
        for x in 1..width.saturating_sub(1) {
            let laplacian = at(x - 1, y) + at(x + 1, y) + at(x, y - 1) + at(x, y + 1) - 4.0 * at(x, y);
            sum += laplacian;
            squares += laplacian * laplacian;
            count += 1.0;
        }
    }
    if count == 0.0 { 0.0 } else { squares / count - (sum / count) * (sum / count) }
}

#[cfg(test)]
mod tests {
    use image::Rgb;
    use image::imageops::blur;

    use super::*;

    #[test]
    fn blurring_makes_it_smaller() {
        assert_eq!(sharpness(&RgbImage::from_pixel(8, 8, Rgb([90, 10, 200]))), 0.0);
        assert_eq!(sharpness(&RgbImage::new(2, 9)), 0.0);
        // A single bright point: -4 · 255 there, 255 at its four neighbours, 0 at the other 4 of 9 places.
        let mut point = RgbImage::new(5, 5);
        point.put_pixel(2, 2, Rgb([255; 3]));
        let expected = (16.0 + 4.0) * 255.0 * 255.0 / 9.0;
        assert!((sharpness(&point) - expected).abs() < 1e-6, "{}", sharpness(&point));
        let board = RgbImage::from_fn(16, 16, |x, y| Rgb([255 * ((x / 4 + y / 4) % 2) as u8; 3]));
        let blurred = blur(&board, 1.0);
        assert!(sharpness(&blurred) < 0.3 * sharpness(&board));
    }
}
