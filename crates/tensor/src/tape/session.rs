//! The settings of a pass: arithmetic, randomness, listener.

use std::sync::Arc;

use super::arithmetic::ArithmeticCount;
use super::kept_weights::KeptWeights;
use super::listener::Listener;
use super::stage::StageRole;
use crate::Context;
use crate::Key;
use crate::Precision;
use crate::backend::ComputeDevice;
use crate::group::ProcessGroup;

/// The blocks that are recomputed in backward instead of saving their activations (activation checkpointing, Chen et
/// al. 2016).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Recompute {
    /// None: all activations are saved.
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

/// The ranks that compute parts of the same layers.
#[derive(Debug, Clone)]
pub struct TensorGroup {
    /// The ranks.
    pub ranks: Arc<dyn ProcessGroup>,
    /// True if each rank has some positions of every sequence between layers, in models that say where
    /// ([`crate::ops::split_sequence`]): of norms, residuals and their dropout it computes and keeps a part (Korthikanti et al. 2022).
    pub splits_sequences: bool,
    /// True if sums over the ranks may be under way while products are computed. It changes no bit.
    pub overlaps: bool,
}

impl From<Arc<dyn ProcessGroup>> for TensorGroup {
    /// Ranks that have all positions.
    fn from(ranks: Arc<dyn ProcessGroup>) -> Self {
        Self { ranks, splits_sequences: false, overlaps: true }
    }
}

/// The settings of one pass.
#[derive(Debug, Clone)]
pub struct Session {
    /// Threads and scratch memory of the kernels.
    pub context: Arc<Context>,
    /// True if layers behave as in training (batch statistics, dropout), false for evaluation.
    pub training: bool,
    /// The key of this step's noise and masks; equal on all ranks.
    pub key: Key,
    /// The position of this rank's first sample in the global batch. Noise is drawn by sample, so that the ranks
    /// together draw the same as one rank.
    pub sample_offset: usize,
    /// The listener of blocks and gradients.
    pub listener: Option<Arc<dyn Listener>>,
    /// The ranks of the global batch, for ops that depend on all of it: synchronised batch norm and the contrastive
    /// loss. `None` if this rank has the whole batch.
    pub batch_group: Option<Arc<dyn ProcessGroup>>,
    /// The ranks that compute parts of the same layers, from the same samples. `None` if this rank computes whole layers; a group
    /// of this rank alone lets every op check the placements of its inputs.
    pub tensor_group: Option<TensorGroup>,
    /// True to update running statistics. If a rank runs several parts of a batch separately, one of them updates the
    /// statistics.
    pub moves_statistics: bool,
    /// The blocks that are recomputed in backward.
    pub recompute: Recompute,
    /// The types of products and of activations.
    pub precision: Precision,
    /// The device of arrays without an array argument, such as noise. Other ops compute on the device of their
    /// arrays.
    pub device: ComputeDevice,
    /// Prefixes of parameters that are constants in this pass, as in [`super::Tape::frozen`]: the networks of a GAN
    /// that are not trained in this step.
    pub frozen: Arc<[String]>,
    /// Weights in bf16, of a model whose weights do not change while the session lasts.
    pub kept_weights: Option<Arc<KeptWeights>>,
    /// Counts the arithmetic of ops.
    pub arithmetic: ArithmeticCount,
    /// The part that the pass plays in a pipeline; `None` if this rank computes all layers.
    pub stage: Option<StageRole>,
}

impl Session {
    /// Makes a session for training on one rank.
    pub fn training(context: Arc<Context>, key: Key) -> Self {
        Self {
            context,
            training: true,
            key,
            sample_offset: 0,
            listener: None,
            batch_group: None,
            tensor_group: None,
            moves_statistics: true,
            recompute: Recompute::Never,
            precision: Precision::F32,
            device: ComputeDevice::host(),
            frozen: Arc::default(),
            kept_weights: None,
            arithmetic: ArithmeticCount::default(),
            stage: None,
        }
    }

    /// The ranks that compute parts of the same layers, if there are any.
    pub(crate) fn tensor_ranks(&self) -> Option<&Arc<dyn ProcessGroup>> {
        self.tensor_group.as_ref().map(|group| &group.ranks)
    }

    /// True if parameter `name` is a constant in this pass.
    pub(super) fn freezes(&self, name: &str) -> bool {
        self.frozen.iter().any(|start| name.starts_with(start.as_str()))
    }

    /// Makes a session for evaluation on one rank.
    pub fn evaluation(context: Arc<Context>) -> Self {
        Self { training: false, ..Self::training(context, Key::new(0)) }
    }
}
