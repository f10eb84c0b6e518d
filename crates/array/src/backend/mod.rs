//! Back ends: the operations on arrays that training needs.
//!
//! An op checks shapes and records; its arithmetic is one function of a back end. The CPU's back end is a
//! [`Context`](crate::Context), the threads and scratch memory of the kernels of `phalanx-kernels`. It computes with
//! candle's tensors, and is the default. An [`Array`] of another back end names it, so that models and optimizers
//! name none.
//!
//! A back end implements all families of operations, each a trait. Their functions have in common:
//!
//! - They return new arrays in memory of their own, unless they write to one (`to`).
//! - Arguments are contiguous: ops ensure it ([`Array::contiguous`]).
//! - Arithmetic on elements of 16 bits is in f32, rounded once.
//! - Only [`Transfers::to_host`], [`Transfers::from_host`] and the transfers that begin like them read numbers on the
//!   host, and only the first waits. Statistics, losses, norms and factors remain arrays until they are read.

mod accounts;
mod array;
mod attention;
mod batch_norms;
mod codecs;
mod compute_device;
mod convolutions;
mod cpu;
#[cfg(feature = "cuda")]
mod cuda;
mod elementwise;
mod gated;
mod images;
mod layerwise;
mod lookups;
mod losses;
mod low_rank;
mod memory;
mod norms;
mod outline;
mod pooling;
mod products;
mod random;
mod rotary;
mod shapes;
mod stopwatch;
mod transfers;
mod updates;

pub use accounts::{MemoryKind, counted_as};
pub use array::{Array, DeviceArray};
pub use attention::{
    Attention, AttentionBackward, AttentionGradients, AttentionHeads, AttentionInputs, AttentionMask,
    AttentionOperands, AttentionOutput, AttentionShape,
};
pub use batch_norms::{
    BatchNormBackward, BatchNormMaps, BatchNormPass, BatchNorms, FusedActivation, RunningStatistics,
};
pub use codecs::{ChunkCodecs, CodecQueue, DeviceCodecs, FeedbackCodecs, PackedMessages, SparseCodecs};
pub use compute_device::ComputeDevice;
pub use convolutions::{Conv2dShape, ConvBackward, ConvForward, ConvTranspose2dShape, Convolutions};
#[cfg(feature = "cuda")]
pub use cuda::{Cuda, CudaArray, CudaOptions, GraphReplay, LibrarySlice};
pub use elementwise::{BinaryOp, Elementwise, UnaryOp};
pub use gated::GatedUnits;
pub use images::{ImageBlend, ImagePreparation, Images, PLACE_NUMBERS};
pub use layerwise::{LambOptions, LayerwiseUpdates};
pub use lookups::Lookups;
pub use losses::{
    CrossEntropy, CrossEntropyOptions, CutCrossEntropy, ElementLoss, ElementLossInputs, KlInputs, Losses,
};
pub use low_rank::DeviceLowRank;
pub use memory::{Memory, Transfers};
pub use norms::{
    GroupShape, NormBackward, NormGrads, NormOutput, NormPass, Norms, RmsNormBackward, RmsNormGrads,
};
pub use outline::{OutlineArray, OutlineUsage, Outlines};
pub use pooling::{Pool2dShape, Pooling};
pub use products::{Factor, LinearProduct, LinearWeightGrad, MatrixProduct, Products, WeightLayout};
pub use random::{Dropout, Random, SamplePart};
pub use rotary::{RotaryAngles, RotaryEmbeddings};
pub use shapes::Shapes;
pub use stopwatch::Stopwatch;
pub use transfers::{Download, Upload};
pub use updates::{
    AdamOptions, AverageUpdate, EmaOptions, LOSS_SCALE_STATE, LionOptions, LossScaleOptions,
    LossScaleOutcome, LossScaleStep, ParamUpdate, ScaledStep, SgdOptions, Updates,
};

/// All operations of ops, losses and optimizers; see the module.
pub trait ArrayBackend:
    Transfers
    + Memory
    + Shapes
    + Elementwise
    + Products
    + Attention
    + GatedUnits
    + RotaryEmbeddings
    + Convolutions
    + Pooling
    + BatchNorms
    + Norms
    + Lookups
    + Images
    + Random
    + Losses
    + Updates
    + LayerwiseUpdates
    + std::fmt::Debug
    + Send
    + Sync
{
    /// The name for messages: "the CPU".
    fn name(&self) -> &'static str;

    /// False if arrays have no numbers that can be read, but shapes and types alone ([`Outlines`]). What depends on numbers, such as
    /// the rows of an expert, is assumed then.
    fn has_numbers(&self) -> bool {
        true
    }

    /// The codecs for gradients and parameters in a device's memory, if the device has any. The host's are encoded by
    /// the caller.
    fn codecs(&self) -> Option<&dyn DeviceCodecs> {
        None
    }
}

/// The memory for a gradient: an array of as many elements.
#[derive(Debug, Clone)]
pub struct Destination {
    /// The memory, flat or of the gradient's shape.
    pub array: Array,
    /// True to add the gradient; false to overwrite.
    pub add: bool,
}
