//! Scaled dot-product attention (Vaswani et al. 2017) by tiles, with masks, grouped heads and dropout.
//!
//! A tile has some queries and some keys. Its scores stay in the cache and are not saved: forward carries the maximum
//! and the sum of each query from tile to tile, and backward recomputes the weights from one logarithm a query (Dao et
//! al. 2022). So memory grows with the length, not with its square. Tiles that no query sees take no part.
//!
//! Queries, keys and values are read where a projection wrote them, in rows of a position, head by head, and copied once to
//! where a tile reads them one after the other, keys turned. Products of f32 tiles keep their sums in registers and pack
//! nothing further; those of f64, and of heads whose width is not a multiple of 16, go by the `gemm` crate. Operands of 16 bits
//! are widened as they are copied, and the products are of f32. Weights are not rounded to 16 bits between the two products,
//! also in a context with [`Products::Bf16`](crate::Products::Bf16).

mod backward;
mod element;
mod few;
mod forward;
mod mask;
mod operands;
mod packed;
mod product;
mod tile;

pub use backward::attention_backward;
pub use element::AttentionElement;
pub use forward::attention_forward;
pub use mask::AttentionMask;
pub use operands::{AttentionGrads, AttentionOperands};

use crate::dropout::{Dropout, RowDropout};
use crate::error::{KernelError, Result, check_len};
use crate::float::Float;

/// The sizes of attention.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AttentionShape {
    /// Samples.
    pub samples: usize,
    /// Heads of queries.
    pub heads: usize,
    /// Heads of keys and values. Each serves `heads / key_heads` successive heads of queries (Ainslie et al. 2023).
    pub key_heads: usize,
    /// Query positions of a sample.
    pub length: usize,
    /// Key positions of a sample.
    pub keys: usize,
    /// Elements of a head.
    pub dim: usize,
}

impl AttentionShape {
    /// Heads of queries that share a head of keys.
    fn group(&self) -> usize {
        self.heads / self.key_heads
    }

    /// Elements of all queries.
    fn queries_len(&self) -> usize {
        self.samples * self.length * self.heads * self.dim
    }

    /// Elements of all keys.
    fn keys_len(&self) -> usize {
        self.samples * self.keys * self.key_heads * self.dim
    }

    /// The scale of the scores, 1/√dim.
    fn factor<T: Float>(&self) -> T {
        T::from_f64(1.0 / (self.dim as f64).sqrt())
    }

    fn check(&self, kernel: &'static str) -> Result<()> {
        if self.key_heads == 0 || !self.heads.is_multiple_of(self.key_heads) {
            let problem =
                format!("{} heads of queries cannot share {} heads of keys", self.heads, self.key_heads);
            return Err(KernelError::Shape { kernel, problem });
        }
        Ok(())
    }
}

/// The inputs of attention.
#[derive(Debug, Clone, Copy)]
pub struct AttentionInputs<'a, T> {
    /// The sizes.
    pub shape: AttentionShape,
    /// The keys that each query sees.
    pub mask: AttentionMask<'a>,
    /// The dropout of weights, in training.
    pub dropout: Option<Dropout>,
    /// Queries, keys and values.
    pub operands: AttentionOperands<'a, T>,
}

impl<T: AttentionElement> AttentionInputs<'_, T> {
    /// Returns the dropout of the weights of a head of queries of a sample.
    fn dropout(&self, sample: usize, head: usize) -> Option<RowDropout> {
        self.dropout.map(|dropout| dropout.row(sample, self.shape.heads, head))
    }

    fn check(&self, kernel: &'static str, log_sums: &[T::Float]) -> Result<()> {
        self.shape.check(kernel)?;
        self.operands.check(kernel, &self.shape)?;
        self.mask.check(kernel, &self.shape)?;
        check_len(
            kernel,
            "log_sums",
            self.shape.samples * self.shape.heads * self.shape.length,
            log_sums.len(),
        )
    }
}
