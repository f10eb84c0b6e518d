//! Gradients in the memory of a device, rounded for their way between ranks: no thread encodes them, the device does.

use candle_core::DType;
use phalanx_tensor::{FlatStorage, ParamBucket};

use crate::codec::{CodecKind, CodecScope, CodecWhen, GradCodec};
use crate::options::Options;
use crate::{Result, ShardingError};

/// What gradients are on their way, if a device rounds them.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Rounding(Option<DType>);

impl Rounding {
    /// What the codec among these options does on a device's computing stream: nothing if there is none, or the device's own codecs do it
    /// ([`GradCodec::works_on_devices`]), as they do where it is measured, or works between groups only.
    ///
    /// # Errors
    /// [`ShardingError::Codec`] if it works on processors only.
    pub(super) fn of(options: &Options) -> Result<Self> {
        let Some(codec) = options.codec.as_deref() else { return Ok(Self(None)) };
        let simple = options.codec_when == CodecWhen::Always && options.codec_scope == CodecScope::All;
        let rounded = codec.rounds_to().filter(|_| simple);
        if rounded.is_none() && !codec.works_on_devices() {
            let there = CodecKind::ALL.iter().filter(|kind| kind.works_on_devices());
            let names = there.map(|kind| kind.name()).collect::<Vec<_>>().join(", ");
            let problem = format!("encodes on processors; on GPUs there is {names}");
            return Err(ShardingError::codec(GradCodec::name(codec), problem));
        }
        Ok(Self(rounded))
    }

    /// Whether gradients are rounded.
    pub(super) fn rounds(self) -> bool {
        self.0.is_some()
    }

    /// What travels in place of gradients: themselves, or a rounded copy.
    pub(super) fn sent(self, param: &ParamBucket, gradients: &FlatStorage) -> Result<FlatStorage> {
        let Some(dtype) = self.0 else { return Ok(gradients.clone()) };
        let rounded = param.wire_buffer(gradients.len(), dtype)?;
        rounded.copy_from(gradients)?;
        Ok(rounded)
    }

    /// Where the sum of what travels arrives that goes to `sum`.
    pub(super) fn room(self, param: &ParamBucket, sum: &FlatStorage) -> Result<FlatStorage> {
        Ok(match self.0 {
            None => sum.clone(),
            Some(dtype) => param.wire_buffer(sum.len(), dtype)?,
        })
    }

    /// Makes what has arrived the sum.
    pub(super) fn received(self, arrived: &FlatStorage, sum: &FlatStorage) -> Result<()> {
        if self.rounds() { Ok(sum.copy_from(arrived)?) } else { Ok(()) }
    }

    /// Bytes of the rounded copies of gradients on their way.
    pub(super) fn bytes(self, sent: &FlatStorage) -> u64 {
        if self.rounds() { sent.bytes() as u64 } else { 0 }
    }
}
