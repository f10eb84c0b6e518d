//! Repeated code, such as training steps, whose GPU work is launched as CUDA graphs.
//!
//! A [`GraphReplay`] runs a piece of code. The first runs are eager: kernels are compiled, libraries choose their algorithms, and
//! lasting memory is allocated. Then one run is recorded. Later runs execute the same host code, but recorded work is not issued
//! again: a graph launch replaces it, at a fraction of the host's cost.
//!
//! Each piece of work is compared with the recording. So the bits are those of eager runs, or the run fails with
//! [`GpuError::Replay`], which names the first difference.
//!
//! ```no_run
//! use phalanx_cuda::{Gpu, GpuError, GraphReplay, Options, kernels};
//!
//! let gpu = Gpu::new(0, &Options::default())?;
//! let weights = gpu.upload(&[1.0_f32, 2.0])?;
//! let mut replay = GraphReplay::new(&gpu);
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
//! # Differences between runs
//!
//! These may change from run to run:
//!
//! - Scalars and addresses that kernels take, and their number of blocks: the graph is updated.
//! - Uploaded data: it goes to the same memory.
//! - Work that cannot be part of a graph: downloads, waiting, work of other streams, libraries that use a slice. It runs between
//!   two graphs, and is issued each time. A run may end at such a place. A later run may continue, and the rest is then recorded
//!   too.
//! - The key of [`Gpu::branch`]: the work after it has a recording for each key. Use it for sizes that depend on a batch.
//!
//! The order of the work, its sizes, and the arguments of cuBLASLt and cuDNN must be the same. Code that branches on downloaded
//! values must take the same branch each time, or name it by [`Gpu::branch`].
//!
//! # Memory
//!
//! Each run gets the memory of the first recorded run, in the same order. Within a run memory is reused as in that run. It
//! belongs to the replay until the replay is dropped. A slice that leaves a run, such as a loss, is in that memory: it holds the
//! result of the latest run of any branch.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use crate::device::{MAX_BRANCHES, Segment, Segments};
use crate::memory::Reserve;
use crate::{Gpu, GpuError, Result};

/// Eager runs before the first recorded one.
const WARM_UPS: u32 = 2;

/// A piece of code that issues the same GPU work in each run.
#[derive(Debug)]
pub struct GraphReplay {
    // Graphs are dropped before the memory that they use.
    segments: Segments,
    reserve: Option<Reserve>,
    scope: u64,
    warm_ups: u32,
    gpu: Gpu,
}

impl GraphReplay {
    /// Returns a replay that has not run.
    pub fn new(gpu: &Gpu) -> Self {
        let scope = gpu.device().new_scope();
        Self { segments: Segments::new(), reserve: None, scope, warm_ups: WARM_UPS, gpu: gpu.clone() }
    }

    /// Runs `body`. Its work on the compute stream is recorded, or launched as recorded.
    ///
    /// # Errors
    /// The errors of `body`; [`GpuError::Replay`] if its work differs from the recording, even if `body` drops that error: some of the
    /// run's work is then lost, and the next run is recorded anew. [`GpuError::Capture`] if this thread replays or captures
    /// already.
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
                // Memory that earlier runs freed can then be allocated in the order of any stream.
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

    /// Returns the number of graphs, and the pieces of work in them. Both are 0 before a run was recorded.
    pub fn recorded(&self) -> (usize, usize) {
        let graphs = || self.segments.values().flatten();
        (graphs().count(), graphs().map(Segment::len).sum())
    }

    /// Returns true if no more branches will be recorded. Further branches run eagerly.
    pub fn is_full(&self) -> bool {
        self.segments.len() >= MAX_BRANCHES
    }

    /// Returns the bytes that the replay keeps for its runs.
    pub fn bytes(&self) -> usize {
        self.reserve.as_ref().map_or(0, Reserve::bytes)
    }
}
