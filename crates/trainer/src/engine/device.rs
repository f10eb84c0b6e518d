//! The device of a rank: the CPU or a GPU.

use phalanx_collectives::{Algorithm, Communicator, Encryption};
use phalanx_sharding::{CodecKind, Strategy};
use phalanx_tensor::ComputeDevice;

use super::error::TrainError;
use phalanx_config::{Config, DeviceKind, Offload};

/// The identity of a CPU, as ranks tell each other.
pub(in crate::engine) const HOST: &str = "-";

/// The reason why a GPU is not used.
#[derive(Debug, Clone, PartialEq, Eq)]
struct NoGpu {
    /// In a few words, for the line of a run on the CPU.
    brief: String,
    /// With everything that helps to find the cause, for the log and for a run that requires a GPU.
    detail: String,
}

impl NoGpu {
    fn new(brief: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { brief: brief.into(), detail: detail.into() }
    }

    /// The text by which ranks tell each other.
    fn to_text(&self) -> String {
        format!("{}\n{}", self.brief, self.detail)
    }

    fn from_text(text: &str) -> Self {
        let (brief, detail) = text.split_once('\n').unwrap_or((text, text));
        Self::new(brief, detail)
    }
}

impl From<String> for NoGpu {
    fn from(reason: String) -> Self {
        Self::new(reason.clone(), reason)
    }
}

/// The device of a rank. Clones are handles.
#[derive(Debug, Clone)]
pub(in crate::engine) struct Device {
    compute: ComputeDevice,
    words: String,
    #[cfg(feature = "cuda")]
    pub(super) cuda: Option<phalanx_tensor::backend::Cuda>,
}

impl Device {
    /// Chooses the device of the only rank by `train.device`.
    ///
    /// # Errors
    /// [`TrainError::Setup`] if a GPU is required and not available.
    pub(in crate::engine) fn alone(config: &Config) -> Result<Self, TrainError> {
        let wanted = config.train.device;
        if wanted == DeviceKind::Cpu {
            return Ok(Self::cpu());
        }
        match Self::gpu(0, false, wanted) {
            Ok(gpu) => Ok(gpu),
            Err(why) => Self::without(wanted, &why),
        }
    }

    /// Chooses the device of a rank among others: the GPU of its local rank, or the only one that its launcher shows it; or the CPU on
    /// all ranks. All ranks of `world` call this together.
    ///
    /// # Errors
    /// [`TrainError::Setup`] on all ranks if GPUs are required and a rank has none of its own.
    pub(in crate::engine) fn among(config: &Config, world: &Communicator) -> Result<Self, TrainError> {
        let wanted = config.train.device;
        if wanted == DeviceKind::Cpu {
            return Ok(Self::cpu());
        }
        if let Some(why) = must_use_cpus(config, world) {
            return Self::without(wanted, &why.into());
        }
        // Servers are the last ranks and need no GPU.
        let workers = world.world_size() - config.sync.servers;
        let serves = world.rank() >= workers;
        let by_nccl = !config.train.strategy.exchanges_on_host();
        let own = match serves {
            true => Ok(Self::cpu_since("CPU (this rank only serves)".to_owned())),
            false => Self::gpu(world.local_rank(), by_nccl, wanted),
        };
        let identity = match &own {
            Ok(gpu) => format!("+{}", gpu.identity()),
            Err(why) => format!("-{}", why.to_text()),
        };
        let all = world.all_gatherv(identity.as_bytes())?;
        let all: Vec<String> =
            all.iter().map(|identity| String::from_utf8_lossy(identity).into_owned()).collect();
        let hosts = world.hosts();
        let lacking = all.iter().enumerate().take(workers).find_map(|(rank, identity)| {
            match identity.strip_prefix('-') {
                Some(why) => {
                    let NoGpu { brief, detail } = NoGpu::from_text(why);
                    Some(NoGpu::new(brief, format!("rank {rank} has no GPU: {detail}")))
                }
                None => {
                    let same =
                        (0..rank).find(|other| all[*other] == *identity && hosts[*other] == hosts[rank])?;
                    Some(format!("ranks {same} and {rank} would share a GPU").into())
                }
            }
        });
        match (own, lacking) {
            (Ok(gpu), None) => Ok(gpu),
            (_, why) => {
                release(world.local_rank());
                let NoGpu { brief, detail } = why.unwrap_or_else(|| String::new().into());
                let advice = format!("of {workers} ranks; `--ranks N` asks for as many as there are GPUs");
                Self::without(wanted, &NoGpu::new(brief, format!("{detail} ({advice})")))
            }
        }
    }

