//! Gradients on their way between ranks: matrices among them as products of thin ones, as PowerSGD sends them (Vogels et al. 2019).
//!
//! These run on [`Stream::Communication`], beside what is computed. A launch brings what it is to know of up to 16 matrices along.

use std::ops::Range;

use phalanx_kernels::{Run, ThinMatrix};

use super::grid::{THREADS, check, check_type, launch, over, warps};
use super::sources::CODEC_LOW_RANK;
use crate::launch::Launch;
use crate::{ElementType, Gpu, GpuError, Result, Slice, Stream};

/// Matrices, or runs, that a launch knows of.
const CARRIED: usize = 16;

/// Columns above which a row has a block for itself, and not a warp.
const WARP_WIDTH: usize = 1024;

/// Rows that are added up together, and columns that a block has, where sums go down columns.
const TILE_ROWS: usize = 128;
const TILE_COLUMNS: usize = 32;

/// Blocks at most of one matrix in a direction.
const MOST_BLOCKS: usize = 1 << 15;

fn on<'a>(gpu: &'a Gpu, kernel: &'a str, grid: [usize; 3]) -> Launch<'a> {
    launch(gpu, &CODEC_LOW_RANK, kernel, grid).on(Stream::Communication)
}

/// What a kernel is told of some matrices: `beside` is where what is kept of each lies, or what is added up for it.
fn told(matrices: &[ThinMatrix], beside: impl Fn(usize, &ThinMatrix) -> usize) -> [i64; CARRIED * 8] {
    let mut words = [0; CARRIED * 8];
    for (at, (matrix, words)) in matrices.iter().zip(words.as_chunks_mut::<8>().0).enumerate() {
        let ThinMatrix { start, p, q, rows, columns, rank, .. } = *matrix;
        *words = [start, beside(at, matrix), p, q, rows, columns, rank, 0].map(|number| number as i64);
    }
    words
}

/// The largest of what matrices have.
fn most(matrices: &[ThinMatrix], of: impl Fn(&ThinMatrix) -> usize) -> usize {
    matrices.iter().map(of).max().unwrap_or(0)
}

/// Where a matrix lies in an array of all of them.
type Place = fn(&ThinMatrix) -> Range<usize>;

