//! Operations over ranks that may be under way while something else is computed.

use std::sync::Arc;

use crate::Result;
use crate::TensorError;
use crate::backend::Array;
use crate::group::{BegunResult, ProcessGroup, Underway, over};
use crate::tape::{Tape, TensorGroup};

/// The ranks of an op, and whether their operations may be under way after they have begun.
#[derive(Clone, Copy)]
pub(super) struct OpRanks<'a> {
    op: &'static str,
    pub(super) group: &'a dyn ProcessGroup,
    overlaps: bool,
}

impl<'a> OpRanks<'a> {
    /// Returns ranks that wait for each operation.
    pub(super) fn waiting(op: &'static str, group: &'a dyn ProcessGroup) -> Self {
        Self { op, group, overlaps: false }
    }

    /// Returns ranks whose operations may be under way if the session says so: those that compute parts of the same layers.
    pub(super) fn new(op: &'static str, tape: &Tape, group: &'a Arc<dyn ProcessGroup>) -> Self {
        let own = tape.session().tensor_group.as_ref();
        let overlaps = own.is_some_and(|own| own.overlaps && Arc::ptr_eq(&own.ranks, group));
        Self { op, group: &**group, overlaps }
    }

    /// Returns the ranks that compute parts of the same layers.
    pub(super) fn of(op: &'static str, group: &'a TensorGroup) -> Self {
        Self { op, group: &*group.ranks, overlaps: group.overlaps }
    }

    /// Begins the sum of values over the ranks.
    pub(super) fn sum(self, values: &Array) -> Result<Coming> {
        let begun = match self.overlaps {
            true => self.group.begin_all_reduce(values),
            false => self.group.all_reduce(values).map(|()| over()),
        };
        self.coming(begun)
    }

    /// Begins to gather the ranks' parts.
    pub(super) fn gather(self, values: &Array, lens: &[usize]) -> Result<Coming> {
        let begun = match self.overlaps {
            true => self.group.begin_all_gather(values, lens),
            false => self.group.all_gather(values, lens).map(|()| over()),
        };
        self.coming(begun)
    }

    /// Begins to add up values over the ranks, of which each gets a part.
    pub(super) fn scatter(self, values: &Array, lens: &[usize]) -> Result<Coming> {
        let begun = match self.overlaps {
            true => self.group.begin_reduce_scatter(values, lens),
            false => self.group.reduce_scatter(values, lens).map(|()| over()),
        };
        self.coming(begun)
    }

    fn coming(self, begun: BegunResult) -> Result<Coming> {
        let operation = begun.map_err(TensorError::hook(self.op))?;
        Ok(Coming { op: self.op, operation })
    }
}

/// An operation of an op that may be under way.
pub(super) struct Coming {
    op: &'static str,
    operation: Box<dyn Underway>,
}

impl Coming {
    /// Waits for its end.
    pub(super) fn wait(self) -> Result<()> {
        self.operation.wait().map_err(TensorError::hook(self.op))
    }
}
