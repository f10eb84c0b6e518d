//! Codecs by name, and what can be chosen of them.

use std::sync::Arc;

use phalanx_kernels::{ChunkFormat, ChunkKind};

use crate::entries::ValueFormat;
use crate::power_sgd::PowerSgd;
use crate::quantisers::{Chunks, Lossless};
use crate::random_k::RandomK;
use crate::sparse::{Momentum, Sparse};
use crate::two_shot::{StateKind, TwoShot};
use crate::{Bf16, GradCodec};
use crate::{CodecError, Result};

/// The codecs by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CodecKind {
    /// The numbers themselves.
    #[default]
    None,
    /// [`Bf16`]: rounded to bf16, half of the bytes.
    Bf16,
    /// Integers of 8 bits with a scale a chunk, in two hops: a quarter of the bytes.
    Int8,
    /// Integers of 4 bits with a scale a chunk, in two hops: an eighth.
    Int4,
    /// 127 levels a sign of every chunk's norm, rounded at random so that the mean is right, in two hops (QSGD): a quarter.
    Qsgd,
    /// Signs with the mean magnitude of every chunk, in two hops with error feedback in both: about a 28th.
    Sign,
    /// The largest entries with their indices, with error feedback.
    TopK,
    /// Entries at indices that all ranks draw alike, with error feedback.
    RandomK,
    /// The largest entries of momentum that has accumulated (Deep Gradient Compression).
    Dgc,
    /// The largest entries as integers of 8 bits, with error feedback.
    TopKInt8,
    /// Matrices as products of thin ones, with error feedback.
    PowerSgd,
    /// The numbers themselves, their exponents entropy-coded.
    Lossless,
}

impl CodecKind {
    /// All codecs.
    pub const ALL: &'static [Self] = &[
        Self::None,
        Self::Bf16,
        Self::Int8,
        Self::Int4,
        Self::Qsgd,
        Self::Sign,
        Self::TopK,
        Self::RandomK,
        Self::Dgc,
        Self::TopKInt8,
        Self::PowerSgd,
        Self::Lossless,
    ];

    /// The name in configurations.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Bf16 => "bf16",
            Self::Int8 => "int8",
            Self::Int4 => "int4",
            Self::Qsgd => "qsgd",
            Self::Sign => "sign",
            Self::TopK => "topk",
            Self::RandomK => "randomk",
            Self::Dgc => "dgc",
            Self::TopKInt8 => "topk-int8",
            Self::PowerSgd => "powersgd",
            Self::Lossless => "lossless",
        }
    }

    /// True if it works on gradients in the memory of GPUs.
    pub fn works_on_devices(self) -> bool {
        self != Self::Lossless
    }

    /// True if a rank can push its gradients by it: the codecs that need no values of other ranks, and do not stand in for the
    /// optimizer's momentum.
    pub fn pushes(self) -> bool {
        !matches!(self, Self::Dgc | Self::PowerSgd)
    }

    /// True if it uses error feedback. Then the gradients of all steps must have one scale.
    pub fn feeds_back(self) -> bool {
        matches!(self, Self::Sign | Self::TopK | Self::RandomK | Self::Dgc | Self::TopKInt8 | Self::PowerSgd)
    }
}

impl std::fmt::Display for CodecKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

impl std::str::FromStr for CodecKind {
    type Err = CodecError;

    fn from_str(text: &str) -> Result<Self> {
        let found = Self::ALL.iter().find(|kind| kind.name() == text);
        let known = || Self::ALL.iter().map(|kind| kind.name()).collect::<Vec<_>>().join(", ");
        found.copied().ok_or_else(|| CodecError::codec(text, format!("is unknown; there is: {}", known())))
    }
}

/// A codec by name, with what can be chosen of it. What the named one does not have does not count.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CodecSettings {
    /// Which one.
    pub kind: CodecKind,
    /// The part of a bucket's gradients that `topk`, `randomk`, `dgc` and `topk-int8` send.
    pub density: f64,
    /// The rank of the products that `powersgd` sends.
    pub rank: usize,
    /// The number of values that share a scale: a multiple of 8.
    pub chunk: usize,
    /// The momentum that `dgc` applies before it sends; the optimizer's must be 0 then.
    pub momentum: f64,
    /// Steps over which the density of `dgc` falls from a quarter.
    pub warm_up: u64,
    /// The seed of random numbers.
    pub seed: u64,
}

impl Default for CodecSettings {
    /// None, and otherwise 1 % of the entries, rank 2, and chunks of 256.
    fn default() -> Self {
        Self { kind: CodecKind::None, density: 0.01, rank: 2, chunk: 256, momentum: 0.9, warm_up: 0, seed: 0 }
    }
}

impl From<CodecKind> for CodecSettings {
    fn from(kind: CodecKind) -> Self {
        Self { kind, ..Self::default() }
    }
}

impl CodecSettings {
    /// A codec that has kept nothing yet; none where gradients travel as they are.
    ///
    /// # Errors
    /// [`CodecError::Codec`] if a number makes no sense.
    pub fn codec(&self) -> Result<Option<Arc<dyn GradCodec>>> {
        let Self { kind, density, rank, chunk, seed, .. } = *self;
        let wrong = |what: String| Err(CodecError::codec(kind.name(), what));
        if !(density > 0.0 && density <= 1.0) {
            return wrong(format!("cannot send a part of {density}; give a density above 0 and at most 1"));
        }
        if rank == 0 {
            return wrong("has products of rank 0; give at least 1".to_owned());
        }
        if chunk == 0 || !chunk.is_multiple_of(8) {
            return wrong(format!("has chunks of {chunk}; give a multiple of 8"));
        }
        if !(0.0..1.0).contains(&self.momentum) {
            return wrong(format!("has a momentum of {}; give at least 0 and less than 1", self.momentum));
        }
        let chunks = |kind, memory| -> Arc<dyn GradCodec> {
            Arc::new(TwoShot::new(Chunks::new(ChunkFormat { kind, chunk }), memory, seed))
        };
        let momentum = Momentum { factor: self.momentum as f32, warm_up: self.warm_up };
        Ok(Some(match kind {
            CodecKind::None => return Ok(None),
            CodecKind::Bf16 => Arc::new(Bf16),
            CodecKind::Int8 => chunks(ChunkKind::Int8, StateKind::Nothing),
            CodecKind::Int4 => chunks(ChunkKind::Int4, StateKind::Nothing),
            CodecKind::Qsgd => chunks(ChunkKind::Qsgd, StateKind::Count),
            CodecKind::Sign => chunks(ChunkKind::Sign, StateKind::Errors),
            CodecKind::TopK => Arc::new(Sparse::top_k(density, ValueFormat::F32)),
            CodecKind::TopKInt8 => Arc::new(Sparse::top_k(density, ValueFormat::Int8(chunk))),
            CodecKind::Dgc => Arc::new(Sparse::dgc(density, momentum)),
            CodecKind::RandomK => Arc::new(RandomK::new(density, seed)),
            CodecKind::PowerSgd => Arc::new(PowerSgd::new(rank, seed)),
            CodecKind::Lossless => Arc::new(TwoShot::new(Lossless::new(), StateKind::Nothing, seed)),
        }))
    }
}
