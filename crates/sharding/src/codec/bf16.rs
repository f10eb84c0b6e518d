//! Codecs: what gradients are on their way between ranks, if not the numbers themselves.

use std::fmt::Debug;
use std::ops::Range;
use std::sync::Arc;

use half::bf16;
use phalanx_collectives::{FlatBuffer, SliceMut};

use crate::strategy::ShardAxis;
use crate::{Result, ShardingError};

/// Bytes that a codec takes for some gradients.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CodecBytes {
    /// The message: what travels in their place.
    pub wire: u64,
    /// What the codec keeps for them from step to step, on every rank.
    pub state: u64,
}

/// Encodes gradients of f32 before they are summed over ranks, and decodes the sum.
///
/// Messages of all ranks are added up element by element in their own type. The engine encodes a bucket's gradients when they
/// are complete, on the thread that runs backward; the sum is decoded into the bucket's gradients, or into the shard that the
/// rank owns. Between groups of ranks the shards are encoded again.
pub trait GradCodec: Debug + Send + Sync {
    /// What it is called.
    fn name(&self) -> &'static str;

    /// Makes a message of gradients. `slot` is the same number at every step for the same gradients, so that a codec can keep
    /// something for each, such as the errors that it made and is to make good.
    ///
    /// # Errors
    /// [`ShardingError::Codec`] if what is kept for the slot is of other gradients.
    fn encode(&self, slot: usize, gradients: &[f32]) -> Result<Box<dyn FlatBuffer>>;

    /// Overwrites `gradients` by elements `range` of a sum of messages; both have the same number.
    ///
    /// # Errors
    /// If the message cannot be opened.
    fn decode(&self, sum: &mut dyn FlatBuffer, range: Range<usize>, gradients: &mut [f32]) -> Result<()>;

    /// What this rank keeps from step to step, by names that the codec chooses: what a checkpoint holds of it.
    fn state(&self) -> Vec<(String, Vec<f32>)>;

    /// Takes over what a rank of the same number, among as many, has saved.
    ///
    /// # Errors
    /// [`ShardingError::Codec`] if it is not this codec's.
    fn load_state(&self, state: Vec<(String, Vec<f32>)>) -> Result<()>;

    /// What `elements` gradients take.
    fn bytes(&self, elements: u64) -> CodecBytes;
}

impl dyn GradCodec {
    /// Bytes that a rank keeps from step to step for a bucket of `len` elements, of which it owns `owned`. Between groups the
    /// shards are encoded too.
    pub(crate) fn kept(&self, len: usize, owned: usize, axis: ShardAxis) -> u64 {
        let crossing = if axis == ShardAxis::Group { owned } else { 0 };
        [len, crossing].iter().map(|elements| self.bytes(*elements as u64).state).sum()
    }
}

/// Sends gradients as bf16: half of the bytes. Every rank's gradient is rounded to bf16 and the sums are, which costs
/// relative errors of 2⁻⁹ for each; the gradients are f32 again before the optimizer sees them. It keeps nothing.
/// (As `bf16_compress_hook` of PyTorch's DistributedDataParallel does.)
#[derive(Debug, Clone, Copy, Default)]
pub struct Bf16;

impl GradCodec for Bf16 {
    fn name(&self) -> &'static str {
        "bf16"
    }

    fn encode(&self, _slot: usize, gradients: &[f32]) -> Result<Box<dyn FlatBuffer>> {
        Ok(Box::new(gradients.iter().map(|value| bf16::from_f32(*value)).collect::<Vec<_>>()))
    }

    fn decode(&self, sum: &mut dyn FlatBuffer, range: Range<usize>, gradients: &mut [f32]) -> Result<()> {
        let open = sum.with_slice_mut(&mut |slice| {
            let SliceMut::BF16(sum) = slice else { return };
            for (wide, narrow) in gradients.iter_mut().zip(&sum[range.clone()]) {
                *wide = narrow.to_f32();
            }
        });
        open.map_err(|error| ShardingError::codec(self.name(), error.to_string()))
    }

    fn state(&self) -> Vec<(String, Vec<f32>)> {
        Vec::new()
    }

    fn load_state(&self, state: Vec<(String, Vec<f32>)>) -> Result<()> {
        match state.first() {
            None => Ok(()),
            Some((name, _)) => {
                Err(ShardingError::codec(self.name(), format!("keeps nothing, but was given `{name}`")))
            }
        }
    }

    fn bytes(&self, elements: u64) -> CodecBytes {
        CodecBytes { wire: 2 * elements, state: 0 }
    }
}

/// The codecs by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CodecKind {
    /// The numbers themselves.
    #[default]
    None,
    /// [`Bf16`]: rounded to bf16, half of the bytes.
    Bf16,
}

impl CodecKind {
    /// What there is to choose from.
    pub const ALL: &'static [Self] = &[Self::None, Self::Bf16];

    /// A codec of this kind that has kept nothing yet; none where gradients travel as they are.
    pub fn codec(self) -> Option<Arc<dyn GradCodec>> {
        match self {
            Self::None => None,
            Self::Bf16 => Some(Arc::new(Bf16)),
        }
    }
}

impl std::fmt::Display for CodecKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::None => "none",
            Self::Bf16 => "bf16",
        })
    }
}

impl std::str::FromStr for CodecKind {
    type Err = ShardingError;

    fn from_str(text: &str) -> Result<Self> {
        let found = Self::ALL.iter().find(|kind| kind.to_string() == text);
        found.copied().ok_or_else(|| ShardingError::codec(text, "is unknown; there is: none, bf16"))
    }
}
