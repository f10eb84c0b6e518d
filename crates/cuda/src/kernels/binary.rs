//! Two arrays combined element by element, each broadcast to the other's shape, and what that does to gradients.

use phalanx_kernels::BinaryOp;

use super::grid::{check_len, launch, over, pack};
use super::sources::BINARY;
use super::sums::sum_over;
use crate::{ElementType, Gpu, GpuError, Result, Slice};

/// Dimensions that kernels walk over, at most.
pub(super) const DIMENSIONS: usize = 6;

/// A dimension of a result: its size, and how far apart neighbours lie in each operand.
#[derive(Debug, Clone, Copy)]
struct Dimension {
    size: usize,
    strides: [usize; 2],
}

/// The dimensions of the result of a broadcast, those that can be walked over as one taken together.
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

/// Combines two arrays of shapes `a_dims` and `b_dims`, each broadcast to the other's by PyTorch's rules, stored as `dtype`.
///
/// # Errors
/// If the shapes do not broadcast, or the types do not go together: operands of 16 bits go with themselves and f32, and give
/// their type or f32.
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
    let types = [a.dtype(), b.dtype(), dtype];
    let low = types[..2].iter().copied().find(|dtype| dtype.is_half());
    let known = match low {
        Some(low) => types.iter().all(|dtype| *dtype == low || *dtype == ElementType::F32),
        None => {
            types[0] == types[1] && types[1] == dtype && matches!(dtype, ElementType::F32 | ElementType::F64)
        }
    };
    if !known {
        let what = format!("{} with {} to {dtype}", a.dtype(), b.dtype());
        return Err(GpuError::unsupported(FUNCTION, what));
    }
    let dims = dimensions(FUNCTION, a_dims, b_dims)?;
    let count = dims.iter().map(|dim| dim.size).product();
    let y = gpu.unwritten(dtype, count)?;
    let (suffix, packs) = (format!("{}_{}_{dtype}", a.dtype(), b.dtype()), pack(&types));
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
        return Err(GpuError::unsupported(
            FUNCTION,
            format!("{a_dims:?} with {b_dims:?}: too many dimensions"),
        ));
    }
    // Packs stay within the innermost dimension, and are aligned if everything outside of it is.
    let (inner, outer) = dims.split_last().expect("arrays of one element are flat");
    let whole = |slice: &Slice| slice.address().is_multiple_of(16);
    let packed = inner.size.is_multiple_of(packs)
        && whole(&y)
        && [a, b].iter().enumerate().all(|(i, slice)| {
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

/// Reduces an array of shape `dims` to shape `to`, which broadcasts to it, by sums, in the type that is computed in. If nothing
/// is added, it is the array itself, in its type.
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
    // Neighbours that go are added up at once, the innermost ones first.
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

/// The gradient of one factor of a product, of shape `to`: grad·other added up over what the factor was broadcast over, in the
/// type that is computed in.
///
/// # Errors
/// If the shapes do not go together.
pub fn mul_backward(
    gpu: &Gpu,
    grad: (&Slice, &[usize]),
    other: (&Slice, &[usize]),
    to: &[usize],
) -> Result<Slice> {
    let product = binary(gpu, BinaryOp::Mul, grad, other, grad.0.dtype().wide())?;
    sum_to_shape(gpu, &product, grad.1, to)
}
