//! The table of token embeddings.

use crate::init::Init;
use crate::ops::Indices;
use crate::store::{Param, Scope};
use crate::tape::{Tape, Value};
use crate::{Result, ops};

/// As `torch.nn.Embedding`: parameter `weight` [V, C].
#[derive(Debug, Clone)]
pub struct Embedding {
    weight: Param,
}

impl Embedding {
    /// Makes a table of `rows` rows of `width` elements.
    ///
    /// # Errors
    /// If the name is taken.
    pub fn new(scope: &Scope, rows: usize, width: usize, init: Init) -> Result<Self> {
        Ok(Self { weight: scope.table("weight", (rows, width), init)? })
    }

    /// Maps ids of any shape, u32 below V, to [..ids, C].
    ///
    /// # Errors
    /// If an id is out of range.
    pub fn forward<'a>(&self, tape: &Tape, ids: impl Into<Indices<'a>>) -> Result<Value> {
        ops::embedding(tape, &tape.param(&self.weight)?, ids)
    }
}
