//! The kind of a run's samples.

use phalanx_run::TextUse;

use crate::engine::training::{AnyTraining, ImageSource};
use phalanx_config::SampleConfig;

/// The samples that a run writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SampleKind {
    /// A grid of pictures.
    Pictures(ImageSource),
    /// Texts that continue, fill in or translate the prompts.
    Texts(TextUse),
}

impl SampleKind {
    /// Returns the kind of a training's samples; `None` if it has none. Masks and translations need prompts.
    pub(super) fn of(training: &dyn AnyTraining, config: &SampleConfig) -> Option<Self> {
        let has_texts = |text_use: &TextUse| *text_use == TextUse::Continue || !config.prompts.is_empty();
        let texts = || training.outline().texts.filter(has_texts).map(Self::Texts);
        training.image_source().map(Self::Pictures).or_else(texts)
    }

    /// The ending of their file.
    pub(super) fn ending(self) -> &'static str {
        match self {
            Self::Pictures(_) => "png",
            Self::Texts(_) => "txt",
        }
    }
}
