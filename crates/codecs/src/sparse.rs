//! Sends the largest gradients and keeps the residuals: top-k with error feedback, and Deep Gradient Compression.

use std::sync::Arc;

use phalanx_kernels::Context;

use crate::Result;
use crate::bucket::{Bucket, SumGroup, SumPlacement};
use crate::entries::{Entries, TopKQuantiser, ValueFormat, entries};
use crate::messages::Messages;
use crate::peers::Peers;
use crate::push::{PushCodec, RESIDUAL};
use crate::slice::{FiniteFlag, FlatSlice, RankSplit, StateBuffer};
use crate::slots::{BucketState, STEP, STEP_BYTES, Slots};
use crate::{CodecBytes, CodecState, GradCodec};

/// The densities that Deep Gradient Compression begins with, for equal parts of its warm-up (Lin et al. 2018, section 3.3).
const WARM_UP: [f64; 4] = [0.25, 0.0625, 0.015_625, 0.004];

/// The state of Deep Gradient Compression: momentum, and the sum of it that was not sent.
const VELOCITY: &str = "velocity";
const SUM: &str = "sum";

/// Momentum that is applied before sending.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Momentum {
    pub(crate) factor: f32,
    /// Sums over which the density falls.
    pub(crate) warm_up: u64,
}

/// Sends the entries of largest magnitude, each with its index.
#[derive(Debug)]
pub(crate) struct Sparse {
    name: &'static str,
    density: f64,
    wire: Entries,
    momentum: Option<Momentum>,
    slots: Slots,
    context: Context,
}

impl Sparse {
    /// Makes the codec that sends the largest entries of the accumulated gradients.
    pub(crate) fn top_k(density: f64, values: ValueFormat) -> Self {
        let name = if values == ValueFormat::F32 { "topk" } else { "topk-int8" };
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
    pub(crate) fn dgc(density: f64, momentum: Momentum) -> Self {
        let slots = Slots::new("dgc", &[VELOCITY, SUM, STEP]);
        Self { name: "dgc", momentum: Some(momentum), slots, ..Self::top_k(density, ValueFormat::F32) }
    }

    /// Returns the number of `len` gradients that are sent after the warm-up.
    fn entries(&self, len: usize) -> usize {
        entries(self.density, len)
    }

    /// Adds the residual, or the accumulated momentum, to `gradients`.
    fn accumulate(
        &self,
        kept: &mut BucketState,
        slot: usize,
        gradients: &mut FlatSlice<'_>,
    ) -> Result<AccumulatedState> {
        let Some(momentum) = self.momentum else {
            let residual = self.slots.take(slot, kept, RESIDUAL, gradients)?;
            let sound = gradients.feed_back(&residual)?;
            return Ok(AccumulatedState { sound, first: residual, velocity: None });
        };
        let mut velocity = self.slots.take(slot, kept, VELOCITY, gradients)?;
        let mut sum = self.slots.take(slot, kept, SUM, gradients)?;
        let of = (&mut velocity, &mut sum);
        let sound = gradients.gather_momentum(of, momentum.factor, &self.context)?;
        Ok(AccumulatedState { sound, first: sum, velocity: Some(velocity) })
    }

    /// Returns the density of a step.
    fn density_at(&self, kept: &mut BucketState) -> f64 {
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
        kept: &mut BucketState,
        bucket: &Bucket,
        gradients: &mut FlatSlice<'_>,
        keeps: SumPlacement,
        peers: &mut Peers<'_>,
    ) -> Result<()> {
        let (len, rank, ranks) = (gradients.len(), peers.rank(), peers.ranks());
        let AccumulatedState { sound, mut first, velocity } =
            self.accumulate(kept, bucket.slot, gradients)?;
        let (cut, taken) = (RankSplit { keeps, ranks }, entries(self.density_at(kept), len));
        let (picked, messages) = self.wire.pick(gradients, taken, (cut, rank))?;
        self.wire.keep_rest(gradients, (&picked, &messages), (&sound, &mut first))?;
        kept.give(if velocity.is_some() { SUM } else { RESIDUAL }, first);
        if let Some(mut velocity) = velocity {
            picked.clear(&sound, &mut velocity)?;
            kept.give(VELOCITY, velocity);
        }
        let coming = match (keeps, &messages) {
            (SumPlacement::Shard | SumPlacement::Root, Messages::Host(_)) => peers.deal(messages, cut)?,
            _ => peers.gather(messages)?,
        };
        let own = if keeps == SumPlacement::All { 0..len } else { cut.part(len, rank) };
        self.wire.add_up(&coming, taken, (gradients, own))
    }
}

/// The accumulated residual or momentum, and the flag of finite gradients.
struct AccumulatedState {
    sound: FiniteFlag,
    /// The residual, or the sum of momentum.
    first: StateBuffer,
    velocity: Option<StateBuffer>,
}

impl GradCodec for Sparse {
    fn name(&self) -> &'static str {
        self.name
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
        self.slots.flush(bucket.slot, if self.momentum.is_some() { SUM } else { RESIDUAL }, &mut gradients)
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
        // Momentum before sending would be one for each worker, of gradients that servers use at other times.
        let largest = TopKQuantiser { density: self.density, wire: self.wire.clone() };
        self.momentum.is_none().then(|| PushCodec::new(largest, &[RESIDUAL], 0))
    }

    fn bytes(&self, bucket: &Bucket, among: &SumGroup) -> CodecBytes {
        let message = self.wire.message_len(self.entries(bucket.len)) as u64;
        let sent = match among.keeps {
            SumPlacement::All => among.gathered(message),
            // At most: all entries may fall into other ranks' parts, each of which has a count and a last scale that is not full.
            SumPlacement::Shard | SumPlacement::Root => {
                let scale = if self.wire.values == ValueFormat::F32 { 0 } else { 4 };
                let others = among.ranks as u64 - 1;
                if others == 0 { 0 } else { message + (4 + scale) * (others - 1) }
            }
        };
        let vectors = if self.momentum.is_some() { 2 } else { 1 };
        let count = if self.momentum.is_some() { STEP_BYTES } else { 0 };
        CodecBytes { sent, message, state: 4 * vectors * bucket.len as u64 + count }
    }
}
