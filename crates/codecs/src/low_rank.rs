//! Low-rank factors of gradient matrices, multiplied and orthonormalised on the host or on a device.

use std::ops::Range;

use candle_core::DType;
use phalanx_kernels::{
    Context, Matrix, MatrixMut, Run, ThinMatrix, low_rank_product, matmul_batched, orthogonalise,
};
use phalanx_tensor::FlatStorage;

use crate::Result;
use crate::bucket::Bucket;
use crate::slice::{DeviceSlice, FiniteFlag, FlatSlice, StateBuffer, finite, mixed_memory};

/// The matrices of a bucket that travel as low-rank factors, and the rest.
#[derive(Debug, Default)]
pub(crate) struct LowRank {
    /// The matrices that become smaller.
    pub(crate) matrices: Vec<ThinMatrix>,
    /// Elements of all P, and of all Q.
    pub(crate) p_len: usize,
    pub(crate) q_len: usize,
    /// The number of elements of the matrices, which have a residual.
    pub(crate) held_len: usize,
    /// The elements that travel uncompressed, behind all P.
    plain: Vec<Range<usize>>,
}

impl LowRank {
    /// Selects the bucket's matrices that become smaller as products of at most `rank` columns.
    pub(crate) fn of(bucket: &Bucket, rank: usize) -> Self {
        let (mut this, mut end) = (Self::default(), 0);
        for matrix in &bucket.matrices {
            let (rows, columns) = (matrix.rows, matrix.columns());
            let rank = rank.min(rows).min(columns);
            if (rows + columns) * rank >= rows * columns {
                continue;
            }
            let (start, held, p, q) = (matrix.range.start, this.held_len, this.p_len, this.q_len);
            let thin = ThinMatrix { start, held, p, q, rows, columns, rank };
            (this.held_len, this.p_len, this.q_len) = (thin.held().end, thin.p().end, thin.q().end);
            this.plain.push(end..start);
            end = thin.elements().end;
            this.matrices.push(thin);
        }
        this.plain.push(end..bucket.len);
        this
    }

    /// Returns the number of elements that are sent uncompressed.
    pub(crate) fn plain_len(&self) -> usize {
        self.plain.iter().map(ExactSizeIterator::len).sum()
    }

    /// Returns the copies of uncompressed elements to their place behind all P.
    fn plain_runs(&self) -> Vec<Run> {
        let mut to = self.p_len;
        let runs = self.plain.iter().map(|range| {
            let run = Run { from: range.start, to, len: range.len() };
            to += run.len;
            run
        });
        runs.filter(|run| run.len > 0).collect()
    }

    /// Adds the residuals to the matrices and multiplies each by its Q. Returns the first message: all P and the
    /// uncompressed elements.
    pub(crate) fn project(
        &self,
        numbers: &mut FlatSlice<'_>,
        (held, q): (&StateBuffer, &StateBuffer),
        context: &Context,
    ) -> Result<StateBuffer> {
        let len = self.p_len + self.plain_len();
        match (numbers, held, q) {
            (FlatSlice::Host(numbers), StateBuffer::Host(held), StateBuffer::Host(q)) => {
                let mut first = vec![0.0; self.p_len];
                for thin in &self.matrices {
                    let m = &mut numbers[thin.elements()];
                    m.iter_mut().zip(&held[thin.held()]).for_each(|(m, error)| *m += error);
                    let a = Matrix::batched(m, thin.rows, thin.columns, false);
                    let b = Matrix::batched(&q[thin.q()], thin.columns, thin.rank, false);
                    let p = MatrixMut::batched(&mut first[thin.p()], thin.rows, thin.rank);
                    matmul_batched(context, 1, a, b, p, false)?;
                }
                self.plain.iter().for_each(|plain| first.extend_from_slice(&numbers[plain.clone()]));
                Ok(StateBuffer::Host(first))
            }
            (
                FlatSlice::Device(DeviceSlice { flat, stream }),
                StateBuffer::Device(held),
                StateBuffer::Device(q),
            ) => {
                let (codecs, first) = (stream.codecs()?, stream.room(len, DType::F32)?);
                let of = (flat.array(), held.array());
                codecs.project(&self.matrices, of, q.array(), first.array())?;
                codecs.move_runs(&self.plain_runs(), (flat.array(), first.array()), false, None)?;
                Ok(StateBuffer::Device(first))
            }
            _ => Err(mixed_memory()),
        }
    }

