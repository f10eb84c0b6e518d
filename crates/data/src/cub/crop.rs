//! The square crop around a bird.

use super::tables::number;
use crate::decode::Rectangle;
use crate::error::ParseResult;

/// The bounding box of a bird, in pixels. The published numbers have a fraction that is always 0; like StackGAN, this
/// casts them to integers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct BoundingBox {
    left: i32,
    top: i32,
    width: i32,
    height: i32,
}

impl BoundingBox {
    /// Parses left, top, width and height.
    pub(super) fn parse(fields: &[&str]) -> ParseResult<Self> {
        let [left, top, width, height] = fields else {
            return Err(format!(
                "{} fields after the id; a box has 4: left, top, width, height",
                fields.len()
            ));
        };
        let numbers: Vec<f64> =
            [left, top, width, height].into_iter().map(|field| number(field)).collect::<Result<_, _>>()?;
        // No supported format has a side of 65,536 pixels or more.
        let sound = numbers.iter().all(|number| number.abs() < 1e6) && numbers[2] >= 1.0 && numbers[3] >= 1.0;
        if !sound {
            return Err(format!("{numbers:?} is not a box: left, top, and a width and height of at least 1"));
        }
        let [left, top, width, height] = [0, 1, 2, 3].map(|at: usize| numbers[at] as i32);
        Ok(Self { left, top, width, height })
    }

    /// Returns the square around the centre of the box, clipped to an image of this size. Its half side is `factor`
    /// times the longer side of the box: `custom_crop` of StackGAN's preprocessing.
    pub(super) fn around(&self, factor: f64, width: u32, height: u32) -> ParseResult<Rectangle> {
        let half = (f64::from(self.width.max(self.height)) * factor) as i32;
        let within = |begin: i32, length: i32, end: u32| {
            let centre = (2 * begin + length) / 2;
            let end = (centre + half).min(i32::try_from(end).unwrap_or(i32::MAX));
            let begin = (centre - half).max(0);
            (begin < end).then(|| (begin as u32, (end - begin) as u32))
        };
        match (within(self.left, self.width, width), within(self.top, self.height, height)) {
            (Some((x, width)), Some((y, height))) => Ok(Rectangle { x, y, width, height }),
            _ => Err(format!(
                "the box in bounding_boxes.txt, {}x{} pixels at ({}, {}), is outside the image of {width}x{height}",
                self.width, self.height, self.left, self.top
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_square_is_stackgans() {
        let around = |fields: &str, width, height| {
            let fields: Vec<&str> = fields.split(' ').collect();
            BoundingBox::parse(&fields).unwrap().around(0.75, width, height)
        };
        // By hand from custom_crop: centre (222, 179), half side 243, clipped at all sides of 500x335.
        assert_eq!(
            around("60.0 27.0 325.0 304.0", 500, 335).unwrap(),
            Rectangle { x: 0, y: 0, width: 465, height: 335 }
        );
        // Centre (125, 80), half side int(37.5) = 37: not clipped.
        assert_eq!(
            around("100.0 60.0 50.0 41.0", 300, 200).unwrap(),
            Rectangle { x: 88, y: 43, width: 74, height: 74 }
        );
        let error = around("400.0 60.0 50.0 41.0", 300, 200).unwrap_err();
        assert!(error.contains("50x41 pixels at (400, 60)") && error.contains("300x200"), "{error}");
    }

    #[test]
    fn invalid_boxes_are_refused() {
        for bad in ["1 2 3", "1 2 3 4 5", "a 2 3 4", "1 2 0 4", "1 2 NaN 4", "1 2 3 1e9"] {
            let fields: Vec<&str> = bad.split(' ').collect();
            assert!(BoundingBox::parse(&fields).is_err(), "{bad}");
        }
    }
}
