//! Two moments for each element: the state of Adam and of its relatives.

use candle_core::Tensor;

use super::{OptimizerState, StateLocation};
use crate::Result;
use crate::store::ParamBucket;

/// The running means of gradients and of their squares.
#[derive(Debug)]
pub(super) struct Moments {
    first: OptimizerState,
    second: OptimizerState,
}

impl Moments {
    /// Makes empty moments, whose kinds prefix the names of their tensors.
    pub(super) fn new([first, second]: [&'static str; 2]) -> Self {
        Self { first: OptimizerState::new(first), second: OptimizerState::new(second) }
    }

    /// Makes empty moments of these kinds at another location.
    pub(super) fn kept_at(self, at: StateLocation) -> Self {
        Self { first: self.first.kept_at(at.clone()), second: self.second.kept_at(at) }
    }

    /// The location of the moments.
    pub(super) fn at(&self) -> &StateLocation {
        self.first.at()
    }

    /// Returns both states for a step.
    pub(super) fn both(&mut self) -> [&mut OptimizerState; 2] {
        [&mut self.first, &mut self.second]
    }

    pub(super) fn kinds(&self) -> [&'static str; 2] {
        [self.first.kind(), self.second.kind()]
    }

    /// Allocates the moments of all trainable buckets.
    pub(super) fn reserve(&mut self, params: &[ParamBucket]) -> Result<()> {
        self.first.reserve(params)?;
        self.second.reserve(params)
    }

    /// Copies the moments by name.
    pub(super) fn named(&self, params: &[ParamBucket]) -> Result<Vec<(String, Tensor)>> {
        let mut all = self.first.named(params)?;
        all.extend(self.second.named(params)?);
        Ok(all)
    }

    /// Loads the tensors of both kinds.
    pub(super) fn load(&mut self, params: &[ParamBucket], tensors: &[(String, Tensor)]) -> Result<()> {
        self.first.load(params, tensors)?;
        self.second.load(params, tensors).map(drop)
    }

    /// The size in memory, in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.first.bytes() + self.second.bytes()
    }
}
