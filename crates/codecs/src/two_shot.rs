//! Sums in two hops: every rank sends each other rank its part encoded, which adds the parts up in f32, and sends the sum,
//! encoded again, to all.
//!
//! Unlike a gather of everything from everyone this divides what is sent by the same factor for any number of ranks (as ZeRO++,
//! Wang et al. 2023, does). Where every rank keeps its part only, the second hop falls away.

use phalanx_kernels::mixed;

use crate::Result;
use crate::bucket::{Bucket, SumGroup, SumPlacement};
use crate::messages::Messages;
use crate::peers::Peers;
use crate::push::{PushCodec, RESIDUAL};
use crate::quantisers::Quantiser;
use crate::slice::{FlatSlice, RankSplit};
use crate::slots::{BucketState, STEP, STEP_BYTES, Slots};
use crate::{CodecBytes, CodecState, GradCodec};

/// The state between steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StateKind {
    Nothing,
    /// The number of steps, for random numbers.
    Count,
    /// The residuals of both hops, for error feedback (twice, as in Tang et al. 2019).
    Errors,
}

const OWN: &str = "residual";
const SUM: &str = "sum_residual";

/// A sum in two hops.
#[derive(Debug)]
pub(crate) struct TwoShot<Q> {
    quantiser: Q,
    memory: StateKind,
    seed: u64,
    slots: Slots,
}

impl<Q: Quantiser> TwoShot<Q> {
    pub(crate) fn new(quantiser: Q, memory: StateKind, seed: u64) -> Self {
        let fields: &[&str] = match memory {
            StateKind::Nothing => &[],
            StateKind::Count => &[STEP],
            StateKind::Errors => &[OWN, SUM],
        };
        let slots = Slots::new(quantiser.name(), fields);
        Self { quantiser, memory, seed, slots }
    }

    /// Encodes numbers, to which what earlier messages have taken is added, and notes what this one takes. Numbers that are not
    /// finite are none of them, and change nothing of what is kept.
    fn with_errors(
        &self,
        (bucket, field): (&Bucket, &'static str),
        kept: &mut BucketState,
        (values, cut): (&mut FlatSlice<'_>, RankSplit),
        encode: impl FnOnce(&FlatSlice<'_>) -> Result<Messages>,
    ) -> Result<Messages> {
        if self.memory != StateKind::Errors {
            return encode(values);
        }
        let mut errors = self.slots.take(bucket.slot, kept, field, values)?;
        let sound = values.feed_back(&errors)?;
        let messages = encode(values)?;
        values.errors(&self.quantiser, &messages, cut, (&sound, &mut errors))?;
        kept.give(field, errors);
        Ok(messages)
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
        let step = if self.memory == StateKind::Count { kept.count() } else { 0 };
        let draw = |hop: u64| mixed(&[self.seed, bucket.slot as u64, step, rank as u64, hop]);
        let cut = RankSplit { keeps, ranks };
        let messages = self.with_errors((bucket, OWN), kept, (gradients, cut), |values| {
            values.encode(&self.quantiser, cut, draw(0))
        })?;
        let mut own = gradients.part(cut.part(len, rank))?;
        own.add_up(&self.quantiser, &peers.deal(messages, cut)?)?;
        if keeps != SumPlacement::All {
            return Ok(());
        }
        let message = self.with_errors((bucket, SUM), kept, (&mut own, RankSplit::WHOLE), |sum| {
            sum.encode_own(&self.quantiser, (len, rank, ranks), draw(1))
        })?;
        gradients.decode(&self.quantiser, &peers.gather(message)?, cut)
    }
}

impl<Q: Quantiser + Clone + 'static> GradCodec for TwoShot<Q> {
    fn name(&self) -> &'static str {
        self.quantiser.name()
    }

    fn reduce(
        &self,
        bucket: &Bucket,
        mut gradients: FlatSlice<'_>,
        keeps: SumPlacement,
        peers: &mut Peers<'_>,
    ) -> Result<()> {
        let gradients = &mut gradients;
        match self.memory {
            StateKind::Nothing => self.sum(&mut BucketState::default(), bucket, gradients, keeps, peers),
            _ => self.slots.with(bucket.slot, |kept| self.sum(kept, bucket, gradients, keeps, peers)),
        }
    }

    fn flush(&self, bucket: &Bucket, among: &SumGroup, mut gradients: FlatSlice<'_>) -> Result<()> {
        if self.memory != StateKind::Errors {
            return Ok(());
        }
        if among.keeps == SumPlacement::All {
            // What the second hop has taken from the sum of this rank's part.
            let part = among.keeps.part(bucket.len, among.ranks, among.rank);
            self.slots.add(bucket.slot, SUM, &mut gradients.part(part)?)?;
        }
        self.slots.flush(bucket.slot, OWN, &mut gradients)
    }

    fn works_on_devices(&self) -> bool {
        self.quantiser.format().is_some()
    }

    fn state(&self) -> Result<CodecState> {
        self.slots.state()
    }

    fn load_state(&self, state: CodecState) -> Result<()> {
        self.slots.load(state)
    }

    fn push(&self) -> Option<PushCodec> {
        let fields: &[&str] = match self.memory {
            StateKind::Nothing => &[],
            StateKind::Count => &[STEP],
            StateKind::Errors => &[RESIDUAL],
        };
        Some(PushCodec::new(self.quantiser.clone(), fields, self.seed))
    }

    fn bytes(&self, bucket: &Bucket, among: &SumGroup) -> CodecBytes {
        let part = |rank: usize| among.keeps.part(bucket.len, among.ranks, rank).len();
        let message = |rank: usize| self.quantiser.message_len(part(rank)) as u64;
        let again = if among.keeps == SumPlacement::All { among.gathered(message(among.rank)) } else { 0 };
        let summed = if among.keeps == SumPlacement::All { part(among.rank) } else { 0 };
        CodecBytes {
            sent: among.dealt(message) + again,
            message: (0..among.ranks).map(message).sum(),
            state: match self.memory {
                StateKind::Nothing => 0,
                StateKind::Count => STEP_BYTES,
                StateKind::Errors => 4 * (bucket.len + summed) as u64,
            },
        }
    }
}
