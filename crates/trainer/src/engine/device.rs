//! What a run computes on: the processor, or a GPU.

use phalanx_tensor::Place;

use super::error::TrainError;
use crate::config::{Config, DeviceKind};

/// Where a run's arrays are made, by `train.device`.
///
/// # Errors
/// [`TrainError::Setup`] if a GPU is asked for that cannot be had, or for what does not train on GPUs yet.
pub(super) fn place(config: &Config) -> Result<Place, TrainError> {
    match config.train.device {
        DeviceKind::Auto | DeviceKind::Cpu => Ok(Place::host()),
        DeviceKind::Cuda => match config.train.ranks {
            1 => gpu(),
            ranks => Err(TrainError::Setup(format!(
                "train.device = \"cuda\" trains with one rank, and train.ranks is {ranks}: gradients do not travel between GPUs yet"
            ))),
        },
    }
}

/// The GPU of this process, opened when it is first asked for: networks, batches and judges share it.
#[cfg(feature = "cuda")]
fn gpu() -> Result<Place, TrainError> {
    use std::sync::{Arc, Mutex, PoisonError};

    use phalanx_tensor::backend::{Cuda, CudaOptions};

    static OPENED: Mutex<Option<Cuda>> = Mutex::new(None);
    let mut opened = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
    let cuda = match opened.take() {
        Some(cuda) => cuda,
        None => Cuda::new(0, &CudaOptions::default())
            .map_err(|error| TrainError::Setup(format!("train.device = \"cuda\": {error}")))?,
    };
    *opened = Some(cuda.clone());
    Ok(Place::device(Arc::new(cuda)))
}

#[cfg(not(feature = "cuda"))]
fn gpu() -> Result<Place, TrainError> {
    Err(TrainError::Setup(
        "train.device = \"cuda\": this program was built without its feature `cuda`".to_owned(),
    ))
}

/// What a run computes on, in words, and why that, where `auto` chose.
pub(super) fn describe(config: &Config) -> String {
    match config.train.device {
        DeviceKind::Cpu => "CPU".to_owned(),
        DeviceKind::Cuda => found().map_or_else(|_| "GPU 0".to_owned(), |name| format!("GPU 0, {name}")),
        DeviceKind::Auto => match found() {
            Ok(name) => format!("CPU; GPU 0 is {name}: train.device=cuda trains on it"),
            Err(why) => format!("CPU, as {why}"),
        },
    }
}

/// The name of the first GPU, or why there is none.
#[cfg(feature = "cuda")]
fn found() -> Result<String, String> {
    use phalanx_cuda::libraries::Library;
    use phalanx_cuda::{Device, GpuError};

    let missing = |error: GpuError| match error {
        GpuError::MissingLibrary { library, tried, .. } => {
            format!("{library} is not there ({} and {} other names)", tried[0], tried.len() - 1)
        }
        other => other.to_string(),
    };
    Library::Driver.find().map_err(missing)?;
    if Device::count().map_err(missing)? == 0 {
        return Err("the driver knows no GPU".to_owned());
    }
    Device::name_of(0).map_err(missing)
}

#[cfg(not(feature = "cuda"))]
fn found() -> Result<String, String> {
    Err("this program was built without its feature `cuda`".to_owned())
}