    /// Chooses the device of a rank that joins: the CPU if the others compute on CPUs, otherwise the `nth` free GPU, from 0. The devices
    /// of all ranks and of those on this host are given by [`Device::identity_or_host`].
    ///
    /// # Errors
    /// [`TrainError::Setup`] if there is no free GPU.
    pub(in crate::engine) fn for_newcomer(
        config: &Config,
        [everywhere, here]: [&[String]; 2],
        nth: usize,
    ) -> Result<Self, TrainError> {
        if everywhere.iter().all(|identity| identity == HOST) {
            return Ok(Self::cpu());
        }
        let by_nccl = !config.train.strategy.exchanges_on_host();
        Self::free(here, nth).and_then(|index| Self::gpu(index, by_nccl, DeviceKind::Cuda)).map_err(|why| {
            let why = why.detail;
            TrainError::Setup(format!("the others train on GPUs, and here is none: {why}"))
        })
    }

    /// The index of the `nth` GPU whose identity is not `taken`.
    #[cfg(feature = "cuda")]
    fn free(taken: &[String], nth: usize) -> Result<usize, NoGpu> {
        let words = |error: phalanx_cuda::GpuError| NoGpu::from(error.to_string());
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
        Err(format!("all {count} GPUs are used by other ranks").into())
    }

    #[cfg(not(feature = "cuda"))]
    fn free(_: &[String], _: usize) -> Result<usize, NoGpu> {
        Err(NoGpu::from("this program was built without its feature `cuda`".to_owned()))
    }

    /// [`HOST`], or the identity of the GPU, for other ranks.
    pub(in crate::engine) fn identity_or_host(&self) -> String {
        if self.compute.is_host() { HOST.to_owned() } else { self.identity() }
    }

    /// The CPU, unless a GPU is required. The log has the details.
    fn without(wanted: DeviceKind, why: &NoGpu) -> Result<Self, TrainError> {
        let NoGpu { brief, detail } = why;
        match wanted {
            DeviceKind::Cuda => Err(TrainError::Setup(format!("train.device = \"cuda\": {detail}"))),
            DeviceKind::Auto | DeviceKind::Cpu => {
                tracing::info!("no GPU is used: {detail}; `doctor` shows what the machine has");
                Ok(Self::cpu_since(format!("CPU ({brief})")))
            }
        }
    }

    /// The CPU.
    pub(in crate::engine) fn cpu() -> Self {
        Self::cpu_since("CPU".to_owned())
    }

    /// The CPU, with this description.
    fn cpu_since(words: String) -> Self {
        Self {
            compute: ComputeDevice::host(),
            words,
            #[cfg(feature = "cuda")]
            cuda: None,
        }
    }

    /// The place of its arrays.
    pub(in crate::engine) fn compute(&self) -> &ComputeDevice {
        &self.compute
    }

    /// A description, with the reason if `auto` chose the CPU.
    pub(in crate::engine) fn describe(&self) -> &str {
        &self.words
    }

    /// Connects the devices of all ranks for a strategy: GPUs by NCCL, unless the strategy exchanges on the host. The world must outlive
    /// the returned communicator.
    ///
    /// # Errors
    /// [`TrainError::Comm`] on all ranks if one has no NCCL.
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

