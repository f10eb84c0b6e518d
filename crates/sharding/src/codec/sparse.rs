//! The largest gradients alone, with what was not sent kept for later: top-k with error feedback, and Deep Gradient Compression.

use std::sync::Arc;

use phalanx_kernels::{Context, accumulate_momentum, clear_indices, gather_indices, scatter_add, top_k};

use super::bucket::{Among, Bucket, Keeps};
use super::entries::{Entries, Largest, Values, entries};
use super::peers::Peers;
use super::push::{PushCodec, RESIDUAL};
use super::slots::{Kept, STEP, STEP_BYTES, Slots, finite};
use super::{CodecBytes, CodecState, GradCodec};
use crate::Result;

/// The densities that Deep Gradient Compression begins with, for equal parts of its warm-up (Lin et al. 2018, section 3.3).
const WARM_UP: [f64; 4] = [0.25, 0.0625, 0.015_625, 0.004];

/// What is kept for Deep Gradient Compression: momentum, and the sum of it that was not sent.
const VELOCITY: &str = "velocity";
const SUM: &str = "sum";

/// Momentum that is applied before sending.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Momentum {
    pub(super) factor: f32,
    /// Sums over which the density falls.
    pub(super) warm_up: u64,
}

/// Sends the entries of largest magnitude, each with its index.
#[derive(Debug)]
pub(super) struct Sparse {
    name: &'static str,
    density: f64,
    wire: Entries,
    momentum: Option<Momentum>,
    slots: Slots,
    context: Context,
}

impl Sparse {
    /// Entries of whatever has accumulated.
    pub(super) fn top_k(density: f64, values: Values) -> Self {
        let name = if values == Values::Plain { "topk" } else { "topk-int8" };
        Self {
            name,
            density,
            wire: Entries { codec: name, values, context: Arc::new(Context::new(1)) },
            momentum: None,
            slots: Slots::new(name, &[RESIDUAL]),
            context: Context::new(1),
        }
    }

    /// Entries of accumulated momentum.
    pub(super) fn dgc(density: f64, momentum: Momentum) -> Self {
        let slots = Slots::new("dgc", &[VELOCITY, SUM, STEP]);
        Self { name: "dgc", momentum: Some(momentum), slots, ..Self::top_k(density, Values::Plain) }
    }

    /// How many of `len` gradients are sent at the end of a warm-up.
    fn entries(&self, len: usize) -> usize {
        entries(self.density, len)
    }

    /// What is to be sent goes to `gradients`, with everything that has waited.
    fn accumulate(&self, kept: &mut Kept, slot: usize, gradients: &mut [f32]) -> Result<Accumulated> {
        let len = gradients.len();
        let sound = finite(gradients);
        let held = match self.momentum {
            None => {
                let residual = self.slots.take(slot, kept, RESIDUAL, len)?;
                gradients.iter_mut().zip(&residual).for_each(|(gradient, residual)| *gradient += residual);
                Accumulated { sound, first: residual, velocity: Vec::new() }
            }
            Some(momentum) => {
                let mut velocity = self.slots.take(slot, kept, VELOCITY, len)?;
                let mut sum = self.slots.take(slot, kept, SUM, len)?;
                if sound {
                    accumulate_momentum(&self.context, momentum.factor, gradients, &mut velocity, &mut sum)?;
                    gradients.copy_from_slice(&sum);
                }
                Accumulated { sound, first: sum, velocity }
            }
        };
        if !sound {
            // The largest of all, so that every rank gets it.
            gradients.fill(f32::NAN);
        }
        Ok(held)
    }

