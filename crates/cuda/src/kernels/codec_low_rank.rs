//! The low-rank codec of gradients: matrices as products of two thin factors, P·Qᵀ (PowerSGD, Vogels et al. 2019).
//!
//! The kernels run on [`Stream::Communication`], concurrently with compute. A launch handles up to 16 matrices, whose sizes it
//! takes as arguments.

use std::ops::Range;

use phalanx_kernels::{Run, ThinMatrix};

use super::grid::{THREADS, check, check_type, launch, over, warps};
use super::sources::CODEC_LOW_RANK;
use crate::launch::Launch;
use crate::{ElementType, Gpu, GpuError, Result, Slice, Stream};

/// Matrices, or runs, per launch.
const MATRICES_PER_LAUNCH: usize = 16;

/// The most columns of a row that one warp handles; longer rows get a block.
const WARP_WIDTH: usize = 1024;

/// The tile of a block in sums over columns.
const TILE_ROWS: usize = 128;
const TILE_COLUMNS: usize = 32;

/// The maximum of blocks in a direction, per matrix.
const MOST_BLOCKS: usize = 1 << 15;

fn on<'a>(gpu: &'a Gpu, kernel: &'a str, grid: [usize; 3]) -> Launch<'a> {
    launch(gpu, &CODEC_LOW_RANK, kernel, grid).on(Stream::Communication)
}

/// Returns the kernels' descriptors of matrices. `offset` is the start of a matrix in the second array: its residual, or its
/// scratch memory.
fn descriptors(
    matrices: &[ThinMatrix],
    offset: impl Fn(usize, &ThinMatrix) -> usize,
) -> [i64; MATRICES_PER_LAUNCH * 8] {
    let mut words = [0; MATRICES_PER_LAUNCH * 8];
    for (at, (matrix, words)) in matrices.iter().zip(words.as_chunks_mut::<8>().0).enumerate() {
        let ThinMatrix { start, p, q, rows, columns, rank, .. } = *matrix;
        *words = [start, offset(at, matrix), p, q, rows, columns, rank, 0].map(|number| number as i64);
    }
    words
}

/// Returns the maximum of a property of matrices.
fn maximum(matrices: &[ThinMatrix], of: impl Fn(&ThinMatrix) -> usize) -> usize {
    matrices.iter().map(of).max().unwrap_or(0)
}

/// Returns the range of a matrix's elements within an array.
type RangeFn = fn(&ThinMatrix) -> Range<usize>;

/// Checks that all matrices are within their arrays.
fn check_matrices(
    function: &'static str,
    matrices: &[ThinMatrix],
    arrays: &[(&str, &Slice, RangeFn)],
) -> Result<()> {
    for (name, slice, range) in arrays {
        check_type(function, name, slice, ElementType::F32)?;
        let end = maximum(matrices, |matrix| range(matrix).end);
        if end > slice.len() {
            let problem = format!("`{name}` has {} elements, and a matrix needs {end}", slice.len());
            return Err(GpuError::argument(function, problem));
        }
    }
    match matrices.iter().find(|matrix| matrix.rows == 0 || matrix.columns == 0 || matrix.rank == 0) {
        None => Ok(()),
        Some(matrix) => Err(GpuError::argument(function, format!("{matrix:?} has no elements"))),
    }
}

/// Computes values ← values + residual and P ← values·Q, for each matrix in `values`.
///
/// # Errors
/// If an array is not f32, or too short for a matrix.
pub fn project(
    gpu: &Gpu,
    matrices: &[ThinMatrix],
    (values, residual): (&Slice, &Slice),
    q: &Slice,
    p: &Slice,
) -> Result<()> {
    check_matrices(
        "project",
        matrices,
        &[
            ("values", values, ThinMatrix::elements),
            ("residual", residual, ThinMatrix::held),
            ("q", q, ThinMatrix::q),
            ("p", p, ThinMatrix::p),
        ],
    )?;
    for some in matrices.chunks(MATRICES_PER_LAUNCH) {
        let rows = maximum(some, |matrix| matrix.rows);
        let (kernel, blocks) = match maximum(some, |matrix| matrix.columns) <= WARP_WIDTH {
            true => ("project_warp_f32", warps(rows)[0]),
            false => ("project_block_f32", rows),
        };
        on(gpu, kernel, [blocks.min(MOST_BLOCKS), 1, some.len()])
            .number(descriptors(some, |_, matrix| matrix.held))
            .slice(values)
            .slice(residual)
            .slice(q)
            .slice(p)
            .run()?;
    }
    Ok(())
}

/// Returns the f32 elements of scratch memory of [`project_back`].
pub fn project_back_numbers(matrices: &[ThinMatrix]) -> usize {
    matrices.iter().map(sums_of_tiles).sum()
}

fn sums_of_tiles(matrix: &ThinMatrix) -> usize {
    matrix.rows.div_ceil(TILE_ROWS) * matrix.columns * matrix.rank
}

