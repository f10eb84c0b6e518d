//! Gradient compression: codecs that sum gradients over ranks in fewer bytes.
//!
//! A [`GradCodec`] sums a bucket's gradients over the ranks: it encodes them, exchanges messages by the operations of [`Peers`],
//! and decodes. All ranks call it for the same buckets in the same order, and get the same bits. [`CodecSettings`] makes a codec by
//! name ([`CodecKind`]); your own codec implements the trait.
//!
//! - **Where.** Gradients lie on the host or in the memory of a GPU; a codec's steps work on either, as a [`FlatSlice`].
//! - **Which sums.** A [`ReductionRoute`] lists the sums of a bucket, inside of groups and between them, and which of them are coded.
//! - **Whether it pays.** A [`Trial`] measures the first steps with and without the codec, and all ranks decide together.
//! - **Parameter servers.** A [`PushCodec`] encodes the gradients that a worker sends to servers.
//! - **Parameters.** A [`RoundedGather`] gathers sharded parameters in fewer bytes ([`WeightRounding`]).
//! - **State.** Residuals and step counts of a codec are part of a checkpoint ([`CodecState`]).
//!
//! # Example
//!
//! Two ranks as threads sum two gradients as bf16, which these values survive:
//!
//! ```
//! use phalanx_codecs::{Bucket, CodecKind, CodecSettings, Peers, SumPlacement};
//! use phalanx_collectives::{Algorithm, threads};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
//! let ranks: Vec<_> = threads(2)?.into_iter().map(|comm| std::thread::spawn(move || {
//!     let codec = CodecSettings::from(CodecKind::Bf16).codec()?.expect("a codec");
//!     let bucket = Bucket { slot: 0, len: 2, matrices: Vec::new() };
//!     let mut gradients = [1.0_f32, comm.rank() as f32];
//!     let mut peers = Peers::new(&comm, Algorithm::Auto);
//!     codec.reduce(&bucket, gradients.as_mut_slice().into(), SumPlacement::All, &mut peers)?;
//!     Ok::<_, phalanx_codecs::CodecError>(gradients)
//! })).collect();
//! for rank in ranks {
//!     assert_eq!(rank.join().expect("no panic")?, [2.0, 1.0]);
//! }
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]

mod bf16;
mod bucket;
pub mod buffer;
mod entries;
mod error;
mod kind;
mod low_rank;
mod messages;
mod peers;
mod power_sgd;
mod push;
mod quantisers;
mod random_entries;
mod random_k;
mod rounded;
mod route;
mod slice;
mod slots;
mod sparse;
mod stream;
mod timer;
mod top_entries;
pub mod traffic;
mod trial;
mod two_shot;
mod weights;

pub use bf16::Bf16;
pub use bucket::{Bucket, MatrixRange, SumGroup, SumPlacement};
pub use error::{CodecError, Result};
pub use kind::{CodecKind, CodecSettings};
pub use peers::Peers;
pub use push::{EncodedBucket, PushCodec, ResidualUpdate};
pub use route::{BucketSum, CodecGroups, CodecScope, ReductionRoute};
pub use slice::{DeviceSlice, FlatSlice};
pub use stream::{CodecStream, PendingWork};
pub use timer::SumTimer;
pub use trial::{CodecVerdict, CodecWhen, SumMode, Trial};
pub use weights::{RoundedGather, WeightRounding};

use std::fmt::Debug;

use candle_core::DType;

/// The examples of this crate's README, as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

/// The state of a codec between steps: values by name.
pub type CodecState = Vec<(String, Vec<f32>)>;

/// Bytes that a codec takes for a bucket, on one rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CodecBytes {
    /// Bytes that the rank sends; an upper bound where they depend on the gradients.
    pub sent: u64,
    /// Messages in memory at once.
    pub message: u64,
    /// Bytes of state that the codec keeps between steps.
    pub state: u64,
}

/// Sums gradients of f32 over ranks in fewer bytes than they have.
///
/// All ranks get the same bits. If the gradients of a rank are not finite, the sum is not finite on any rank, and codecs leave
/// their state as it was: the step will be skipped.
pub trait GradCodec: Debug + Send + Sync {
    /// The codec's name.
    fn name(&self) -> &'static str;

    /// Replaces `gradients` by their sum over the ranks, as far as this rank keeps it; the rest is unspecified afterwards.
    /// Gradients on a device are summed on a stream of their own, while the device computes.
    ///
    /// # Errors
    /// [`CodecError::Codec`] if what is kept for the bucket is of other gradients, or the codec does not work where these lie; and
    /// those of communication.
    fn reduce(
        &self,
        bucket: &Bucket,
        gradients: FlatSlice<'_>,
        keeps: SumPlacement,
        peers: &mut Peers<'_>,
    ) -> Result<()>;

    /// Adds to this rank's gradients what was held back of earlier ones among these ranks, and keeps it no longer: they will travel as
    /// they are.
    ///
    /// # Errors
    /// [`CodecError::Codec`] if what is kept for the bucket is of other gradients.
    fn flush(&self, bucket: &Bucket, among: &SumGroup, gradients: FlatSlice<'_>) -> Result<()>;

    /// True if it also works on gradients in a device's memory.
    fn works_on_devices(&self) -> bool {
        false
    }

    /// The element type that gradients are rounded to, summed in and made f32 of again, if that is all that the codec does: then
    /// the computing stream of a device rounds them.
    fn rounds_to(&self) -> Option<DType> {
        None
    }

    /// Returns this rank's state for a checkpoint. Waits for state on a device.
    ///
    /// # Errors
    /// If a device fails.
    fn state(&self) -> Result<CodecState>;

    /// Takes over what a rank of the same number, among as many, has saved.
    ///
    /// # Errors
    /// [`CodecError::Codec`] if it is not this codec's.
    fn load_state(&self, state: CodecState) -> Result<()>;

    /// Returns the codec of gradients that a worker pushes to servers, with empty state. `None` if the codec needs other
    /// ranks.
    fn push(&self) -> Option<PushCodec> {
        None
    }

    /// Returns the bytes that a bucket needs.
    fn bytes(&self, bucket: &Bucket, among: &SumGroup) -> CodecBytes;
}

/// Refuses state that was saved by a codec which keeps some.
pub fn nothing_kept(name: &str, state: &CodecState) -> Result<()> {
    match state.first() {
        None => Ok(()),
        Some((found, _)) => Err(CodecError::codec(name, format!("keeps nothing, but was given `{found}`"))),
    }
}
