//! Binary operations with broadcasting, and the reduction of their gradients.

use phalanx_kernels::BinaryOp;

use super::grid::{check_len, launch, over, pack};
use super::sources::BINARY;
use super::sums::sum_over;
use crate::{ElementType, Gpu, GpuError, Result, Slice};

/// The maximum of dimensions in kernels.
pub(super) const DIMENSIONS: usize = 6;

/// A dimension of a result: its size, and the stride in each operand.
#[derive(Debug, Clone, Copy)]
struct Dimension {
    size: usize,
    strides: [usize; 2],
}

/// Returns the dimensions of a broadcast result, with neighbouring dimensions merged where possible.
fn dimensions(function: &'static str, a: &[usize], b: &[usize]) -> Result<Vec<Dimension>> {
    let rank = a.len().max(b.len());
    let size = |of: &[usize], at: usize| (at + of.len()).checked_sub(rank).map_or(1, |at| of[at]);
    let mut strides = [1; 2];
    let mut found: Vec<Dimension> = Vec::new();
    for at in (0..rank).rev() {
        let sizes = [size(a, at), size(b, at)];
        let larger = if sizes[0] == 1 { sizes[1] } else { sizes[0] };
        if sizes.iter().any(|size| *size != 1 && *size != larger) {
            return Err(GpuError::argument(function, format!("shapes {a:?} and {b:?} do not broadcast")));
        }
        let own = [0, 1].map(|i| if sizes[i] == 1 { 0 } else { strides[i] });
        strides = [0, 1].map(|i| strides[i] * sizes[i]);
        if larger == 1 {
            continue;
        }
        match found.last_mut() {
            Some(inner) if (0..2).all(|i| own[i] == inner.size * inner.strides[i]) => inner.size *= larger,
            _ => found.push(Dimension { size: larger, strides: own }),
        }
    }
    found.reverse();
    Ok(found)
}

/// Checks the types of two operands and of the result.
fn check_types(function: &'static str, a: ElementType, b: ElementType, to: ElementType) -> Result<()> {
    let types = [a, b, to];
    let known = match types[..2].iter().find(|dtype| dtype.is_half()) {
        Some(low) => types.iter().all(|dtype| dtype == low || *dtype == ElementType::F32),
        None => a == b && b == to && matches!(to, ElementType::F32 | ElementType::F64),
    };
    match known {
        true => Ok(()),
        false => Err(GpuError::unsupported(function, format!("{a} with {b} to {to}"))),
    }
}

/// Returns the kernel's sizes and strides of a broadcast, and true if it can move packs.
fn broadcast(
    dims: &[Dimension],
    operands: [&Slice; 2],
    y: &Slice,
    packs: usize,
) -> ([i64; 3 * DIMENSIONS], bool) {
    // Packs stay within the innermost dimension, and are aligned if all outer strides are.
    let (inner, outer) = dims.split_last().expect("arrays of one element are flat");
    let whole = |slice: &Slice| slice.address().is_multiple_of(16);
    let packed = inner.size.is_multiple_of(packs)
        && whole(y)
        && operands.iter().enumerate().all(|(i, slice)| {
            inner.strides[i] == 0
                || whole(slice) && outer.iter().all(|dim| dim.strides[i].is_multiple_of(packs))
        });
    let mut shape = [0_i64; 3 * DIMENSIONS];
    shape[..DIMENSIONS].fill(1);
    for (at, dim) in dims.iter().rev().enumerate() {
        let at = DIMENSIONS - 1 - at;
        shape[at] = dim.size as i64;
        shape[DIMENSIONS + at] = dim.strides[0] as i64;
        shape[2 * DIMENSIONS + at] = dim.strides[1] as i64;
    }
    (shape, packed)
}

