//! Statistics of the channels of maps [N, C, P], and passes over maps by coefficients.

use phalanx_kernels::Activation;

use super::grid::{
    THREADS, backward_suffix, check_float, check_len, launch, narrow_size, over, pack, rows, rows_per_chunk,
};
use super::sources::{PLANE_SUMS, PLANES};
use crate::{ElementType, Gpu, Result, Slice};

/// The smallest plane that is a part by itself. Smaller planes are summed column by column.
const SMALL_PLANE: usize = 32;

/// Values in each set of coefficients.
pub(super) const COEFFICIENTS: usize = 5;

/// The partition of the elements of channels.
#[derive(Debug, Clone, Copy)]
pub(super) enum ChannelSplit {
    /// A part for each plane.
    Planes,
    /// A part for each column of [N, C·P], over `per_chunk` images.
    Columns { per_chunk: usize },
    /// For channels-last maps: a part for each channel of each image, over `per_chunk` pixels.
    Pixels { per_chunk: usize },
}

impl ChannelSplit {
    pub(super) fn of([batch, channels, plane]: [usize; 3]) -> Self {
        if plane >= SMALL_PLANE {
            return Self::Planes;
        }
        Self::Columns { per_chunk: rows_per_chunk(batch, (channels * plane).div_ceil(THREADS)) }
    }

    /// Returns the partition of the planes of maps [N, P, C].
    pub(super) fn of_last([batch, channels, plane]: [usize; 3]) -> Self {
        Self::Pixels { per_chunk: rows_per_chunk(plane, channels.div_ceil(THREADS) * batch) }
    }

    /// Returns the matrices whose columns are summed: their number, rows, columns, and rows of a chunk.
    fn matrices(self, [batch, channels, plane]: [usize; 3]) -> Option<[usize; 4]> {
        match self {
            Self::Planes => None,
            Self::Columns { per_chunk } => Some([1, batch, channels * plane, per_chunk]),
            Self::Pixels { per_chunk } => Some([batch, plane, channels, per_chunk]),
        }
    }

    /// Returns the number of parts.
    fn count(self, [batch, channels, plane]: [usize; 3]) -> usize {
        match self {
            Self::Planes => batch * channels,
            Self::Columns { per_chunk } => batch.div_ceil(per_chunk) * channels * plane,
            Self::Pixels { per_chunk } => batch * plane.div_ceil(per_chunk) * channels,
        }
    }

    /// Returns `Parts` of the kernels: chunks, parts of a channel in each, stride of chunks, elements of a part, and elements of
    /// a part of the last chunk.
    pub(super) fn descriptor(self, [batch, channels, plane]: [usize; 3]) -> [i64; 5] {
        let numbers = match self {
            Self::Planes => [batch, 1, channels, plane, plane],
            Self::Columns { per_chunk } => {
                let chunks = batch.div_ceil(per_chunk);
                [chunks, plane, channels * plane, per_chunk, batch - (chunks - 1) * per_chunk]
            }
            // Parts of planes, which are combined before those of channels.
            Self::Pixels { .. } => [batch, 1, channels, plane, plane],
        };
        numbers.map(|number| number as i64)
    }
}

/// Returns the kernels' number of an activation.
fn number(activation: Activation) -> i32 {
    match activation {
        Activation::None => 0,
        Activation::Relu => 1,
        Activation::Relu6 => 2,
    }
}

/// Returns the kernel suffix, the blocks across, and their shape. Columns are summed in packs if alignment allows.
fn columns_of(columns: usize, pack: usize, maps: &[&Slice]) -> (&'static str, usize, [usize; 3]) {
    let whole = |map: &&Slice| map.address().is_multiple_of(16);
    if pack == 1 || !columns.is_multiple_of(pack) || !maps.iter().all(whole) {
        return ("", columns.div_ceil(32), [32, THREADS / 32, 1]);
    }
    let across = (columns / pack).next_power_of_two().min(32);
    ("_packs", columns.div_ceil(across * pack), [across, THREADS / across, 1])
}

/// Computes means and squared deviations of parts.
pub(super) fn moments(
    gpu: &Gpu,
    function: &'static str,
    dims: [usize; 3],
    split: ChannelSplit,
    x: &Slice,
) -> Result<Slice> {
    let [batch, channels, plane] = dims;
    check_float(function, x.dtype())?;
    check_len(function, "x", x, batch * channels * plane)?;
    let parts = gpu.unwritten(ElementType::F64, 2 * split.count(dims))?;
    let Some([matrices, rows_of, columns, per_chunk]) = split.matrices(dims) else {
        let (group, grid) = rows(batch * channels, plane);
        launch(gpu, &PLANE_SUMS, &format!("plane_moments_{group}_{}", x.dtype()), grid)
            .slice(x)
            .slice(&parts)
            .number((batch * channels) as i64)
            .number(narrow_size(function, plane)?)
            .run()?;
        return Ok(parts);
    };
    let (packs, grid, block) = columns_of(columns, pack(&[x.dtype()]), &[x]);
    let grid = [grid, rows_of.div_ceil(per_chunk), matrices];
    launch(gpu, &PLANE_SUMS, &format!("column_moments{packs}_{}", x.dtype()), grid)
        .blocks(grid, block)
        .slice(x)
        .slice(&parts)
        .number(rows_of as i64)
        .number(columns as i64)
        .number(per_chunk as i64)
        .run()?;
    Ok(parts)
}

