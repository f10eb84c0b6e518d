//! Changes of shape: elements move without changing.

use super::binary::DIMENSIONS;
use super::grid::{THREADS, check_len, launch, over};
use super::sources::SHAPES;
use crate::{Gpu, GpuError, Result, Slice, Stream};

/// A dimension of a result: its size, and its stride in the source.
type Dimension = (usize, usize);

fn product(dims: &[usize]) -> usize {
    dims.iter().product()
}

/// Returns the largest power of two up to 16 that divides all of `bytes`.
fn unit(bytes: &[usize]) -> usize {
    bytes.iter().fold(16, |unit, bytes| {
        let mut unit = unit;
        while bytes % unit != 0 {
            unit /= 2;
        }
        unit
    })
}

fn strides(dims: &[usize]) -> Vec<usize> {
    let mut strides = vec![1; dims.len()];
    for at in (1..dims.len()).rev() {
        strides[at - 1] = strides[at] * dims[at];
    }
    strides
}

/// Merges dimensions that can be walked over as one, and drops those of size 1.
fn merged(dims: impl Iterator<Item = Dimension>) -> Vec<Dimension> {
    let mut found: Vec<Dimension> = Vec::new();
    for (size, stride) in dims.filter(|(size, _)| *size != 1) {
        match found.last_mut() {
            Some(outer) if outer.1 == size * stride => *outer = (outer.0 * size, stride),
            _ => found.push((size, stride)),
        }
    }
    found
}

/// Gathers elements of `x` by sizes and strides.
fn gather(gpu: &Gpu, function: &'static str, x: &Slice, mut dims: Vec<Dimension>) -> Result<Slice> {
    let count = dims.iter().map(|dim| dim.0).product::<usize>();
    let to = gpu.unwritten(x.dtype(), count)?;
    if count == 0 {
        return Ok(to);
    }
    // Contiguous elements move together.
    let mut size = x.dtype().size();
    if let Some(&(inner, 1)) = dims.last() {
        let bytes: Vec<usize> = dims[..dims.len() - 1].iter().map(|dim| dim.1 * size).collect();
        let whole = [inner * size, x.address() as usize, to.address() as usize];
        let unit = unit(&[&bytes[..], &whole].concat());
        let last = dims.len() - 1;
        for dim in &mut dims[..last] {
            dim.1 = dim.1 * size / unit;
        }
        dims[last].0 = inner * size / unit;
        size = unit;
    }
    if dims.len() > DIMENSIONS {
        return Err(GpuError::unsupported(function, format!("{} dimensions", dims.len())));
    }
    let mut shape = [0_i64; 2 * DIMENSIONS];
    shape[..DIMENSIONS].fill(1);
    let first = DIMENSIONS - dims.len();
    for (at, (size, stride)) in dims.iter().enumerate() {
        shape[first + at] = *size as i64;
        shape[DIMENSIONS + first + at] = *stride as i64;
    }
    let count = dims.iter().map(|dim| dim.0).product::<usize>();
    launch(gpu, &SHAPES, &format!("gather_b{size}"), over(count, 1))
        .slice(x)
        .slice(&to)
        .number(shape)
        .number(count as i64)
        .run()?;
    Ok(to)
}

/// Permutes the dimensions of an array of shape `dims` to `order`. Returns a handle of the same memory if no element moves.
///
/// # Errors
/// If `order` is not a permutation of the dimensions.
pub fn permute(gpu: &Gpu, x: &Slice, dims: &[usize], order: &[usize]) -> Result<Slice> {
    const FUNCTION: &str = "permute";
    check_len(FUNCTION, "x", x, product(dims))?;
    let mut sorted = order.to_vec();
    sorted.sort_unstable();
    if !sorted.into_iter().eq(0..dims.len()) {
        return Err(GpuError::argument(
            FUNCTION,
            format!("{order:?} is not an order of the dimensions {dims:?}"),
        ));
    }
    let strides = strides(dims);
    let moved = merged(order.iter().map(|at| (dims[*at], strides[*at])));
    match *moved {
        [] | [(_, 1)] => Ok(x.clone()),
        // Transposes of matrices.
        [(columns, 1), (rows, stride)] if stride == columns && x.len() == rows * columns => {
            transpose(gpu, x, [1, rows, columns])
        }
        [(batch, apart), (columns, 1), (rows, stride)] if stride == columns && apart == rows * columns => {
            transpose(gpu, x, [batch, rows, columns])
        }
        _ => gather(gpu, FUNCTION, x, moved),
    }
}

/// Transposes `batch` matrices of rows × columns.
fn transpose(gpu: &Gpu, x: &Slice, [batch, rows, columns]: [usize; 3]) -> Result<Slice> {
    let to = gpu.unwritten(x.dtype(), x.len())?;
    let across = columns.div_ceil(32);
    let tiles = (batch * rows.div_ceil(32) * across).min(1 << 20);
    launch(gpu, &SHAPES, &format!("transpose_b{}", x.dtype().size()), [tiles, 1, 1])
        .blocks([tiles, 1, 1], [32, THREADS / 32, 1])
        .slice(x)
        .slice(&to)
        .number(batch as i64)
        .number(rows as i64)
        .number(columns as i64)
        .number(across as i64)
        .run()?;
    Ok(to)
}

