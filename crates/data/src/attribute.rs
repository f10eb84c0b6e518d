//! What is known of each sample beside its class, as classes of their own: its colour, its place, …

/// A question with a fixed list of answers, which every sample of a dataset has an answer to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attribute {
    /// Its name, which is also that of its array in a batch.
    pub name: String,
    /// The answers, in the order of their numbers.
    pub values: Vec<String>,
}

impl Attribute {
    /// An attribute of this name with these answers.
    #[must_use]
    pub fn new(name: impl Into<String>, values: Vec<String>) -> Self {
        Self { name: name.into(), values }
    }

    /// One that need not be there: the answer 0 is “none”, and those given come after it.
    #[must_use]
    pub fn optional(name: impl Into<String>, values: Vec<String>) -> Self {
        Self::new(name, std::iter::once("none".to_owned()).chain(values).collect())
    }
}
