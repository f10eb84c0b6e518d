//! What a rank computes on: the processor, or a GPU.

use phalanx_collectives::{Algorithm, Communicator, Encryption};
use phalanx_sharding::{CodecKind, Strategy};
use phalanx_tensor::ComputeDevice;

use super::error::TrainError;
use crate::config::{Config, DeviceKind, Offload};
use crate::usage::GpuReading;

/// What a rank tells of its device that has no GPU.
pub(in crate::engine) const HOST: &str = "-";

/// What a rank computes on. Clones are handles.
#[derive(Debug, Clone)]
pub(in crate::engine) struct Device {
    compute: ComputeDevice,
    words: String,
    #[cfg(feature = "cuda")]
    cuda: Option<phalanx_tensor::backend::Cuda>,
}

impl Device {
    /// What the only rank computes on, by `train.device`.
    ///
    /// # Errors
    /// [`TrainError::Setup`] if a GPU is asked for that cannot be had.
    pub(in crate::engine) fn alone(config: &Config) -> Result<Self, TrainError> {
        let wanted = config.train.device;
        if wanted == DeviceKind::Cpu {
            return Ok(Self::processor());
        }
        match Self::gpu(0, false, wanted) {
            Ok(gpu) => Ok(gpu),
            Err(why) => Self::without(wanted, &why),
        }
    }

    /// What a rank among others computes on: each on a GPU of its host, of the number that it has there among the ranks or the
    /// only one that its launcher shows it, or all on processors. Every rank of `world` calls this at the same place.
    ///
    /// # Errors
    /// [`TrainError::Setup`] on all ranks if GPUs are asked for and one has none of its own.
    pub(in crate::engine) fn among(config: &Config, world: &Communicator) -> Result<Self, TrainError> {
        let wanted = config.train.device;
        if wanted == DeviceKind::Cpu {
            return Ok(Self::processor());
        }
        if let Some(why) = only_on_processors(config, world) {
            return Self::without(wanted, &why);
        }
        // Ranks that only serve are the last, and compute nothing that a GPU is for.
        let workers = world.world_size() - config.sync.servers;
        let serves = world.rank() >= workers;
        let by_nccl = !config.train.strategy.exchanges_on_host();
        let own = match serves {
            true => Ok(Self::processor_since("CPU, as this rank only serves".to_owned())),
            false => Self::gpu(world.local_rank(), by_nccl, wanted),
        };
        let told = match &own {
            Ok(gpu) => format!("+{}", gpu.identity()),
            Err(why) => format!("-{why}"),
        };
        let all = world.all_gatherv(told.as_bytes())?;
        let all: Vec<String> = all.iter().map(|told| String::from_utf8_lossy(told).into_owned()).collect();
        let hosts = world.hosts();
        let lacking =
            all.iter().enumerate().take(workers).find_map(|(rank, told)| match told.strip_prefix('-') {
                Some(why) => Some(format!("rank {rank} has no GPU: {why}")),
                None => {
                    let same =
                        (0..rank).find(|other| all[*other] == *told && hosts[*other] == hosts[rank])?;
                    Some(format!("ranks {same} and {rank} would share a GPU"))
                }
            });
        match (own, lacking) {
            (Ok(gpu), None) => Ok(gpu),
            (_, why) => {
                release(world.local_rank());
                let ranks = workers;
                let why = why.unwrap_or_default();
                Self::without(
                    wanted,
                    &format!("{why} (of {ranks} ranks; `--ranks N` asks for as many as there are GPUs)"),
                )
            }
        }
    }

    /// What a rank computes on that comes to others who have begun: a processor, if that is what they compute on, or else the
    /// `nth` of the GPUs that it sees and that nobody of its host has, from 0. `taken` are [`Device::told`] of the others, and of
    /// those of its host.
    ///
    /// # Errors
    /// [`TrainError::Setup`] if there is none.
    pub(in crate::engine) fn beside(
        config: &Config,
        [everywhere, here]: [&[String]; 2],
        nth: usize,
    ) -> Result<Self, TrainError> {
        if everywhere.iter().all(|told| told == HOST) {
            return Ok(Self::processor());
        }
        let by_nccl = !config.train.strategy.exchanges_on_host();
        Self::free(here, nth)
            .and_then(|index| Self::gpu(index, by_nccl, DeviceKind::Cuda))
            .map_err(|why| TrainError::Setup(format!("the others train on GPUs, and here is none: {why}")))
    }

    /// The number of the `nth` GPU that is not among those of these identities.
    #[cfg(feature = "cuda")]
    fn free(taken: &[String], nth: usize) -> Result<usize, String> {
        let words = |error: phalanx_cuda::GpuError| error.to_string();
        phalanx_cuda::libraries::Library::Driver.find().map_err(words)?;
        let count = phalanx_cuda::Device::count().map_err(words)?;
        let mut rest = nth;
        for index in 0..count {
            let identity = phalanx_cuda::Device::uuid_of(index).map_err(words)?;
            if !taken.contains(&identity) {
                match rest.checked_sub(1) {
                    Some(fewer) => rest = fewer,
                    None => return Ok(index),
                }
            }
        }
        Err(format!("all {count} GPUs are other ranks'"))
    }

