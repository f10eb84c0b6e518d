//! The treatment of the head of a model whose weights are loaded.

use phalanx_config::Config;

/// The treatment of the head of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeadRule {
    /// It is loaded as all of the model, and must fit.
    Load,
    /// Tensors of it that do not fit are made new.
    Replace,
    /// All of it is made new.
    New,
}

impl HeadRule {
    /// Returns the rule of a training (`model.new_head`).
    #[must_use]
    pub fn of(config: &Config) -> Self {
        if config.model.new_head { Self::New } else { Self::Replace }
    }
}
