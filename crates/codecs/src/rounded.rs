//! Numbers of a device as elements of fewer bits, and back.

use std::ops::Range;

use candle_core::DType;
use phalanx_tensor::FlatStorage;

use crate::Result;
use crate::bucket::SumPlacement;
use crate::buffer::InPlace;
use crate::peers::Peers;
use crate::slice::{DeviceSlice, FlatSlice, mixed_memory};

impl DeviceSlice {
    /// Sums them over the ranks as elements of another type, each rounded once, as the sums are.
    pub(crate) fn sum_rounded(self, dtype: DType, keeps: SumPlacement, peers: &mut Peers<'_>) -> Result<()> {
        let Self { flat, stream } = self;
        let narrow = stream.room(flat.len(), dtype)?;
        stream.codecs()?.convert(narrow.array(), flat.array())?;
        peers.sum(&mut InPlace::of_codecs(narrow.clone())?, keeps)?;
        let kept = match keeps {
            SumPlacement::All => 0..flat.len(),
            _ => keeps.part(flat.len(), peers.ranks(), peers.rank()),
        };
        convert(&stream, (&flat, kept.clone()), (&narrow, kept))
    }
}

impl FlatSlice<'_> {
    /// Gathers the parts of all ranks, of which `own` is this one's, as elements of another type, on a device. They are rounded once, the
    /// rank's own too.
    pub(crate) fn gather_rounded(
        &mut self,
        own: &FlatSlice<'_>,
        dtype: DType,
        peers: &mut Peers<'_>,
    ) -> Result<()> {
        let (Self::Device(DeviceSlice { flat, stream }), FlatSlice::Device(own)) = (self, own) else {
            return Err(mixed_memory());
        };
        let narrow = stream.room(flat.len(), dtype)?;
        let part = SumPlacement::Shard.part(flat.len(), peers.ranks(), peers.rank());
        convert(stream, (&narrow, part), (&own.flat, 0..own.flat.len()))?;
        let all = DeviceSlice { flat: narrow.clone(), stream: stream.clone() };
        peers.bring_together(&mut FlatSlice::Device(all))?;
        convert(stream, (flat, 0..flat.len()), (&narrow, 0..narrow.len()))
    }
}

/// Overwrites some elements by as many others, of another type.
fn convert(
    stream: &crate::CodecStream,
    (to, places): (&FlatStorage, Range<usize>),
    (from, range): (&FlatStorage, Range<usize>),
) -> Result<()> {
    if range.is_empty() {
        return Ok(());
    }
    Ok(stream.codecs()?.convert(to.narrow(places)?.array(), from.narrow(range)?.array())?)
}
