//! Utilisation, memory, power and energy of a GPU, and connections between GPUs, by NVML.

mod links;

pub use links::{Link, Path, links};

use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;

use crate::device::Device;
use crate::libraries::Library;
use crate::{GpuError, Result};

/// A measurement of a GPU. Values that the GPU does not report are None.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Reading {
    /// The share of time in which kernels ran, over about the last second, from 0 to 1.
    pub utilisation: Option<f64>,
    /// Bytes of memory in use by all programs.
    pub memory: Option<u64>,
    /// Watts.
    pub power: Option<f64>,
    /// Joules since the driver was loaded.
    pub energy: Option<f64>,
}

/// Measures one GPU.
#[derive(Debug)]
pub struct Monitor {
    nvml: Nvml,
    uuid: String,
}

fn failed(function: &'static str) -> impl Fn(NvmlError) -> GpuError {
    move |error| GpuError::Library { library: "NVML", function, problem: error.to_string() }
}

/// Returns a value, or None if the GPU does not report it.
fn if_supported<T>(function: &'static str, answer: Result<T, NvmlError>) -> Result<Option<T>> {
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
    /// Returns a monitor of a GPU. The GPU is found by its UUID, as NVML also counts hidden GPUs.
    ///
    /// # Errors
    /// [`GpuError::MissingLibrary`] without NVML; [`GpuError::Library`] if it does not know the GPU.
    pub fn new(device: &Device) -> Result<Self> {
        let monitor = Self { nvml: open()?, uuid: device.uuid()? };
        monitor.read()?;
        Ok(monitor)
    }

    /// Measures now.
    ///
    /// # Errors
    /// [`GpuError::Library`] if NVML fails.
    pub fn read(&self) -> Result<Reading> {
        let uuid = self.uuid.as_str();
        let device = self.nvml.device_by_uuid(uuid).map_err(failed("nvmlDeviceGetHandleByUUID"))?;
        let utilisation = if_supported("nvmlDeviceGetUtilizationRates", device.utilization_rates())?;
        let memory = if_supported("nvmlDeviceGetMemoryInfo_v2", device.memory_info())?;
        let power = if_supported("nvmlDeviceGetPowerUsage", device.power_usage())?;
        let energy = if_supported("nvmlDeviceGetTotalEnergyConsumption", device.total_energy_consumption())?;
        Ok(Reading {
            utilisation: utilisation.map(|rates| f64::from(rates.gpu) / 100.0),
            memory: memory.map(|memory| memory.used),
            power: power.map(|milliwatts| f64::from(milliwatts) / 1000.0),
            energy: energy.map(|millijoules| millijoules as f64 / 1000.0),
        })
    }
}
