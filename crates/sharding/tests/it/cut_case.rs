//! Models for the tests of layers that are cut over ranks.

use candle_core::{Device, Tensor};
use phalanx_tensor::{Result, Scope, Tape, TensorPlan, Value};

/// A model and its loss, by name.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) plan: TensorPlan,
    /// The numbers of ranks.
    pub(crate) ranks: &'static [usize],
    pub(crate) build: fn(&Scope) -> Result<Loss>,
}

pub(crate) fn case(
    name: &'static str,
    plan: Result<TensorPlan>,
    ranks: &'static [usize],
    build: fn(&Scope) -> Result<Loss>,
) -> Case {
    Case { name, plan: plan.expect("a plan"), ranks, build }
}

/// Computes the loss of a model.
pub(crate) type Loss = Box<dyn Fn(&Tape) -> Result<Value>>;

pub(crate) fn ids(rows: usize, length: usize, below: u32) -> Tensor {
    let ids: Vec<u32> = (0..rows * length).map(|at| (at as u32 * 7 + 3) % below).collect();
    Tensor::from_vec(ids, (rows, length), &Device::Cpu).expect("small")
}
