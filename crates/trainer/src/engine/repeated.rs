//! Work that is the same in every step, which a GPU records and launches as graphs.

use super::TrainError;
use super::data::StepShape;
use super::device::Device;

/// The work of one phase of a step: a recording for each shape that steps have, such as that of an epoch's last.
#[derive(Debug, Default)]
pub(super) struct Repeated {
    shapes: Vec<StepShape>,
    #[cfg(feature = "cuda")]
    recording: Option<(phalanx_cuda::Gpu, phalanx_cuda::Replay)>,
}

impl Repeated {
    /// That of a rank, if it computes on a GPU and its steps are to be recorded.
    #[cfg(feature = "cuda")]
    pub(super) fn new(device: &Device, wanted: bool) -> Self {
        let recording = device.gpu_of().filter(|_| wanted);
        let recording = recording.map(|gpu| (gpu.clone(), phalanx_cuda::Replay::new(gpu)));
        Self { shapes: Vec::new(), recording }
    }

    /// On the processor there is nothing to record.
    #[cfg(not(feature = "cuda"))]
    pub(super) fn new(_: &Device, _: bool) -> Self {
        Self::default()
    }

    /// Does the work of a step of this shape.
    ///
    /// # Errors
    /// Those of `work`, and if it is not what was recorded.
    #[cfg(feature = "cuda")]
    pub(super) fn run<R>(
        &mut self,
        shape: impl FnOnce() -> StepShape,
        work: impl FnOnce() -> Result<R, TrainError>,
    ) -> Result<R, TrainError> {
        let Some((gpu, replay)) = &mut self.recording else { return work() };
        let shape = shape();
        let known = self.shapes.iter().position(|other| *other == shape);
        let at = known.unwrap_or_else(|| {
            self.shapes.push(shape);
            self.shapes.len() - 1
        });
        let before = replay.recorded();
        let result = replay.run(|| {
            gpu.branch(at as u64)?;
            work()
        });
        let (graphs, pieces) = replay.recorded();
        if result.is_ok() && (graphs, pieces) != before {
            let held = replay.bytes();
            tracing::info!("{pieces} pieces of work are recorded as {graphs} CUDA graphs, with {held} bytes");
        }
        result
    }

    /// Does the work of a step.
    ///
    /// # Errors
    /// Those of `work`.
    #[cfg(not(feature = "cuda"))]
    pub(super) fn run<R>(
        &mut self,
        _: impl FnOnce() -> StepShape,
        work: impl FnOnce() -> Result<R, TrainError>,
    ) -> Result<R, TrainError> {
        work()
    }
}
