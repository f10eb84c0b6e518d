//! Embeddings: rows of a table by index, and the gradient of the table.

use super::grid::{THREADS, check_float, check_len, check_type, launch, narrow_size, over, pack};
use super::softmax::row_count;
use super::sources::LOOKUPS;
use crate::{ElementType, Gpu, GpuError, Result, Slice};

/// Returns the `len` numbers start, start + step, …
///
/// # Errors
/// If memory runs out.
pub fn progression(gpu: &Gpu, start: u32, step: u32, len: usize) -> Result<Slice> {
    let to = gpu.unwritten(ElementType::U32, len)?;
    launch(gpu, &LOOKUPS, "progression", over(len, 1))
        .number(start)
        .number(step)
        .slice(&to)
        .number(len as i64)
        .run()?;
    Ok(to)
}

/// Looks up the rows `ids` of a table with rows of `width`, stored as `dtype`: the table's type, f32, or 16 bits for a table of
/// f32. An id beyond the table gives NaN: the host does not wait for a check.
///
/// # Errors
/// If lengths or types do not match.
pub fn embedding(gpu: &Gpu, table: &Slice, ids: &Slice, width: usize, dtype: ElementType) -> Result<Slice> {
    const FUNCTION: &str = "embedding";
    let (rows, from) = (row_count(FUNCTION, table, width)?, table.dtype());
    check_float(FUNCTION, from)?;
    check_type(FUNCTION, "ids", ids, ElementType::U32)?;
    if dtype != from && dtype != from.wide() && !(from == ElementType::F32 && dtype.is_half()) {
        return Err(GpuError::unsupported(FUNCTION, format!("a table of {from} as {dtype}")));
    }
    let y = gpu.unwritten(dtype, ids.len() * width)?;
    launch(gpu, &LOOKUPS, &format!("embedding_{from}_{dtype}"), over(y.len(), pack(&[from, dtype])))
        .slice(table)
        .slice(ids)
        .slice(&y)
        .number(narrow_size(FUNCTION, rows)?.cast_unsigned())
        .number(narrow_size(FUNCTION, width)?)
        .number(ids.len() as i64)
        .run()?;
    Ok(y)
}

/// Computes the gradient of a table of `rows` rows, in the compute type. The gradients of one id are added in their order.
///
/// # Errors
/// If lengths or types do not match.
pub fn embedding_backward(gpu: &Gpu, dy: &Slice, ids: &Slice, rows: usize, width: usize) -> Result<Slice> {
    const FUNCTION: &str = "embedding_backward";
    check_float(FUNCTION, dy.dtype())?;
    check_type(FUNCTION, "ids", ids, ElementType::U32)?;
    check_len(FUNCTION, "dy", dy, ids.len() * width)?;
    narrow_size(FUNCTION, ids.len())?;
    let count = narrow_size(FUNCTION, rows)?.cast_unsigned();
    let wide = dy.dtype().wide();
    let table = gpu.unwritten(wide, rows * width)?;
    let (first, last) = (gpu.unwritten(ElementType::U32, rows)?, gpu.zeros(ElementType::U32, rows)?);
    super::fill(gpu, &first, f64::from(u32::MAX))?;
    launch(gpu, &LOOKUPS, "embedding_positions", over(ids.len(), 1))
        .slice(ids)
        .slice(&first)
        .slice(&last)
        .number(count)
        .number(ids.len() as i64)
        .run()?;
    let grid = [rows.min(1 << 20), width.div_ceil(THREADS), 1];
    launch(gpu, &LOOKUPS, &format!("embedding_backward_{}_{wide}", dy.dtype()), grid)
        .slice(dy)
        .slice(ids)
        .slice(&first)
        .slice(&last)
        .slice(&table)
        .number(count)
        .number(narrow_size(FUNCTION, width)?)
        .run()?;
    Ok(table)
}