/// Computes Q ← Mᵀ·P for each matrix M in `values`. `scratch` has [`project_back_numbers`] elements.
///
/// # Errors
/// If an array is not f32, or too short for a matrix.
pub fn project_back(
    gpu: &Gpu,
    matrices: &[ThinMatrix],
    (values, p): (&Slice, &Slice),
    q: &Slice,
    scratch: &Slice,
) -> Result<()> {
    const FUNCTION: &str = "project_back";
    let arrays: [(_, _, fn(&ThinMatrix) -> _); 3] =
        [("values", values, ThinMatrix::elements), ("p", p, ThinMatrix::p), ("q", q, ThinMatrix::q)];
    check_matrices(FUNCTION, matrices, &arrays)?;
    check(FUNCTION, "scratch", scratch, ElementType::F32, project_back_numbers(matrices))?;
    let mut end = 0;
    for some in matrices.chunks(MATRICES_PER_LAUNCH) {
        let starts: Vec<usize> = some
            .iter()
            .map(|matrix| {
                let start = end;
                end += sums_of_tiles(matrix);
                start
            })
            .collect();
        let words = descriptors(some, |at, _| starts[at]);
        let columns = maximum(some, |matrix| matrix.columns).div_ceil(TILE_COLUMNS).min(MOST_BLOCKS);
        let rows = maximum(some, |matrix| matrix.rows).div_ceil(TILE_ROWS).min(MOST_BLOCKS);
        on(gpu, "project_back_f32", [columns, rows, some.len()])
            .number(words)
            .slice(values)
            .slice(p)
            .slice(scratch)
            .run()?;
        let numbers = maximum(some, |matrix| matrix.columns * matrix.rank);
        on(gpu, "add_tiles_f32", [over(numbers, 1)[0], 1, some.len()])
            .number(words)
            .slice(scratch)
            .slice(q)
            .run()?;
    }
    Ok(())
}

/// Makes the columns of each P orthonormal, as [`phalanx_kernels::orthogonalise`] does, with f64 sums in another order.
///
/// # Errors
/// If `p` is not f32, or too short for a matrix.
pub fn orthogonalise(gpu: &Gpu, matrices: &[ThinMatrix], p: &Slice) -> Result<()> {
    check_matrices("orthogonalise", matrices, &[("p", p, ThinMatrix::p)])?;
    for some in matrices.chunks(MATRICES_PER_LAUNCH) {
        on(gpu, "orthogonalise_f32", [1; 3])
            .blocks([1, 1, some.len()], [4 * THREADS, 1, 1])
            .number(descriptors(some, |_, matrix| matrix.held))
            .slice(p)
            .run()?;
    }
    Ok(())
}

/// Computes for each matrix in `values`: residual ← values − P·Qᵀ, and values ← ranks·P·Qᵀ. If the flag `invalid` is set, values
/// become NaN, and the residual is unchanged.
///
/// # Errors
/// If an array has another type, or is too short for a matrix.
pub fn expand(
    gpu: &Gpu,
    matrices: &[ThinMatrix],
    (values, residual): (&Slice, &Slice),
    (p, q): (&Slice, &Slice),
    invalid: &Slice,
    ranks: f32,
) -> Result<()> {
    const FUNCTION: &str = "expand";
    check_matrices(
        FUNCTION,
        matrices,
        &[
            ("values", values, ThinMatrix::elements),
            ("residual", residual, ThinMatrix::held),
            ("p", p, ThinMatrix::p),
            ("q", q, ThinMatrix::q),
        ],
    )?;
    check(FUNCTION, "invalid", invalid, ElementType::U32, 1)?;
    for some in matrices.chunks(MATRICES_PER_LAUNCH) {
        on(
            gpu,
            "expand_f32",
            [warps(maximum(some, |matrix| matrix.rows))[0].min(MOST_BLOCKS), 1, some.len()],
        )
        .number(descriptors(some, |_, matrix| matrix.held))
        .slice(values)
        .slice(residual)
        .slice(p)
        .slice(q)
        .slice(invalid)
        .number(ranks)
        .run()?;
    }
    Ok(())
}

/// Copies runs of elements from `from` to `to`, or adds them. Sets the flag `invalid`, if given, if one is not finite.
///
/// # Errors
/// If an array has another type, or a run exceeds one of them.
pub fn move_runs(
    gpu: &Gpu,
    runs: &[Run],
    (from, to): (&Slice, &Slice),
    add: bool,
    invalid: Option<&Slice>,
) -> Result<()> {
    const FUNCTION: &str = "move_runs";
    check_type(FUNCTION, "from", from, ElementType::F32)?;
    check_type(FUNCTION, "to", to, ElementType::F32)?;
    if let Some(invalid) = invalid {
        check(FUNCTION, "invalid", invalid, ElementType::U32, 1)?;
    }
    let fits = |run: &Run| run.from + run.len <= from.len() && run.to + run.len <= to.len();
    if let Some(run) = runs.iter().find(|run| !fits(run)) {
        let problem = format!("{run:?} of {} numbers to {}", from.len(), to.len());
        return Err(GpuError::argument(FUNCTION, problem));
    }
    for some in runs.chunks(MATRICES_PER_LAUNCH) {
        let mut words = [0_i64; MATRICES_PER_LAUNCH * 3];
        for (run, words) in some.iter().zip(words.as_chunks_mut::<3>().0) {
            *words = [run.from, run.to, run.len].map(|number| number as i64);
        }
        let longest = some.iter().map(|run| run.len).max().unwrap_or(0);
        on(gpu, "move_runs_f32", [over(longest, 1)[0], 1, some.len()])
            .number(words)
            .slice(from)
            .slice(to)
            .number(i32::from(add))
            .optional(invalid)
            .run()?;
    }
    Ok(())
}

/// Computes values ← factor·values. Sets the flag `invalid` if a result is not finite.
///
/// # Errors
/// If an array has another type.
pub fn scale(gpu: &Gpu, values: &Slice, factor: f32, invalid: &Slice) -> Result<()> {
    const FUNCTION: &str = "scale";
    check_type(FUNCTION, "values", values, ElementType::F32)?;
    check(FUNCTION, "invalid", invalid, ElementType::U32, 1)?;
    on(gpu, "scale_f32", over(values.len(), 1))
        .slice(values)
        .number(factor)
        .slice(invalid)
        .number(values.len() as i64)
        .run()
}