/// Copies `rows` pieces of `width` elements, with strides `from.1` and `to.1`.
fn copy_rows(gpu: &Gpu, from: (&Slice, usize), to: (&Slice, usize), rows: usize, width: usize) -> Result<()> {
    if rows * width == 0 {
        return Ok(());
    }
    let size = from.0.dtype().size();
    let bytes =
        [width * size, from.1 * size, to.1 * size, from.0.address() as usize, to.0.address() as usize];
    let unit = unit(&bytes);
    launch(gpu, &SHAPES, &format!("copy_rows_b{unit}"), over(rows * width * size / unit, 1))
        .slice(from.0)
        .slice(to.0)
        .number(rows as i64)
        .number((width * size / unit) as i64)
        .number((from.1 * size / unit) as i64)
        .number((to.1 * size / unit) as i64)
        .run()
}

fn split(function: &'static str, dims: &[usize], dim: usize) -> Result<[usize; 3]> {
    if dim >= dims.len() {
        return Err(GpuError::argument(function, format!("dimension {dim} of {dims:?}")));
    }
    Ok([product(&dims[..dim]), dims[dim], product(&dims[dim + 1..])])
}

/// Returns elements `start..start + len` of dimension `dim`, as a view if they are contiguous.
///
/// # Errors
/// If they are out of range.
pub fn narrow(gpu: &Gpu, x: &Slice, dims: &[usize], dim: usize, start: usize, len: usize) -> Result<Slice> {
    const FUNCTION: &str = "narrow";
    check_len(FUNCTION, "x", x, product(dims))?;
    let [outer, size, inner] = split(FUNCTION, dims, dim)?;
    if start + len > size {
        let problem = format!("elements {start}..{} of dimension {dim} of {dims:?}", start + len);
        return Err(GpuError::argument(FUNCTION, problem));
    }
    if outer == 1 || len == size {
        return x.view(start * inner..start * inner + outer * len * inner);
    }
    let to = gpu.unwritten(x.dtype(), outer * len * inner)?;
    let from = x.view(start * inner..x.len())?;
    copy_rows(gpu, (&from, size * inner), (&to, len * inner), outer, len * inner)?;
    Ok(to)
}

/// Pads dimension `dim` with `before` and `after` zeros.
///
/// # Errors
/// If the dimension is out of range.
pub fn pad_with_zeros(
    gpu: &Gpu,
    x: &Slice,
    dims: &[usize],
    dim: usize,
    before: usize,
    after: usize,
) -> Result<Slice> {
    const FUNCTION: &str = "pad_with_zeros";
    check_len(FUNCTION, "x", x, product(dims))?;
    let [outer, size, inner] = split(FUNCTION, dims, dim)?;
    let padded = before + size + after;
    let to = gpu.zeros(x.dtype(), outer * padded * inner)?;
    let inside = to.view((before * inner).min(to.len())..to.len())?;
    copy_rows(gpu, (x, size * inner), (&inside, padded * inner), outer, size * inner)?;
    Ok(to)
}

/// Concatenates arrays of one type along `dim`, each given with its shape.
///
/// # Errors
/// If other dimensions or the types differ, or there are none.
pub fn cat(gpu: &Gpu, arrays: &[(&Slice, &[usize])], dim: usize) -> Result<Slice> {
    const FUNCTION: &str = "cat";
    let Some(((first, dims), rest)) = arrays.split_first() else {
        return Err(GpuError::argument(FUNCTION, "there are no arrays"));
    };
    let [outer, _, inner] = split(FUNCTION, dims, dim)?;
    for (slice, other) in rest {
        let alike = other.len() == dims.len() && (0..dims.len()).all(|at| at == dim || other[at] == dims[at]);
        if !alike || slice.dtype() != first.dtype() {
            let problem =
                format!("{other:?} of {} with {dims:?} of {} along {dim}", slice.dtype(), first.dtype());
            return Err(GpuError::argument(FUNCTION, problem));
        }
    }
    let whole: usize = arrays.iter().map(|(_, dims)| dims[dim]).sum();
    let to = gpu.unwritten(first.dtype(), outer * whole * inner)?;
    let mut at = 0;
    for (slice, dims) in arrays {
        check_len(FUNCTION, "an array", slice, product(dims))?;
        let width = dims[dim] * inner;
        let part = to.view(at.min(to.len())..to.len())?;
        if outer == 1 {
            part.view(0..slice.len())?.copy_from_on(slice, Stream::Compute)?;
        } else {
            copy_rows(gpu, (slice, width), (&part, whole * inner), outer, width)?;
        }
        at += width;
    }
    Ok(to)
}

/// Broadcasts an array of shape `dims` to shape `to` by PyTorch's rules. Returns a handle of the same memory if no element
/// repeats.
///
/// # Errors
/// If it does not broadcast to that shape.
pub fn broadcast_as(gpu: &Gpu, x: &Slice, dims: &[usize], to: &[usize]) -> Result<Slice> {
    const FUNCTION: &str = "broadcast_as";
    check_len(FUNCTION, "x", x, product(dims))?;
    let wrong = || GpuError::argument(FUNCTION, format!("{dims:?} does not broadcast to {to:?}"));
    let extra = to.len().checked_sub(dims.len()).ok_or_else(wrong)?;
    if (0..dims.len()).any(|at| dims[at] != 1 && dims[at] != to[extra + at]) {
        return Err(wrong());
    }
    let strides = strides(dims);
    let stride = |at: usize| if at < extra || dims[at - extra] == 1 { 0 } else { strides[at - extra] };
    let dims = merged((0..to.len()).map(|at| (to[at], stride(at))));
    match *dims {
        [] | [(_, 1)] => Ok(x.clone()),
        _ => gather(gpu, FUNCTION, x, dims),
    }
}
