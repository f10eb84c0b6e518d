//! A text to classify.

/// A text, or two of which the class is known together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TextInput {
    /// The text.
    pub text: String,
    /// The second text.
    pub second: Option<String>,
}
