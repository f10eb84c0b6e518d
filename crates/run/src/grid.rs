//! Grids of images in the layout of torchvision's `make_grid`: left to right, with a border of 2 pixels.

use std::path::Path;

use image::{ImageFormat, Rgb, RgbImage};

use super::RunError;
use super::atomic::write_aside;

/// Pixels between images and around the grid.
const PADDING: usize = 2;

/// A grid of images, filled one image at a time.
#[derive(Debug, Clone)]
pub struct Grid {
    canvas: RgbImage,
    columns: usize,
    width: usize,
    height: usize,
    filled: usize,
}

impl Grid {
    /// Creates an empty grid for `count` images, `columns` in a row.
    ///
    /// # Errors
    /// [`RunError::Malformed`] for an image without pixels or a grid without columns.
    pub fn new(count: usize, columns: usize, width: usize, height: usize) -> Result<Self, RunError> {
        let problem = format!("cannot lay out {count} pictures of {width}x{height} in {columns} columns");
        let wrong = || RunError::Malformed { path: "grid".into(), problem };
        if count * columns * width * height == 0 {
            return Err(wrong());
        }
        let columns = columns.min(count);
        let side = |cells: usize, size: usize| u32::try_from(cells * (size + PADDING) + PADDING).ok();
        let sides = side(columns, width).zip(side(count.div_ceil(columns), height));
        let (w, h) = sides.filter(|(w, h)| u64::from(*w) * u64::from(*h) < 1 << 28).ok_or_else(wrong)?;
        Ok(Self { canvas: RgbImage::new(w, h), columns, width, height, filled: 0 })
    }

    /// Adds one image: `[3, height, width]`, planar, with values from -1 (black) to 1 (full intensity).
    ///
    /// # Errors
    /// [`RunError::Malformed`] if the number of values does not match, or the grid is full.
    pub fn push(&mut self, pixels: &[f32]) -> Result<(), RunError> {
        let (row, column) = (self.filled / self.columns, self.filled % self.columns);
        let (top, left) =
            (PADDING + row * (self.height + PADDING), PADDING + column * (self.width + PADDING));
        let plane = self.width * self.height;
        if pixels.len() != 3 * plane || top + self.height > self.canvas.height() as usize {
            let problem = format!("picture {} has {} values, not 3x{plane}", self.filled, pixels.len());
            return Err(RunError::Malformed { path: "grid".into(), problem });
        }
        for y in 0..self.height {
            for x in 0..self.width {
                let at = y * self.width + x;
                let level = |channel: usize| {
                    // NaN becomes black.
                    ((pixels[channel * plane + at] * 0.5 + 0.5) * 255.0).round().clamp(0.0, 255.0) as u8
                };
                self.canvas.put_pixel(
                    (left + x) as u32,
                    (top + y) as u32,
                    Rgb([level(0), level(1), level(2)]),
                );
            }
        }
        self.filled += 1;
        Ok(())
    }

    /// Writes the grid as PNG. Small grids are magnified by an integer factor of up to 4, to at most 800 pixels.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write(&self, path: &Path) -> Result<(), RunError> {
        let factor = (800 / self.canvas.width().max(self.canvas.height()).max(1)).clamp(1, 4);
        let (width, height) = (self.canvas.width() * factor, self.canvas.height() * factor);
        let canvas =
            image::imageops::resize(&self.canvas, width, height, image::imageops::FilterType::Nearest);
        let mut bytes = std::io::Cursor::new(Vec::new());
        canvas
            .write_to(&mut bytes, ImageFormat::Png)
            .map_err(|error| RunError::Malformed { path: path.to_owned(), problem: error.to_string() })?;
        write_aside(path, bytes.get_ref()).map_err(RunError::io("write", path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pictures_lie_where_torchvision_puts_them() {
        let mut grid = Grid::new(3, 2, 3, 1).expect("a grid");
        assert_eq!(grid.canvas.dimensions(), (12, 8));
        for level in [1.0, 0.0, -1.0] {
            grid.push(&[level; 9]).expect("a picture");
        }
        let at = |x, y| grid.canvas.get_pixel(x, y).0[0];
        assert_eq!([at(2, 2), at(4, 2), at(5, 2), at(7, 2), at(2, 5)], [255, 255, 0, 128, 0]);
        assert!(grid.push(&[0.0; 8]).is_err());
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("grid.png");
        grid.write(&path).expect("writes");
        assert_eq!(image::open(&path).expect("a picture").to_rgb8().dimensions(), (48, 32));
        assert!(Grid::new(0, 8, 4, 4).is_err() && Grid::new(4, 8, 0, 4).is_err());
    }
}