    /// How much is sent at a step.
    fn density_at(&self, kept: &mut Kept) -> f64 {
        let Some(Momentum { warm_up, .. }) = self.momentum else { return self.density };
        let step = kept.count();
        if step >= warm_up {
            return self.density;
        }
        let stage = (step as u128 * WARM_UP.len() as u128 / u128::from(warm_up)) as usize;
        WARM_UP[stage].max(self.density)
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
        let held = self.accumulate(kept, bucket.slot, gradients)?;
        let mut indices = Vec::new();
        top_k(&self.context, gradients, entries(self.density_at(kept), len), &mut indices)?;
        let mut values = vec![0.0; indices.len()];
        gather_indices(gradients, &indices, &mut values)?;
        // To all, or to each rank what falls into its part.
        let messages = match keeps {
            Keeps::All => vec![self.wire.message(&indices, &values)?],
            Keeps::Shard | Keeps::Leader => {
                let of = |to: usize| {
                    let part = keeps.part(len, ranks, to);
                    let cut = |bound: usize| indices.partition_point(|index| (*index as usize) < bound);
                    let range = cut(part.start)..cut(part.end);
                    self.wire.message(&indices[range.clone()], &values[range])
                };
                (0..ranks).map(of).collect::<Result<_>>()?
            }
        };
        if held.sound {
            self.keep(kept, held, gradients, &indices, &messages)?;
        } else {
            held.keep_as_it_was(kept, self.momentum.is_some());
        }
        let coming = match (keeps, messages.as_slice()) {
            (Keeps::All, [own]) => peers.all_gather(own)?,
            _ => peers.all_to_all(messages)?,
        };
        let own = if keeps == Keeps::All { 0..len } else { keeps.part(len, ranks, rank) };
        gradients[own].fill(0.0);
        for message in &coming {
            let (indices, values) = self.wire.entries_of(message, len)?;
            scatter_add(&indices, &values, gradients)?;
        }
        Ok(())
    }

    /// Keeps what was not sent: of what was, the values' rounding.
    fn keep(
        &self,
        kept: &mut Kept,
        held: Accumulated,
        all: &[f32],
        indices: &[u32],
        messages: &[Vec<u8>],
    ) -> Result<()> {
        let Accumulated { first: mut waiting, mut velocity, .. } = held;
        waiting.copy_from_slice(all);
        if self.wire.values == Values::Plain {
            clear_indices(indices, &mut waiting)?;
        } else {
            for message in messages {
                let (indices, values) = self.wire.entries_of(message, all.len())?;
                indices.iter().zip(values).for_each(|(at, value)| waiting[*at as usize] -= value);
            }
        }
        if self.momentum.is_some() {
            clear_indices(indices, &mut velocity)?;
            kept.give(VELOCITY, velocity);
            kept.give(SUM, waiting);
        } else {
            kept.give(RESIDUAL, waiting);
        }
        Ok(())
    }
}

/// What had waited, and whether the new gradients are finite.
struct Accumulated {
    sound: bool,
    /// The residual, or the sum of momentum.
    first: Vec<f32>,
    velocity: Vec<f32>,
}

impl Accumulated {
    fn keep_as_it_was(self, kept: &mut Kept, momentum: bool) {
        if momentum {
            kept.give(VELOCITY, self.velocity);
            kept.give(SUM, self.first);
        } else {
            kept.give(RESIDUAL, self.first);
        }
    }
}

impl GradCodec for Sparse {
    fn name(&self) -> &'static str {
        self.name
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
        self.slots.flush(bucket.slot, if self.momentum.is_some() { SUM } else { RESIDUAL }, gradients)
    }

    fn state(&self) -> CodecState {
        self.slots.state()
    }

    fn load_state(&self, state: CodecState) -> Result<()> {
        self.slots.load(state)
    }

    fn push(&self) -> Option<PushCodec> {
        // Momentum before sending would be one for each worker, of gradients that servers use at other times.
        let largest = Largest { density: self.density, wire: self.wire.clone() };
        self.momentum.is_none().then(|| PushCodec::new(largest, &[RESIDUAL], 0))
    }

    fn bytes(&self, bucket: &Bucket, among: &Among) -> CodecBytes {
        let message = self.wire.message_len(self.entries(bucket.len)) as u64;
        let sent = match among.keeps {
            Keeps::All => among.gathered(message),
            // At most: all entries may fall into other ranks' parts, each of which has a count and a last scale that is not full.
            Keeps::Shard | Keeps::Leader => {
                let scale = if self.wire.values == Values::Plain { 0 } else { 4 };
                let others = among.ranks as u64 - 1;
                if others == 0 { 0 } else { message + (4 + scale) * (others - 1) }
            }
        };
        let vectors = if self.momentum.is_some() { 2 } else { 1 };
        let count = if self.momentum.is_some() { STEP_BYTES } else { 0 };
        CodecBytes { sent, message, state: 4 * vectors * bucket.len as u64 + count }
    }
}
