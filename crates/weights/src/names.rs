//! Names in files of weights: the head of a model, and names that other programs give to its parameters.

use phalanx_tensor::io::NamePart;
use phalanx_tensor::{NamePattern, TensorError};

/// Translates another program's name of a tensor to the name here; `None` for tensors that it does not know.
#[derive(Debug, Clone, Copy)]
pub enum Translate {
    /// Tensors there are tensors here.
    Names(fn(&str) -> Option<String>),
    /// Some tensors there are parts of tensors here.
    Parts(fn(&str) -> Option<NamePart>),
}

impl Translate {
    /// The tensor here, or its part.
    pub fn of(self, name: &str) -> Option<NamePart> {
        match self {
            Self::Names(translate) => translate(name).map(NamePart::whole),
            Self::Parts(translate) => translate(name),
        }
    }
}

/// A training's declarations about names in files of weights.
#[derive(Debug, Default)]
pub struct NameDeclarations {
    /// Patterns of the parameters of the head.
    pub head: Vec<String>,
    /// Translations of the names of other programs.
    pub programs: Vec<Translate>,
    /// Advice about tensors of other shapes.
    pub advice: Vec<ShapeAdvice>,
    /// Patterns of positions of patches.
    pub positions: Vec<String>,
}

/// The advice about a tensor that has another shape in a file.
#[derive(Debug)]
pub struct ShapeAdvice {
    /// The pattern of its name.
    pub pattern: String,
    /// The advice.
    pub text: String,
}

/// The names of a training's parameters, as far as files of weights need them.
#[derive(Debug, Clone, Default)]
pub struct WeightNames {
    /// The parameters that may have other shapes than in the file, and are then made new.
    head: Vec<NamePattern>,
    /// Translations of the names of other programs.
    pub(crate) programs: Vec<Translate>,
    advice: Vec<(NamePattern, String)>,
    /// Positions of patches, which are resampled for images of another size.
    positions: Vec<NamePattern>,
}

impl WeightNames {
    /// Reads declarations.
    ///
    /// # Errors
    /// If a pattern is empty.
    pub fn new(declared: NameDeclarations) -> Result<Self, TensorError> {
        let NameDeclarations { head, programs, advice, positions } = declared;
        let patterns =
            |all: &[String]| all.iter().map(|text| NamePattern::new(text)).collect::<Result<_, _>>();
        let (head, positions) = (patterns(&head)?, patterns(&positions)?);
        let advice = advice.into_iter().map(|advice| Ok((NamePattern::new(&advice.pattern)?, advice.text)));
        Ok(Self { head, programs, advice: advice.collect::<Result<_, TensorError>>()?, positions })
    }

    /// True for learned positions of patches.
    pub(crate) fn is_positions(&self, name: &str) -> bool {
        self.positions.iter().any(|pattern| pattern.matches(name))
    }

    /// True for a parameter of the head.
    pub(crate) fn is_head(&self, name: &str) -> bool {
        self.head.iter().any(|pattern| pattern.matches(name))
    }

    /// True if the training names its head.
    pub(crate) fn has_head(&self) -> bool {
        !self.head.is_empty()
    }

    /// True for a tensor of another program that the model does not have as its own: a copy of a tied one, a mask, or positions that
    /// are computed.
    pub(crate) fn is_absent(&self, name: &str) -> bool {
        self.programs.iter().any(|translate| translate.of(name).is_none())
    }

    /// The advice about a tensor that has another shape in a file.
    pub(crate) fn advice(&self, name: &str) -> Option<&str> {
        let found = self.advice.iter().find(|(pattern, _)| pattern.matches(name));
        found.map(|(_, text)| text.as_str())
    }
}
