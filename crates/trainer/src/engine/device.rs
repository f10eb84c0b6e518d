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

/// The GPU of this process as a place.
#[cfg(feature = "cuda")]
fn gpu() -> Result<Place, TrainError> {
    Ok(Place::device(std::sync::Arc::new(opened()?)))
}

/// The GPU of this process, opened when it is first asked for: networks, batches and judges share it.
#[cfg(feature = "cuda")]
fn opened() -> Result<phalanx_tensor::backend::Cuda, TrainError> {
    use std::sync::{Mutex, PoisonError};

    use phalanx_tensor::backend::{Cuda, CudaOptions};

    static OPENED: Mutex<Option<Cuda>> = Mutex::new(None);
    let mut opened = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
    let cuda = match opened.take() {
        Some(cuda) => cuda,
        None => Cuda::new(0, &CudaOptions::default())
            .map_err(|error| TrainError::Setup(format!("train.device = \"cuda\": {error}")))?,
    };
    *opened = Some(cuda.clone());
    Ok(cuda)
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

/// What the GPU of a run does, and what that costs.
#[derive(Debug)]
pub(super) struct Gauge {
    #[cfg(feature = "cuda")]
    cuda: phalanx_tensor::backend::Cuda,
    /// Not there where NVML is not.
    #[cfg(feature = "cuda")]
    monitor: Option<phalanx_cuda::nvml::Monitor>,
    /// Joules before the run.
    #[cfg(feature = "cuda")]
    before: Option<f64>,
}

impl Gauge {
    /// That of a run, if it computes on a GPU.
    #[cfg(feature = "cuda")]
    pub(super) fn of(config: &Config) -> Result<Option<Self>, TrainError> {
        if config.train.device != DeviceKind::Cuda {
            return Ok(None);
        }
        let cuda = opened()?;
        let monitor = phalanx_cuda::nvml::Monitor::new(cuda.gpu().device());
        let monitor = monitor.inspect_err(|why| tracing::info!("no power and energy: {why}")).ok();
        let before = monitor.as_ref().and_then(|monitor| monitor.read().ok()?.energy);
        Ok(Some(Self { cuda, monitor, before }))
    }

    #[cfg(not(feature = "cuda"))]
    pub(super) fn of(_: &Config) -> Result<Option<Self>, TrainError> {
        Ok(None)
    }

    /// What there is to see now: utilisation (0 to 1), bytes that all programs hold and that this one does, watts, and joules
    /// since the run began.
    #[cfg(feature = "cuda")]
    pub(super) fn look(&self) -> Vec<(&'static str, f64)> {
        let reading = self.monitor.as_ref().and_then(|monitor| monitor.read().ok()).unwrap_or_default();
        let energy = reading.energy.zip(self.before).map(|(now, before)| now - before);
        let seen = [
            ("gpu_utilisation", reading.utilisation),
            ("gpu_memory_bytes", reading.memory.map(|bytes| bytes as f64)),
            ("gpu_held_bytes", Some(self.cuda.gpu().pool().held().total() as f64)),
            ("gpu_power_watts", reading.power),
            ("gpu_energy_joules", energy),
        ];
        seen.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
    }

    /// The most bytes that this program held at once, of each kind and together.
    #[cfg(feature = "cuda")]
    pub(super) fn peaks(&self) -> Vec<(String, u64)> {
        let held = self.cuda.gpu().pool().held();
        let kinds = phalanx_cuda::Kind::ALL.into_iter().zip(held.peak);
        let kinds = kinds.map(|(kind, bytes)| (format!("gpu_peak_{}_bytes", kind.name()), bytes as u64));
        kinds.chain([("gpu_peak_bytes".to_owned(), held.peak_total as u64)]).collect()
    }

    #[cfg(not(feature = "cuda"))]
    pub(super) fn look(&self) -> Vec<(&'static str, f64)> {
        Vec::new()
    }

    #[cfg(not(feature = "cuda"))]
    pub(super) fn peaks(&self) -> Vec<(String, u64)> {
        Vec::new()
    }
}
