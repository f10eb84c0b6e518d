//! What a GPU is doing and what that costs: utilisation, memory, power and energy, by NVML; and how GPUs reach each other.

mod links;

pub use links::{Link, Path, links};

use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;

use crate::device::Device;
use crate::libraries::Library;
use crate::{GpuError, Result};

/// One look at a GPU. What a GPU does not tell is missing.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Reading {
    /// The share of time in which kernels ran, over the last second or so, from 0 to 1.
    pub utilisation: Option<f64>,
    /// Bytes of memory that are taken, by all programs.
    pub memory: Option<u64>,
    /// Watts.
    pub power: Option<f64>,
    /// Joules since the driver was loaded: the difference of two readings is what lies between.
    pub energy: Option<f64>,
}

/// Looks at one GPU.
#[derive(Debug)]
pub struct Monitor {
    nvml: Nvml,
    uuid: String,
}

fn failed(function: &'static str) -> impl Fn(NvmlError) -> GpuError {
    move |error| GpuError::Library { library: "NVML", function, problem: error.to_string() }
}

/// What a GPU tells, or nothing if it does not know.
fn told<T>(function: &'static str, answer: Result<T, NvmlError>) -> Result<Option<T>> {
    match answer {
        Ok(value) => Ok(Some(value)),
        Err(NvmlError::NotSupported | NvmlError::FailedToLoadSymbol(_)) => Ok(None),
        Err(error) => Err(failed(function)(error)),
    }
}

fn open() -> Result<Nvml> {
    let file = Library::Nvml.find()?.file;
    Nvml::builder().lib_path(file.as_ref()).init().map_err(failed("nvmlInit_v2"))
}

impl Monitor {
    /// A monitor of a GPU, which it finds by its identity: NVML counts GPUs that programs may not see, too.
    ///
    /// # Errors
    /// [`GpuError::MissingLibrary`] without NVML; [`GpuError::Library`] if it does not know the GPU.
    pub fn new(device: &Device) -> Result<Self> {
        let monitor = Self { nvml: open()?, uuid: device.uuid()? };
        monitor.read()?;
        Ok(monitor)
    }

    /// Looks now.
    ///
    /// # Errors
    /// [`GpuError::Library`] if NVML fails.
    pub fn read(&self) -> Result<Reading> {
        let uuid = self.uuid.as_str();
        let device = self.nvml.device_by_uuid(uuid).map_err(failed("nvmlDeviceGetHandleByUUID"))?;
        let utilisation = told("nvmlDeviceGetUtilizationRates", device.utilization_rates())?;
        let memory = told("nvmlDeviceGetMemoryInfo_v2", device.memory_info())?;
        let power = told("nvmlDeviceGetPowerUsage", device.power_usage())?;
        let energy = told("nvmlDeviceGetTotalEnergyConsumption", device.total_energy_consumption())?;
        Ok(Reading {
            utilisation: utilisation.map(|rates| f64::from(rates.gpu) / 100.0),
            memory: memory.map(|memory| memory.used),
            power: power.map(|milliwatts| f64::from(milliwatts) / 1000.0),
            energy: energy.map(|millijoules| millijoules as f64 / 1000.0),
        })
    }
}
