//! Operations over ranks, with gradients.
//!
//! What the gradient of such an operation is depends on what the loss is, and taking the wrong one gives numbers that look
//! right. There are two cases, and each op serves one of them (n ranks, x_r what rank r gives, y_r what it gets, g_r = ∂L/∂y_r as
//! rank r has it):
//!
//! **The loss is the sum of the ranks' losses**, L = Σ_r L_r, as in data parallelism, where each rank divides its samples' losses
//! by the size of the global batch. Every rank's y counts, so gradients come from all:
//!
//! | op | forward | backward: ∂L/∂x_r |
//! |---|---|---|
//! | [`all_reduce`] | y_r = Σ_s x_s | Σ_s g_s |
//! | [`all_gather`] | y_r = [x_0 … x_(n−1)] | part r of Σ_s g_s |
//! | [`reduce_scatter`] | y_r = part r of Σ_s x_s | [g_0 … g_(n−1)] |
//!
//! **The loss is replicated**: behind a tensor-parallel layer every rank computes the same on the same numbers and comes to the
//! same L, which counts once. A tensor that is alike on all ranks is one variable:
//!
//! | op | forward | backward: ∂L/∂x_r |
//! |---|---|---|
//! | [`copy_to_group`], Megatron's f | y_r = x | Σ_s g_s: ranks compute different parts of what follows |
//! | [`reduce_from_group`], Megatron's g | y_r = Σ_s x_s | g_r: alike on all ranks, and counted once |
//! | [`gather_from_group`] | y_r = [x_0 … x_(n−1)] | part r of g_r |
//! | [`split_to_group`] | y_r = part r of x | [g_0 … g_(n−1)] |
//!
//! [`reduce_scatter`] is right in both cases, as each rank's y is a part of its own. (Shoeybi et al. 2019; Korthikanti et al. 2022.)
//!
//! Sums are taken in f32 for values of 16 bits, and in f64 for f64; results have the type of the input.

use candle_core::{DType, Tensor};

use crate::backend::Array;
use crate::error::HookResult;
use crate::group::ProcessGroup;
use crate::host::{copy_host, unwritten_flat};
use crate::storage::{cast, wide};
use crate::tape::{Tape, Value};
use crate::{Context, Result, TensorError};
use std::sync::Arc;

/// Σ_s x_s on every rank; the loss is the sum of the ranks' losses, so the gradient is the sum of the ranks' gradients.
///
/// # Errors
/// The transport's, which it has too where ranks give different numbers of elements.
pub fn all_reduce(tape: &Tape, x: &Value, group: &Arc<dyn ProcessGroup>) -> Result<Value> {
    const OP: &str = "all_reduce";
    let output = summed(OP, tape.context(), group.as_ref(), &x.host(OP)?)?;
    let group = group.clone();
    tape.push(OP, &[x], output, move |tape, grad, grads| {
        grads.add(0, summed(OP, tape.context(), group.as_ref(), grad.host(OP)?)?)
    })
}

/// The ranks' values one after the other along `dim`, where rank r has `lens[r]`; the loss is the sum of the ranks' losses, so the
/// gradient is this rank's part of the sum of the ranks' gradients.
///
/// # Errors
/// If `lens` are not one for each rank, this rank's not the size of `x` along `dim`; and the transport's.
pub fn all_gather(
    tape: &Tape,
    x: &Value,
    dim: usize,
    lens: &[usize],
    group: &Arc<dyn ProcessGroup>,
) -> Result<Value> {
    all_gather_stored(tape, x, (dim, lens), group, x.dtype()?)
}

/// [`all_gather`] with a result of another type: f32, so that gradients of values of 16 bits are summed before they are rounded.
pub(crate) fn all_gather_stored(
    tape: &Tape,
    x: &Value,
    (dim, lens): (usize, &[usize]),
    group: &Arc<dyn ProcessGroup>,
    dtype: DType,
) -> Result<Value> {
    const OP: &str = "all_gather";
    let spread = Spread::of_part(OP, group.as_ref(), x.dims(), dim, lens)?;
    let output = spread.gathered(tape.context(), group.as_ref(), &x.host(OP)?, dtype)?;
    let group = group.clone();
    tape.push(OP, &[x], output, move |tape, grad, grads| {
        grads.add(0, spread.scattered(tape.context(), group.as_ref(), grad.host(OP)?)?)
    })
}

