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
    /// A GPU for each rank; between several by NCCL
    Cuda,
}

impl Device {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Cuda => "cuda",
        }
    }

    /// Returns the device of a rank. Algorithms are tried, and the fastest are taken, as the peer takes them.
    pub(super) fn open(self, rank: usize) -> Result<Opened> {
        Ok(Opened(match self {
            Self::Cpu => None,
            Self::Cuda => {
                let options = CudaOptions { repeatable: false, ..CudaOptions::default() };
                Some(Cuda::new(rank, &options).with_context(|| format!("--device cuda, rank {rank}"))?)
            }
        }))
    }
}

/// A rank's device.
pub(super) struct Opened(Option<Cuda>);

impl Opened {
    /// Where arrays are made.
    pub(super) fn compute(&self) -> ComputeDevice {
        self.0.as_ref().map_or_else(ComputeDevice::host, |cuda| ComputeDevice::of(Arc::new(cuda.clone())))
    }

    /// The ranks of a world as those see them who compute here.
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

    /// Waits until everything that was queued is done.
    pub(super) fn finish(&self) -> Result<()> {
        self.0.as_ref().map_or(Ok(()), |cuda| Ok(cuda.gpu().synchronize()?))
    }

    /// The most bytes of the GPU that were held at once.
    pub(super) fn peak_memory(&self) -> Option<u64> {
        Some(self.0.as_ref()?.gpu().pool().usage().peak_total as u64)
    }
}
