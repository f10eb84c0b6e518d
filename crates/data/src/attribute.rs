//! Properties of samples that are classes of their own: colour, position, …

/// A categorical property that every sample of a dataset has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attribute {
    /// The name, which is also that of its array in a batch.
    pub name: String,
    /// The values, in the order of their numbers.
    pub values: Vec<String>,
}

impl Attribute {
    /// Makes an attribute.
    #[must_use]
    pub fn new(name: impl Into<String>, values: Vec<String>) -> Self {
        Self { name: name.into(), values }
    }

    /// Makes an attribute that may be absent: value 0 is “none”, followed by the given values.
    #[must_use]
    pub fn optional(name: impl Into<String>, values: Vec<String>) -> Self {
        Self::new(name, std::iter::once("none".to_owned()).chain(values).collect())
    }
}