/// This rank's part along `dim` of Σ_s x_s, where rank r gets `lens[r]`; its gradient is the ranks' gradients one after the
/// other, whichever of the two the loss is.
///
/// # Errors
/// If `lens` are not one for each rank or do not add up to the size of `x` along `dim`; and the transport's.
pub fn reduce_scatter(
    tape: &Tape,
    x: &Value,
    dim: usize,
    lens: &[usize],
    group: &Arc<dyn ProcessGroup>,
) -> Result<Value> {
    const OP: &str = "reduce_scatter";
    let spread = Spread::of_whole(OP, group.as_ref(), x.dims(), dim, lens)?;
    let output = spread.scattered(tape.context(), group.as_ref(), &x.host(OP)?)?;
    let group = group.clone();
    tape.push(OP, &[x], output, move |tape, grad, grads| {
        grads.add(0, spread.gathered(tape.context(), group.as_ref(), grad.host(OP)?, grad.dtype())?)
    })
}

/// Megatron's f: what is alike on all ranks goes into computations that are not, such as the columns of a weight. The gradient is
/// the sum of the ranks' gradients; the loss is replicated.
///
/// # Errors
/// In backward the transport's.
pub fn copy_to_group(tape: &Tape, x: &Value, group: &Arc<dyn ProcessGroup>) -> Result<Value> {
    const OP: &str = "copy_to_group";
    let output = x.array()?;
    let group = group.clone();
    tape.push(OP, &[x], output, move |tape, grad, grads| {
        grads.add(0, summed(OP, tape.context(), group.as_ref(), grad.host(OP)?)?)
    })
}

/// Megatron's g: Σ_s x_s on every rank, for what follows to be alike on all of them. The gradient is the own one, unchanged; the
/// loss is replicated.
///
/// # Errors
/// The transport's.
pub fn reduce_from_group(tape: &Tape, x: &Value, group: &Arc<dyn ProcessGroup>) -> Result<Value> {
    const OP: &str = "reduce_from_group";
    let output = summed(OP, tape.context(), group.as_ref(), &x.host(OP)?)?;
    tape.push(OP, &[x], output, |_, grad, grads| grads.share(0, grad.clone()))
}

/// The ranks' values one after the other along `dim`, where rank r has `lens[r]`, for what follows to be alike on all ranks. The
/// gradient is this rank's part of its own gradient; the loss is replicated.
///
/// # Errors
/// As [`all_gather`].
pub fn gather_from_group(
    tape: &Tape,
    x: &Value,
    dim: usize,
    lens: &[usize],
    group: &Arc<dyn ProcessGroup>,
) -> Result<Value> {
    const OP: &str = "gather_from_group";
    let spread = Spread::of_part(OP, group.as_ref(), x.dims(), dim, lens)?;
    let tensor = x.host(OP)?;
    let output = spread.gathered(tape.context(), group.as_ref(), &tensor, tensor.dtype())?;
    tape.push(OP, &[x], output, move |_, grad, grads| grads.share(0, spread.own_part(grad.host(OP)?)?))
}

/// This rank's part along `dim` of what is alike on all ranks, where rank r gets `lens[r]`. The gradient is the ranks' gradients one
/// after the other; the loss is replicated.
///
/// # Errors
/// As [`reduce_scatter`].
pub fn split_to_group(
    tape: &Tape,
    x: &Value,
    dim: usize,
    lens: &[usize],
    group: &Arc<dyn ProcessGroup>,
) -> Result<Value> {
    const OP: &str = "split_to_group";
    let spread = Spread::of_whole(OP, group.as_ref(), x.dims(), dim, lens)?;
    let output = spread.own_part(&x.host(OP)?)?;
    let group = group.clone();
    tape.push(OP, &[x], output, move |tape, grad, grads| {
        grads.add(0, spread.gathered(tape.context(), group.as_ref(), grad.host(OP)?, grad.dtype())?)
    })
}

/// Has the group work on a flat tensor's memory.
fn on_flat(op: &'static str, flat: &Tensor, run: impl FnOnce(&Array) -> HookResult) -> Result<()> {
    run(&flat.into()).map_err(TensorError::hook(op))
}

/// The elements in the type that sums are taken in, in memory that nobody else holds.
fn fresh(context: &Context, x: &Tensor) -> Result<Tensor> {
    let dtype = wide(x.dtype());
    Ok(if x.dtype() == dtype { x.force_contiguous()? } else { cast(context, &x.contiguous()?, dtype)? })
}

