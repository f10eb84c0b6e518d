//! Ranks with a GPU each, and buffers on it.

use std::sync::Arc;

use phalanx_collectives::nccl::cudarc::driver::{CudaContext, CudaSlice, CudaStream, DeviceRepr};
use phalanx_collectives::nccl::{self};
use phalanx_collectives::{BoxError, Communicator, DType, DeviceMut, Element, FlatBuffer, SliceMut};

use super::software;
use crate::common::{Topology, on_ranks};

/// Set if tests run on the machine's own GPUs.
const REAL: &str = "PHALANX_TEST_GPU";

/// True if tests run on the machine's own GPUs.
pub(crate) fn real() -> bool {
    std::env::var_os(REAL).is_some()
}

/// Runs `f` on every rank of worlds of these sizes, each rank a thread with its own GPU.
pub(crate) fn on_gpus(
    topologies: &[Topology],
    sizes: &[usize],
    f: impl Fn(Communicator, Arc<CudaContext>) + Clone + Send + 'static,
) {
    on_gpus_with(&[], topologies, sizes, f);
}

/// Settings of the software GPU.
pub(crate) fn on_gpus_with(
    settings: &[(&str, &str)],
    topologies: &[Topology],
    sizes: &[usize],
    f: impl Fn(Communicator, Arc<CudaContext>) + Clone + Send + 'static,
) {
    let body = || {
        let count = nccl::device_count();
        for size in sizes.iter().copied() {
            if size > count {
                println!("skipped: {size} ranks on {count} GPU(s)");
                continue;
            }
            for topology in topologies {
                let f = f.clone();
                on_ranks(topology.world(size), move |world| {
                    let context = open(world.rank());
                    f(world, context);
                });
            }
        }
    };
    if real() {
        return body();
    }
    let settings: Vec<_> = settings.iter().copied().chain([("SOFTWARE_GPU_COUNT", "4")]).collect();
    software::run_with(&settings, body);
}

/// A GPU without cudarc's tracking of events, as `phalanx-cuda` opens it: only operations make streams wait.
pub(crate) fn open(index: usize) -> Arc<CudaContext> {
    let context = CudaContext::new(index).expect("a GPU for each rank");
    // SAFETY: tests make streams wait for each other themselves, or omit it to test that this is found.
    unsafe { context.disable_event_tracking() };
    context
}

/// The first elements of memory on a GPU, which has one more, as it cannot be empty.
#[derive(Debug)]
pub(crate) struct OnGpu<T> {
    pub(crate) memory: CudaSlice<T>,
    len: usize,
    pub(crate) compute: Arc<CudaStream>,
}

impl<T: Element + DeviceRepr> OnGpu<T> {
    /// A copy of host values.
    pub(crate) fn new(compute: &Arc<CudaStream>, values: &[T]) -> Self {
        let mut padded = values.to_vec();
        padded.push(T::zeroed());
        let memory = compute.clone_htod(&padded).expect("memory on the GPU");
        Self { memory, len: values.len(), compute: compute.clone() }
    }

    /// Returns the content once the computing stream has reached this point.
    pub(crate) fn values(&self) -> Vec<T> {
        let mut all = self.compute.clone_dtoh(&self.memory).expect("a sound GPU");
        self.compute.synchronize().expect("a sound GPU");
        all.truncate(self.len);
        all
    }
}

impl<T: Element + DeviceRepr> FlatBuffer for OnGpu<T> {
    fn dtype(&self) -> DType {
        T::DTYPE
    }

    fn len(&self) -> usize {
        self.len
    }

    fn with_slice_mut(&mut self, _: &mut dyn FnMut(SliceMut<'_>)) -> Result<(), BoxError> {
        Err("it lies on a GPU".into())
    }

    fn device(&mut self) -> Option<DeviceMut<'_>> {
        Some(DeviceMut::new(self.memory.slice_mut(0..self.len), &self.compute))
    }
}
