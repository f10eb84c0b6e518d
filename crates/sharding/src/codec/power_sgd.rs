//! PowerSGD (Vogels et al. 2019): matrices as products of two that are thin.

use phalanx_kernels::{
    Context, Matrix, MatrixMut, low_rank_product, matmul_batched, mixed, orthogonalise, uniform,
};

use super::bucket::{Among, Bucket, Keeps, MatrixRange};
use super::numbers::{Numbers, finite};
use super::peers::Peers;
use super::slots::{Kept, Slots};
use super::{CodecBytes, CodecState, GradCodec};
use crate::Result;

const NAME: &str = "powersgd";
const RESIDUAL: &str = "residual";
const Q: &str = "q";

/// Sends, in place of a matrix M of every rank, P = MQ and then Q = MᵀP with the columns of the mean P made orthonormal; the sum
/// is taken to be PQᵀ times the number of ranks. Q goes on from step to step (warm start), and what PQᵀ lacks of a rank's matrix
/// is added to its next one (error feedback). Vectors, and matrices that would not become smaller, travel as they are.
#[derive(Debug)]
pub(super) struct PowerSgd {
    rank: usize,
    seed: u64,
    slots: Slots,
    context: Context,
}

/// A matrix that becomes smaller, and where its thin ones lie.
#[derive(Debug, Clone)]
struct Thin {
    matrix: MatrixRange,
    rank: usize,
    /// Where P begins in the message of all P, and Q in that of all Q.
    p: usize,
    q: usize,
}

impl Thin {
    fn p_len(&self) -> usize {
        self.matrix.rows * self.rank
    }

    fn q_len(&self) -> usize {
        self.matrix.columns() * self.rank
    }
}

/// What of a bucket is how long.
#[derive(Debug, Default)]
struct Cut {
    thin: Vec<Thin>,
    p_len: usize,
    q_len: usize,
    /// What travels as it is.
    plain: Vec<std::ops::Range<usize>>,
}

impl Cut {
    fn of(bucket: &Bucket, rank: usize) -> Self {
        let (mut cut, mut end) = (Self::default(), 0);
        for matrix in &bucket.matrices {
            let (rows, columns) = (matrix.rows, matrix.columns());
            let rank = rank.min(rows).min(columns);
            if (rows + columns) * rank >= rows * columns {
                continue;
            }
            let thin = Thin { matrix: matrix.clone(), rank, p: cut.p_len, q: cut.q_len };
            cut.p_len += thin.p_len();
            cut.q_len += thin.q_len();
            cut.plain.push(end..matrix.range.start);
            end = matrix.range.end;
            cut.thin.push(thin);
        }
        cut.plain.push(end..bucket.len);
        cut
    }

    fn plain_len(&self) -> usize {
        self.plain.iter().map(ExactSizeIterator::len).sum()
    }
}

impl PowerSgd {
    pub(super) fn new(rank: usize, seed: u64) -> Self {
        Self { rank, seed, slots: Slots::new(NAME, &[RESIDUAL, Q]), context: Context::new(1) }
    }

    /// The first Q, the same on all ranks.
    fn first_q(&self, slot: usize, len: usize) -> Vec<f32> {
        let base = mixed(&[self.seed, slot as u64]);
        (0..len as u64).map(|at| 2.0 * uniform(base, at) - 1.0).collect()
    }