    #[cfg(not(feature = "cuda"))]
    fn free(_: &[String], _: usize) -> Result<usize, String> {
        Err("this program was built without its feature `cuda`".to_owned())
    }

    /// What others need to know of it: [`HOST`], or the identity of the GPU.
    pub(in crate::engine) fn told(&self) -> String {
        if self.compute.is_host() { HOST.to_owned() } else { self.identity() }
    }

    /// The processor, if it may be chosen.
    fn without(wanted: DeviceKind, why: &str) -> Result<Self, TrainError> {
        match wanted {
            DeviceKind::Cuda => Err(TrainError::Setup(format!("train.device = \"cuda\": {why}"))),
            DeviceKind::Auto | DeviceKind::Cpu => Ok(Self::processor_since(format!("CPU, as {why}"))),
        }
    }

    /// The processor.
    pub(in crate::engine) fn processor() -> Self {
        Self::processor_since("CPU".to_owned())
    }

    /// The processor, in these words.
    fn processor_since(words: String) -> Self {
        Self {
            compute: ComputeDevice::host(),
            words,
            #[cfg(feature = "cuda")]
            cuda: None,
        }
    }

    /// Where its arrays are made.
    pub(in crate::engine) fn compute(&self) -> &ComputeDevice {
        &self.compute
    }

    /// It in words, and where `auto` chose the processor, why.
    pub(in crate::engine) fn describe(&self) -> &str {
        &self.words
    }

    /// The ranks of `world` as those see them who compute here and share networks by a strategy: ranks with a GPU each reach each
    /// other by NCCL, unless the strategy sends messages between hosts. The world must outlive what is returned.
    ///
    /// # Errors
    /// [`TrainError::Comm`] on every rank if one has no NCCL.
    #[cfg(feature = "cuda")]
    pub(in crate::engine) fn connected(
        &self,
        world: &Communicator,
        strategy: Strategy,
    ) -> Result<Communicator, TrainError> {
        match self.cuda.as_ref().filter(|_| !strategy.exchanges_on_host()) {
            Some(cuda) => {
                Ok(phalanx_collectives::nccl::communicator(world, cuda.gpu().device().context().clone())?)
            }
            None => Ok(world.clone()),
        }
    }

    #[cfg(not(feature = "cuda"))]
    pub(in crate::engine) fn connected(
        &self,
        world: &Communicator,
        _: Strategy,
    ) -> Result<Communicator, TrainError> {
        Ok(world.clone())
    }

    /// The GPU of the host's rank `index`, which may reach others by NCCL, or why it cannot be had. It is opened once in a process:
    /// networks, batches and judges share it.
    #[cfg(feature = "cuda")]
    fn gpu(index: usize, by_nccl: bool, wanted: DeviceKind) -> Result<Self, String> {
        use std::sync::{Arc, PoisonError};

        use phalanx_cuda::GpuError;
        use phalanx_cuda::libraries::Library;
        use phalanx_tensor::backend::{Cuda, CudaOptions};

        let missing = |error: GpuError| match error {
            // Whoever wants a GPU wants to know all names; a line of a run on the processor is shorter.
            GpuError::MissingLibrary { library, tried, .. } if wanted == DeviceKind::Auto => {
                format!("{library} is not there ({} and {} other names)", tried[0], tried.len() - 1)
            }
            other => other.to_string(),
        };
        Library::Driver.find().map_err(missing)?;
        let count = phalanx_cuda::Device::count().map_err(missing)?;
        // A launcher may show each rank the GPU that is its own, and no other.
        let shown = count == 1 && std::env::var_os("CUDA_VISIBLE_DEVICES").is_some();
        let gpu = if shown { 0 } else { index };
        if gpu >= count {
            return Err(match count {
                0 => "the driver knows none".to_owned(),
                1 => format!("this host has one GPU, and rank {index} of the host wants one of its own"),
                _ => format!("this host has {count} GPUs, and rank {index} of the host wants one of its own"),
            });
        }
        // What is opened when it is first needed would fail in the middle of the first step.
        let needed = [Library::Nvrtc, Library::CublasLt];
        let between = by_nccl.then_some(Library::Nccl);
        // A network without convolutions has no use for cuDNN; nobody knows that yet.
        let likely = (wanted == DeviceKind::Auto).then_some(Library::Cudnn);
        needed
            .into_iter()
            .chain(between)
            .chain(likely)
            .try_for_each(|library| library.find().map(drop).map_err(missing))?;
        let mut opened = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
        let cuda = match opened.get(&gpu) {
            Some(cuda) => cuda.clone(),
            None => Cuda::new(gpu, &CudaOptions::default()).map_err(|error| error.to_string())?,
        };
        opened.insert(gpu, cuda.clone());
        let words = format!("GPU {gpu}, {}", cuda.gpu().device().description().name);
        Ok(Self { compute: ComputeDevice::of(Arc::new(cuda.clone())), words, cuda: Some(cuda) })
    }

