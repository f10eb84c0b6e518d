//! Some gradients that are drawn anew at every step, alike on all ranks, with what was not sent kept for later.

use phalanx_kernels::{gather_indices, mixed, random_indices, scatter_add};

use crate::Result;
use crate::bucket::{Bucket, SumGroup, SumPlacement};
use crate::entries::entries;
use crate::peers::Peers;
use crate::push::{PushCodec, RESIDUAL};
use crate::quantisers::{Quantiser, bad_message, numbers, put_numbers};
use crate::slice::{FlatSlice, RankSplit, StateBuffer};
use crate::slots::{BucketState, STEP, STEP_BYTES, Slots};
use crate::{CodecBytes, CodecState, GradCodec};

const NAME: &str = "randomk";

/// Sends the gradients at indices that all ranks draw alike, so that no index travels: the values are summed as they are.
#[derive(Debug)]
pub(crate) struct RandomK {
    density: f64,
    seed: u64,
    slots: Slots,
}

impl RandomK {
    pub(crate) fn new(density: f64, seed: u64) -> Self {
        Self { density, seed, slots: Slots::new(NAME, &[RESIDUAL, STEP]) }
    }

    fn sum(
        &self,
        kept: &mut BucketState,
        bucket: &Bucket,
        gradients: &mut FlatSlice<'_>,
        keeps: SumPlacement,
        peers: &mut Peers<'_>,
    ) -> Result<()> {
        let (len, rank, ranks) = (gradients.len(), peers.rank(), peers.ranks());
        let mut residual = self.slots.take(bucket.slot, kept, RESIDUAL, gradients)?;
        let draw = mixed(&[self.seed, bucket.slot as u64, kept.count()]);
        let drawn = gradients.draw(draw, entries(self.density, len));
        let sound = gradients.feed_back(&residual)?;
        let mut values = drawn.take(gradients)?;
        drawn.keep_rest(gradients, &sound, &mut residual)?;
        kept.give(RESIDUAL, residual);
        let own = keeps.part(len, ranks, rank);
        if keeps == SumPlacement::All {
            peers.add(&mut values.numbers(gradients)?, keeps)?;
            gradients.clear()?;
            return drawn.put(&values, (0..drawn.len(), 0..len), gradients);
        }
        let parts = drawn.parts(len, RankSplit { keeps, ranks });
        let coming = peers.deal_numbers(NAME, &values, &parts, gradients)?;
        gradients.part(own.clone())?.clear()?;
        let put = |values: &StateBuffer| drawn.put(values, (parts[rank].clone(), own.clone()), gradients);
        coming.iter().try_for_each(put)
    }
}

impl GradCodec for RandomK {
    fn name(&self) -> &'static str {
        NAME
    }

    fn reduce(
        &self,
        bucket: &Bucket,
        mut gradients: FlatSlice<'_>,
        keeps: SumPlacement,
        peers: &mut Peers<'_>,
    ) -> Result<()> {
        self.slots.with(bucket.slot, |kept| self.sum(kept, bucket, &mut gradients, keeps, peers))
    }

    fn flush(&self, bucket: &Bucket, _: &SumGroup, mut gradients: FlatSlice<'_>) -> Result<()> {
        self.slots.flush(bucket.slot, RESIDUAL, &mut gradients)
    }

    fn works_on_devices(&self) -> bool {
        true
    }

    fn state(&self) -> Result<CodecState> {
        self.slots.state()
    }

    fn load_state(&self, state: CodecState) -> Result<()> {
        self.slots.load(state)
    }

    fn push(&self) -> Option<PushCodec> {
        Some(PushCodec::new(RandomKQuantiser { density: self.density }, &[RESIDUAL, STEP], self.seed))
    }

    fn bytes(&self, bucket: &Bucket, among: &SumGroup) -> CodecBytes {
        let entries = entries(self.density, bucket.len);
        let message = 4 * entries as u64;
        let sent = match among.keeps {
            SumPlacement::All => among.summed(message),
            // At most: of a run of indices that two parts share either may get the one that is drawn.
            SumPlacement::Shard | SumPlacement::Root => {
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
struct RandomKQuantiser {
    density: f64,
}

impl Quantiser for RandomKQuantiser {
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
            return Err(bad_message(NAME, message, out.len()));
        }
        let (draw, values) =
            message.split_first_chunk::<8>().ok_or_else(|| bad_message(NAME, message, out.len()))?;
        let draw = u64::from_le_bytes(*draw);
        let indices = random_indices(draw, out.len(), entries(self.density, out.len()));
        if !add {
            out.fill(0.0);
        }
        Ok(scatter_add(&indices, &numbers(values), out)?)
    }
}
