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

/// Runs `change` on the owned elements of all trainable buckets with gradients, with their state of these kinds.
pub(super) fn each_owned(
    params: &[ParamBucket],
    kinds: &mut [&mut OptimizerState],
    context: &Context,
    mut change: impl FnMut(&BucketUpdate<'_>) -> Result<()>,
) -> Result<()> {
    let there = kinds.first().is_none_or(|kind| matches!(kind.at(), StateLocation::Parameters));
    let mut all = trained(params).peekable();
    let mut coming = VecDeque::new();
    while let Some(param) = all.next() {
        let (Some(values), Some(grads)) = (param.owned_values()?, param.owned_grads()?) else { continue };
        if there || values.array().is_host() {
            let array = values.array().clone();
            run(param, (values, grads), (kinds, all.peek().copied()), array.backend(context), &mut change)?;
            continue;
        }
        let begun = [PendingInput::begin(&values)?, PendingInput::begin(&grads)?];
        coming.push_back((param, values, begun));
        if coming.len() > 1
            && let Some(oldest) = coming.pop_front()
        {
            on_host(oldest, (kinds, Some(param)), context, &mut change)?;
        }
    }
    coming.into_iter().try_for_each(|last| on_host(last, (kinds, None), context, &mut change))
}

/// Updates downloaded weights on the host, and uploads them.
fn on_host(
    (param, values, [weights, grads]): (&ParamBucket, FlatStorage, [PendingInput; 2]),
    kinds: (&mut [&mut OptimizerState], Option<&ParamBucket>),
    context: &Context,
    change: &mut impl FnMut(&BucketUpdate<'_>) -> Result<()>,
) -> Result<()> {
    let (weights, grads) = (weights.take()?, grads.take()?);
    run(param, (weights.clone(), grads), kinds, context, change)?;
    values.put(&weights.tensor()?)
}

/// Updates a bucket with its state in memory, and prefetches the state of the next one.
fn run(
    param: &ParamBucket,
    (values, grads): (FlatStorage, FlatStorage),
    (kinds, next): (&mut [&mut OptimizerState], Option<&ParamBucket>),
    backend: &dyn ArrayBackend,
    change: &mut impl FnMut(&BucketUpdate<'_>) -> Result<()>,
) -> Result<()> {
    let states = kinds.iter_mut().map(|kind| kind.open(param)).collect::<Result<Vec<_>>>()?;
    if let Some(next) = next {
        kinds.iter_mut().for_each(|kind| kind.prefetch(next));
    }
    let update = BucketUpdate { param, values, grads, states, backend };
    change(&update)?;
    kinds.iter_mut().zip(update.states).try_for_each(|(kind, state)| kind.close(param, state))
}