/// Combines two arrays of shapes `a_dims` and `b_dims`, broadcast by PyTorch's rules, stored as `dtype`.
///
/// # Errors
/// If the shapes do not broadcast, or the types do not match: 16-bit operands combine with the same type and f32, and give their
/// type or f32.
pub fn binary(
    gpu: &Gpu,
    op: BinaryOp,
    (a, a_dims): (&Slice, &[usize]),
    (b, b_dims): (&Slice, &[usize]),
    dtype: ElementType,
) -> Result<Slice> {
    const FUNCTION: &str = "binary";
    check_len(FUNCTION, "a", a, a_dims.iter().product())?;
    check_len(FUNCTION, "b", b, b_dims.iter().product())?;
    check_types(FUNCTION, a.dtype(), b.dtype(), dtype)?;
    let dims = dimensions(FUNCTION, a_dims, b_dims)?;
    let count = dims.iter().map(|dim| dim.size).product();
    let y = gpu.unwritten(dtype, count)?;
    let (suffix, packs) =
        (format!("{}_{}_{dtype}", a.dtype(), b.dtype()), pack(&[a.dtype(), b.dtype(), dtype]));
    let flat = |slice: &Slice| slice.len() == count || slice.len() == 1;
    if count == 0 {
        return Ok(y);
    }
    if flat(a) && flat(b) {
        launch(gpu, &BINARY, &format!("binary_flat_{suffix}"), over(count, packs))
            .number(op as i32)
            .slice(a)
            .number(i32::from(a.len() != count))
            .slice(b)
            .number(i32::from(b.len() != count))
            .slice(&y)
            .number(count as i64)
            .run()?;
        return Ok(y);
    }
    if dims.len() > DIMENSIONS {
        let what = format!("{a_dims:?} with {b_dims:?}: too many dimensions");
        return Err(GpuError::unsupported(FUNCTION, what));
    }
    let (shape, packed) = broadcast(&dims, [a, b], &y, packs);
    launch(gpu, &BINARY, &format!("binary_broadcast_{suffix}"), over(count, if packed { packs } else { 1 }))
        .number(op as i32)
        .slice(a)
        .slice(b)
        .slice(&y)
        .number(shape)
        .number(i32::from(packed))
        .number(count as i64)
        .run()?;
    Ok(y)
}

/// Sums an array of shape `dims` to shape `to`, which broadcasts to it, in the compute type. Returns the array itself, in its
/// type, if the shapes are equal.
///
/// # Errors
/// If `to` does not broadcast to `dims`.
pub fn sum_to_shape(gpu: &Gpu, x: &Slice, dims: &[usize], to: &[usize]) -> Result<Slice> {
    const FUNCTION: &str = "sum_to_shape";
    check_len(FUNCTION, "x", x, dims.iter().product())?;
    let wrong = || GpuError::argument(FUNCTION, format!("{to:?} does not broadcast to {dims:?}"));
    let extra = dims.len().checked_sub(to.len()).ok_or_else(wrong)?;
    let kept = |at: usize| at >= extra && to[at - extra] == dims[at];
    if (extra..dims.len()).any(|at| !kept(at) && to[at - extra] != 1) {
        return Err(wrong());
    }
    let (mut sums, mut left) = (x.clone(), dims.to_vec());
    // Neighbouring dimensions are summed together, the innermost ones first.
    let mut end = dims.len();
    while end > 0 {
        if kept(end - 1) || dims[end - 1] == 1 {
            end -= 1;
            continue;
        }
        let mut start = end - 1;
        while start > 0 && (!kept(start - 1) || dims[start - 1] == 1) {
            start -= 1;
        }
        let product = |dims: &[usize]| dims.iter().product::<usize>();
        let sizes = [product(&left[..start]), product(&left[start..end]), product(&left[end..])];
        sums = sum_over(gpu, &sums, sizes, x.dtype().wide())?;
        left[start..end].fill(1);
        end = start;
    }
    Ok(sums)
}

/// Computes the gradient of a factor of shape `to`: grad·other, summed over the broadcast dimensions, in the compute type.
///
/// # Errors
/// If the shapes do not match.
pub fn mul_backward(
    gpu: &Gpu,
    grad: (&Slice, &[usize]),
    other: (&Slice, &[usize]),
    to: &[usize],
) -> Result<Slice> {
    let product = binary(gpu, BinaryOp::Mul, grad, other, grad.0.dtype().wide())?;
    sum_to_shape(gpu, &product, grad.1, to)
}