    /// Opens the GPU of local rank `index`, or returns the reason why it is not available. A GPU is opened once in a process: networks,
    /// batches and evaluators share it.
    #[cfg(feature = "cuda")]
    fn gpu(index: usize, by_nccl: bool, wanted: DeviceKind) -> Result<Self, NoGpu> {
        use std::sync::{Arc, PoisonError};

        use phalanx_cuda::GpuError;
        use phalanx_cuda::libraries::Library;
        use phalanx_tensor::backend::{Cuda, CudaOptions};

        let missing = |error: GpuError| {
            let detail = error.to_string();
            match &error {
                GpuError::MissingLibrary { library, .. } if *library == Library::Driver.name() => {
                    NoGpu::new("no NVIDIA driver found", detail)
                }
                GpuError::MissingLibrary { library, .. } => {
                    NoGpu::new(format!("{library} not found"), detail)
                }
                _ => detail.into(),
            }
        };
        Library::Driver.find().map_err(missing)?;
        let count = phalanx_cuda::Device::count().map_err(missing)?;
        // A launcher may show each rank only its own GPU.
        let shown = count == 1 && std::env::var_os("CUDA_VISIBLE_DEVICES").is_some();
        let gpu = if shown { 0 } else { index };
        if gpu >= count {
            let needed = format!("rank {index} of the host needs one of its own");
            return Err(match count {
                0 => NoGpu::new("no GPU found", "the driver finds none"),
                1 => NoGpu::new("fewer GPUs than ranks", format!("this host has 1 GPU, and {needed}")),
                _ => NoGpu::new("fewer GPUs than ranks", format!("this host has {count} GPUs, and {needed}")),
            });
        }
        // Otherwise a missing library would fail in the first step.
        let needed = [Library::Nvrtc, Library::CublasLt];
        let between = by_nccl.then_some(Library::Nccl);
        // A network without convolutions does not need cuDNN, but this is not known yet.
        let likely = (wanted == DeviceKind::Auto).then_some(Library::Cudnn);
        needed
            .into_iter()
            .chain(between)
            .chain(likely)
            .try_for_each(|library| library.find().map(drop).map_err(missing))?;
        let mut opened = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
        let cuda = match opened.get(&gpu) {
            Some(cuda) => cuda.clone(),
            None => {
                Cuda::new(gpu, &CudaOptions::default()).map_err(|error| NoGpu::from(error.to_string()))?
            }
        };
        opened.insert(gpu, cuda.clone());
        let words = format!("GPU {gpu}, {}", cuda.gpu().device().description().name);
        Ok(Self { compute: ComputeDevice::of(Arc::new(cuda.clone())), words, cuda: Some(cuda) })
    }

    #[cfg(not(feature = "cuda"))]
    fn gpu(_: usize, _: bool, _: DeviceKind) -> Result<Self, NoGpu> {
        Err(NoGpu::from("this program was built without its feature `cuda`".to_owned()))
    }

    /// The GPU, if it is one.
    #[cfg(feature = "cuda")]
    pub(super) fn gpu_of(&self) -> Option<&phalanx_cuda::Gpu> {
        self.cuda.as_ref().map(phalanx_tensor::backend::Cuda::gpu)
    }

    /// The PCI address of the GPU, if the driver knows it.
    pub(super) fn pci_address(&self) -> Option<String> {
        #[cfg(feature = "cuda")]
        return self.gpu_of().and_then(|gpu| gpu.device().pci_address().ok());
        #[cfg(not(feature = "cuda"))]
        None
    }

    /// The UUID of the GPU.
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

/// The GPUs of this process, by index.
#[cfg(feature = "cuda")]
static OPENED: std::sync::Mutex<std::collections::BTreeMap<usize, phalanx_tensor::backend::Cuda>> =
    std::sync::Mutex::new(std::collections::BTreeMap::new());

/// Closes a GPU that is not used.
#[cfg(feature = "cuda")]
fn release(index: usize) {
    OPENED.lock().unwrap_or_else(std::sync::PoisonError::into_inner).remove(&index);
}

#[cfg(not(feature = "cuda"))]
fn release(_: usize) {}

/// The reason why ranks must use CPUs, if they must.
fn must_use_cpus(config: &Config, world: &Communicator) -> Option<String> {
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
        // Messages are encoded, encrypted and sent on the host.
        return None;
    }
    let kind = config.codec.kind;
    if !kind.works_on_devices() {
        let there = CodecKind::ALL.iter().filter(|kind| kind.works_on_devices() && **kind != CodecKind::None);
        let names = there.map(|kind| kind.name()).collect::<Vec<_>>().join(", ");
        return Some(format!(
            "codec.kind = \"{kind}\" encodes gradients on the CPU; on GPUs there is {names}"
        ));
    }
    if comm.algorithm != Algorithm::Auto {
        return Some(format!(
            "comm.algorithm = \"{}\", and NCCL chooses the algorithm itself",
            comm.algorithm
        ));
    }
    let several = world.hosts().windows(2).any(|pair| pair[0] != pair[1]);
    (several && comm.encryption == Encryption::All).then(|| {
        "comm.encryption = \"all\" asks for encryption between hosts, and NCCL does not encrypt".to_owned()
    })
}
