//! Some gradients that are drawn anew at every step, alike on all ranks, with what was not sent kept for later.

use phalanx_kernels::{clear_indices, gather_indices, random_indices, scatter_add};

use super::bucket::{Among, Bucket, Keeps};
use super::entries::entries;
use super::peers::Peers;
use super::push::{PushCodec, RESIDUAL};
use super::quantisers::{Quantiser, numbers, put_numbers, wrong};
use super::slots::{Kept, STEP, STEP_BYTES, Slots, finite, mixed};
use super::{CodecBytes, CodecState, GradCodec};
use crate::Result;

const NAME: &str = "randomk";

/// Sends the gradients at indices that all ranks draw alike, so that no index travels: the values are summed as they are.
#[derive(Debug)]
pub(super) struct RandomK {
    density: f64,
    seed: u64,
    slots: Slots,
}

impl RandomK {
    pub(super) fn new(density: f64, seed: u64) -> Self {
        Self { density, seed, slots: Slots::new(NAME, &[RESIDUAL, STEP]) }
    }

    fn sum(
        &self,
        kept: &mut Kept,
        bucket: &Bucket,
        gradients: &mut [f32],
        keeps: Keeps,
        peers: &mut Peers<'_>,
    ) -> Result<()> {
        let (len, rank, ranks) = (gradients.len(), peers.rank(), peers.ranks());
        let mut residual = self.slots.take(bucket.slot, kept, RESIDUAL, len)?;
        let indices = random_indices(
            mixed(&[self.seed, bucket.slot as u64, kept.count()]),
            len,
            entries(self.density, len),
        );
        if finite(gradients) {
            gradients.iter_mut().zip(&residual).for_each(|(gradient, residual)| *gradient += residual);
            residual.copy_from_slice(gradients);
            clear_indices(&indices, &mut residual)?;
        } else {
            gradients.fill(f32::NAN);
        }
        kept.give(RESIDUAL, residual);
        let mut values = vec![0.0; indices.len()];
        gather_indices(gradients, &indices, &mut values)?;
        if keeps == Keeps::All {
            peers.sum(values.as_mut_slice(), keeps)?;
            gradients.fill(0.0);
            return Ok(scatter_add(&indices, &values, gradients)?);
        }
        let cut = |bound: usize| indices.partition_point(|index| (*index as usize) < bound);
        let range = |rank: usize| {
            let part = keeps.part(len, ranks, rank);
            cut(part.start)..cut(part.end)
        };
        let message = |to: usize| {
            let mut message = Vec::new();
            put_numbers(&values[range(to)], &mut message);
            message
        };
        let coming = peers.all_to_all((0..ranks).map(message).collect())?;
        gradients[keeps.part(len, ranks, rank)].fill(0.0);
        for message in &coming {
            let values = numbers(message);
            if values.len() != range(rank).len() {
                return Err(wrong(NAME, message, range(rank).len()));
            }
            scatter_add(&indices[range(rank)], &values, gradients)?;
        }
        Ok(())
    }
}

impl GradCodec for RandomK {
    fn name(&self) -> &'static str {
        NAME
    }

    fn reduce(
        &self,
        bucket: &Bucket,
        gradients: &mut [f32],
        keeps: Keeps,
        peers: &mut Peers<'_>,
    ) -> Result<()> {
        self.slots.with(bucket.slot, |kept| self.sum(kept, bucket, gradients, keeps, peers))
    }

    fn flush(&self, bucket: &Bucket, _: &Among, gradients: &mut [f32]) -> Result<()> {
        self.slots.flush(bucket.slot, RESIDUAL, gradients)
    }

    fn state(&self) -> CodecState {
        self.slots.state()
    }

    fn load_state(&self, state: CodecState) -> Result<()> {
        self.slots.load(state)
    }

    fn push(&self) -> Option<PushCodec> {
        Some(PushCodec::new(Drawn { density: self.density }, &[RESIDUAL, STEP], self.seed))
    }

    fn bytes(&self, bucket: &Bucket, among: &Among) -> CodecBytes {
        let entries = entries(self.density, bucket.len);
        let message = 4 * entries as u64;
        let sent = match among.keeps {
            Keeps::All => among.summed(message),
            // At most: of a run of indices that two parts share either may get the one that is drawn.
            Keeps::Shard | Keeps::Leader => {
                let runs = |part: std::ops::Range<usize>| {
                    let first = (part.start as u128 * entries as u128 / bucket.len.max(1) as u128) as usize;
                    let last =
                        (part.end as u128 * entries as u128).div_ceil(bucket.len.max(1) as u128) as usize;
                    if part.is_empty() { 0 } else { (last.min(entries) - first) as u64 }
                };
                among.dealt(|rank| 4 * runs(among.keeps.part(bucket.len, among.ranks, rank)))
            }
        };
        CodecBytes { sent, message, state: 4 * bucket.len as u64 + STEP_BYTES }
    }
}

/// Some numbers in place of all, and what their indices are drawn from.
#[derive(Debug)]
struct Drawn {
    density: f64,
}

impl Quantiser for Drawn {
    fn name(&self) -> &'static str {
        NAME
    }

    fn message_len(&self, len: usize) -> usize {
        8 + 4 * entries(self.density, len)
    }

    fn encode(&self, values: &[f32], draw: u64, out: &mut Vec<u8>) -> Result<()> {
        let indices = random_indices(draw, values.len(), entries(self.density, values.len()));
        let mut drawn = vec![0.0; indices.len()];
        gather_indices(values, &indices, &mut drawn)?;
        out.extend(draw.to_le_bytes());
        put_numbers(&drawn, out);
        Ok(())
    }

    fn decode(&self, message: &[u8], out: &mut [f32], add: bool) -> Result<()> {
        if message.len() != self.message_len(out.len()) {
            return Err(wrong(NAME, message, out.len()));
        }
        let (draw, values) =
            message.split_first_chunk::<8>().ok_or_else(|| wrong(NAME, message, out.len()))?;
        let draw = u64::from_le_bytes(*draw);
        let indices = random_indices(draw, out.len(), entries(self.density, out.len()));
        if !add {
            out.fill(0.0);
        }
        Ok(scatter_add(&indices, &numbers(values), out)?)
    }
}
