//! Grids of images in the layout of torchvision's `make_grid`: left to right, with a border of 2 pixels. Captions are below the
//! images.

use std::path::Path;

use image::codecs::jpeg::JpegEncoder;
use image::{ImageFormat, Rgb, RgbImage};

use super::RunError;
use super::atomic::write_aside;
use super::bitmap_font::{ADVANCE, LINE, draw_line, wrap};
use super::picture::level;

/// Pixels between images and around the grid.
const PADDING: usize = 2;

/// The largest number of lines of a caption.
const CAPTION_LINES: usize = 5;

/// The largest number of lines of the reason of a mark.
const REASON_LINES: usize = 2;

/// The limit of a grid's pixels.
const MAX_PIXELS: u64 = 1 << 28;

/// The quality of JPEG files, from 1 to 100.
const JPEG_QUALITY: u8 = 95;

/// A grid of images, filled one image at a time.
#[derive(Debug, Clone)]
pub struct Grid {
    canvas: RgbImage,
    columns: usize,
    width: usize,
    height: usize,
    filled: usize,
    scale: Option<usize>,
    /// The titles of the columns, if there are some.
    titles: Vec<String>,
    /// The caption of each image, as far as there are some.
    captions: Vec<String>,
    /// The images that are marked as wrong, in order.
    marks: Vec<Mark>,
}

/// The mark of an image that does not show what it should.
#[derive(Debug, Clone)]
struct Mark {
    /// The number of the image.
    image: usize,
    /// The reason.
    reason: String,
}

/// The colour of marks.
const RED: Rgb<u8> = Rgb([255, 80, 80]);
/// The colour of captions.
const WHITE: Rgb<u8> = Rgb([255; 3]);

