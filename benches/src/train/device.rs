//! The devices of ranks: the CPU, or a GPU each.

use std::sync::Arc;

use anyhow::{Context as _, Result};
use clap::ValueEnum;
use phalanx_collectives::{Communicator, nccl};
use phalanx_tensor::ComputeDevice;
use phalanx_tensor::backend::{Cuda, CudaOptions, GraphReplay};

/// The device of a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Device {
    Cpu,
    /// One GPU for each rank; NCCL between several
    Cuda,
}

impl Device {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Cuda => "cuda",
        }
    }

    /// Opens the device of a rank. Tries cuDNN's algorithms and uses the fastest, as the peer does.
    pub(super) fn open(self, rank: usize) -> Result<RankDevice> {
        Ok(RankDevice(match self {
            Self::Cpu => None,
            Self::Cuda => {
                let options = CudaOptions { repeatable: false, ..CudaOptions::default() };
                Some(Cuda::new(rank, &options).with_context(|| format!("--device cuda, rank {rank}"))?)
            }
        }))
    }
}

/// A rank's device.
pub(super) struct RankDevice(Option<Cuda>);

impl RankDevice {
    /// Returns the device of arrays.
    pub(super) fn compute(&self) -> ComputeDevice {
        self.0.as_ref().map_or_else(ComputeDevice::host, |cuda| ComputeDevice::of(Arc::new(cuda.clone())))
    }

    /// Returns the communicator of arrays on this device: NCCL on GPUs.
    pub(super) fn connected(&self, world: Communicator) -> Result<Communicator> {
        match &self.0 {
            Some(cuda) if world.world_size() > 1 => {
                Ok(nccl::communicator(&world, cuda.gpu().device().context().clone())?)
            }
            _ => Ok(world),
        }
    }

    /// Returns the recorder that launches steps as graphs.
    ///
    /// # Errors
    /// On the CPU, which has no graphs.
    pub(super) fn replay(&self) -> Result<GraphReplay> {
        Ok(GraphReplay::new(self.0.as_ref().context("--graphs is for --device cuda")?.gpu()))
    }

    /// Waits until all queued work is done.
    pub(super) fn finish(&self) -> Result<()> {
        self.0.as_ref().map_or(Ok(()), |cuda| Ok(cuda.gpu().synchronize()?))
    }

    /// Returns the peak memory of the GPU, in bytes.
    pub(super) fn peak_memory(&self) -> Option<u64> {
        Some(self.0.as_ref()?.gpu().pool().usage().peak_total as u64)
    }
}
