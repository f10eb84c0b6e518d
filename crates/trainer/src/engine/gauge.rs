//! Readings of the GPU of a rank: memory, utilisation, power and energy.

use super::device::Device;
use phalanx_usage::GpuReading;

/// Readings of the GPU of a run.
#[derive(Debug)]
pub(super) struct Gauge {
    #[cfg(feature = "cuda")]
    cuda: phalanx_tensor::backend::Cuda,
    /// None without NVML.
    #[cfg(feature = "cuda")]
    monitor: Option<phalanx_cuda::nvml::Monitor>,
    /// The energy counter before the run, in joules.
    #[cfg(feature = "cuda")]
    before: Option<f64>,
    /// Bytes that were copied to the GPU before the run.
    #[cfg(feature = "cuda")]
    uploaded: u64,
}

impl Gauge {
    /// Creates the gauge of a rank, if it computes on a GPU.
    #[cfg(feature = "cuda")]
    pub(super) fn of(device: &Device) -> Option<Self> {
        let cuda = device.cuda.clone()?;
        let monitor = phalanx_cuda::nvml::Monitor::new(cuda.gpu().device());
        let monitor = monitor.inspect_err(|why| tracing::info!("no power and energy: {why}")).ok();
        let before = monitor.as_ref().and_then(|monitor| monitor.read().ok()?.energy);
        let uploaded = cuda.gpu().uploaded();
        Some(Self { cuda, monitor, before, uploaded })
    }

    #[cfg(not(feature = "cuda"))]
    pub(super) fn of(_: &Device) -> Option<Self> {
        None
    }

    /// Reads the GPU now.
    #[cfg(feature = "cuda")]
    pub(super) fn read(&self) -> GpuReading {
        let reading = self.monitor.as_ref().and_then(|monitor| monitor.read().ok()).unwrap_or_default();
        let activations = self.cuda.gpu().pool().usage().of(phalanx_cuda::Kind::Activations);
        GpuReading {
            utilisation: reading.utilisation,
            memory_bytes: reading.memory,
            activation_bytes: Some(activations as u64),
            watts: reading.power,
            joules: reading.energy.zip(self.before).map(|(now, before)| now - before),
        }
    }

    /// Reads the values for a metrics line: utilisation (0 to 1), bytes of all programs and of this one, and watts.
    /// Bytes copied from the host and joules are sums since the run began.
    #[cfg(feature = "cuda")]
    pub(super) fn metrics(&self) -> Vec<(&'static str, f64)> {
        let reading = self.read();
        let seen = [
            ("gpu_utilisation", reading.utilisation),
            ("gpu_memory_bytes", reading.memory_bytes.map(|bytes| bytes as f64)),
            ("gpu_held_bytes", Some(self.cuda.gpu().pool().usage().total() as f64)),
            ("gpu_uploaded_bytes", Some((self.cuda.gpu().uploaded() - self.uploaded) as f64)),
            ("gpu_power_watts", reading.watts),
            ("gpu_energy_joules", reading.joules),
        ];
        seen.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
    }

    /// The peak bytes of this program, by kind and in total.
    #[cfg(feature = "cuda")]
    pub(super) fn peaks(&self) -> Vec<(String, u64)> {
        let held = self.cuda.gpu().pool().usage();
        let kinds = phalanx_cuda::Kind::ALL.into_iter().zip(held.peak);
        let kinds = kinds.map(|(kind, bytes)| (format!("gpu_peak_{}_bytes", kind.name()), bytes as u64));
        kinds.chain([("gpu_peak_bytes".to_owned(), held.peak_total as u64)]).collect()
    }

    #[cfg(not(feature = "cuda"))]
    pub(super) fn read(&self) -> GpuReading {
        GpuReading::default()
    }

    #[cfg(not(feature = "cuda"))]
    pub(super) fn metrics(&self) -> Vec<(&'static str, f64)> {
        Vec::new()
    }

    #[cfg(not(feature = "cuda"))]
    pub(super) fn peaks(&self) -> Vec<(String, u64)> {
        Vec::new()
    }
}
