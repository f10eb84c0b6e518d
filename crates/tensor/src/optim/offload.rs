//! Optimizer steps with the state on the parameters' device, on the host, or on a disk.

use std::collections::VecDeque;

use candle_core::DType;

use super::{OptimizerState, StateLocation, trained};
use crate::backend::{ArrayBackend, Download};
use crate::store::{FlatStorage, ParamBucket};
use crate::{Context, Result};

/// The arrays of a step, on the device of the state.
pub(super) struct BucketUpdate<'a> {
    pub(super) param: &'a ParamBucket,
    pub(super) values: FlatStorage,
    pub(super) grads: FlatStorage,
    /// The state of each kind.
    pub(super) states: Vec<FlatStorage>,
    pub(super) backend: &'a dyn ArrayBackend,
}

/// Elements that are being copied to the host.
enum PendingInput {
    Numbers(Download),
    /// Elements of a type that is copied synchronously.
    Waiting(FlatStorage),
}

impl PendingInput {
    fn begin(flat: &FlatStorage) -> Result<Self> {
        Ok(match flat.dtype() {
            DType::F32 => Self::Numbers(flat.array().begin_snapshot()?),
            _ => Self::Waiting(flat.clone()),
        })
    }

    fn take(self) -> Result<FlatStorage> {
        FlatStorage::new(match self {
            Self::Numbers(numbers) => numbers.wait()?,
            Self::Waiting(flat) => flat.to_host()?,
        })
    }
}

/// The effect of a pass over the buckets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Access {
    Read,
    Write,
}

/// Runs `change` on the owned elements of all trainable buckets with gradients, with their state of these kinds.
pub(super) fn each_owned(
    params: &[ParamBucket],
    kinds: &mut [&mut OptimizerState],
    context: &Context,
    mut change: impl FnMut(&BucketUpdate<'_>) -> Result<()>,
) -> Result<()> {
    each(params, (kinds, Access::Write), context, &mut change)
}

/// Runs `look` as [`each_owned`] runs `change`, on weights and state that it does not change.
pub(super) fn each_owned_unchanged(
    params: &[ParamBucket],
    kinds: &mut [&mut OptimizerState],
    context: &Context,
    mut look: impl FnMut(&BucketUpdate<'_>) -> Result<()>,
) -> Result<()> {
    each(params, (kinds, Access::Read), context, &mut look)
}

fn each(
    params: &[ParamBucket],
    (kinds, access): (&mut [&mut OptimizerState], Access),
    context: &Context,
    change: &mut impl FnMut(&BucketUpdate<'_>) -> Result<()>,
) -> Result<()> {
    let there = kinds.first().is_none_or(|kind| matches!(kind.at(), StateLocation::Parameters));
    let mut all = trained(params).peekable();
    let mut coming = VecDeque::new();
    while let Some(param) = all.next() {
        let (Some(values), Some(grads)) = (param.owned_values()?, param.owned_grads()?) else { continue };
        if there || values.array().is_host() {
            let array = values.array().clone();
            let states = States { kinds, next: all.peek().copied(), access };
            run(param, (values, grads), states, array.backend(context), change)?;
            continue;
        }
        let begun = [PendingInput::begin(&values)?, PendingInput::begin(&grads)?];
        coming.push_back((param, values, begun));
        if coming.len() > 1
            && let Some(oldest) = coming.pop_front()
        {
            on_host(oldest, States { kinds, next: Some(param), access }, context, change)?;
        }
    }
    let mut last = coming.into_iter();
    last.try_for_each(|last| on_host(last, States { kinds, next: None, access }, context, change))
}

/// The state of each kind, the bucket that comes next, and what is done with them.
struct States<'a, 'b> {
    kinds: &'a mut [&'b mut OptimizerState],
    next: Option<&'a ParamBucket>,
    access: Access,
}

/// Updates downloaded weights on the host, and uploads them.
fn on_host(
    (param, values, [weights, grads]): (&ParamBucket, FlatStorage, [PendingInput; 2]),
    states: States<'_, '_>,
    context: &Context,
    change: &mut impl FnMut(&BucketUpdate<'_>) -> Result<()>,
) -> Result<()> {
    let (weights, grads, access) = (weights.take()?, grads.take()?, states.access);
    run(param, (weights.clone(), grads), states, context, change)?;
    if access == Access::Write { values.put(&weights.tensor()?) } else { Ok(()) }
}

/// Updates a bucket with its state in memory, and prefetches the state of the next one.
fn run(
    param: &ParamBucket,
    (values, grads): (FlatStorage, FlatStorage),
    States { kinds, next, access }: States<'_, '_>,
    backend: &dyn ArrayBackend,
    change: &mut impl FnMut(&BucketUpdate<'_>) -> Result<()>,
) -> Result<()> {
    let states = kinds.iter_mut().map(|kind| kind.open(param)).collect::<Result<Vec<_>>>()?;
    if let Some(next) = next {
        kinds.iter_mut().for_each(|kind| kind.prefetch(next));
    }
    let update = BucketUpdate { param, values, grads, states, backend };
    change(&update)?;
    if access == Access::Read {
        return Ok(());
    }
    kinds.iter_mut().zip(update.states).try_for_each(|(kind, state)| kind.close(param, state))
}
