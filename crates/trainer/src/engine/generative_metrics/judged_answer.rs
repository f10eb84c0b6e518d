//! The judgement of one property of some images.

use phalanx_run::ConfusionMatrix;
use serde::{Deserialize, Serialize};

/// A property of images, compared with what they should show.
pub(super) struct JudgedAnswer {
    /// The property.
    pub(super) name: String,
    /// The part of it that each image shows as it should, from 0 to 1. Images that should not have the property have none.
    pub(super) right: Vec<Option<f64>>,
    /// The values that images should show and those that are found, if there is one of each image.
    pub(super) confusion: Option<ConfusionMatrix>,
}

/// The sum over images of the judgements of a property.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct JudgedSum {
    /// The property.
    pub(super) name: String,
    /// The sum of the parts that images show as they should.
    pub(super) right: f64,
    /// The number of images that should have the property.
    pub(super) images: usize,
    /// The values that images should show and those that are found.
    pub(super) confusion: Option<ConfusionMatrix>,
}

impl JudgedSum {
    /// Sums an answer.
    pub(super) fn of(answer: &JudgedAnswer) -> Self {
        let asked = answer.right.iter().flatten();
        Self {
            name: answer.name.clone(),
            right: asked.clone().sum(),
            images: asked.count(),
            confusion: answer.confusion.clone(),
        }
    }

    /// Returns the mean part that images show as they should, unless none should have the property.
    pub(super) fn accuracy(&self) -> Option<f64> {
        (self.images > 0).then(|| self.right / self.images as f64)
    }

    /// Adds the sum over further images.
    pub(super) fn add(&mut self, more: &Self) {
        self.right += more.right;
        self.images += more.images;
        if let (Some(own), Some(more)) = (&mut self.confusion, &more.confusion) {
            own.counts_mut().iter_mut().zip(more.counts()).for_each(|(own, more)| *own += more);
        }
    }
}
