//! Parameters in a rank's memory.

use phalanx_tensor::ParamStore;

use crate::Result;

/// Brings parameters and buffers into a rank's memory, for sampling, evaluation and checkpoints. All ranks call each method at the
/// same place.
pub trait Residency {
    /// Gathers all parameters into this rank's memory, where they stay until [`Residency::reshard`].
    ///
    /// # Errors
    /// Errors of communication.
    fn unshard(&self) -> Result<()>;

    /// Releases the parameters that [`Residency::unshard`] has gathered.
    ///
    /// # Errors
    /// [`phalanx_tensor::TensorError::BucketState`] if they were not gathered.
    fn reshard(&self) -> Result<()>;

    /// Makes the parameters and buffers of all ranks equal to those of rank 0, after values were loaded.
    ///
    /// # Errors
    /// Errors of communication.
    fn broadcast_state(&self, store: &ParamStore) -> Result<()>;

    /// Makes the buffers of all ranks equal to those of rank 0. Without synchronised batch norm each rank has running statistics of
    /// its own samples; rank 0's are saved, as in PyTorch's DDP. Call this before an evaluation that is spread over ranks.
    ///
    /// # Errors
    /// Errors of communication.
    fn broadcast_buffers(&self, store: &ParamStore) -> Result<()>;
}