    #[cfg(not(feature = "cuda"))]
    fn gpu(_: usize, _: bool, _: DeviceKind) -> Result<Self, String> {
        Err("this program was built without its feature `cuda`".to_owned())
    }

    /// The GPU, if it is one.
    #[cfg(feature = "cuda")]
    pub(super) fn gpu_of(&self) -> Option<&phalanx_cuda::Gpu> {
        self.cuda.as_ref().map(phalanx_tensor::backend::Cuda::gpu)
    }

    /// Where on the host's PCI bus the GPU is, if it is one and its driver tells.
    pub(super) fn pci_address(&self) -> Option<String> {
        #[cfg(feature = "cuda")]
        return self.gpu_of().and_then(|gpu| gpu.device().pci_address().ok());
        #[cfg(not(feature = "cuda"))]
        None
    }

    /// What tells the GPU from others of the host.
    #[cfg(feature = "cuda")]
    fn identity(&self) -> String {
        let device = self.cuda.as_ref().map(|cuda| cuda.gpu().device());
        device.and_then(|device| device.uuid().ok()).unwrap_or_else(|| self.words.clone())
    }

    #[cfg(not(feature = "cuda"))]
    fn identity(&self) -> String {
        self.words.clone()
    }
}

/// The GPUs of this process, by number.
#[cfg(feature = "cuda")]
static OPENED: std::sync::Mutex<std::collections::BTreeMap<usize, phalanx_tensor::backend::Cuda>> =
    std::sync::Mutex::new(std::collections::BTreeMap::new());

/// Gives a GPU up that was opened for nothing.
#[cfg(feature = "cuda")]
fn release(index: usize) {
    OPENED.lock().unwrap_or_else(std::sync::PoisonError::into_inner).remove(&index);
}

#[cfg(not(feature = "cuda"))]
fn release(_: usize) {}

/// Why ranks can only work together on processors, if they can only there.
fn only_on_processors(config: &Config, world: &Communicator) -> Option<String> {
    let (comm, train, strategy) = (&config.comm, &config.train, config.train.strategy);
    if !strategy.is_bulk_synchronous() && train.graphs {
        return Some(format!(
            "{strategy} computes other things from step to step, which train.graphs cannot record; set it to false"
        ));
    }
    if !strategy.is_bulk_synchronous() && train.offload == Offload::Parameters {
        return Some(format!(
            "{strategy} has parameters where they are computed with; `ddp`, `fsdp` and `hsdp` can have train.offload = \"parameters\""
        ));
    }
    if strategy.exchanges_on_host() {
        // What travels is the host's: encoded there, by its ways, encrypted if that is asked for.
        return None;
    }
    let kind = config.codec.kind;
    if !kind.works_on_devices() {
        let there = CodecKind::ALL.iter().filter(|kind| kind.works_on_devices() && **kind != CodecKind::None);
        let names = there.map(|kind| kind.name()).collect::<Vec<_>>().join(", ");
        return Some(format!(
            "codec.kind = \"{kind}\" encodes gradients on the processor; on GPUs there is {names}"
        ));
    }
    if comm.algorithm != Algorithm::Auto {
        return Some(format!("comm.algorithm = \"{}\", and NCCL chooses the way itself", comm.algorithm));
    }
    let several = world.hosts().windows(2).any(|pair| pair[0] != pair[1]);
    (several && comm.encryption == Encryption::All).then(|| {
        "comm.encryption = \"all\" asks for encryption between hosts, and NCCL does not encrypt".to_owned()
    })
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
    /// Bytes that were copied to the GPU before the run.
    #[cfg(feature = "cuda")]
    uploaded: u64,
}

impl Gauge {
    /// That of a rank, if it computes on a GPU.
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

    /// What the GPU does now.
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

    /// What there is to see now: utilisation (0 to 1), bytes that all programs hold and that this one does, bytes that were copied
    /// from the host since the run began, watts, and joules since then.
    #[cfg(feature = "cuda")]
    pub(super) fn look(&self) -> Vec<(&'static str, f64)> {
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

    /// The most bytes that this program held at once, of each kind and together.
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
    pub(super) fn look(&self) -> Vec<(&'static str, f64)> {
        Vec::new()
    }

    #[cfg(not(feature = "cuda"))]
    pub(super) fn peaks(&self) -> Vec<(String, u64)> {
        Vec::new()
    }
}