/// Fails unless all matrices lie within what belongs to them.
fn check_matrices(
    function: &'static str,
    matrices: &[ThinMatrix],
    arrays: &[(&str, &Slice, Place)],
) -> Result<()> {
    for (name, slice, range) in arrays {
        check_type(function, name, slice, ElementType::F32)?;
        let end = most(matrices, |matrix| range(matrix).end);
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

/// values ← values + held and P ← values·Q, for each of the matrices among `values`.
///
/// # Errors
/// If an array is not of f32 or does not have what a matrix needs of it.
pub fn project(
    gpu: &Gpu,
    matrices: &[ThinMatrix],
    (values, held): (&Slice, &Slice),
    q: &Slice,
    p: &Slice,
) -> Result<()> {
    check_matrices(
        "project",
        matrices,
        &[
            ("values", values, ThinMatrix::elements),
            ("held", held, ThinMatrix::held),
            ("q", q, ThinMatrix::q),
            ("p", p, ThinMatrix::p),
        ],
    )?;
    for some in matrices.chunks(CARRIED) {
        let rows = most(some, |matrix| matrix.rows);
        let (kernel, blocks) = match most(some, |matrix| matrix.columns) <= WARP_WIDTH {
            true => ("project_warp_f32", warps(rows)[0]),
            false => ("project_block_f32", rows),
        };
        on(gpu, kernel, [blocks.min(MOST_BLOCKS), 1, some.len()])
            .number(told(some, |_, matrix| matrix.held))
            .slice(values)
            .slice(held)
            .slice(q)
            .slice(p)
            .run()?;
    }
    Ok(())
}

/// Numbers of f32 that [`project_back`] works in.
pub fn project_back_numbers(matrices: &[ThinMatrix]) -> usize {
    matrices.iter().map(sums_of_tiles).sum()
}

fn sums_of_tiles(matrix: &ThinMatrix) -> usize {
    matrix.rows.div_ceil(TILE_ROWS) * matrix.columns * matrix.rank
}

/// Q ← Mᵀ·P for each of the matrices M among `values`. `scratch` has [`project_back_numbers`].
///
/// # Errors
/// If an array is not of f32 or does not have what a matrix needs of it.
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
    for some in matrices.chunks(CARRIED) {
        let starts: Vec<usize> = some
            .iter()
            .map(|matrix| {
                let start = end;
                end += sums_of_tiles(matrix);
                start
            })
            .collect();
        let words = told(some, |at, _| starts[at]);
        let columns = most(some, |matrix| matrix.columns).div_ceil(TILE_COLUMNS).min(MOST_BLOCKS);
        let rows = most(some, |matrix| matrix.rows).div_ceil(TILE_ROWS).min(MOST_BLOCKS);
        on(gpu, "project_back_f32", [columns, rows, some.len()])
            .number(words)
            .slice(values)
            .slice(p)
            .slice(scratch)
            .run()?;
        let numbers = most(some, |matrix| matrix.columns * matrix.rank);
        on(gpu, "add_tiles_f32", [over(numbers, 1)[0], 1, some.len()])
            .number(words)
            .slice(scratch)
            .slice(q)
            .run()?;
    }
    Ok(())
}

/// Makes the columns of the P of each matrix orthonormal, as [`phalanx_kernels::orthogonalise`] does, with sums of f64 in another
/// order.
///
/// # Errors
/// If `p` is not of f32 or does not have what a matrix needs of it.
pub fn orthogonalise(gpu: &Gpu, matrices: &[ThinMatrix], p: &Slice) -> Result<()> {
    check_matrices("orthogonalise", matrices, &[("p", p, ThinMatrix::p)])?;
    for some in matrices.chunks(CARRIED) {
        on(gpu, "orthogonalise_f32", [1; 3])
            .blocks([1, 1, some.len()], [4 * THREADS, 1, 1])
            .number(told(some, |_, matrix| matrix.held))
            .slice(p)
            .run()?;
    }
    Ok(())
}

/// For each of the matrices among `values`: held ← values − P·Qᵀ, and values ← ranks·P·Qᵀ. Where the flag `spoiled` is not 0 values
/// become NaN, and what is held stays.
///
/// # Errors
/// If an array has another type, or does not have what a matrix needs of it.
pub fn expand(
    gpu: &Gpu,
    matrices: &[ThinMatrix],
    (values, held): (&Slice, &Slice),
    (p, q): (&Slice, &Slice),
    spoiled: &Slice,
    ranks: f32,
) -> Result<()> {
    const FUNCTION: &str = "expand";
    check_matrices(
        FUNCTION,
        matrices,
        &[
            ("values", values, ThinMatrix::elements),
            ("held", held, ThinMatrix::held),
            ("p", p, ThinMatrix::p),
            ("q", q, ThinMatrix::q),
        ],
    )?;
    check(FUNCTION, "spoiled", spoiled, ElementType::U32, 1)?;
    for some in matrices.chunks(CARRIED) {
        on(gpu, "expand_f32", [warps(most(some, |matrix| matrix.rows))[0].min(MOST_BLOCKS), 1, some.len()])
            .number(told(some, |_, matrix| matrix.held))
            .slice(values)
            .slice(held)
            .slice(p)
            .slice(q)
            .slice(spoiled)
            .number(ranks)
            .run()?;
    }
    Ok(())
}

/// Overwrites numbers of `to` by runs of those of `from`, or adds those to them. If one that comes is not finite the flag `spoiled`, if
/// there is one, becomes 1.
///
/// # Errors
/// If an array has another type, or a run does not lie within both.
pub fn move_runs(
    gpu: &Gpu,
    runs: &[Run],
    (from, to): (&Slice, &Slice),
    add: bool,
    spoiled: Option<&Slice>,
) -> Result<()> {
    const FUNCTION: &str = "move_runs";
    check_type(FUNCTION, "from", from, ElementType::F32)?;
    check_type(FUNCTION, "to", to, ElementType::F32)?;
    if let Some(spoiled) = spoiled {
        check(FUNCTION, "spoiled", spoiled, ElementType::U32, 1)?;
    }
    let fits = |run: &Run| run.from + run.len <= from.len() && run.to + run.len <= to.len();
    if let Some(run) = runs.iter().find(|run| !fits(run)) {
        let problem = format!("{run:?} of {} numbers to {}", from.len(), to.len());
        return Err(GpuError::argument(FUNCTION, problem));
    }
    for some in runs.chunks(CARRIED) {
        let mut words = [0_i64; CARRIED * 3];
        for (run, words) in some.iter().zip(words.as_chunks_mut::<3>().0) {
            *words = [run.from, run.to, run.len].map(|number| number as i64);
        }
        let longest = some.iter().map(|run| run.len).max().unwrap_or(0);
        on(gpu, "move_runs_f32", [over(longest, 1)[0], 1, some.len()])
            .number(words)
            .slice(from)
            .slice(to)
            .number(i32::from(add))
            .optional(spoiled)
            .run()?;
    }
    Ok(())
}

/// values ← factor·values. If one is not finite then the flag `spoiled` becomes 1.
///
/// # Errors
/// If an array has another type.
pub fn scale(gpu: &Gpu, values: &Slice, factor: f32, spoiled: &Slice) -> Result<()> {
    const FUNCTION: &str = "scale";
    check_type(FUNCTION, "values", values, ElementType::F32)?;
    check(FUNCTION, "spoiled", spoiled, ElementType::U32, 1)?;
    on(gpu, "scale_f32", over(values.len(), 1))
        .slice(values)
        .number(factor)
        .slice(spoiled)
        .number(values.len() as i64)
        .run()
}
