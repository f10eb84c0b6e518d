//! Products whose factors or results are on their way to other ranks while they are computed.
//!
//! Blocks of rows and of positions depend on sizes alone, so overlapped or not the bits are the same. What a product adds up is never
//! cut.

use candle_core::{DType, Shape};

use super::rank_split::{Gathering, POSITIONS, RankSplit};
use super::underway::{Coming, OpRanks};
use crate::backend::{Array, LinearProduct, WeightLayout};
use crate::group::even_lens;
use crate::tape::Tape;
use crate::{Context, Result};

/// The bytes of a message from which on a product is computed in blocks, one of which is on its way while the next is computed.
const BLOCK_BYTES: usize = 1 << 18;

/// The blocks of a product at most.
const MOST_BLOCKS: usize = 4;

/// The rows that kernels compute together.
const TOGETHER: usize = 64;

/// Returns the number of blocks of a product whose result has this shape and type.
fn num_blocks(elements: usize, dtype: DType) -> usize {
    (elements * dtype.size_in_bytes() / BLOCK_BYTES).clamp(1, MOST_BLOCKS)
}

/// Returns a shape with another last dimension.
pub(super) fn with_last(dims: &[usize], last: usize) -> Shape {
    let (_, lead) = dims.split_last().unwrap_or((&0, &[]));
    lead.iter().copied().chain([last]).collect::<Vec<_>>().into()
}

/// A weight by which rows are multiplied.
pub(super) struct RowProduct<'a> {
    pub(super) weight: &'a Array,
    pub(super) layout: WeightLayout,
    pub(super) bias: Option<&'a Array>,
    pub(super) inputs: usize,
    pub(super) outputs: usize,
    /// The type of the result.
    pub(super) dtype: DType,
}

/// Rows whose sum over the ranks is coming.
struct SumOfRows {
    first: usize,
    part: Array,
    coming: Coming,
}

/// Sequences [N, T, I], and the ranks' positions of them.
#[derive(Clone)]
pub(super) struct PositionBlock {
    pub(super) x: Array,
    pub(super) split: RankSplit,
}

impl PositionBlock {
    /// Divides the sequences into blocks.
    fn by_samples(&self, blocks: usize) -> Result<Vec<Self>> {
        let [samples, length, inputs] = self.x.shape().dims3().map(|(n, t, c)| [n, t, c])?;
        let flat = self.x.reshape(self.x.elem_count())?;
        let counts = even_lens(samples, blocks.min(samples));
        let mut first = 0;
        let block = |count: usize| {
            let x = flat.view(first * length * inputs, (count, length, inputs))?;
            first += count;
            Ok(Self { x, split: self.split.clone() })
        };
        counts.into_iter().map(block).collect()
    }

    /// Divides the positions of every rank into blocks.
    fn by_positions(&self, context: &Context, blocks: usize) -> Result<Vec<Self>> {
        let backend = self.x.backend(context);
        let mut starts = Vec::with_capacity(self.split.lens().len());
        self.split.lens().iter().fold(0, |start, len| {
            starts.push(start);
            start + len
        });
        let block = |block: usize| {
            let lens: Vec<usize> =
                self.split.lens().iter().map(|len| even_lens(*len, blocks)[block]).collect();
            let mut parts = Vec::with_capacity(lens.len());
            for (len, start) in lens.iter().zip(&mut starts) {
                parts.push(backend.narrow(&self.x, POSITIONS, *start, *len)?);
                *start += len;
            }
            let x = backend.cat(&parts, POSITIONS)?;
            Ok(Self { x, split: self.split.of_lens(lens) })
        };
        (0..blocks).map(block).collect()
    }
}

