//! Random erasing (Zhong et al. 2020): a rectangle of zeros in a normalised image.

use crate::error::{DataError, Result};
use crate::rng::below;
use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};

/// The number of attempts before nothing is erased.
const ATTEMPTS: usize = 10;

/// Sets a random rectangle of the normalised image to 0: torchvision's `RandomErasing`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RandomErasing {
    /// The probability for an image, 0 to 1.
    pub probability: f64,
    /// The smallest and the largest fraction of the area, 0 to 1; (0.02, 0.33) in the paper's code.
    pub area: (f64, f64),
    /// The smallest and the largest height over width, uniform in its logarithm; (0.3, 3.3) in the paper's code.
    pub aspect: (f64, f64),
}

/// A rectangle of an image, in pixels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Patch {
    /// The first column.
    pub left: u32,
    /// The first row.
    pub top: u32,
    /// The number of columns.
    pub width: u32,
    /// The number of rows.
    pub height: u32,
}

impl Patch {
    /// Calls `each` with the range of the rectangle in every row of planes [C, H, W] of `values`, which are `width` wide.
    pub fn rows_of(
        self,
        values: &mut [f32],
        (width, height): (usize, usize),
        mut each: impl FnMut(&mut [f32]),
    ) {
        let (left, top) = (self.left as usize, self.top as usize);
        for plane in values.chunks_exact_mut((width * height).max(1)) {
            let rows = plane.chunks_exact_mut(width.max(1)).skip(top).take(self.height as usize);
            rows.for_each(|row| each(&mut row[left..left + self.width as usize]));
        }
    }
}

impl RandomErasing {
    /// Makes random erasing of this probability with the paper's rectangles.
    #[must_use]
    pub fn new(probability: f64) -> Self {
        Self { probability, area: (0.02, 0.33), aspect: (0.3, 3.3) }
    }

    /// Checks the settings.
    pub(super) fn validate(&self) -> Result<()> {
        let Self { probability, area, aspect } = *self;
        let sound = (0.0..=1.0).contains(&probability) && area.0 >= 0.0 && area.0 <= area.1 && area.1 <= 1.0;
        if sound && aspect.0 > 0.0 && aspect.0 <= aspect.1 && aspect.1.is_finite() {
            return Ok(());
        }
        let reason =
            format!("a probability of {probability}, of an area in {area:?}, with an aspect in {aspect:?}");
        Err(DataError::config("transform.erasing", reason))
    }

    /// Draws the rectangle of an image of this size; `None` if nothing is erased.
    pub(super) fn patch(&self, (width, height): (u32, u32), rng: &mut ChaCha8Rng) -> Option<Patch> {
        if rng.random::<f64>() >= self.probability {
            return None;
        }
        let between =
            |rng: &mut ChaCha8Rng, (least, most): (f64, f64)| least + (most - least) * rng.random::<f64>();
        for _ in 0..ATTEMPTS {
            let area = f64::from(width) * f64::from(height) * between(rng, self.area);
            let aspect = between(rng, (self.aspect.0.ln(), self.aspect.1.ln())).exp();
            let rows = (area * aspect).sqrt().round_ties_even() as u32;
            let columns = (area / aspect).sqrt().round_ties_even() as u32;
            if rows < height && columns < width {
                let top = below(rng, (height - rows) as usize + 1) as u32;
                let left = below(rng, (width - columns) as usize + 1) as u32;
                let patch = Patch { left, top, width: columns, height: rows };
                return (rows > 0 && columns > 0).then_some(patch);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::{Purpose, rng_for};

    #[test]
    fn rectangles_have_the_given_frequency_area_and_aspect() {
        let erasing = RandomErasing::new(0.25);
        let draw = |index| erasing.patch((64, 48), &mut rng_for(0, Purpose::Erase, 1, index));
        let patches: Vec<Patch> = (0..4000).filter_map(draw).collect();
        assert!((900..1100).contains(&patches.len()), "{}", patches.len());
        let mut sum = 0.0;
        for patch in &patches {
            assert!(patch.left + patch.width <= 64 && patch.top + patch.height <= 48, "{patch:?}");
            let area = f64::from(patch.width * patch.height) / (64.0 * 48.0);
            assert!((0.015..0.35).contains(&area), "{patch:?}");
            sum += area;
        }
        assert!((0.15..0.19).contains(&(sum / patches.len() as f64)));
        assert_eq!(RandomErasing::new(0.0).patch((8, 8), &mut rng_for(0, Purpose::Erase, 0, 0)), None);
        // Nothing that fits: an image of one pixel.
        assert_eq!(RandomErasing::new(1.0).patch((1, 1), &mut rng_for(0, Purpose::Erase, 0, 0)), None);
    }

    #[test]
    fn rows_of_every_channel_are_visited() {
        let mut values = vec![1.0; 2 * 3 * 4];
        let patch = Patch { left: 1, top: 2, width: 2, height: 1 };
        patch.rows_of(&mut values, (4, 3), |row| row.fill(0.0));
        let zeros: Vec<usize> = (0..24).filter(|at| values[*at] == 0.0).collect();
        assert_eq!(zeros, [9, 10, 21, 22]);
    }

    #[test]
    fn impossible_settings_are_refused() {
        let good = RandomErasing::new(0.5);
        assert!(good.validate().is_ok());
        for bad in [
            RandomErasing { probability: 1.1, ..good },
            RandomErasing { area: (0.3, 0.2), ..good },
            RandomErasing { area: (0.3, 1.2), ..good },
            RandomErasing { aspect: (0.0, 1.0), ..good },
        ] {
            assert!(bad.validate().is_err(), "{bad:?}");
        }
    }
}
