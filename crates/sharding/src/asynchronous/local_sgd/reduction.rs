//! Gradients of a step that all take together: summed while backward still runs, from the last bucket to the first.

use phalanx_collectives::{Handle, ReduceOp};

use crate::Result;
use crate::asynchronous::replica::Replica;
use phalanx_codecs::buffer::InPlace;

/// The progress of the sums of a step.
#[derive(Debug, Default)]
pub(super) struct Reduction {
    /// Buckets whose gradients are complete.
    ready: Vec<usize>,
    /// The number of trained buckets, last first, that have started.
    started: usize,
    running: Vec<(usize, Handle<InPlace>)>,
}

impl Reduction {
    /// Records that the gradients of a bucket are complete, and starts the next sums in order.
    pub(super) fn ready(&mut self, replica: &Replica, at: usize) -> Result<()> {
        self.ready.push(at);
        while let Some((next, _)) = replica.trained().rev().nth(self.started) {
            if !self.ready.contains(&next) {
                break;
            }
            self.start(replica, next)?;
        }
        Ok(())
    }

    fn start(&mut self, replica: &Replica, at: usize) -> Result<()> {
        let (full, _) = replica.params[at].begin_reduce(false)?;
        self.running.push((at, replica.by.all_reduce_async(InPlace::new(full)?, ReduceOp::Sum)));
        self.started += 1;
        Ok(())
    }

    /// Starts the remaining sums and waits for all.
    pub(super) fn finish(&mut self, replica: &Replica) -> Result<()> {
        while let Some((next, _)) = replica.trained().rev().nth(self.started) {
            self.start(replica, next)?;
        }
        for (at, handle) in self.running.drain(..) {
            handle.wait()?;
            replica.params[at].end_reduce(true)?;
        }
        Ok(())
    }
}
