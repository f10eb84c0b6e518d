//! The seam under the ops: what a processor must be able to do with arrays so that this crate trains on it.
//!
//! An op checks shapes and records; its arithmetic is one function of a back end. The CPU's back end is a
//! [`Context`](crate::Context), the threads and scratch memory that the kernels of `phalanx-kernels` run on. It computes with
//! candle's tensors, and serves wherever nobody names another. An [`Array`] of another back end brings that along, so that
//! models and optimizers name none.
//!
//! A back end is the sum of its families, each a trait of its own. What the functions have in common:
//!
//! - They give new arrays, in memory that nobody else holds, except where they say that they write to one (`to`).
//! - Arrays that they are given are contiguous: ops see to it ([`Array::contiguous`]).
//! - Elements of 16 bits are computed with in f32, and rounded once.
//! - None waits for the host, and none reads a number there, but [`Memory::to_host`] and [`Memory::from_host`] and what begins as
//!   they do. Statistics, losses, norms and factors are arrays until somebody asks.

mod array;
mod arriving;
mod batch_norms;
mod codecs;
mod convolutions;
mod cpu;
#[cfg(feature = "cuda")]
mod cuda;
mod elementwise;
mod images;
mod lookups;
mod losses;
mod low_rank;
mod memory;
mod norms;
mod place;
mod pooling;
mod products;
mod random;
mod shapes;
mod stopwatch;
mod updates;

pub use array::{Array, DeviceArray};
pub use arriving::{Arriving, Sent};
pub use batch_norms::{BatchNormBackward, BatchNormMaps, BatchNormPass, BatchNorms, FusedActivation};
pub use codecs::{DeviceCodecs, PackedMessages};
pub use convolutions::{Conv2dShape, ConvBackward, ConvTranspose2dShape, Convolutions};
#[cfg(feature = "cuda")]
pub use cuda::{Cuda, CudaArray, CudaOptions, Lent, Replay};
pub use elementwise::{BinaryOp, Elementwise, UnaryOp};
pub use images::{ImagePreparation, Images};
pub use lookups::Lookups;
pub use losses::{ElementLoss, Losses};
pub use low_rank::DeviceLowRank;
pub use memory::Memory;
pub use norms::{NormBackward, NormGrads, Normed, Norms};
pub use place::Place;
pub(crate) use place::{MemoryKind, counted_as};
pub use pooling::{Pool2dShape, Pooling};
pub use products::{Attended, AttentionShape, Factor, Products};
pub use random::Random;
pub use shapes::Shapes;
pub use stopwatch::Stopwatch;
pub use updates::{
    AdamOptions, EmaOptions, LOSS_SCALE_STATE, LossScaleOptions, ScaledStep, SgdOptions, Updates,
};

/// Everything that ops, losses and optimizers compute by; see the module.
pub trait ArrayBackend:
    Memory
    + Shapes
    + Elementwise
    + Products
    + Convolutions
    + Pooling
    + BatchNorms
    + Norms
    + Lookups
    + Images
    + Random
    + Losses
    + Updates
    + std::fmt::Debug
    + Send
    + Sync
{
    /// What messages call it: "the CPU".
    fn name(&self) -> &'static str;

    /// What encodes gradients and parameters in a device's memory on their way between ranks, if there is such a thing; the host's
    /// are encoded by whoever sends them.
    fn codecs(&self) -> Option<&dyn DeviceCodecs> {
        None
    }
}

/// Where a gradient is to be written: an array of as many elements.
#[derive(Debug, Clone)]
pub struct Destination {
    /// The memory, flat or of the gradient's shape.
    pub array: Array,
    /// Whether the gradient is added to what is there; otherwise all of it is overwritten.
    pub add: bool,
}
