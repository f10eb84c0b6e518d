//! Collectives of all ranks on the host.

use phalanx_collectives::{Communicator, ReduceOp};

use crate::engine::error::TrainError;

/// Collectives of all ranks on the host. All ranks call each of them together.
#[derive(Debug, Clone)]
pub(in crate::engine) struct Exchange(Option<Communicator>);

impl Exchange {
    /// The exchange of the only rank.
    pub(super) fn alone() -> Self {
        Self(None)
    }

    /// The exchange of the ranks of a communicator.
    pub(super) fn among(world: Communicator) -> Self {
        Self(Some(world))
    }

    /// The communicator of all ranks; none for the only rank.
    pub(super) fn world(&self) -> Option<&Communicator> {
        self.0.as_ref()
    }

    /// Returns the texts of all ranks, by rank.
    pub(in crate::engine) fn gather_text(&self, text: &str) -> Result<Vec<String>, TrainError> {
        let Some(world) = self.world() else { return Ok(vec![text.to_owned()]) };
        let all = world.all_gatherv(text.as_bytes())?;
        Ok(all.iter().map(|bytes| String::from_utf8_lossy(bytes).into_owned()).collect())
    }

    /// Returns the numbers of all ranks, one rank after the other.
    pub(in crate::engine) fn gather_numbers(&self, own: &[f32]) -> Result<Vec<f32>, TrainError> {
        self.world().map_or_else(|| Ok(own.to_vec()), |world| Ok(world.all_gatherv(own)?.concat()))
    }

    /// Returns the bytes of all ranks, by rank, on rank 0; nothing on other ranks.
    pub(in crate::engine) fn gather_bytes(&self, own: Vec<u8>) -> Result<Vec<Vec<u8>>, TrainError> {
        match self.world() {
            Some(world) => Ok(world.gatherv(&own, 0)?),
            None => Ok(vec![own]),
        }
    }

    /// Sends bytes to the next rank and returns those of the previous rank.
    pub(in crate::engine) fn pass_on(&self, bytes: &[u8]) -> Result<Vec<u8>, TrainError> {
        let Some(world) = self.world().filter(|world| world.world_size() > 1) else {
            return Ok(bytes.to_vec());
        };
        let (rank, ranks) = (world.rank(), world.world_size());
        let (next, previous) = ((rank + 1) % ranks, (rank + ranks - 1) % ranks);
        let mut length = [0_i64];
        world.send_recv(&[bytes.len() as i64], next, &mut length, previous)?;
        let mut received = Vec::new();
        let length = usize::try_from(length[0]).unwrap_or(usize::MAX);
        if received.try_reserve_exact(length).is_err() {
            return Err(TrainError::Setup(format!(
                "rank {previous} announces {length} bytes, for which there is no memory"
            )));
        }
        received.resize(length, 0);
        world.send_recv(bytes, next, &mut received, previous)?;
        Ok(received)
    }

    /// Replaces bytes by those of rank `root`, of the same number.
    pub(in crate::engine) fn broadcast_bytes(&self, bytes: &mut [u8], root: usize) -> Result<(), TrainError> {
        self.world().map_or(Ok(()), |world| Ok(world.broadcast(bytes, root)?))
    }

    /// Replaces each number by its sum over the ranks.
    pub(in crate::engine) fn sum(&self, values: &mut [f64]) -> Result<(), TrainError> {
        self.world().map_or(Ok(()), |world| Ok(world.all_reduce(values, ReduceOp::Sum)?))
    }

    /// Returns the sum of one number over the ranks.
    pub(in crate::engine) fn sum_of(&self, value: f64) -> Result<f64, TrainError> {
        let mut values = [value];
        self.sum(&mut values)?;
        Ok(values[0])
    }

    /// Tells the other ranks that this one fails, so that they do not wait for it. Any rank may call this alone.
    pub(super) fn abort(&self, reason: &str) {
        if let Some(world) = self.world() {
            world.abort(reason);
        }
    }
}
