//! What a tape is told from outside: how to compute, and who listens.

use std::sync::Arc;

use super::listener::Listener;
use crate::Context;
use crate::backend::Place;
use crate::group::ProcessGroup;
use crate::precision::Precision;
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
    /// Whether running statistics move towards those of this pass. Where a rank runs several parts of a batch apart from each other
    /// one of them moves them.
    pub moves_statistics: bool,
    /// Which blocks are recomputed in backward.
    pub recompute: Recompute,
    /// What products take and what activations are kept in.
    pub precision: Precision,
    /// Where ops that are given no array make theirs, such as noise. Others compute where their arrays lie.
    pub place: Place,
    /// Parameters whose names begin with one of these are constants in this pass, as in [`super::Tape::frozen`]: the networks
    /// of a training whose turn it is not.
    pub frozen: Arc<[String]>,
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
            moves_statistics: true,
            recompute: Recompute::Never,
            precision: Precision::F32,
            place: Place::host(),
            frozen: Arc::default(),
        }
    }

    /// Whether parameter `name` is a constant in this pass.
    pub(super) fn freezes(&self, name: &str) -> bool {
        self.frozen.iter().any(|start| name.starts_with(start.as_str()))
    }

    /// A session for evaluation on one rank.
    pub fn evaluation(context: Arc<Context>) -> Self {
        Self { training: false, ..Self::training(context, Key::new(0)) }
    }
}
