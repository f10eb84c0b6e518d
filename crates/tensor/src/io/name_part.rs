//! Tensors that other programs keep in parts.

/// The part of a tensor that another program keeps as a tensor of its own: the parts lie one behind the other along the first dimension,
/// as the projections of queries, keys and values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamePart {
    /// The name of the whole tensor.
    pub name: String,
    /// The part, from 0.
    pub part: usize,
    /// The number of parts; 1 for a whole tensor.
    pub parts: usize,
}

impl NamePart {
    /// A whole tensor.
    pub fn whole(name: impl Into<String>) -> Self {
        Self { name: name.into(), part: 0, parts: 1 }
    }
}