impl Grid {
    /// The endings of the files that [`Grid::write`] writes.
    pub const ENDINGS: [&str; 3] = ["png", "jpg", "jpeg"];

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
        let (w, h) = sides.filter(|(w, h)| u64::from(*w) * u64::from(*h) < MAX_PIXELS).ok_or_else(wrong)?;
        let canvas = RgbImage::new(w, h);
        Ok(Self {
            canvas,
            columns,
            width,
            height,
            filled: 0,
            scale: None,
            titles: Vec::new(),
            captions: Vec::new(),
            marks: Vec::new(),
        })
    }

    /// Sets the factor by which pixels are repeated in the file; `None` magnifies small grids.
    #[must_use]
    pub fn scaled(mut self, scale: Option<usize>) -> Self {
        self.scale = scale;
        self
    }

    /// Sets the titles of the columns, above them.
    #[must_use]
    pub fn titled(mut self, titles: &[String]) -> Self {
        self.titles = titles.to_vec();
        self
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
                let level = |channel: usize| level(pixels[channel * plane + at]);
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

    /// Adds one image with a caption. Neighbours in a row that have the same long caption share it.
    ///
    /// # Errors
    /// Errors of [`Grid::push`].
    pub fn push_captioned(&mut self, pixels: &[f32], caption: &str) -> Result<(), RunError> {
        self.push(pixels)?;
        self.captions.resize(self.filled - 1, String::new());
        self.captions.push(caption.to_owned());
        Ok(())
    }

    /// Marks the last image as wrong: with a red frame, and with the reason below its caption.
    pub fn mark(&mut self, reason: &str) {
        self.captions.resize(self.filled, String::new());
        self.marks.push(Mark { image: self.filled.saturating_sub(1), reason: reason.to_owned() });
    }

    /// Writes the grid as PNG or JPEG, by the ending of the file. Without a scale, small grids are magnified by an integer factor
    /// of up to 4, to at most 800 pixels.
    ///
    /// # Errors
    /// If the ending is none of [`Grid::ENDINGS`], the magnified grid is too large, or the file cannot be written.
    pub fn write(&self, path: &Path) -> Result<(), RunError> {
        let malformed = |problem: String| RunError::Malformed { path: path.to_owned(), problem };
        let ending = path.extension().and_then(|ending| ending.to_str()).map(str::to_lowercase);
        let is_jpeg = match ending.as_deref() {
            Some("png") => false,
            Some("jpg" | "jpeg") => true,
            _ => return Err(malformed("pictures are written as .png, .jpg or .jpeg".to_owned())),
        };
        let canvas = self.magnified().ok_or_else(|| malformed("the grid has too many pixels".to_owned()))?;
        let mut bytes = std::io::Cursor::new(Vec::new());
        let encoded = match is_jpeg {
            true => canvas.write_with_encoder(JpegEncoder::new_with_quality(&mut bytes, JPEG_QUALITY)),
            false => canvas.write_to(&mut bytes, ImageFormat::Png),
        };
        encoded.map_err(|error| malformed(error.to_string()))?;
        write_aside(path, bytes.get_ref()).map_err(RunError::io("write", path))
    }

    /// Returns the magnified grid with its captions; `None` if it is too large.
    fn magnified(&self) -> Option<RgbImage> {
        let (width, height) = self.canvas.dimensions();
        let automatic = (800 / width.max(height).max(1)).clamp(1, 4) as usize;
        let factor = u32::try_from(self.scale.unwrap_or(automatic)).ok()?.max(1);
        let (width, height) = (width.checked_mul(factor)?, height.checked_mul(factor)?);
        if u64::from(width) * u64::from(height) >= MAX_PIXELS {
            return None;
        }
        let canvas =
            image::imageops::resize(&self.canvas, width, height, image::imageops::FilterType::Nearest);
        let canvas = if self.captions.is_empty() { canvas } else { self.captioned(&canvas, factor as usize) };
        Some(if self.titles.is_empty() { canvas } else { self.under_titles(&canvas, factor as usize) })
    }

    /// Returns the grid below the titles of its columns, which stand on its upper border.
    fn under_titles(&self, canvas: &RgbImage, factor: usize) -> RgbImage {
        let (cell, gap) = ((self.width + PADDING) * factor, PADDING * factor);
        // A character stays free between neighbours.
        let width = (cell - gap).saturating_sub(ADVANCE);
        let titles: Vec<Vec<String>> =
            self.titles.iter().map(|title| wrap(title, width, CAPTION_LINES)).collect();
        let most = titles.iter().map(Vec::len).max().unwrap_or(0);
        let band = PADDING + LINE * most;
        let mut whole = RgbImage::new(canvas.width(), canvas.height() + band as u32);
        image::imageops::replace(&mut whole, canvas, 0, band as i64);
        for (column, lines) in titles.iter().enumerate().take(self.columns) {
            for (line, text) in lines.iter().enumerate() {
                let top = PADDING + (most - lines.len() + line) * LINE;
                draw_line(&mut whole, text, (gap + column * cell, top), WHITE);
            }
        }
        whole
    }

    /// Draws a frame around an image that lies at (`left`, `top`), in the border that it has. Below it are captions, after two pixels.
    fn draw_frame(&self, canvas: &mut RgbImage, (left, top): (usize, usize), factor: usize) {
        let (width, height) = (self.width * factor, self.height * factor);
        for y in top - factor..top + height + factor.min(PADDING) {
            for x in left - factor..left + width + factor {
                if !((left..left + width).contains(&x) && (top..top + height).contains(&y)) {
                    canvas.put_pixel(x as u32, y as u32, RED);
                }
            }
        }
    }

    /// Returns the grid with a band for captions below each row of images.
    fn captioned(&self, canvas: &RgbImage, factor: usize) -> RgbImage {
        let rows: Vec<Vec<Caption>> =
            self.captions.chunks(self.columns).map(|row| self.captions_of(row, factor)).collect();
        let of_captions = rows.iter().flatten().map(|caption| caption.lines.len()).max().unwrap_or(0);
        let reasons = self.marks.iter().map(|mark| wrap(&mark.reason, self.width * factor, REASON_LINES));
        let reasons: Vec<Vec<String>> = reasons.collect();
        let lines = of_captions + reasons.iter().map(Vec::len).max().unwrap_or(0);
        let (band, cell) = (LINE * lines, (self.height + PADDING) * factor);
        let height = canvas.height() + (band * rows.len()) as u32;
        let mut whole = RgbImage::new(canvas.width(), height);
        let count = (canvas.height() as usize).div_ceil(cell);
        for row in 0..count {
            let top = row * cell;
            let rest = (canvas.height() as usize - top).min(cell) as u32;
            let part = image::imageops::crop_imm(canvas, 0, top as u32, canvas.width(), rest).to_image();
            image::imageops::replace(&mut whole, &part, 0, (top + row.min(rows.len()) * band) as i64);
        }
        for (row, captions) in rows.iter().enumerate() {
            // Below the images and the border that belongs to the next row.
            let top = (row + 1) * cell + row * band + PADDING;
            for caption in captions {
                for (line, text) in caption.lines.iter().enumerate() {
                    draw_line(&mut whole, text, (caption.left, top + line * LINE), WHITE);
                }
            }
        }
        for (Mark { image, .. }, lines) in self.marks.iter().zip(&reasons) {
            let (row, column) = (image / self.columns, image % self.columns);
            let left = (column * (self.width + PADDING) + PADDING) * factor;
            let begin = row * (cell + band);
            self.draw_frame(&mut whole, (left, begin + PADDING * factor), factor);
            for (line, text) in lines.iter().enumerate() {
                let top = begin + cell + PADDING + (of_captions + line) * LINE;
                draw_line(&mut whole, text, (left, top), RED);
            }
        }
        whole
    }

    /// Returns the captions of a row. Neighbours share a caption that is longer than a line of one image.
    fn captions_of(&self, row: &[String], factor: usize) -> Vec<Caption> {
        let (cell, gap) = ((self.width + PADDING) * factor, PADDING * factor);
        let mut captions = Vec::new();
        let mut left = gap;
        for group in row.chunk_by(|a, b| a == b) {
            let is_short = wrap(&group[0], cell - gap, CAPTION_LINES).len() < 2;
            let (count, images) = if is_short { (group.len(), 1) } else { (1, group.len()) };
            for _ in 0..count {
                let lines = wrap(&group[0], images * cell - gap, CAPTION_LINES);
                captions.push(Caption { left, lines });
                left += images * cell;
            }
        }
        captions
    }
}

