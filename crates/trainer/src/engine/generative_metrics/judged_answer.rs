//! The judgement of one property of some images.

/// A property of images, compared with what they should show.
pub(super) struct JudgedAnswer {
    /// The property.
    pub(super) name: String,
    /// The part of it that each image shows as it should, from 0 to 1.
    pub(super) right: Vec<f64>,
}