/// Returns the numbers that map an element to its set of coefficients: neighbours of one set, elements of an image for
/// channels-last maps with sets per image, and channels.
fn place(function: &'static str, dims: [usize; 3], last: bool) -> Result<(i32, i64, i32)> {
    let [_, channels, plane] = dims;
    let (size, image) = if last { (1, channels * plane) } else { (plane, 0) };
    Ok((narrow_size(function, size)?, image as i64, narrow_size(function, channels)?))
}

/// The arguments of a backward pass over maps.
#[derive(Debug, Clone, Copy)]
pub(super) struct Backward<'a> {
    pub(super) x: &'a Slice,
    pub(super) output: Option<&'a Slice>,
    pub(super) dy: &'a Slice,
    pub(super) activation: Activation,
    /// [`COEFFICIENTS`] rows of `sets` values.
    pub(super) rows: &'a Slice,
    pub(super) sets: usize,
    /// True for maps [N, P, C] with a set for each channel of each image.
    pub(super) last: bool,
}

impl Backward<'_> {
    fn check(&self, function: &'static str, dims: [usize; 3]) -> Result<String> {
        let count = dims.iter().product();
        check_len(function, "x", self.x, count)?;
        check_len(function, "dy", self.dy, count)?;
        if let Some(output) = self.output {
            super::grid::check(function, "output", output, self.x.dtype(), count)?;
        }
        backward_suffix(function, self.x.dtype(), self.dy.dtype())
    }

    /// Computes Σ dy and Σ dy·(x − mean) of parts.
    pub(super) fn sums(
        &self,
        gpu: &Gpu,
        function: &'static str,
        dims: [usize; 3],
        split: ChannelSplit,
    ) -> Result<Slice> {
        let [batch, channels, plane] = dims;
        let suffix = self.check(function, dims)?;
        let parts = gpu.unwritten(ElementType::F64, 2 * split.count(dims))?;
        let matrices = split.matrices(dims);
        let (name, grid, block) = match matrices {
            None => {
                let (group, grid) = rows(batch * channels, plane);
                (format!("plane_gradients_{group}_{suffix}"), grid, [THREADS, 1, 1])
            }
            Some([matrices, rows_of, columns, per_chunk]) => {
                let maps = [Some(self.x), Some(self.dy), self.output];
                let maps: Vec<&Slice> = maps.into_iter().flatten().collect();
                let packs = pack(&[self.x.dtype(), self.dy.dtype()]);
                let (packs, grid, block) = columns_of(columns, packs, &maps);
                let grid = [grid, rows_of.div_ceil(per_chunk), matrices];
                (format!("column_gradients{packs}_{suffix}"), grid, block)
            }
        };
        let launch = launch(gpu, &PLANE_SUMS, &name, grid)
            .blocks(grid, block)
            .number(number(self.activation))
            .slice(self.x)
            .optional(self.output)
            .slice(self.dy)
            .slice(self.rows)
            .number(self.sets as i64)
            .slice(&parts);
        match matrices {
            None => launch.number((batch * channels) as i64).number(narrow_size(function, plane)?),
            Some([_, rows_of, columns, per_chunk]) => launch
                .number(rows_of as i64)
                .number(columns as i64)
                // The neighbours of one set.
                .number(if matches!(split, ChannelSplit::Columns { .. }) { plane as i32 } else { 1 })
                .number(per_chunk as i64),
        }
        .run()?;
        Ok(parts)
    }

    /// Computes the gradient of the input, of dy's type, and, if requested, dy after the activation's derivative.
    pub(super) fn input(
        &self,
        gpu: &Gpu,
        function: &'static str,
        dims: [usize; 3],
        through: bool,
    ) -> Result<(Slice, Option<Slice>)> {
        let suffix = self.check(function, dims)?;
        let count = dims.iter().product::<usize>();
        let dx = gpu.unwritten(self.dy.dtype(), count)?;
        let through = through.then(|| gpu.unwritten(self.dy.dtype(), count)).transpose()?;
        let grid = over(count, pack(&[self.x.dtype(), self.dy.dtype()]));
        let (size, image, channels) = place(function, dims, self.last)?;
        launch(gpu, &PLANES, &format!("normalise_backward_{suffix}"), grid)
            .number(number(self.activation))
            .slice(self.x)
            .optional(self.output)
            .slice(self.dy)
            .slice(self.rows)
            .number(self.sets as i64)
            .slice(&dx)
            .optional(through.as_ref())
            .number(count as i64)
            .number(size)
            .number(image)
            .number(channels)
            .run()?;
        Ok((dx, through))
    }
}

/// Computes y = act((x − mean)·factor + shift + residual), by coefficients of planes or channels.
#[expect(clippy::too_many_arguments, reason = "each argument is a parameter of the kernel")]
pub(super) fn normalise(
    gpu: &Gpu,
    function: &'static str,
    dims: [usize; 3],
    x: &Slice,
    (rows, sets): (&Slice, usize),
    residual: Option<&Slice>,
    activation: Activation,
    last: bool,
) -> Result<Slice> {
    let count = dims.iter().product::<usize>();
    check_len(function, "x", x, count)?;
    check_float(function, x.dtype())?;
    if let Some(residual) = residual {
        super::grid::check(function, "residual", residual, x.dtype(), count)?;
    }
    let y = gpu.unwritten(x.dtype(), count)?;
    let (size, image, channels) = place(function, dims, last)?;
    launch(gpu, &PLANES, &format!("normalise_{}", x.dtype()), over(count, pack(&[x.dtype()])))
        .number(number(activation))
        .slice(x)
        .optional(residual)
        .slice(rows)
        .number(sets as i64)
        .slice(&y)
        .number(count as i64)
        .number(size)
        .number(image)
        .number(channels)
        .run()?;
    Ok(y)
}
