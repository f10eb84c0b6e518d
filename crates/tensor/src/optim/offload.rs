//! Where optimizers keep their state: beside the parameters, or on the host although those lie on a device.

use std::collections::VecDeque;

use candle_core::DType;

use super::owned;
use crate::backend::{ArrayBackend, Arriving, Place};
use crate::store::{FlatParam, FlatStorage};
use crate::{Context, Result};

/// Where the state of an optimizer lies, and so what computes a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum StateAt {
    /// Where the parameters are.
    #[default]
    Parameters,
    /// On the host, whose processor computes the step: a device then holds no state. Gradients and weights of a device go to the
    /// host, those of the next flat parameter while a step of this one is computed, and changed weights come back (Ren et al.
    /// 2021). The host waits for what it computes with. Of parameters on the host this changes nothing.
    Host,
}

impl StateAt {
    /// Where the state of a parameter is made.
    pub(super) fn place(self, param: &FlatParam) -> Place {
        match self {
            Self::Parameters => param.place().clone(),
            Self::Host => Place::host(),
        }
    }
}

/// What a step changes, where its state is.
pub(super) struct Owned<'a> {
    pub(super) param: &'a FlatParam,
    pub(super) values: FlatStorage,
    pub(super) grads: FlatStorage,
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

/// Runs `change` on the owned elements of everything trainable that has gradients.
pub(super) fn each_owned(
    params: &[FlatParam],
    at: StateAt,
    context: &Context,
    mut change: impl FnMut(&Owned<'_>) -> Result<()>,
) -> Result<()> {
    let mut coming = VecDeque::new();
    for param in owned(params) {
        let (Some(values), Some(grads)) = (param.owned_values()?, param.owned_grads()?) else { continue };
        if at == StateAt::Parameters || values.array().is_host() {
            let array = values.array().clone();
            change(&Owned { param, values, grads, backend: array.backend(context) })?;
            continue;
        }
        let begun = [Coming::begin(&values)?, Coming::begin(&grads)?];
        coming.push_back((param, values, begun));
        if coming.len() > 1
            && let Some(oldest) = coming.pop_front()
        {
            on_host(oldest, context, &mut change)?;
        }
    }
    coming.into_iter().try_for_each(|last| on_host(last, context, &mut change))
}

/// Changes what has come to the host, and sends the weights back.
fn on_host(
    (param, values, [weights, grads]): (&FlatParam, FlatStorage, [Coming; 2]),
    context: &Context,
    change: &mut impl FnMut(&Owned<'_>) -> Result<()>,
) -> Result<()> {
    let (weights, grads) = (weights.take()?, grads.take()?);
    change(&Owned { param, values: weights.clone(), grads, backend: context })?;
    values.put(&weights.tensor()?)
}
