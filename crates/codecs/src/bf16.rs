//! Gradients as bf16.

use candle_core::DType;
use half::bf16;

use crate::Result;
use crate::bucket::{Bucket, SumGroup, SumPlacement};
use crate::peers::Peers;
use crate::push::PushCodec;
use crate::quantisers::{Quantiser, bad_message};
use crate::slice::FlatSlice;
use crate::{CodecBytes, CodecState, GradCodec, nothing_kept};

/// Sends gradients as bf16: half of the bytes. Every rank's gradient is rounded to bf16 and the sums are, which costs
/// relative errors of 2⁻⁸ for each; the gradients are f32 again before the optimizer sees them. It keeps nothing.
/// (As `bf16_compress_hook` of PyTorch's DistributedDataParallel does.)
#[derive(Debug, Clone, Copy, Default)]
pub struct Bf16;

impl GradCodec for Bf16 {
    fn name(&self) -> &'static str {
        "bf16"
    }

    fn reduce(
        &self,
        _: &Bucket,
        gradients: FlatSlice<'_>,
        keeps: SumPlacement,
        peers: &mut Peers<'_>,
    ) -> Result<()> {
        let gradients = match gradients {
            FlatSlice::Host(gradients) => gradients,
            FlatSlice::Device(gradients) => return gradients.sum_rounded(DType::BF16, keeps, peers),
        };
        let mut message: Vec<bf16> = gradients.iter().map(|value| bf16::from_f32(*value)).collect();
        peers.sum(message.as_mut_slice(), keeps)?;
        let kept = match keeps {
            SumPlacement::All => 0..message.len(),
            _ => keeps.part(message.len(), peers.ranks(), peers.rank()),
        };
        for (wide, narrow) in gradients[kept.clone()].iter_mut().zip(&message[kept]) {
            *wide = narrow.to_f32();
        }
        Ok(())
    }

    fn flush(&self, _: &Bucket, _: &SumGroup, _: FlatSlice<'_>) -> Result<()> {
        Ok(())
    }

    fn works_on_devices(&self) -> bool {
        true
    }

    fn rounds_to(&self) -> Option<DType> {
        Some(DType::BF16)
    }

    fn state(&self) -> Result<CodecState> {
        Ok(Vec::new())
    }

    fn load_state(&self, state: CodecState) -> Result<()> {
        nothing_kept(self.name(), &state)
    }

    fn push(&self) -> Option<PushCodec> {
        Some(PushCodec::new(Bf16Quantiser, &[], 0))
    }

    fn bytes(&self, bucket: &Bucket, among: &SumGroup) -> CodecBytes {
        let message = 2 * bucket.len as u64;
        CodecBytes { sent: among.summed(message), message, state: 0 }
    }
}

/// Numbers of bf16 in place of those of f32.
#[derive(Debug)]
pub(crate) struct Bf16Quantiser;

impl Quantiser for Bf16Quantiser {
    fn name(&self) -> &'static str {
        "bf16"
    }

    fn rounds_to(&self) -> Option<DType> {
        Some(DType::BF16)
    }

    fn message_len(&self, len: usize) -> usize {
        2 * len
    }

    fn encode(&self, values: &[f32], _: u64, out: &mut Vec<u8>) -> Result<()> {
        let start = out.len();
        out.resize(start + self.message_len(values.len()), 0);
        let message = out[start..].as_chunks_mut().0;
        message
            .iter_mut()
            .zip(values)
            .for_each(|(bytes, value)| *bytes = bf16::from_f32(*value).to_le_bytes());
        Ok(())
    }

    fn decode(&self, message: &[u8], out: &mut [f32], add: bool) -> Result<()> {
        if message.len() != 2 * out.len() {
            return Err(bad_message("bf16", message, out.len()));
        }
        for (out, bytes) in out.iter_mut().zip(message.as_chunks::<2>().0) {
            let value = bf16::from_le_bytes(*bytes).to_f32();
            *out = if add { *out + value } else { value };
        }
        Ok(())
    }
}
