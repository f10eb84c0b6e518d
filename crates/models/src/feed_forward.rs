//! The activations of feed-forward parts, by their names in published files.

use phalanx_tensor::{Result, Tape, Value, ops};

/// The activation between the two linear layers of a feed-forward part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FeedForwardActivation {
    /// x·sigmoid(x), which published Marian models have ("swish").
    Silu,
    /// max(x, 0), as in the first Transformer.
    Relu,
    /// max(x, 0)², which takes fewer operations than GELU and learns as well (So et al. 2021).
    ReluSquared,
    /// x·Φ(x), as in BERT.
    Gelu,
    /// Its form with the hyperbolic tangent, as in GPT-2.
    GeluTanh,
}

/// Names in transformers. The first name of an activation is the one that is written.
const NAMES: [(&str, FeedForwardActivation); 7] = [
    ("swish", FeedForwardActivation::Silu),
    ("silu", FeedForwardActivation::Silu),
    ("relu", FeedForwardActivation::Relu),
    ("relu2", FeedForwardActivation::ReluSquared),
    ("gelu", FeedForwardActivation::Gelu),
    ("gelu_new", FeedForwardActivation::GeluTanh),
    ("gelu_pytorch_tanh", FeedForwardActivation::GeluTanh),
];

impl FeedForwardActivation {
    /// The known names, for messages.
    pub const EXPECTED: &str = "gelu, gelu_new, gelu_pytorch_tanh, relu, relu2, silu or swish";

    /// Returns the activation that transformers calls `name`.
    pub fn named(name: &str) -> Option<Self> {
        NAMES.iter().find(|(known, _)| *known == name).map(|(_, activation)| *activation)
    }

    /// The name in transformers.
    pub fn name(self) -> &'static str {
        NAMES.iter().find(|(_, known)| *known == self).map_or("gelu", |(name, _)| name)
    }

    /// Applies it.
    pub(crate) fn apply(self, tape: &Tape, x: &Value) -> Result<Value> {
        match self {
            Self::Silu => ops::silu(tape, x),
            Self::Relu => ops::relu(tape, x),
            Self::ReluSquared => ops::relu_squared(tape, x),
            Self::Gelu => ops::gelu(tape, x),
            Self::GeluTanh => ops::gelu_tanh(tape, x),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_activation_is_found_by_the_name_that_is_written() {
        for (name, activation) in NAMES {
            assert_eq!(FeedForwardActivation::named(name), Some(activation));
            assert_eq!(FeedForwardActivation::named(activation.name()), Some(activation));
            assert!(FeedForwardActivation::EXPECTED.contains(name));
        }
        assert_eq!(FeedForwardActivation::named("mish"), None);
    }
}
