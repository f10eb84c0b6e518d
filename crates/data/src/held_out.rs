//! A test split that is cut from the training images.

use crate::captioned_image::ImageDataset;
use crate::error::{DataError, Result};
use crate::hash::fnv_1a;
use crate::subset::Subset;
use std::sync::Arc;

/// The two parts of a dataset.
#[derive(Debug)]
pub struct HeldOut {
    /// The images for training.
    pub train: Subset<ImageDataset>,
    /// The images for testing.
    pub test: Subset<ImageDataset>,
}

impl HeldOut {
    /// Holds out about this fraction of the images of each class, at least one of a class that has two.
    ///
    /// The images of a class are chosen by the hashes of their names, the last two components of their paths. So the
    /// choice depends on neither a seed nor the place of the folder, and an image that is added or excluded moves at
    /// most one other.
    ///
    /// # Errors
    /// If the fraction is not between 0 and 1, no class has two images, or a file cannot be read.
    pub fn of(images: &Arc<ImageDataset>, fraction: f64) -> Result<Self> {
        if !(fraction > 0.0 && fraction < 1.0) {
            let reason = format!("{fraction} is not between 0 and 1");
            return Err(DataError::config("data.test_fraction", reason));
        }
        let mut classes: Vec<Vec<(u64, usize)>> = vec![Vec::new(); images.class_names().len().max(1)];
        for index in 0..images.len() {
            let label = images.label(index)? as usize;
            let name = hash_of_name(images, index)?;
            let number = classes.len();
            let class = classes.get_mut(label).ok_or_else(|| {
                let reason = format!("label {label} is not one of {number} classes");
                DataError::sample(images.name(), index, reason)
            })?;
            class.push((name, index));
        }
        let mut held_out = Vec::new();
        for mut class in classes.into_iter().filter(|class| class.len() > 1) {
            let number = (class.len() as f64 * fraction).round() as usize;
            class.sort_unstable();
            held_out.extend(class[..number.clamp(1, class.len() - 1)].iter().map(|(_, index)| *index));
        }
        if held_out.is_empty() {
            let reason =
                format!("no class of {} has two images, of which one could be held out", images.name());
            return Err(DataError::config("data.test_fraction", reason));
        }
        held_out.sort_unstable();
        let train = Subset::without(Arc::clone(images), &held_out)?;
        Ok(Self { train, test: Subset::new(Arc::clone(images), held_out)? })
    }
}

fn hash_of_name(images: &Arc<ImageDataset>, index: usize) -> Result<u64> {
    let path = images.sample_path(index)?;
    let mut parts: Vec<String> =
        path.iter().rev().take(2).map(|part| part.to_string_lossy().into_owned()).collect();
    parts.reverse();
    Ok(fnv_1a(parts.join("/").as_bytes()))
}
