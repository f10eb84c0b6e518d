//! PowerSGD (Vogels et al. 2019): matrices as products of two that are thin.

use phalanx_kernels::{Context, mixed, uniform};

use crate::Result;
use crate::bucket::{Bucket, SumGroup, SumPlacement};
use crate::low_rank::LowRank;
use crate::peers::Peers;
use crate::slice::FlatSlice;
use crate::slots::{BucketState, Slots};
use crate::{CodecBytes, CodecState, GradCodec};

const NAME: &str = "powersgd";
const RESIDUAL: &str = "residual";
const Q: &str = "q";

/// Sends, in place of a matrix M of every rank, P = MQ and then Q = MᵀP with the columns of the mean P made orthonormal; the sum
/// is taken to be PQᵀ times the number of ranks. Q goes on from step to step (warm start), and what PQᵀ lacks of a rank's matrix
/// is added to its next one (error feedback). Vectors, and matrices that would not become smaller, travel as they are.
#[derive(Debug)]
pub(crate) struct PowerSgd {
    rank: usize,
    seed: u64,
    slots: Slots,
    context: Context,
}

impl PowerSgd {
    pub(crate) fn new(rank: usize, seed: u64) -> Self {
        Self { rank, seed, slots: Slots::new(NAME, &[RESIDUAL, Q]), context: Context::new(1) }
    }

    /// The first Q, the same on all ranks.
    fn first_q(&self, slot: usize, len: usize) -> Vec<f32> {
        let base = mixed(&[self.seed, slot as u64]);
        (0..len as u64).map(|at| 2.0 * uniform(base, at) - 1.0).collect()
    }

    fn sum(
        &self,
        kept: &mut BucketState,
        bucket: &Bucket,
        gradients: &mut FlatSlice<'_>,
        peers: &mut Peers<'_>,
    ) -> Result<()> {
        let (cut, slot, context) = (LowRank::of(bucket, self.rank), bucket.slot, &self.context);
        if cut.matrices.is_empty() {
            return peers.add(gradients, SumPlacement::All);
        }
        if !kept.has(Q) {
            kept.give(Q, self.first_q(slot, cut.q_len));
        }
        let mut q = self.slots.take_some(slot, kept, (Q, cut.q_len), gradients)?;
        let mut residual = self.slots.take_some(slot, kept, (RESIDUAL, cut.held_len), gradients)?;
        let mut first = cut.project(gradients, (&residual, &q), context)?;
        peers.add(&mut first.numbers(gradients)?, SumPlacement::All)?;
        let sound = cut.settle(&mut first, gradients, 1.0 / peers.ranks() as f32)?;
        let mut second = cut.project_back(gradients, &first, context)?;
        peers.add(&mut second.numbers(gradients)?, SumPlacement::All)?;
        // All ranks have the same P and Q, so all see alike whether one of them had numbers that are not finite.
        let (sums, known) = ((first, second), (sound, peers.ranks()));
        cut.expand(gradients, sums, known, (&mut residual, &mut q), context)?;
        kept.give(Q, q);
        kept.give(RESIDUAL, residual);
        Ok(())
    }
}

impl GradCodec for PowerSgd {
    fn name(&self) -> &'static str {
        NAME
    }

    fn reduce(
        &self,
        bucket: &Bucket,
        mut gradients: FlatSlice<'_>,
        _: SumPlacement,
        peers: &mut Peers<'_>,
    ) -> Result<()> {
        self.slots.with(bucket.slot, |kept| self.sum(kept, bucket, &mut gradients, peers))
    }

    fn flush(&self, bucket: &Bucket, _: &SumGroup, mut gradients: FlatSlice<'_>) -> Result<()> {
        let cut = LowRank::of(bucket, self.rank);
        self.slots.with(bucket.slot, |kept| {
            if !kept.has(RESIDUAL) {
                return Ok(());
            }
            let residual = self.slots.take_some(bucket.slot, kept, (RESIDUAL, cut.held_len), &gradients)?;
            cut.add_held(&mut gradients, &residual)
        })
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

    fn bytes(&self, bucket: &Bucket, among: &SumGroup) -> CodecBytes {
        let cut = LowRank::of(bucket, self.rank);
        let all = SumGroup { keeps: SumPlacement::All, ..*among };
        let (first, second) = (4 * (cut.p_len + cut.plain_len()) as u64, 4 * cut.q_len as u64);
        let state = 4 * (cut.q_len + cut.held_len) as u64;
        CodecBytes { sent: all.summed(first) + all.summed(second), message: first + second, state }
    }
}
