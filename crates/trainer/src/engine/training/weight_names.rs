//! Names in files of weights: the head of a model, and names that other programs give to its parameters.

use phalanx_tensor::io::NamePart;
use phalanx_tensor::{NamePattern, TensorError};

/// Translates another program's name of a tensor to the name here; `None` for tensors that it does not know.
#[derive(Debug, Clone, Copy)]
pub(in crate::engine) enum Translate {
    /// Tensors there are tensors here.
    Names(fn(&str) -> Option<String>),
    /// Some tensors there are parts of tensors here.
    Parts(fn(&str) -> Option<NamePart>),
}

impl Translate {
    /// The tensor here, or its part.
    pub(in crate::engine) fn of(self, name: &str) -> Option<NamePart> {
        match self {
            Self::Names(translate) => translate(name).map(NamePart::whole),
            Self::Parts(translate) => translate(name),
        }
    }
}

/// A training's declarations about names in files of weights.
#[derive(Debug, Default)]
pub(super) struct NameDeclarations {
    pub(super) head: Vec<String>,
    pub(super) programs: Vec<Translate>,
    pub(super) advice: Vec<ShapeAdvice>,
    pub(super) positions: Vec<String>,
}

/// The advice about a tensor that has another shape in a file.
#[derive(Debug)]
pub(super) struct ShapeAdvice {
    pub(super) pattern: String,
    pub(super) text: String,
}

/// The names of a training's parameters, as far as files of weights need them.
#[derive(Debug, Clone, Default)]
pub(in crate::engine) struct WeightNames {
    /// The parameters that may have other shapes than in the file, and are then made new.
    head: Vec<NamePattern>,
    /// Translations of the names of other programs.
    pub(in crate::engine) programs: Vec<Translate>,
    advice: Vec<(NamePattern, String)>,
    /// Positions of patches, which are resampled for images of another size.
    positions: Vec<NamePattern>,
}

impl WeightNames {
    /// Reads declarations.
    ///
    /// # Errors
    /// If a pattern is empty.
    pub(super) fn new(declared: NameDeclarations) -> Result<Self, TensorError> {
        let NameDeclarations { head, programs, advice, positions } = declared;
        let patterns =
            |all: &[String]| all.iter().map(|text| NamePattern::new(text)).collect::<Result<_, _>>();
        let (head, positions) = (patterns(&head)?, patterns(&positions)?);
        let advice = advice.into_iter().map(|advice| Ok((NamePattern::new(&advice.pattern)?, advice.text)));
        Ok(Self { head, programs, advice: advice.collect::<Result<_, TensorError>>()?, positions })
    }

    /// True for learned positions of patches.
    pub(in crate::engine) fn is_positions(&self, name: &str) -> bool {
        self.positions.iter().any(|pattern| pattern.matches(name))
    }

    /// True for a parameter of the head.
    pub(in crate::engine) fn is_head(&self, name: &str) -> bool {
        self.head.iter().any(|pattern| pattern.matches(name))
    }

    /// True if the training names its head.
    pub(in crate::engine) fn has_head(&self) -> bool {
        !self.head.is_empty()
    }

    /// True for a tensor of another program that the model does not have as its own: a copy of a tied one, a mask, or positions that
    /// are computed.
    pub(in crate::engine) fn is_absent(&self, name: &str) -> bool {
        self.programs.iter().any(|translate| translate.of(name).is_none())
    }

    /// The advice about a tensor that has another shape in a file.
    pub(in crate::engine) fn advice(&self, name: &str) -> Option<&str> {
        let found = self.advice.iter().find(|(pattern, _)| pattern.matches(name));
        found.map(|(_, text)| text.as_str())
    }
}
