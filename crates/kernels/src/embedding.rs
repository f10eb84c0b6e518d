//! The gradient of a table of embeddings.

use crate::context::Context;
use crate::error::{KernelError, Result, check_len};
use crate::float::Float;

/// Adds the rows of `dy` [ids, width] to the rows `ids` of `table`, in the order of the positions; without `accumulate` to
/// zeros. Threads take rows of the table, so their number changes no bit.
///
/// # Errors
/// If a length does not match, or an id has no row.
pub fn embedding_backward<T: Float>(
    context: &Context,
    width: usize,
    ids: &[u32],
    dy: &[T],
    table: &mut [T],
    accumulate: bool,
) -> Result<()> {
    const KERNEL: &str = "embedding_backward";
    check_len(KERNEL, "dy", ids.len() * width, dy.len())?;
    let rows = table.len().checked_div(width).unwrap_or(0);
    check_len(KERNEL, "table", rows * width, table.len())?;
    if let Some(at) = ids.iter().position(|id| *id as usize >= rows) {
        let problem = format!("id {} at position {at} is not below the {rows} rows", ids[at]);
        return Err(KernelError::Shape { kernel: KERNEL, problem });
    }
    // Positions by row. The sort is stable.
    let mut order: Vec<usize> = (0..ids.len()).collect();
    order.sort_by_key(|at| ids[*at]);
    let piece = context.piece(table.len(), width.max(1));
    context.run_chunks(table, piece, |task, part| {
        let first = task * (piece / width.max(1));
        if !accumulate {
            part.fill(T::ZERO);
        }
        let end = first + part.len() / width.max(1);
        let before = |row: usize| order.partition_point(|at| (ids[*at] as usize) < row);
        let positions = &order[before(first)..before(end)];
        context.simd(
            #[inline(always)]
            || {
                for at in positions {
                    let row = ids[*at] as usize - first;
                    let to = &mut part[row * width..(row + 1) * width];
                    to.iter_mut().zip(&dy[at * width..(at + 1) * width]).for_each(|(to, from)| *to += *from);
                }
            },
        );
    });
    Ok(())
}