fn summed(op: &'static str, context: &Context, group: &dyn ProcessGroup, x: &Tensor) -> Result<Tensor> {
    let sum = fresh(context, x)?;
    on_flat(op, &sum, |values| group.all_reduce(values))?;
    cast(context, &sum, x.dtype())
}

/// How a tensor is spread over the ranks of a group along one dimension.
struct Spread {
    op: &'static str,
    dim: usize,
    /// Where this rank's part begins.
    start: usize,
    /// By rank.
    lens: Vec<usize>,
    rank: usize,
}

impl Spread {
    fn new(
        op: &'static str,
        group: &dyn ProcessGroup,
        dims: &[usize],
        dim: usize,
        lens: &[usize],
    ) -> Result<Self> {
        if lens.len() != group.size() {
            let problem = format!("{} lengths for {} ranks; expected one each", lens.len(), group.size());
            return Err(TensorError::shape(op, problem));
        }
        if dim >= dims.len() {
            return Err(TensorError::shape(op, format!("there is no dimension {dim} in shape {dims:?}")));
        }
        let rank = group.rank();
        Ok(Self { op, dim, start: lens[..rank].iter().sum(), lens: lens.to_vec(), rank })
    }

    /// For this rank's part of shape `dims`.
    fn of_part(
        op: &'static str,
        group: &dyn ProcessGroup,
        dims: &[usize],
        dim: usize,
        lens: &[usize],
    ) -> Result<Self> {
        let spread = Self::new(op, group, dims, dim, lens)?;
        let (found, expected) = (dims[dim], lens[spread.rank]);
        match found == expected {
            true => Ok(spread),
            false => Err(TensorError::shape(
                op,
                format!("rank {} has {found} along dimension {dim}; {lens:?} says {expected}", spread.rank),
            )),
        }
    }

    /// For the whole, of shape `dims`.
    fn of_whole(
        op: &'static str,
        group: &dyn ProcessGroup,
        dims: &[usize],
        dim: usize,
        lens: &[usize],
    ) -> Result<Self> {
        let spread = Self::new(op, group, dims, dim, lens)?;
        let (found, expected) = (dims[dim], lens.iter().sum::<usize>());
        match found == expected {
            true => Ok(spread),
            false => Err(TensorError::shape(
                op,
                format!("{found} along dimension {dim} are not spread by {lens:?}, which are {expected}"),
            )),
        }
    }

    /// The dimension in front, so that a rank's part is one range of elements.
    fn in_front(&self, x: &Tensor) -> Result<Tensor> {
        Ok(x.transpose(0, self.dim)?)
    }

    /// By rank, how many elements its part has.
    fn elements(&self, front: &[usize]) -> Vec<usize> {
        let row: usize = front[1..].iter().product();
        self.lens.iter().map(|len| len * row).collect()
    }

    fn own_part(&self, whole: &Tensor) -> Result<Tensor> {
        Ok(whole.narrow(self.dim, self.start, self.lens[self.rank])?.force_contiguous()?)
    }

    /// The parts of all ranks, of which `part` is this one's.
    fn gathered(
        &self,
        context: &Context,
        group: &dyn ProcessGroup,
        part: &Tensor,
        dtype: DType,
    ) -> Result<Tensor> {
        let front = self.in_front(part)?;
        let mut dims = front.dims().to_vec();
        let elements = self.elements(&dims);
        dims[0] = self.lens.iter().sum();
        let whole = unwritten_flat(elements.iter().sum(), wide(part.dtype()))?;
        let before = elements[..self.rank].iter().sum();
        copy_host(&whole.narrow(0, before, elements[self.rank])?, &front.flatten_all()?)?;
        on_flat(self.op, &whole, |values| group.all_gather(values, &elements))?;
        let whole = whole.reshape(dims)?.transpose(0, self.dim)?.contiguous()?;
        cast(context, &whole, dtype)
    }

    /// This rank's part of the sum of what the ranks have.
    fn scattered(&self, context: &Context, group: &dyn ProcessGroup, whole: &Tensor) -> Result<Tensor> {
        let sum = fresh(context, &self.in_front(whole)?)?;
        let elements = self.elements(sum.dims());
        let flat = sum.flatten_all()?;
        on_flat(self.op, &flat, |values| group.reduce_scatter(values, &elements))?;
        let part = sum.narrow(0, self.start, self.lens[self.rank])?.transpose(0, self.dim)?;
        cast(context, &part.force_contiguous()?, whole.dtype())
    }
}
