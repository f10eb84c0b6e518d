//! CUDA graphs: the work of a step is recorded once and replayed.

use super::TrainError;
use super::data::StepShape;
use super::device::Device;

/// The number of step shapes that are recorded.
#[cfg(feature = "cuda")]
const MOST: usize = 32;

/// Adds advice to the error of work that differs from the recorded work.
#[cfg(feature = "cuda")]
fn explained(error: TrainError) -> TrainError {
    use phalanx_cuda::GpuError;
    use phalanx_sharding::ShardingError;
    use phalanx_tensor::{ArrayError, TensorError};
    match error {
        TrainError::Tensor(TensorError::Array(ArrayError::Gpu(error @ GpuError::Replay { .. })))
        | TrainError::Sharding(ShardingError::Tensor(TensorError::Array(ArrayError::Gpu(
            error @ GpuError::Replay { .. },
        )))) => TrainError::Setup(format!(
            "{error}: train.graphs = true is for trainings all of whose steps compute the same; set it to false"
        )),
        other => other,
    }
}

/// The recorded work of one phase: a recording for each shape of steps, such as that of the last step of an epoch.
#[derive(Debug, Default)]
pub(super) struct GraphCapture {
    #[cfg(feature = "cuda")]
    shapes: Vec<StepShape>,
    #[cfg(feature = "cuda")]
    recording: Option<(phalanx_cuda::Gpu, phalanx_cuda::GraphReplay)>,
}

impl GraphCapture {
    /// Creates the capture of a rank. It records if the rank computes on a GPU and graphs are `wanted`.
    #[cfg(feature = "cuda")]
    pub(super) fn new(device: &Device, wanted: bool) -> Self {
        let recording = device.gpu_of().filter(|_| wanted);
        let recording = recording.map(|gpu| (gpu.clone(), phalanx_cuda::GraphReplay::new(gpu)));
        Self { shapes: Vec::new(), recording }
    }

    /// A CPU records nothing.
    #[cfg(not(feature = "cuda"))]
    pub(super) fn new(_: &Device, _: bool) -> Self {
        Self::default()
    }

    /// Runs or replays the work of a step of this shape.
    ///
    /// # Errors
    /// Errors of `work`, and if the work differs from the recorded work.
    #[cfg(feature = "cuda")]
    pub(super) fn run<R>(
        &mut self,
        shape: impl FnOnce() -> StepShape,
        work: impl FnOnce() -> Result<R, TrainError>,
    ) -> Result<R, TrainError> {
        let Some((gpu, replay)) = &mut self.recording else { return work() };
        let shape = shape();
        let known = self.shapes.iter().position(|other| *other == shape);
        let Some(at) = known.or((self.shapes.len() < MOST).then_some(self.shapes.len())) else {
            return work();
        };
        if known.is_none() {
            self.shapes.push(shape);
            if self.shapes.len() == MOST {
                tracing::info!("steps have {MOST} shapes; further shapes are not recorded");
            }
        }
        let (before, was_full) = (replay.recorded(), replay.is_full());
        let result = replay.run(|| {
            gpu.branch(at as u64)?;
            work()
        });
        let (graphs, pieces) = replay.recorded();
        if result.is_ok() && (graphs, pieces) != before {
            let held = replay.bytes();
            tracing::info!("{pieces} pieces of work are recorded as {graphs} CUDA graphs, with {held} bytes");
        }
        if replay.is_full() && !was_full {
            tracing::info!("no further variants of a step are recorded; they run without graphs");
        }
        result.map_err(explained)
    }

    /// Runs the work of a step.
    ///
    /// # Errors
    /// Errors of `work`.
    #[cfg(not(feature = "cuda"))]
    pub(super) fn run<R>(
        &mut self,
        _: impl FnOnce() -> StepShape,
        work: impl FnOnce() -> Result<R, TrainError>,
    ) -> Result<R, TrainError> {
        work()
    }
}
