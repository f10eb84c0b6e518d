//! What a rank computes on: the processor, or a GPU.

use phalanx_collectives::Communicator;
use phalanx_sharding::CodecKind;
use phalanx_tensor::Place;

use super::error::TrainError;
use crate::config::{Config, DeviceKind};

/// What a rank computes on. Clones are handles.
#[derive(Debug, Clone)]
pub(in crate::engine) struct Device {
    place: Place,
    words: String,
    #[cfg(feature = "cuda")]
    cuda: Option<phalanx_tensor::backend::Cuda>,
}

impl Device {
    /// What the only rank computes on, by `train.device`.
    ///
    /// # Errors
    /// [`TrainError::Setup`] if a GPU is asked for that cannot be had, or for what does not run on GPUs.
    pub(in crate::engine) fn alone(config: &Config) -> Result<Self, TrainError> {
        Self::choose(config, 0, |own| Ok(vec![own.to_owned()]))
    }

    /// What a rank among others computes on: each on a GPU of its host, of the number that it has there among the ranks, or all
    /// on processors. Every rank of `world` calls this at the same place.
    ///
    /// # Errors
    /// [`TrainError::Setup`] on all ranks if GPUs are asked for and one has none.
    pub(in crate::engine) fn among(config: &Config, world: &Communicator) -> Result<Self, TrainError> {
        Self::choose(config, world.local_rank(), |own| {
            let all = world.all_gatherv(own.as_bytes())?;
            Ok(all.iter().map(|why| String::from_utf8_lossy(why).into_owned()).collect())
        })
    }

    /// The processor.
    pub(in crate::engine) fn processor() -> Self {
        Self::processor_since("CPU".to_owned())
    }

    /// The processor, in these words.
    fn processor_since(words: String) -> Self {
        Self {
            place: Place::host(),
            words,
            #[cfg(feature = "cuda")]
            cuda: None,
        }
    }

    /// `gather` brings together what all ranks have to say; nothing stands for a GPU that can be had.
    fn choose(
        config: &Config,
        index: usize,
        gather: impl FnOnce(&str) -> Result<Vec<String>, TrainError>,
    ) -> Result<Self, TrainError> {
        let wanted = config.train.device;
        if wanted == DeviceKind::Cpu {
            return Ok(Self::processor());
        }
        let opened = if config.comm.codec == CodecKind::None {
            Self::gpu(index, wanted)
        } else {
            Err(format!("comm.codec = \"{}\" encodes gradients on the processor", config.comm.codec))
        };
        let told = gather(opened.as_ref().err().map_or("", String::as_str))?;
        let lacking = told.iter().enumerate().find(|(_, why)| !why.is_empty());
        let why = lacking.map(|(rank, why)| match told.len() {
            1 => why.clone(),
            _ => format!("rank {rank} has none: {why}"),
        });
        match (opened, why) {
            (Ok(gpu), None) => Ok(gpu),
            (_, why) if wanted == DeviceKind::Auto => {
                Ok(Self::processor_since(format!("CPU, as {}", why.unwrap_or_default())))
            }
            (opened, why) => {
                let why = why.or_else(|| opened.err()).unwrap_or_default();
                Err(TrainError::Setup(format!("train.device = \"cuda\": {why}")))
            }
        }
    }

    /// Where its arrays are made.
    pub(in crate::engine) fn place(&self) -> &Place {
        &self.place
    }

    /// It in words, and where `auto` chose the processor, why.
    pub(in crate::engine) fn describe(&self) -> &str {
        &self.words
    }

    /// The ranks of `world` as those see them who compute here: ranks with a GPU each reach each other by NCCL. The world must
    /// outlive what is returned.
    ///
    /// # Errors
    /// [`TrainError::Comm`] on every rank if one has no NCCL.
    #[cfg(feature = "cuda")]
    pub(in crate::engine) fn connected(&self, world: &Communicator) -> Result<Communicator, TrainError> {
        match &self.cuda {
            Some(cuda) => {
                Ok(phalanx_collectives::nccl::communicator(world, cuda.gpu().device().context().clone())?)
            }
            None => Ok(world.clone()),
        }
    }

    #[cfg(not(feature = "cuda"))]
    pub(in crate::engine) fn connected(&self, world: &Communicator) -> Result<Communicator, TrainError> {
        Ok(world.clone())
    }

    /// GPU `index` of this host, or why it cannot be had. It is opened once in a process: networks, batches and judges share it.
    #[cfg(feature = "cuda")]
    fn gpu(index: usize, wanted: DeviceKind) -> Result<Self, String> {
        use std::collections::BTreeMap;
        use std::sync::{Arc, Mutex, PoisonError};

        use phalanx_cuda::GpuError;
        use phalanx_cuda::libraries::Library;
        use phalanx_tensor::backend::{Cuda, CudaOptions};

        static OPENED: Mutex<BTreeMap<usize, Cuda>> = Mutex::new(BTreeMap::new());

        let missing = |error: GpuError| match error {
            // Whoever wants a GPU wants to know all names; a line of a run on the processor is shorter.
            GpuError::MissingLibrary { library, tried, .. } if wanted == DeviceKind::Auto => {
                format!("{library} is not there ({} and {} other names)", tried[0], tried.len() - 1)
            }
            other => other.to_string(),
        };
        Library::Driver.find().map_err(missing)?;
        let count = phalanx_cuda::Device::count().map_err(missing)?;
        if index >= count {
            return Err(match count {
                0 => "the driver knows no GPU".to_owned(),
                1 => format!("this host has one GPU, and rank {index} of the host wants one of its own"),
                _ => format!("this host has {count} GPUs, and rank {index} of the host wants one of its own"),
            });
        }
        let mut opened = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
        let cuda = match opened.get(&index) {
            Some(cuda) => cuda.clone(),
            None => Cuda::new(index, &CudaOptions::default()).map_err(|error| error.to_string())?,
        };
        opened.insert(index, cuda.clone());
        let words = format!("GPU {index}, {}", cuda.gpu().device().description().name);
        Ok(Self { place: Place::device(Arc::new(cuda.clone())), words, cuda: Some(cuda) })
    }

    #[cfg(not(feature = "cuda"))]
    fn gpu(_: usize, _: DeviceKind) -> Result<Self, String> {
        Err("this program was built without its feature `cuda`".to_owned())
    }
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
    /// That of a rank, if it computes on a GPU.
    #[cfg(feature = "cuda")]
    pub(super) fn of(device: &Device) -> Option<Self> {
        let cuda = device.cuda.clone()?;
        let monitor = phalanx_cuda::nvml::Monitor::new(cuda.gpu().device());
        let monitor = monitor.inspect_err(|why| tracing::info!("no power and energy: {why}")).ok();
        let before = monitor.as_ref().and_then(|monitor| monitor.read().ok()?.energy);
        Some(Self { cuda, monitor, before })
    }

    #[cfg(not(feature = "cuda"))]
    pub(super) fn of(_: &Device) -> Option<Self> {
        None
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
