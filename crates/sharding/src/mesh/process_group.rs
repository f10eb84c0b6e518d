//! A communicator as the group of ranks that ops over ranks work with.

use std::sync::Arc;

use phalanx_collectives::{CommError, Communicator, FlatBuffer as _, Handle, ReduceOp, Result};
use phalanx_tensor::group::over;
use phalanx_tensor::{Array, BegunResult, HookResult, ProcessGroup, Underway};

use phalanx_codecs::buffer::InPlace;

/// The group of this rank alone: all values are complete sums.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SingleRankGroup;

/// Returns the group of this rank alone.
pub fn single_rank_group() -> Arc<dyn ProcessGroup> {
    Arc::new(SingleRankGroup)
}

impl ProcessGroup for SingleRankGroup {
    fn rank(&self) -> usize {
        0
    }

    fn size(&self) -> usize {
        1
    }

    fn all_reduce(&self, _: &Array) -> HookResult {
        Ok(())
    }

    fn all_gather(&self, values: &Array, lens: &[usize]) -> HookResult {
        Ok(check("all-gather", (lens, 1), values.elem_count())?)
    }

    fn reduce_scatter(&self, values: &Array, lens: &[usize]) -> HookResult {
        Ok(check("reduce-scatter", (lens, 1), values.elem_count())?)
    }
}

/// Checks that there is one part for each rank, and that the parts cover all numbers.
fn check(operation: &'static str, (lens, ranks): (&[usize], usize), len: usize) -> Result<()> {
    let sum = lens.iter().sum::<usize>();
    match lens.len() == ranks && sum == len {
        true => Ok(()),
        false => {
            let problem = format!("parts {lens:?} of {ranks} ranks are {sum} numbers, and there are {len}");
            Err(CommError::Argument { operation, problem })
        }
    }
}

/// An operation of a communicator.
#[derive(Debug)]
struct OperationUnderway(Handle<InPlace>);

impl Underway for OperationUnderway {
    fn wait(self: Box<Self>) -> HookResult {
        self.0.wait()?;
        Ok(())
    }
}

/// The ranks of a communicator. Arrays without numbers are of another stage of a pipeline, whose ranks exchange them: nothing is done.
/// The ops of a model run in the same order on every rank. So their collectives have the
/// same order relative to gradient reductions, even on a shared communicator.
#[derive(Debug, Clone)]
pub struct RankGroup(Communicator);

impl RankGroup {
    /// Returns the group of a communicator's ranks.
    pub fn of(communicator: &Communicator) -> Arc<dyn ProcessGroup> {
        Arc::new(Self(communicator.clone()))
    }

    /// True if parts of `lens` are the communicator's own division of `len` elements.
    fn is_even(&self, lens: &[usize], len: usize) -> bool {
        phalanx_tensor::group::even_lens(len, self.0.world_size()) == lens
    }
}

impl ProcessGroup for RankGroup {
    fn rank(&self) -> usize {
        self.0.rank()
    }

    fn size(&self) -> usize {
        self.0.world_size()
    }

    fn all_reduce(&self, values: &Array) -> HookResult {
        if !values.has_numbers() {
            return Ok(());
        }
        Ok(self.0.all_reduce(&mut InPlace::of(values)?, ReduceOp::Sum)?)
    }

    fn begin_all_reduce(&self, values: &Array) -> BegunResult {
        if !values.has_numbers() {
            return Ok(over());
        }
        Ok(Box::new(OperationUnderway(self.0.all_reduce_async(InPlace::of(values)?, ReduceOp::Sum))))
    }

    fn all_gather(&self, values: &Array, lens: &[usize]) -> HookResult {
        if !values.has_numbers() {
            return Ok(());
        }
        let mut values = InPlace::of(values)?;
        check("all-gather", (lens, self.0.world_size()), values.len())?;
        match self.is_even(lens, values.len()) {
            true => self.0.all_gather_in_place(&mut values)?,
            false => self.0.all_gatherv_in_place(&mut values, lens)?,
        }
        Ok(())
    }

    fn begin_all_gather(&self, values: &Array, lens: &[usize]) -> BegunResult {
        if !values.has_numbers() {
            return Ok(over());
        }
        let buffer = InPlace::of(values)?;
        check("all-gather", (lens, self.0.world_size()), buffer.len())?;
        if self.is_even(lens, buffer.len()) {
            return Ok(Box::new(OperationUnderway(self.0.all_gather_in_place_async(buffer))));
        }
        self.all_gather(values, lens)?;
        Ok(over())
    }

    fn begin_reduce_scatter(&self, values: &Array, lens: &[usize]) -> BegunResult {
        if !values.has_numbers() {
            return Ok(over());
        }
        let buffer = InPlace::of(values)?;
        Ok(Box::new(OperationUnderway(match self.is_even(lens, buffer.len()) {
            true => self.0.reduce_scatter_in_place_async(buffer, ReduceOp::Sum),
            // Uneven parts need an all-reduce.
            false => self.0.all_reduce_async(buffer, ReduceOp::Sum),
        })))
    }

    fn reduce_scatter(&self, values: &Array, lens: &[usize]) -> HookResult {
        if !values.has_numbers() {
            return Ok(());
        }
        let mut values = InPlace::of(values)?;
        match self.is_even(lens, values.len()) {
            true => self.0.reduce_scatter_in_place(&mut values, ReduceOp::Sum)?,
            // Uneven parts need an all-reduce.
            false => self.0.all_reduce(&mut values, ReduceOp::Sum)?,
        }
        Ok(())
    }
}
