//! Rounding of parameters that are gathered or pulled.

use phalanx_kernels::{ChunkFormat, ChunkKind, scales_len};

use crate::peers::Peers;
use crate::push::PushCodec;
use crate::quantisers::{Chunks, Quantiser};
use crate::slice::{FlatSlice, RankSplit};
use crate::{CodecError, Result};
use crate::{SumPlacement, bf16};

/// The rounding of parameters that are gathered from shards or pulled from servers. All ranks compute with the same rounded
/// values; the owner of a shard, or the server, updates the exact values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WeightRounding {
    /// To bf16: half of the bytes, and errors of at most 2⁻⁸ of each.
    Bf16,
    /// To integers of 8 bits, with a scale for every `chunk` of them (as ZeRO++, Wang et al. 2023): a quarter of the bytes, and errors
    /// of at most 1/254 of the largest of a chunk.
    Int8 {
        /// Parameters that share a scale.
        chunk: usize,
    },
}

impl WeightRounding {
    /// The rounding's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Bf16 => "bf16",
            Self::Int8 { .. } => "int8",
        }
    }

    /// Returns the quantiser of the parameters.
    ///
    /// # Errors
    /// [`CodecError::Codec`] if a chunk has none.
    pub(crate) fn quantiser(self) -> Result<Box<dyn Quantiser>> {
        match self {
            Self::Bf16 => Ok(Box::new(bf16::Bf16Quantiser)),
            Self::Int8 { chunk: 0 } => {
                let problem = "weights share a scale in chunks of at least 1, not 0";
                Err(CodecError::codec(self.name(), problem))
            }
            Self::Int8 { chunk } => Ok(Box::new(Chunks::new(ChunkFormat { kind: ChunkKind::Int8, chunk }))),
        }
    }

    /// Returns the codec of parameters that workers pull.
    ///
    /// # Errors
    /// [`CodecError::Codec`] if a chunk has none.
    pub fn codec(self) -> Result<PushCodec> {
        Ok(PushCodec::boxed(self.quantiser()?, &[], 0))
    }

    /// Returns the bytes of a message of `len` parameters.
    pub fn message_len(self, len: usize) -> u64 {
        match self {
            Self::Bf16 => 2 * len as u64,
            Self::Int8 { chunk } => (len + 4 * scales_len(len, chunk)) as u64,
        }
    }
}

/// Gathers sharded parameters in fewer bytes (as ZeRO++, Wang et al. 2023). Every rank, the owner too, gets the same rounded values.
#[derive(Debug)]
pub struct RoundedGather {
    quantiser: Box<dyn Quantiser>,
}

impl RoundedGather {
    /// Makes the gather of a rounding.
    ///
    /// # Errors
    /// [`CodecError::Codec`] if a chunk has no elements.
    pub fn new(rounding: WeightRounding) -> Result<Self> {
        Ok(Self { quantiser: rounding.quantiser()? })
    }

    /// Gathers the shards of all ranks into `full`; `shard` is this rank's.
    ///
    /// # Errors
    /// Errors of communication.
    pub fn gather(
        &self,
        mut full: FlatSlice<'_>,
        shard: &FlatSlice<'_>,
        peers: &mut Peers<'_>,
    ) -> Result<()> {
        let (rank, ranks) = (peers.rank(), peers.ranks());
        if let (FlatSlice::Device(_), Some(dtype)) = (&full, self.quantiser.rounds_to()) {
            return full.gather_rounded(shard, dtype, peers);
        }
        let own = shard.encode_own(&*self.quantiser, (full.len(), rank, ranks), 0)?;
        let messages = peers.gather(own)?;
        full.decode(&*self.quantiser, &messages, RankSplit { keeps: SumPlacement::Shard, ranks })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_as_long_as_is_said_and_near_what_they_are_of() {
        let values: Vec<f32> = (0..101).map(|at| (at as f32 * 0.37).sin() * 0.1).collect();
        for (rounding, most) in
            [(WeightRounding::Bf16, 0.1 / 256.0), (WeightRounding::Int8 { chunk: 16 }, 0.1 / 254.0)]
        {
            let codec = rounding.codec().expect("sound");
            let message = codec.message(&values).expect("encodes");
            assert_eq!(message.len() as u64, rounding.message_len(values.len()), "{rounding:?}");
            let mut back = vec![0.0; values.len()];
            codec.decode(&message, &mut back).expect("its own");
            assert_ne!(back, values, "{rounding:?}");
            for (a, b) in values.iter().zip(&back) {
                assert!((a - b).abs() <= most * 1.001, "{rounding:?}: {b} for {a}");
            }
            let again = codec.message(&back).expect("encodes");
            let mut twice = vec![0.0; back.len()];
            codec.decode(&again, &mut twice).expect("its own");
            assert!(back.iter().zip(&twice).all(|(a, b)| (a - b).abs() <= 1e-7), "{rounding:?}");
        }
        assert!(WeightRounding::Int8 { chunk: 0 }.codec().is_err());
    }
}