/// A caption with its place in the magnified grid.
struct Caption {
    left: usize,
    lines: Vec<String>,
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

    #[test]
    fn the_ending_decides_the_format_and_the_scale_the_size() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut grid = Grid::new(1, 1, 4, 4).expect("a grid").scaled(Some(7));
        grid.push(&[0.5; 48]).expect("a picture");
        for (name, begin) in
            [("a.png", &b"\x89PNG"[..]), ("a.jpg", b"\xff\xd8\xff"), ("b.JPEG", b"\xff\xd8\xff")]
        {
            let path = folder.path().join(name);
            grid.write(&path).expect("writes");
            assert!(std::fs::read(&path).expect("reads").starts_with(begin), "{name}");
            assert_eq!(image::open(&path).expect("a picture").to_rgb8().dimensions(), (56, 56));
        }
        for name in ["a.gif", "a"] {
            let error = grid.write(&folder.path().join(name)).expect_err("no format").to_string();
            assert!(error.contains(".png, .jpg or .jpeg"), "{error}");
        }
        assert!(grid.clone().scaled(Some(1 << 20)).write(&folder.path().join("c.png")).is_err());
        assert!(!folder.path().join("c.png").exists());
    }

    #[test]
    fn titles_are_above_their_columns() {
        let titles = ["a b".to_owned(), "words that need lines".to_owned()];
        let mut grid = Grid::new(2, 2, 20, 10).expect("a grid").scaled(Some(2)).titled(&titles);
        for _ in 0..2 {
            grid.push(&[1.0; 600]).expect("a picture");
        }
        let whole = grid.magnified().expect("small");
        let (band, height) = (2 + 4 * LINE as u32, 2 * (12 + 2));
        assert_eq!(whole.dimensions(), (2 * (2 * 22 + 2), band + height));
        let lit = |x: std::ops::Range<u32>, y: std::ops::Range<u32>| {
            let all = y.flat_map(|y| x.clone().map(move |x| (x, y)));
            all.filter(|at| whole.get_pixel(at.0, at.1).0[0] > 0).count()
        };
        // The short one stands on the last line.
        assert!(lit(4..44, 0..band - 10) == 0 && lit(4..44, band - 10..band) > 0);
        assert!(lit(48..88, 0..10) > 0 && lit(48..88, band - 10..band) > 0);
        assert_eq!(lit(4..44, band + 4..band + 24), 40 * 20);
    }

    #[test]
    fn wrong_pictures_have_a_frame_and_a_reason() {
        let mut grid = Grid::new(2, 2, 40, 20).expect("a grid").scaled(Some(2));
        for _ in 0..2 {
            grid.push_captioned(&[-1.0; 2400], "a").expect("a picture");
        }
        grid.mark("not: b");
        let whole = grid.magnified().expect("small");
        assert_eq!(whole.dimensions(), (2 * (2 * 42 + 2), 2 * (22 + 2) + 2 * LINE as u32));
        let red: Vec<_> = whole.enumerate_pixels().filter(|(_, _, pixel)| **pixel == RED).collect();
        // A frame of two pixels around the second picture, and the reason below its caption.
        let frame = red.iter().filter(|(_, y, _)| *y < 46).count();
        assert_eq!(frame, 2 * (2 * 84 + 2 * 40));
        assert!(red.iter().all(|(x, y, _)| *x >= 86 && (*y < 46 || *y >= 46 + LINE as u32)), "{red:?}");
        assert!(red.len() > frame);
    }

    #[test]
    fn captions_are_below_their_images_and_neighbours_share_long_ones() {
        let mut grid = Grid::new(4, 2, 20, 10).expect("a grid").scaled(Some(2));
        for (level, caption) in [(1.0, "same words"), (1.0, "same words"), (0.0, "x"), (0.0, "x")] {
            grid.push_captioned(&[level; 600], caption).expect("a picture");
        }
        let whole = grid.magnified().expect("small");
        // The words fit into one line of both images, but not of one.
        let canvas = 2 * (2 * 12 + 2);
        assert_eq!(whole.dimensions(), (2 * (2 * 22 + 2), canvas + 2 * LINE as u32));
        let lit = |x: std::ops::Range<u32>, y: std::ops::Range<u32>| {
            let all = y.flat_map(|y| x.clone().map(move |x| (x, y)));
            all.filter(|at| whole.get_pixel(at.0, at.1).0[0] > 0).count()
        };
        // The first row: images of full intensity, then a band with the shared caption.
        assert_eq!(lit(4..44, 4..24), 40 * 20);
        assert!(lit(4..44, 24..34) > 0 && lit(48..64, 24..34) > 0 && lit(64..92, 24..34) == 0);
        // The second row, its band below it, with a caption for each image.
        assert_eq!(lit(4..44, 38..58), 40 * 20);
        assert!(lit(4..10, 60..70) > 0 && lit(10..48, 60..70) == 0 && lit(48..54, 60..70) > 0);
    }
}
