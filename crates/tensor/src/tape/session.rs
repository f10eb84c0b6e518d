//! What a tape is told from outside: how to compute, and who listens.

use std::sync::Arc;

use candle_core::DType;
use phalanx_kernels::{Context, Products};

use super::listener::Listener;
use crate::group::ProcessGroup;
use crate::rng::Key;

/// Which blocks are recomputed in backward instead of keeping what they saved (activation checkpointing,
/// Chen et al. 2016).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Recompute {
    /// None: everything is saved.
    #[default]
    Never,
    /// Every k-th block, counting from the first; 1 recomputes all.
    Every(usize),
}

impl Recompute {
    pub(super) fn applies(self, block: usize) -> bool {
        match self {
            Self::Never => false,
            Self::Every(k) => k > 0 && block.is_multiple_of(k),
        }
    }
}

/// What products take and what activations are kept in; see [`Session::precision`].
///
/// As under `torch.autocast`, parameters, their gradients, statistics and losses are f32 at any precision. Products
/// (convolution, linear layers, attention) round both operands to the low type and add in f32; what an op gives to the
/// next, and so what backward keeps, is stored in the low type; a gradient has the type of its value. f64 stays f64.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Precision {
    /// 32-bit floats throughout.
    #[default]
    F32,
    /// bfloat16: the range of f32 with 8 bits of precision.
    Bf16,
    /// IEEE half precision: 11 bits of precision up to 65504, which gradients need a [`crate::optim::LossScale`] for.
    F16,
}

impl Precision {
    /// The type that activations are stored in.
    pub fn dtype(self) -> DType {
        match self {
            Self::F32 => DType::F32,
            Self::Bf16 => DType::BF16,
            Self::F16 => DType::F16,
        }
    }

    /// What a [`Context`] should multiply: [`Context::with_products`]. Products of operands that are rounded already lose
    /// nothing by it.
    pub fn products(self) -> Products {
        match self {
            Self::F32 | Self::F16 => Products::F32,
            Self::Bf16 => Products::Bf16,
        }
    }

    /// The type that an op stores a result in which it computed from values of type `dtype`: the low type in place of f32.
    pub(crate) fn stored(self, dtype: DType) -> DType {
        if dtype == DType::F32 { self.dtype() } else { dtype }
    }

    /// The type of a product of operands of type `dtype`.
    pub(crate) fn product(self, dtype: DType) -> DType {
        if dtype == DType::F64 { dtype } else { self.dtype() }
    }
}

impl std::fmt::Display for Precision {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.dtype().as_str())
    }
}

/// The circumstances of one pass.
#[derive(Debug, Clone)]
pub struct Session {
    /// Threads and scratch memory of the kernels.
    pub context: Arc<Context>,
    /// Whether layers behave as in training (batch statistics, dropout) or as in evaluation.
    pub training: bool,
    /// The key that noise and masks of this step are drawn from; the same on all ranks.
    pub key: Key,
    /// The position of this rank's first sample in the global batch. Noise is drawn by sample, so that ranks
    /// together draw what one rank would draw for the whole batch.
    pub sample_offset: usize,
    /// Who is told about blocks and gradients.
    pub listener: Option<Arc<dyn Listener>>,
    /// The ranks that the global batch is spread over, for ops whose results depend on all of it: synchronised batch norm and
    /// the contrastive loss. Without it this rank's samples are all.
    pub batch_group: Option<Arc<dyn ProcessGroup>>,
    /// Which blocks are recomputed in backward.
    pub recompute: Recompute,
    /// What products take and what activations are kept in.
    pub precision: Precision,
}

impl Session {
    /// A session for training on one rank.
    pub fn training(context: Arc<Context>, key: Key) -> Self {
        Self {
            context,
            training: true,
            key,
            sample_offset: 0,
            listener: None,
            batch_group: None,
            recompute: Recompute::Never,
            precision: Precision::F32,
        }
    }

    /// A session for evaluation on one rank.
    pub fn evaluation(context: Arc<Context>) -> Self {
        Self { training: false, ..Self::training(context, Key::new(0)) }
    }
}