    fn sum(
        &self,
        kept: &mut Kept,
        bucket: &Bucket,
        gradients: &mut [f32],
        peers: &mut Peers<'_>,
    ) -> Result<()> {
        let cut = Cut::of(bucket, self.rank);
        let mean = 1.0 / peers.ranks() as f32;
        if !kept.has(Q) {
            kept.give(Q, self.first_q(bucket.slot, cut.q_len));
        }
        let mut q = self.slots.take_host(bucket.slot, kept, Q, cut.q_len)?;
        let mut residual = self.slots.take_host(bucket.slot, kept, RESIDUAL, bucket.len - cut.plain_len())?;
        // The residuals of all matrices lie one after the other.
        let mut ends = 0;
        let places: Vec<_> = cut
            .thin
            .iter()
            .map(|thin| {
                let start = ends;
                ends += thin.matrix.range.len();
                start..ends
            })
            .collect();
        let mut first = vec![0.0; cut.p_len];
        for (thin, place) in cut.thin.iter().zip(&places) {
            let m = &mut gradients[thin.matrix.range.clone()];
            m.iter_mut().zip(&residual[place.clone()]).for_each(|(m, error)| *m += error);
            let (rows, columns, p) = (thin.matrix.rows, thin.matrix.columns(), thin.p..thin.p + thin.p_len());
            let (a, b) = (
                Matrix::batched(m, rows, columns, false),
                Matrix::batched(&q[thin.q..thin.q + thin.q_len()], columns, thin.rank, false),
            );
            matmul_batched(
                &self.context,
                1,
                a,
                b,
                MatrixMut::batched(&mut first[p], rows, thin.rank),
                false,
            )?;
        }
        cut.plain.iter().for_each(|plain| first.extend_from_slice(&gradients[plain.clone()]));
        peers.sum(first.as_mut_slice(), Keeps::All)?;
        let (p, mut plain) = first.split_at_mut(cut.p_len);
        p.iter_mut().for_each(|p| *p *= mean);
        for range in &cut.plain {
            let (own, rest) = plain.split_at_mut(range.len());
            gradients[range.clone()].copy_from_slice(own);
            plain = rest;
        }
        let mut second = vec![0.0; cut.q_len];
        for thin in &cut.thin {
            let (rows, columns) = (thin.matrix.rows, thin.matrix.columns());
            let p = &mut p[thin.p..thin.p + thin.p_len()];
            orthogonalise(p, thin.rank)?;
            let m = &gradients[thin.matrix.range.clone()];
            let (a, b) =
                (Matrix::batched(m, columns, rows, true), Matrix::batched(&*p, rows, thin.rank, false));
            let own = &mut second[thin.q..thin.q + thin.q_len()];
            matmul_batched(&self.context, 1, a, b, MatrixMut::batched(own, columns, thin.rank), false)?;
        }
        peers.sum(second.as_mut_slice(), Keeps::All)?;
        second.iter_mut().for_each(|q| *q *= mean);
        // All ranks have the same P and Q, so all see alike whether one of them had numbers that are not finite.
        let sound = finite(p) && finite(&second);
        let mut product = Vec::new();
        for (thin, place) in cut.thin.iter().zip(places) {
            let m = &mut gradients[thin.matrix.range.clone()];
            product.resize(m.len(), 0.0);
            let (p, q) = (&p[thin.p..thin.p + thin.p_len()], &second[thin.q..thin.q + thin.q_len()]);
            low_rank_product(&self.context, p, q, thin.rank, &mut product)?;
            for ((m, product), error) in m.iter_mut().zip(&product).zip(&mut residual[place]) {
                if sound {
                    *error = *m - product;
                }
                *m = if sound { product * peers.ranks() as f32 } else { f32::NAN };
            }
        }
        if sound {
            q = second;
        }
        kept.give(Q, q);
        kept.give(RESIDUAL, residual);
        Ok(())
    }
}

impl GradCodec for PowerSgd {
    fn name(&self) -> &'static str {
        NAME
    }

    fn reduce(&self, bucket: &Bucket, gradients: Numbers<'_>, _: Keeps, peers: &mut Peers<'_>) -> Result<()> {
        let gradients = gradients.on_host(NAME)?;
        self.slots.with(bucket.slot, |kept| self.sum(kept, bucket, gradients, peers))
    }

    fn flush(&self, bucket: &Bucket, _: &Among, gradients: &mut [f32]) -> Result<()> {
        let cut = Cut::of(bucket, self.rank);
        self.slots.with(bucket.slot, |kept| {
            if !kept.has(RESIDUAL) {
                return Ok(());
            }
            let mut residual =
                self.slots.take_host(bucket.slot, kept, RESIDUAL, bucket.len - cut.plain_len())?;
            let mut rest = residual.as_slice();
            for thin in &cut.thin {
                let (own, later) = rest.split_at(thin.matrix.range.len());
                rest = later;
                gradients[thin.matrix.range.clone()]
                    .iter_mut()
                    .zip(own)
                    .for_each(|(gradient, error)| *gradient += error);
            }
            residual.fill(0.0);
            kept.give(RESIDUAL, residual);
            Ok(())
        })
    }

    fn state(&self) -> Result<CodecState> {
        self.slots.state()
    }

    fn load_state(&self, state: CodecState) -> Result<()> {
        self.slots.load(state)
    }

    fn bytes(&self, bucket: &Bucket, among: &Among) -> CodecBytes {
        let cut = Cut::of(bucket, self.rank);
        let all = Among { keeps: Keeps::All, ..*among };
        let (first, second) = (4 * (cut.p_len + cut.plain_len()) as u64, 4 * cut.q_len as u64);
        let state = 4 * (cut.q_len + bucket.len - cut.plain_len()) as u64;
        CodecBytes { sent: all.summed(first) + all.summed(second), message: first + second, state }
    }
}
