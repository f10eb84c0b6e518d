//! The keys that each query sees.

use std::ops::Range;

use crate::error::{KernelError, Result, check_len};

use super::AttentionShape;

/// The keys that each query sees: a range, the intersection of those given here. By default all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct AttentionMask<'a> {
    /// True if a query sees no later keys. The last query is at the position of the last key.
    pub causal: bool,
    /// The number of keys up to its own that a query sees (Child et al. 2019). Needs `causal`.
    pub window: Option<usize>,
    /// The number of keys of each sample, `[samples]`. Those behind are padding.
    pub lengths: Option<&'a [u32]>,
    /// The first key of each query's document, [samples, length].
    pub starts: Option<&'a [u32]>,
}

impl AttentionMask<'_> {
    pub(super) fn check(&self, kernel: &'static str, shape: &AttentionShape) -> Result<()> {
        if self.window == Some(0) || (self.window.is_some() && !self.causal) {
            let problem = format!("a window of {:?}; it needs `causal` and a key", self.window);
            return Err(KernelError::Shape { kernel, problem });
        }
        if let Some(lengths) = self.lengths {
            check_len(kernel, "lengths", shape.samples, lengths.len())?;
        }
        if let Some(starts) = self.starts {
            check_len(kernel, "starts", shape.samples * shape.length, starts.len())?;
        }
        Ok(())
    }

    /// Returns the keys that a query of a sample sees.
    #[inline]
    pub(super) fn range(&self, shape: &AttentionShape, sample: usize, query: usize) -> Range<usize> {
        let (mut first, mut end) = (0, shape.keys);
        if self.causal {
            end = (query + 1 + shape.keys).saturating_sub(shape.length).min(shape.keys);
        }
        if let Some(window) = self.window {
            first = end.saturating_sub(window);
        }
        if let Some(starts) = self.starts {
            first = first.max(starts[sample * shape.length + query] as usize);
        }
        if let Some(lengths) = self.lengths {
            end = end.min(lengths[sample] as usize);
        }
        first.min(end)..end
    }

    /// Returns the smallest range that has all keys seen by some queries of a sample.
    pub(super) fn union(&self, shape: &AttentionShape, sample: usize, queries: Range<usize>) -> Range<usize> {
        let seen = queries.map(|query| self.range(shape, sample, query)).filter(|range| !range.is_empty());
        seen.reduce(|a, b| a.start.min(b.start)..a.end.max(b.end)).unwrap_or(0..0)
    }
}