impl RowProduct<'_> {
    /// Computes rows [.., I] times the weight, [.., O].
    pub(super) fn of(&self, tape: &Tape, x: &Array) -> Result<Array> {
        let rows: usize = x.dims()[..x.rank() - 1].iter().product();
        tape.count_forward(rows * self.inputs * self.outputs);
        Ok(Array::backend_of(tape.context(), [x, self.weight]).linear(LinearProduct {
            sizes: [rows, self.inputs, self.outputs],
            x,
            weight: self.layout.factor(self.weight),
            bias: self.bias,
            shape: &with_last(x.dims(), self.outputs),
            precision: tape.session().precision,
            dtype: self.dtype,
        })?)
    }

    /// Computes the sum over the ranks of their parts of x·W. Blocks of rows are summed while the next are computed.
    pub(super) fn sum(&self, tape: &Tape, ranks: OpRanks<'_>, x: &Array) -> Result<Array> {
        let (rows, outputs) = (x.elem_count() / self.inputs.max(1), self.outputs);
        let blocks = num_blocks(rows * outputs, self.dtype);
        let block = rows.div_ceil(blocks).next_multiple_of(TOGETHER);
        if ranks.group.size() == 1 || blocks == 1 || block >= rows {
            let sum = self.of(tape, x)?;
            ranks.sum(&sum)?.wait()?;
            return Ok(sum);
        }
        let backend = x.backend(tape.context());
        let shape = with_last(x.dims(), outputs);
        let x = x.reshape(rows * self.inputs)?;
        let whole = backend.unwritten(&Shape::from(rows * outputs), self.dtype)?;
        let mut last = None;
        let put = |coming: Option<SumOfRows>| match coming {
            Some(SumOfRows { first, part, coming }) => {
                coming.wait()?;
                backend.copy(&whole.view(first * outputs, part.elem_count())?, &part)?;
                Ok::<_, crate::TensorError>(())
            }
            None => Ok(()),
        };
        for first in (0..rows).step_by(block) {
            let count = block.min(rows - first);
            let part = self.of(tape, &x.view(first * self.inputs, (count, self.inputs))?)?;
            let coming = ranks.sum(&part)?;
            put(last.replace(SumOfRows { first, part, coming }))?;
        }
        put(last)?;
        Ok(whole.reshape(shape)?)
    }

    /// Computes the sum over the ranks of their parts of x·W, of which each rank gets its positions: `x` is [N, T, I]. Blocks are on
    /// their way while the next are computed: samples, or some positions of every rank if there is one sample.
    pub(super) fn scattered(&self, tape: &Tape, ranks: OpRanks<'_>, block: &PositionBlock) -> Result<Array> {
        let (context, x) = (tape.context(), &block.x);
        let (samples, length) = (x.dims()[0], x.dims()[1]);
        let blocks = num_blocks(samples * length * self.outputs, self.dtype);
        let blocks = blocks.min((samples * length / TOGETHER).max(1));
        let parts = match (samples, blocks) {
            (_, 1) => vec![block.clone()],
            (0 | 1, _) => block.by_positions(context, blocks)?,
            _ => block.by_samples(blocks)?,
        };
        let (mut done, mut last) = (Vec::with_capacity(parts.len()), None);
        for PositionBlock { x, split } in &parts {
            let coming = split.begin_scattered(context, ranks, &self.of(tape, x)?)?;
            if let Some(before) = last.replace(coming) {
                done.push(before.finish(context)?);
            }
        }
        done.extend(last.map(|last| last.finish(context)).transpose()?);
        match done.len() {
            1 => Ok(done.swap_remove(0)),
            _ => Ok(x.backend(context).cat(&done, if samples > 1 { 0 } else { POSITIONS })?),
        }
    }
}

/// A product, and its factor with the positions of all ranks.
pub(super) struct GatheredProduct {
    pub(super) whole: Array,
    pub(super) product: Array,
}

/// Multiplies sequences [N, T, I] whose positions are being gathered: those of this rank while the others are on their way.
pub(super) fn product_of_gathered(
    context: &Context,
    own: &Array,
    gathering: Gathering,
    multiply: impl Fn(&Array) -> Result<Array>,
) -> Result<GatheredProduct> {
    let split = gathering.split().clone();
    let least = split.lens().iter().min().copied().unwrap_or_default();
    if own.dims()[0] * least < TOGETHER {
        let whole = gathering.finish(context, own.dtype())?;
        return Ok(GatheredProduct { product: multiply(&whole.contiguous()?)?, whole });
    }
    let of_own = multiply(&own.contiguous()?)?;
    let backend = own.backend(context);
    let whole = gathering.finish(context, own.dtype())?;
    let (mut products, mut start) = (Vec::with_capacity(split.lens().len()), 0);
    for (rank, len) in split.lens().iter().enumerate() {
        products.push(match rank == split.rank() {
            true => of_own.clone(),
            false => multiply(&backend.narrow(&whole, POSITIONS, start, *len)?.contiguous()?)?,
        });
        start += len;
    }
    Ok(GatheredProduct { product: backend.cat(&products, POSITIONS)?, whole })
}
