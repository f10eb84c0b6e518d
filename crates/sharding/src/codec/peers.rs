//! The ranks that a codec sums over: the few operations that codecs are made of.

use std::time::{Duration, Instant};

use phalanx_collectives::{Algorithm, Communicator, FlatBuffer, ReduceOp};

use super::bucket::Keeps;
use crate::Result;

/// The ranks that a bucket's gradients are summed over, as one of them sees them. Every rank calls the same operations in the
/// same order.
#[derive(Debug)]
pub struct Peers<'a> {
    comm: &'a Communicator,
    /// Which way reductions go.
    by: Communicator,
    moving: Duration,
}

impl<'a> Peers<'a> {
    /// The ranks of a communicator, whose reductions go by `algorithm`.
    pub fn new(comm: &'a Communicator, algorithm: Algorithm) -> Self {
        Self { comm, by: comm.using(algorithm), moving: Duration::ZERO }
    }

    /// This rank, from 0.
    pub fn rank(&self) -> usize {
        self.comm.rank()
    }

    /// How many there are.
    pub fn ranks(&self) -> usize {
        self.comm.world_size()
    }

    /// How long operations have taken so far, waiting for the others included.
    pub fn moving(&self) -> Duration {
        self.moving
    }

    fn timed<R>(&mut self, run: impl FnOnce(&mut Self) -> Result<R>) -> Result<R> {
        let start = Instant::now();
        let result = run(self);
        self.moving += start.elapsed();
        result
    }

    /// Adds up the buffers of all ranks element by element. What a rank does not keep is unspecified afterwards.
    ///
    /// # Errors
    /// Those of communication.
    pub fn sum<B: FlatBuffer + ?Sized>(&mut self, buffer: &mut B, keeps: Keeps) -> Result<()> {
        self.timed(|peers| {
            Ok(match keeps {
                Keeps::All => peers.by.all_reduce(buffer, ReduceOp::Sum),
                Keeps::Shard => peers.by.reduce_scatter_in_place(buffer, ReduceOp::Sum),
                Keeps::Leader => peers.by.reduce(buffer, ReduceOp::Sum, 0),
            }?)
        })
    }

    /// The messages of all ranks, of whatever lengths, by rank.
    ///
    /// # Errors
    /// Those of communication.
    pub fn all_gather(&mut self, own: &[u8]) -> Result<Vec<Vec<u8>>> {
        self.timed(|peers| Ok(peers.comm.all_gatherv(own)?))
    }

    /// What every rank has for this one: `parts[r]` goes to rank `r`, and what came from rank `r` is at `r`. The part for this
    /// rank itself does not travel.
    ///
    /// # Errors
    /// Those of communication; [`phalanx_collectives::CommError::Argument`] if there is not one part a rank.
    pub fn all_to_all(&mut self, mut parts: Vec<Vec<u8>>) -> Result<Vec<Vec<u8>>> {
        self.timed(|peers| {
            let rank = peers.rank();
            let own = parts.get_mut(rank).map(std::mem::take).unwrap_or_default();
            let mut all = peers.comm.all_to_allv(&parts)?;
            all[rank] = own;
            Ok(all)
        })
    }
}
