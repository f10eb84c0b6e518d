//! A sequence of tokens in memory or in a file.

use std::sync::Arc;

use phalanx_data::{DataError, Result};

use super::TokenShard;

/// A sequence of tokens. Clones share it.
#[derive(Debug, Clone)]
pub enum TokenStream {
    /// Tokens in memory.
    Memory {
        /// The source, for messages.
        name: String,
        /// The tokens.
        tokens: Arc<[u32]>,
        /// The tokens at which documents begin, if they are known.
        documents: Option<Arc<[u64]>>,
    },
    /// Tokens in a file.
    File(TokenShard),
}

impl TokenStream {
    /// Returns tokens in memory; `name` is for messages.
    #[must_use]
    pub fn memory(name: impl Into<String>, tokens: Vec<u32>) -> Self {
        Self::Memory { name: name.into(), tokens: tokens.into(), documents: None }
    }

    /// The number of tokens.
    #[must_use]
    pub fn len(&self) -> u64 {
        match self {
            Self::Memory { tokens, .. } => tokens.len() as u64,
            Self::File(shard) => shard.len(),
        }
    }

    /// Returns true without tokens.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The name of the source.
    #[must_use]
    pub fn name(&self) -> String {
        match self {
            Self::Memory { name, .. } => name.clone(),
            Self::File(shard) => shard.path().display().to_string(),
        }
    }

    /// The tokens at which documents begin, in ascending order, if they are known.
    #[must_use]
    pub fn documents(&self) -> Option<&[u64]> {
        match self {
            Self::Memory { documents, .. } => documents.as_deref(),
            Self::File(shard) => shard.documents(),
        }
    }

    /// Reads `count` tokens from token `from` on.
    ///
    /// # Errors
    /// If they are not there.
    pub fn read(&self, from: u64, count: usize) -> Result<Vec<u32>> {
        match self {
            Self::File(shard) => shard.read(from, count),
            Self::Memory { name, tokens, .. } => {
                let begin = usize::try_from(from).ok();
                let range = begin.and_then(|begin| Some(begin..begin.checked_add(count)?));
                let found = range.and_then(|range| tokens.get(range));
                found.map(<[u32]>::to_vec).ok_or_else(|| {
                    let reason =
                        format!("tokens {from} to {} of {}", from.saturating_add(count as u64), tokens.len());
                    DataError::Text { name: name.clone(), reason }
                })
            }
        }
    }
}
