//! Codecs: how gradients become their sum over ranks in fewer bytes.
//!
//! A codec owns the way of a bucket's gradients from every rank's own to the sum of all: it encodes, exchanges messages with the
//! few operations of [`Peers`], and decodes. It runs on a thread beside the one that trains, bucket by bucket in the same order
//! on every rank. Where servers add gradients up a worker pushes them by a [`PushCodec`].

mod beside;
mod bf16;
mod bucket;
mod drawn;
mod entries;
mod kind;
mod messages;
mod numbers;
mod peers;
mod picked;
mod power_sgd;
mod push;
mod quantisers;
mod random_k;
mod rounded;
mod route;
mod slots;
mod sparse;
mod thin;
mod trial;
mod two_hops;
mod watch;
mod weights;

pub use beside::Beside;
pub(crate) use beside::Working;
pub use bf16::Bf16;
pub use bucket::{Among, Bucket, Keeps, MatrixRange};
pub use kind::{CodecKind, CodecSettings};
pub(crate) use numbers::Cut;
pub use numbers::{Numbers, OnDevice};
pub use peers::Peers;
pub use push::PushCodec;
pub(crate) use push::{Encoded, Left};
pub(crate) use quantisers::Quantiser;
pub use route::CodecScope;
pub(crate) use route::{Groups, Route, Sum};
pub use trial::{CodecVerdict, CodecWhen};
pub(crate) use trial::{Trial, Way};
pub(crate) use watch::Watch;
pub use weights::WeightRounding;

use std::fmt::Debug;

use candle_core::DType;

use crate::{Result, ShardingError};

/// What a codec keeps from step to step: numbers by names that it chooses.
pub type CodecState = Vec<(String, Vec<f32>)>;

/// Bytes that a codec takes for a bucket, on one rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CodecBytes {
    /// What the rank sends. Where that depends on the gradients, the most that it can be.
    pub sent: u64,
    /// Messages in memory at once.
    pub message: u64,
    /// What the codec keeps from step to step.
    pub state: u64,
}

/// Sums gradients of f32 over ranks in fewer bytes than they have.
///
/// All ranks get the same bits: whatever is lost on the way is lost on every rank alike. A rank whose gradients are not finite
/// makes the sum not finite on every rank, and codecs then keep what they have kept: the step will be given up.
pub trait GradCodec: Debug + Send + Sync {
    /// What it is called.
    fn name(&self) -> &'static str;

    /// Replaces `gradients` by their sum over the ranks, as far as this rank keeps it; the rest is unspecified afterwards. Those in a
    /// device's memory are summed beside what is computed.
    ///
    /// # Errors
    /// [`ShardingError::Codec`] if what is kept for the bucket is of other gradients, or the codec does not work where these lie; and
    /// those of communication.
    fn reduce(
        &self,
        bucket: &Bucket,
        gradients: Numbers<'_>,
        keeps: Keeps,
        peers: &mut Peers<'_>,
    ) -> Result<()>;

    /// Adds to this rank's gradients what was held back of earlier ones among these ranks, and keeps it no longer: they will travel as
    /// they are.
    ///
    /// # Errors
    /// [`ShardingError::Codec`] if what is kept for the bucket is of other gradients.
    fn flush(&self, bucket: &Bucket, among: &Among, gradients: Numbers<'_>) -> Result<()>;

    /// Whether it works on gradients in a device's memory, too.
    fn works_on_devices(&self) -> bool {
        false
    }

    /// The element type that gradients are rounded to, summed in and made f32 of again, if that is all that the codec does: then
    /// the computing stream of a device rounds them.
    fn rounds_to(&self) -> Option<DType> {
        None
    }

    /// What this rank keeps from step to step: what a checkpoint holds of it. What lies on a device is waited for.
    ///
    /// # Errors
    /// If a device fails.
    fn state(&self) -> Result<CodecState>;

    /// Takes over what a rank of the same number, among as many, has saved.
    ///
    /// # Errors
    /// [`ShardingError::Codec`] if it is not this codec's.
    fn load_state(&self, state: CodecState) -> Result<()>;

    /// How one rank's gradients travel so where servers add them up and nobody else has to agree, if that can be; it has kept
    /// nothing yet.
    fn push(&self) -> Option<PushCodec> {
        None
    }

    /// What a bucket takes.
    fn bytes(&self, bucket: &Bucket, among: &Among) -> CodecBytes;
}

/// Refuses state that was saved by a codec which keeps some.
pub(crate) fn nothing_kept(name: &str, state: &CodecState) -> Result<()> {
    match state.first() {
        None => Ok(()),
        Some((found, _)) => {
            Err(ShardingError::codec(name, format!("keeps nothing, but was given `{found}`")))
        }
    }
}
