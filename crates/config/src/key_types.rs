//! The types of keys that name one of several choices.

use phalanx_collectives::{Algorithm, Clock, Encryption};
use phalanx_data::Tail;
use phalanx_data::transform::{Filter, Interpolation, Normalise, ResizeMode};
use phalanx_models::diffusion::samplers::SamplerKind;
use phalanx_models::diffusion::{BetaSchedule, Prediction};
use phalanx_models::stackgan::{AdversarialLoss, ConditioningActivation};
use phalanx_sharding::{
    CodecKind, CodecScope, CodecWhen, Overlap, STRATEGIES, ShardingError, Strategy, Topology,
};
use phalanx_tensor::Precision;
use phalanx_tensor::optim::Curve;
use toml::Value;

use super::section::{KeyType, Mismatch, choices, library_choices};
use super::suggest::nearest;

library_choices! {
    AdversarialLoss, Algorithm, BetaSchedule, Clock, CodecKind, CodecScope, CodecWhen, ConditioningActivation, Curve, Encryption, Filter, Interpolation, Overlap, Precision, Prediction, ResizeMode, SamplerKind, Tail,
    Topology
}

/// The strategy that ranks follow unless told another.
pub(super) fn ddp() -> Strategy {
    // It is a row of the table; where it is not, another one is as good.
    STRATEGIES.iter().find(|row| row.name == "ddp").copied().unwrap_or(STRATEGIES[0])
}

impl KeyType for Strategy {
    fn kind() -> String {
        let all: Vec<String> = STRATEGIES.iter().map(|row| format!("`{row}`")).collect();
        format!("one of {}", all.join(", "))
    }

    fn from_toml(value: &Value) -> Result<Self, Mismatch> {
        let mismatch = || Mismatch::new(Self::kind(), value);
        let name = value.as_str().ok_or_else(mismatch)?;
        name.parse().map_err(|error: ShardingError| {
            match nearest(name, STRATEGIES.iter().map(|row| row.name)) {
                Some(near) => Mismatch { nearest: Some(near), ..mismatch() },
                None => Mismatch { reason: Some(error.to_string()), ..mismatch() },
            }
        })
    }

    fn to_toml(&self) -> Value {
        Value::String(self.to_string())
    }
}

impl KeyType for Normalise {
    fn kind() -> String {
        let all: Vec<String> = Self::NAMED.iter().map(|(name, _)| format!("`{name}`")).collect();
        format!("one of {}", all.join(", "))
    }

    fn from_toml(value: &Value) -> Result<Self, Mismatch> {
        let text = value.as_str().unwrap_or_default();
        text.parse().map_err(|_| Mismatch {
            nearest: nearest(text, Self::NAMED.iter().map(|(name, _)| *name)),
            ..Mismatch::new(Self::kind(), value)
        })
    }

    fn to_toml(&self) -> Value {
        Value::String(self.to_string())
    }
}

choices! {
    /// Which images are trained on.
    DataKind {
        /// The embedded captioned shapes.
        Shapes = "shapes",
        /// Embedded scenes of two or three shapes that lie to each other as their captions tell.
        Scenes = "scenes",
        /// CIFAR-10, as binary batches, parquet files or class folders.
        Cifar10 = "cifar10",
        /// A folder with a folder of images for every class.
        Folder = "folder",
        /// CUB-200-2011: birds of 200 species, cut out by their boxes, with ten captions each.
        Cub = "cub",
        /// MS-COCO's captions with their folders of images.
        Coco = "coco",
        /// ImageNet: class folders named by synsets.
        Imagenet = "imagenet",
        /// Tar shards of images with captions, in webdataset's form.
        Shards = "shards",
    }

    /// The treatment of samples whose contents are damaged.
    OnDamage {
        /// The run ends with an error that names the file.
        Error = "error",
        /// Another sample takes the place of the damaged one, which is named and counted.
        Skip = "skip",
    }

    /// The state that is kept outside of the memory of the device.
    Offload {
        /// Nothing.
        None = "none",
        /// Optimizer state and averages are on the host, whose CPU updates the weights.
        Optimizer = "optimizer",
        /// The parameters of blocks are on the host, too: each rank's own, which are copied to its GPU with the blocks
        /// that use them, and whose summed gradients are copied back. On CPUs this is `optimizer`.
        Parameters = "parameters",
        /// Optimizer state and averages are in files, and in host memory for a few buckets at a time; the host's CPU
        /// updates the weights.
        Disk = "disk",
    }

    /// The encoding of parameters that are gathered or pulled.
    WeightCodec {
        /// The numbers themselves.
        None = "none",
        /// bf16.
        Bf16 = "bf16",
        /// Integers of 8 bits with a scale for every `codec.chunk`.
        Int8 = "int8",
    }

    /// The device of a rank.
    DeviceKind {
        /// A GPU if there is one for every rank, else the CPU, with a line that says why.
        Auto = "auto",
        /// The CPU.
        Cpu = "cpu",
        /// An NVIDIA GPU.
        Cuda = "cuda",
    }

    /// The transport of gradients and parameters between ranks.
    Transport {
        /// Memory that ranks of a host share, TCP between hosts, NCCL between GPUs.
        Auto = "auto",
        /// MPI's own operations, where its launcher has started the ranks and the program was built with MPI.
        Mpi = "mpi",
    }

    /// The rule for ranks that other hosts can reach.
    SecretPolicy {
        /// They must share a secret.
        Required = "required",
        /// They need none: the network is trusted.
        None = "none",
    }

    /// Which cores ranks keep to.
    Bind {
        /// The cores that the launcher allows.
        None = "none",
        /// Of those that ranks of a host share each has an equal part for itself, of cores next to each other.
        Cores = "cores",
    }

    /// Which optimizer steps.
    OptimKind {
        /// Stochastic gradient descent with momentum.
        Sgd = "sgd",
        /// Adam.
        Adam = "adam",
        /// Adam with decoupled weight decay.
        AdamW = "adamw",
        /// The sign of an interpolated momentum, with decoupled weight decay.
        Lion = "lion",
        /// Adam with decoupled weight decay, and a learning rate for each parameter in proportion to its norm.
        Lamb = "lamb",
        /// Momentum whose matrices are made orthogonal; AdamW for vectors and tables. Not where ranks hold parts of matrices.
        Muon = "muon",
    }

    /// The schedule of the learning rate.
    ScheduleKind {
        /// Not at all after the warm-up.
        Constant = "constant",
        /// Multiplied by `schedule.gamma` every `schedule.step_every` steps.
        Step = "step",
        /// Along half a cosine.
        Cosine = "cosine",
        /// Along a line.
        Linear = "linear",
        /// Not at all, and then over `schedule.decay_fraction` of the run at its end.
        Stable = "warmup-stable-decay",
        /// With the inverse square root of the step, as for the first transformers; `optim.lr` is the peak after the warm-up.
        InverseRoot = "inverse-root",
        /// One cycle of the learning rate along half cosines: a rise of its own in place of the warm-up, then a fall.
        OneCycle = "one-cycle",
        /// A geometric rise up to `optim.lr`, which tries learning rates; the run ends early if its loss diverges (see `find-lr`).
        RangeTest = "range-test",
    }
}

impl DataKind {
    /// Returns true if the program makes the pictures, so that there is no folder of them.
    pub fn is_embedded(self) -> bool {
        matches!(self, Self::Shapes | Self::Scenes)
    }
}