    /// Reads the sum of the first messages: P becomes the mean with orthonormal columns, and uncompressed elements are
    /// copied to their place. Returns the flag of finite values.
    pub(crate) fn settle(
        &self,
        first: &mut StateBuffer,
        numbers: &mut FlatSlice<'_>,
        mean: f32,
    ) -> Result<FiniteFlag> {
        match (first, numbers) {
            (StateBuffer::Host(first), FlatSlice::Host(numbers)) => {
                for run in self.plain_runs() {
                    numbers[run.from..run.from + run.len].copy_from_slice(&first[run.to..run.to + run.len]);
                }
                first[..self.p_len].iter_mut().for_each(|p| *p *= mean);
                for thin in &self.matrices {
                    orthogonalise(&mut first[thin.p()], thin.rank)?;
                }
                Ok(FiniteFlag::Host(finite(first)))
            }
            (StateBuffer::Device(first), FlatSlice::Device(DeviceSlice { flat, stream })) => {
                let codecs = stream.codecs()?;
                let spoiled = stream.hold(FlatStorage::new(codecs.unspoiled()?)?);
                let back = |run: Run| Run { from: run.to, to: run.from, ..run };
                let runs: Vec<Run> = self.plain_runs().into_iter().map(back).collect();
                let of = (first.array(), flat.array());
                codecs.move_runs(&runs, of, false, Some(spoiled.array()))?;
                // Values of P that are not finite make Q not finite.
                codecs.scale(first.narrow(0..self.p_len)?.array(), mean, spoiled.array())?;
                codecs.orthogonalise(&self.matrices, first.array())?;
                Ok(FiniteFlag::Device(spoiled))
            }
            _ => Err(mixed_memory()),
        }
    }

    /// Returns all Q: each transposed matrix times its P.
    pub(crate) fn project_back(
        &self,
        numbers: &FlatSlice<'_>,
        first: &StateBuffer,
        context: &Context,
    ) -> Result<StateBuffer> {
        match (numbers, first) {
            (FlatSlice::Host(numbers), StateBuffer::Host(p)) => {
                let mut second = vec![0.0; self.q_len];
                for thin in &self.matrices {
                    let a = Matrix::batched(&numbers[thin.elements()], thin.columns, thin.rows, true);
                    let b = Matrix::batched(&p[thin.p()], thin.rows, thin.rank, false);
                    let q = MatrixMut::batched(&mut second[thin.q()], thin.columns, thin.rank);
                    matmul_batched(context, 1, a, b, q, false)?;
                }
                Ok(StateBuffer::Host(second))
            }
            (FlatSlice::Device(DeviceSlice { flat, stream }), StateBuffer::Device(p)) => {
                let second = stream.room(self.q_len, DType::F32)?;
                let of = (flat.array(), p.array());
                let scratch = stream.codecs()?.project_back(&self.matrices, of, second.array())?;
                stream.hold(FlatStorage::new(scratch)?);
                Ok(StateBuffer::Device(second))
            }
            _ => Err(mixed_memory()),
        }
    }

    /// Replaces the matrices by `ranks`·PQᵀ, where Q is the mean over the ranks, and keeps the residuals. `q` becomes
    /// the new Q. If a value is not finite, the matrices become NaN and the state stays.
    pub(crate) fn expand(
        &self,
        numbers: &mut FlatSlice<'_>,
        (first, mut second): (StateBuffer, StateBuffer),
        (sound, ranks): (FiniteFlag, usize),
        (held, q): (&mut StateBuffer, &mut StateBuffer),
        context: &Context,
    ) -> Result<()> {
        let mean = 1.0 / ranks as f32;
        match (numbers, &first, &mut second, held, sound) {
            (
                FlatSlice::Host(numbers),
                StateBuffer::Host(p),
                StateBuffer::Host(second),
                StateBuffer::Host(held),
                FiniteFlag::Host(sound),
            ) => {
                second.iter_mut().for_each(|q| *q *= mean);
                let sound = sound && finite(second);
                let mut product = Vec::new();
                for thin in &self.matrices {
                    let m = &mut numbers[thin.elements()];
                    product.resize(m.len(), 0.0);
                    low_rank_product(context, &p[thin.p()], &second[thin.q()], thin.rank, &mut product)?;
                    for ((m, product), error) in m.iter_mut().zip(&product).zip(&mut held[thin.held()]) {
                        if sound {
                            *error = *m - product;
                        }
                        *m = if sound { product * ranks as f32 } else { f32::NAN };
                    }
                }
                if sound {
                    *q = StateBuffer::Host(std::mem::take(second));
                }
                Ok(())
            }
            (
                FlatSlice::Device(DeviceSlice { flat, stream }),
                StateBuffer::Device(p),
                StateBuffer::Device(second),
                StateBuffer::Device(held),
                FiniteFlag::Device(spoiled),
            ) => {
                let (codecs, StateBuffer::Device(q)) = (stream.codecs()?, q) else {
                    return Err(mixed_memory());
                };
                codecs.scale(second.array(), mean, spoiled.array())?;
                let (of, by) = ((flat.array(), held.array()), (p.array(), second.array()));
                codecs.expand(&self.matrices, of, by, spoiled.array(), ranks as f32)?;
                Ok(codecs.hold(second.array(), spoiled.array(), q.array())?)
            }
            _ => Err(mixed_memory()),
        }
    }

    /// Adds the residuals to the matrices.
    pub(crate) fn add_held(&self, numbers: &mut FlatSlice<'_>, held: &StateBuffer) -> Result<()> {
        let run = |thin: &ThinMatrix| Run { from: thin.held, to: thin.start, len: thin.elements().len() };
        numbers.add_runs(held, &self.matrices.iter().map(run).collect::<Vec<_>>())
    }
}
