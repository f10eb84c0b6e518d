//! Work that the same code issues again and again, such as a training's steps, launched as graphs.
//!
//! A [`Replay`] runs a piece of code. The first runs are done as always: kernels are compiled, libraries choose their algorithms,
//! whatever is kept from run to run is made. Then one is recorded, and from there on the code runs as before, but the GPU is not
//! given again what a graph has: a launch of the graph does it all, at a fraction of what it costs the host to issue it piece by
//! piece. What the code asks for is compared with the recording at every step of the way, so the bits are those of issuing it,
//! or the run fails with [`GpuError::Replay`], which names the first difference.
//!
//! ```no_run
//! use phalanx_cuda::{Gpu, GpuError, Options, Replay, kernels};
//!
//! let gpu = Gpu::new(0, &Options::default())?;
//! let weights = gpu.upload(&[1.0_f32, 2.0])?;
//! let mut replay = Replay::new(&gpu);
//! for step in 1..=100 {
//!     replay.run(|| -> Result<(), GpuError> {
//!         let batch = gpu.upload(&[step as f32, 0.5])?;
//!         let scaled = kernels::affine(&gpu, &batch, 1.0 / step as f64, 0.0)?;
//!         kernels::accumulate(&gpu, &weights, &scaled)
//!     })?;
//! }
//! # Ok::<(), GpuError>(())
//! ```
//!
//! # What may differ from run to run
//!
//! - Numbers and addresses that kernels take, and how many blocks they run by: what differs is put into the graph.
//! - What is uploaded: it goes into the same memory.
//! - Work that no graph can have lies between graphs, and is issued each time: reading numbers, waiting, work of other streams,
//!   libraries that are lent memory. A run may end at such a place, and a later one go on from there: that is then recorded too.
//!
//! - Whatever [`Gpu::branch`] is told: there is a recording for each number that it was given, of what follows. Sizes that depend on
//!   what is in a batch are such numbers.
//!
//! What may not differ is the order of the work, its sizes, and what cuBLASLt and cuDNN are given: code that decides by numbers that it
//! reads must decide alike, or say how it decided by [`Gpu::branch`].
//!
//! # Memory
//!
//! Each run is given the memory that the first recorded one was, in the same order; it is used again within a run as it was there,
//! and stays with the replay. What leaves a run, such as a loss, lies in that memory: it holds what the latest run wrote, whatever branch that took.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use crate::device::{MOST, Segment, Segments};
use crate::memory::Reserve;
use crate::{Gpu, GpuError, Result};

/// Runs that are done as always before one is recorded.
const WARM_UPS: u32 = 2;

/// A piece of code whose work on a GPU is the same each time.
#[derive(Debug)]
pub struct Replay {
    // Graphs go before the memory that they use.
    segments: Segments,
    reserve: Option<Reserve>,
    scope: u64,
    warm_ups: u32,
    gpu: Gpu,
}

impl Replay {
    /// One that has not run.
    pub fn new(gpu: &Gpu) -> Self {
        let scope = gpu.device().new_scope();
        Self { segments: Segments::new(), reserve: None, scope, warm_ups: WARM_UPS, gpu: gpu.clone() }
    }

    /// Runs the code, whose work on the computing stream is recorded, or launched as it was recorded.
    ///
    /// # Errors
    /// Those of `body`; [`GpuError::Replay`] if its work is not what was recorded, also if `body` passes over that error. Some of the
    /// run's work is then lost, and the next run is recorded anew. [`GpuError::Capture`] if this thread replays or captures already.
    pub fn run<R, E: From<GpuError>>(&mut self, body: impl FnOnce() -> Result<R, E>) -> Result<R, E> {
        if self.warm_ups > 0 {
            self.warm_ups -= 1;
            return body();
        }
        let (device, pool) = (self.gpu.device(), self.gpu.pool());
        let reserve = match self.reserve.take() {
            Some(mut reserve) => {
                reserve.rewind();
                reserve
            }
            None => {
                // What earlier runs have freed can then be given to this one, in the order of whatever stream.
                device.synchronize()?;
                Reserve::new(self.scope)
            }
        };
        pool.begin_scope(reserve)?;
        if let Err(error) = device.begin_replay(self.scope, std::mem::take(&mut self.segments)) {
            pool.end_scope();
            return Err(error.into());
        }
        let result = catch_unwind(AssertUnwindSafe(body));
        let played = device.end_replay();
        let reserve = pool.end_scope();
        let result = result.unwrap_or_else(|panic| resume_unwind(panic))?;
        (self.segments, self.reserve) = (played?, reserve);
        Ok(result)
    }

    /// How many graphs it has, and of how many pieces of work these are: none before one was recorded.
    pub fn recorded(&self) -> (usize, usize) {
        let graphs = || self.segments.values().flatten();
        (graphs().count(), graphs().map(Segment::len).sum())
    }

    /// Whether there are as many recordings of branches as there will be: what comes in others is issued as always.
    pub fn is_full(&self) -> bool {
        self.segments.len() >= MOST
    }

    /// Bytes that it holds for its runs.
    pub fn bytes(&self) -> usize {
        self.reserve.as_ref().map_or(0, Reserve::bytes)
    }
}
