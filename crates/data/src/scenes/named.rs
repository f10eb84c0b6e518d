//! Objects as captions name them.

use crate::captions::article;
use crate::shapes::{Colour, Shape};

/// An object that a caption names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NamedObject {
    /// The shape.
    pub shape: Shape,
    /// The colour.
    pub colour: Colour,
}

impl NamedObject {
    /// “red circle”.
    #[must_use]
    pub fn noun(&self) -> String {
        format!("{} {}", self.colour, self.shape)
    }

    /// “a red circle”, “an orange ring”.
    #[must_use]
    pub fn with_article(&self) -> String {
        let noun = self.noun();
        format!("{} {noun}", article(&noun))
    }
}
