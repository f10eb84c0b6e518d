//! Where optimizers keep their state: beside the parameters, or on the host although those lie on a device.

use std::collections::VecDeque;

use candle_core::DType;

use super::disk::Disk;
use super::{FlatState, owned};
use crate::backend::{ArrayBackend, Arriving, Place};
use crate::store::{FlatParam, FlatStorage};
use crate::{Context, Result};

/// Where the state of an optimizer lies, and so what computes a step.
#[derive(Debug, Clone, Default)]
pub enum StateAt {
    /// Where the parameters are kept.
    #[default]
    Parameters,
    /// On the host, whose processor computes the step: a device then holds no state. Gradients and weights of a device go to the
    /// host, those of the next flat parameter while a step of this one is computed, and changed weights come back (Ren et al.
    /// 2021). The host waits for what it computes with. Of parameters on the host this changes nothing.
    Host,
    /// In files, whose contents are in the host's memory for one flat parameter at a time while its processor computes the step, and
    /// for the next one, which is read meanwhile; those of the one before are being written. Of parameters on a device it is otherwise
    /// as [`StateAt::Host`].
    Disk(Disk),
}

impl StateAt {
    /// Where the state of a parameter is made.
    pub(super) fn place(&self, param: &FlatParam) -> Place {
        match self {
            Self::Parameters => param.home().clone(),
            Self::Host | Self::Disk(_) => Place::host(),
        }
    }
}

/// What a step changes, where its state is.
pub(super) struct Owned<'a> {
    pub(super) param: &'a FlatParam,
    pub(super) values: FlatStorage,
    pub(super) grads: FlatStorage,
    /// The state of each kind.
    pub(super) states: Vec<FlatStorage>,
    pub(super) backend: &'a dyn ArrayBackend,
}

/// Elements on their way to the host.
enum Coming {
    Numbers(Arriving),
    /// Of another type than what travels without being waited for.
    Waiting(FlatStorage),
}

impl Coming {
    fn begin(flat: &FlatStorage) -> Result<Self> {
        Ok(match flat.dtype() {
            DType::F32 => Self::Numbers(flat.array().begin_numbers()?),
            _ => Self::Waiting(flat.clone()),
        })
    }

    fn take(self) -> Result<FlatStorage> {
        FlatStorage::new(match self {
            Self::Numbers(numbers) => numbers.take()?,
            Self::Waiting(flat) => flat.to_host()?,
        })
    }
}

/// Runs `change` on the owned elements of everything trainable that has gradients, with the state that these kinds have of them.
pub(super) fn each_owned(
    params: &[FlatParam],
    kinds: &mut [&mut FlatState],
    context: &Context,
    mut change: impl FnMut(&Owned<'_>) -> Result<()>,
) -> Result<()> {
    let there = kinds.first().is_none_or(|kind| matches!(kind.at(), StateAt::Parameters));
    let mut all = owned(params).peekable();
    let mut coming = VecDeque::new();
    while let Some(param) = all.next() {
        let (Some(values), Some(grads)) = (param.owned_values()?, param.owned_grads()?) else { continue };
        if there || values.array().is_host() {
            let array = values.array().clone();
            run(param, (values, grads), (kinds, all.peek().copied()), array.backend(context), &mut change)?;
            continue;
        }
        let begun = [Coming::begin(&values)?, Coming::begin(&grads)?];
        coming.push_back((param, values, begun));
        if coming.len() > 1
            && let Some(oldest) = coming.pop_front()
        {
            on_host(oldest, (kinds, Some(param)), context, &mut change)?;
        }
    }
    coming.into_iter().try_for_each(|last| on_host(last, (kinds, None), context, &mut change))
}

/// Changes what has come to the host, and sends the weights back.
fn on_host(
    (param, values, [weights, grads]): (&FlatParam, FlatStorage, [Coming; 2]),
    kinds: (&mut [&mut FlatState], Option<&FlatParam>),
    context: &Context,
    change: &mut impl FnMut(&Owned<'_>) -> Result<()>,
) -> Result<()> {
    let (weights, grads) = (weights.take()?, grads.take()?);
    run(param, (weights.clone(), grads), kinds, context, change)?;
    values.put(&weights.tensor()?)
}

/// Changes a flat parameter with its state in memory, while that of the next one is brought there.
fn run(
    param: &FlatParam,
    (values, grads): (FlatStorage, FlatStorage),
    (kinds, next): (&mut [&mut FlatState], Option<&FlatParam>),
    backend: &dyn ArrayBackend,
    change: &mut impl FnMut(&Owned<'_>) -> Result<()>,
) -> Result<()> {
    let states = kinds.iter_mut().map(|kind| kind.open(param)).collect::<Result<Vec<_>>>()?;
    if let Some(next) = next {
        kinds.iter_mut().for_each(|kind| kind.prefetch(next));
    }
    let owned = Owned { param, values, grads, states, backend };
    change(&owned)?;
    kinds.iter_mut().zip(owned.states).try_for_each(|(kind, state)| kind.close(param, state))
}
