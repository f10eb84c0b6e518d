//! The sizes, the mask and the operands of attention.

use super::dropout::Dropout;
use super::grid::{check, narrow_size};
use crate::{ElementType, Gpu, GpuError, Result, Slice};

/// The sizes of attention, and the numbers of its mask.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AttentionSizes {
    /// Samples.
    pub samples: usize,
    /// Heads of queries.
    pub heads: usize,
    /// Heads of keys and values; each serves `heads / key_heads` successive heads of queries.
    pub key_heads: usize,
    /// Positions of q.
    pub length: usize,
    /// Positions of k and v.
    pub keys: usize,
    /// Elements of a head.
    pub dim: usize,
    /// True if a query sees no later keys. The last query is at the position of the last key.
    pub causal: bool,
    /// The number of keys up to its own that a query sees. Needs `causal`.
    pub window: Option<usize>,
}

impl AttentionSizes {
    /// Rows of all heads of queries.
    pub(super) fn rows(&self) -> usize {
        self.samples * self.heads * self.length
    }

    /// Elements of queries.
    pub(super) fn queries(&self) -> usize {
        self.rows() * self.dim
    }

    /// Elements of keys, and of values.
    pub(super) fn positions(&self) -> usize {
        self.samples * self.keys * self.key_heads * self.dim
    }

    pub(super) fn scale(&self) -> f64 {
        1.0 / (self.dim as f64).sqrt()
    }

    /// `Sizes` of the kernels.
    pub(super) fn numbers(&self, function: &'static str, [q, k, v]: [usize; 3]) -> Result<[i32; 10]> {
        let Self { heads, key_heads, length, keys, dim, causal, window, .. } = *self;
        // A window of 0 would be none; a query that sees no key at all is not asked for.
        let window = window.unwrap_or(0);
        let sizes = [heads, key_heads, length, keys, dim, usize::from(causal), window, q, k, v];
        let mut numbers = [0; 10];
        for (number, size) in numbers.iter_mut().zip(sizes) {
            *number = narrow_size(function, size)?;
        }
        Ok(numbers)
    }
}

/// The arrays of a mask, u32.
#[derive(Debug, Clone, Copy, Default)]
pub struct AttentionMask<'a> {
    /// The number of keys of each sample.
    pub lengths: Option<&'a Slice>,
    /// The first key of each query, [samples, length].
    pub starts: Option<&'a Slice>,
}

/// Queries, keys and values.
#[derive(Debug, Clone, Copy)]
pub enum AttentionOperands<'a> {
    /// One array [samples, length, (heads + 2·key_heads)·dim].
    Joined(&'a Slice),
    /// Queries [samples, length, heads, dim], keys and values [samples, keys, key_heads, dim].
    Apart([&'a Slice; 3]),
}

impl AttentionOperands<'_> {
    pub(super) fn dtype(&self) -> ElementType {
        match self {
            Self::Joined(all) => all.dtype(),
            Self::Apart([q, ..]) => q.dtype(),
        }
    }
}

/// The inputs of attention.
#[derive(Debug, Clone, Copy)]
pub struct AttentionInputs<'a> {
    /// The sizes.
    pub sizes: AttentionSizes,
    /// The arrays of the mask.
    pub mask: AttentionMask<'a>,
    /// The dropout of weights, in training.
    pub dropout: Option<Dropout>,
    /// Queries, keys and values.
    pub operands: AttentionOperands<'a>,
}

impl AttentionInputs<'_> {
    pub(super) fn check(&self, function: &'static str) -> Result<()> {
        let sizes = &self.sizes;
        if sizes.key_heads == 0 || !sizes.heads.is_multiple_of(sizes.key_heads) {
            let problem =
                format!("{} heads of queries cannot share {} heads of keys", sizes.heads, sizes.key_heads);
            return Err(GpuError::argument(function, problem));
        }
        let dtype = self.operands.dtype();
        match self.operands {
            AttentionOperands::Joined(all) => {
                check(function, "q, k and v", all, dtype, sizes.queries() + 2 * sizes.positions())?;
            }
            AttentionOperands::Apart([q, k, v]) => {
                check(function, "q", q, dtype, sizes.queries())?;
                check(function, "k", k, dtype, sizes.positions())?;
                check(function, "v", v, dtype, sizes.positions())?;
            }
        }
        self.mask.check(function, sizes)
    }

    /// Returns the step on the device of the dropout's key, in a captured step.
    pub(super) fn step(&self, gpu: &Gpu) -> Option<Slice> {
        self.dropout.and_then(|dropout| gpu.captured_step(dropout.key.step))
    }

    pub(super) fn dropout_numbers(&self) -> [u64; 8] {
        self.dropout.map_or([0; 8], |dropout| dropout.numbers())
    }

    pub(super) fn kept_factor(&self) -> f64 {
        self.dropout.map_or(1.0, |dropout| dropout.factor())
    }
}

impl AttentionMask<'_> {
    pub(super) fn check(&self, function: &'static str, sizes: &AttentionSizes) -> Result<()> {
        let given =
            [("lengths", self.lengths, sizes.samples), ("starts", self.starts, sizes.samples * sizes.length)];
        for (name, slice, len) in given {
            slice.map_or(Ok(()), |slice| check(function, name, slice, ElementType::U32, len))?;
        }
        if sizes.window == Some(0) || (sizes.window.is_some() && !sizes.causal) {
            let problem = format!("a window of {:?}; it needs `causal` and a key", sizes.window);
            return Err(GpuError::argument(function, problem));
        }
        Ok(())
    }
}
