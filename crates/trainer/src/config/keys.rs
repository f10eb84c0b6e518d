//! Every key of the configuration: its type, its default and its meaning.

use phalanx_collectives::{Algorithm, Clock, Encryption};
use phalanx_data::Tail;
use phalanx_data::transform::{Filter, Normalise, ResizeMode};
use phalanx_models::diffusion::samplers::SamplerKind;
use phalanx_models::diffusion::{BetaSchedule, Prediction};
use phalanx_sharding::{
    CodecKind, CodecScope, CodecWhen, Overlap, PRESETS, ShardingError, Strategy, Topology,
};
use phalanx_tensor::Precision;
use toml::Value;

use super::section::{KeyDoc, KeyType, Mismatch, choices, library_choices, sections};
use super::suggest::nearest;
use phalanx_trace::TraceSteps;

library_choices! {
    Algorithm, BetaSchedule, Clock, CodecKind, CodecScope, CodecWhen, Encryption, Filter, Overlap, Precision, Prediction, ResizeMode, SamplerKind, Tail,
    Topology
}

/// The strategy that ranks follow unless told another.
fn ddp() -> Strategy {
    // It is a row of the table; where it is not, another one is as good.
    PRESETS.iter().find(|row| row.name == "ddp").copied().unwrap_or(PRESETS[0])
}

impl KeyType for Strategy {
    fn kind() -> String {
        let all: Vec<String> = PRESETS.iter().map(|row| format!("`{row}`")).collect();
        format!("one of {}", all.join(", "))
    }

    fn from_toml(value: &Value) -> Result<Self, Mismatch> {
        let mismatch = || Mismatch::new(Self::kind(), value);
        let name = value.as_str().ok_or_else(mismatch)?;
        name.parse().map_err(|error: ShardingError| match nearest(name, PRESETS.iter().map(|row| row.name)) {
            Some(near) => Mismatch { nearest: Some(near), ..mismatch() },
            None => Mismatch { reason: Some(error.to_string()), ..mismatch() },
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

    /// What leaves the memory of whatever computes.
    Offload {
        /// Nothing.
        None = "none",
        /// The optimizer's state and averages lie on the host, whose processor updates the weights.
        Optimizer = "optimizer",
        /// The parameters of blocks lie on the host, too: each rank's own, which come to its GPU with the blocks that use them, and
        /// whose summed gradients go back. On processors this is `optimizer`.
        Parameters = "parameters",
        /// The optimizer's state and averages lie in files, and in the host's memory for a few flat units at a time; its processor
        /// updates the weights.
        Disk = "disk",
    }

    /// What parameters are while they are gathered or pulled.
    WeightCodec {
        /// The numbers themselves.
        None = "none",
        /// bf16.
        Bf16 = "bf16",
        /// Integers of 8 bits with a scale for every `codec.chunk`.
        Int8 = "int8",
    }

    /// What a rank computes on.
    DeviceKind {
        /// A GPU if there is one for every rank, else the processor, with a line that says why.
        Auto = "auto",
        /// The processor.
        Cpu = "cpu",
        /// An NVIDIA GPU.
        Cuda = "cuda",
    }

    /// What gradients and parameters go over between ranks.
    Transport {
        /// Memory that ranks of a host share, TCP between hosts, NCCL between GPUs.
        Auto = "auto",
        /// MPI's own operations, where its launcher has started the ranks and the program was built with MPI.
        Mpi = "mpi",
    }

    /// Which cores ranks keep to.
    Bind {
        /// Those that their launcher lets them run on.
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
    }

    /// How the learning rate changes over the run.
    ScheduleKind {
        /// Not at all after the warm-up.
        Constant = "constant",
        /// Multiplied by `schedule.gamma` every so many steps.
        Step = "step",
        /// Along half a cosine.
        Cosine = "cosine",
    }
}

impl DataKind {
    /// Whether the pictures are made by program, so that there is no folder of them.
    pub fn is_embedded(self) -> bool {
        matches!(self, Self::Shapes | Self::Scenes)
    }
}

sections! {
    /// A whole configuration.
    Config;

    /// What is trained, and by what loss.
    model: ModelConfig {
        /// What is trained.
        kind: String = String::new();
        /// Height and width of the images in pixels.
        image_size: usize = 32;
    }

    /// The images and their captions.
    data: DataConfig {
        /// Which images are trained on.
        kind: DataKind = DataKind::Shapes;
        /// The folder of the images; `shapes` and `scenes` need none. Shards: also `PATH/name-{000..099}.tar`.
        path: String = String::new();
        /// Shards for testing, written like `data.path`; empty = its folder `test` or `val`, or else its last shard.
        test_path: String = String::new();
        /// A file that names images to leave out, one a line, by the ends of their paths; not for shards.
        exclude: String = String::new();
        /// This many training images of each class; 0 = all.
        per_class: usize = 0;
        /// At most this many training images; 0 = all.
        limit: usize = 0;
        /// Training images are padded by this many pixels on each side and cropped at random; 0 = not.
        crop_padding: usize = 0;
        /// Training images are mirrored left to right at random.
        flip: bool = false;
        /// Side that images are resized to, of which `model.image_size` is then cut: at random in training, from the middle in
        /// testing; 0 = `model.image_size`.
        resize: usize = 0;
        /// Training images are random parts of this much of the area, least and most, of proportions from 3:4 to 4:3, instead of
        /// being resized; ImageNet's are [0.08, 1.0]; empty = not.
        crop_area: Vec<f64> = Vec::new();
        /// What becomes of proportions: a square is made, or the shorter side gets the size and the rest is cut off.
        resize_mode: ResizeMode = ResizeMode::Square;
        /// How images are resized.
        resize_filter: Filter = Filter::Bilinear;
        /// Mean and deviation that channels are normalised by; generative models want `symmetric`.
        normalise: Normalise = Normalise::SYMMETRIC;
        /// Threads of each rank that prepare batches.
        workers: usize = 1;
        /// Batches of each rank that are prepared ahead.
        prefetch: usize = 4;
        /// With a GPU: images that have one size and are the same in every epoch stay in its memory once they were read, if those of
        /// a split take at most so many MiB, of which training's take theirs first; 0 = none do. Under `dp` none do.
        device_cache_mib: usize = 1024;
        /// What happens to the last, incomplete batch of an epoch.
        tail: Tail = Tail::Drop;
        /// CUB: the folder of captions `text_c10`; empty = the one in `data.path` or beside it, `classes` = made of species' names.
        captions: String = String::new();
        /// CUB: a file with the names of the species for testing, one a line, the others being for training; empty = the
        /// images that train_test_split.txt says.
        test_classes: String = String::new();
        /// CUB: birds are cut out as squares of this times their box's longer side to each side of its middle; 0 = whole images.
        box_crop: f64 = 0.75;
        /// Shards: samples are shuffled within this many shards at a time.
        window: usize = 8;
        /// Shards: a folder that keeps their indices for other ranks and runs; empty = made by each, kept in memory.
        index: String = String::new();
        /// Shapes: at most this many objects in a picture, 1 or 2. Scenes: 2, or 3 for two or three. 0 = 1 and 3.
        objects: usize = 0;
        /// Shapes and scenes: training pictures in an epoch.
        images: usize = 8192;
        /// Shapes and scenes: test pictures.
        test_images: usize = 512;
    }

    /// The training.
    train: TrainConfig {
        /// How many ranks train together.
        ranks: usize = 1;
        /// How ranks share the work.
        strategy: Strategy = ddp();
        /// Whether communication runs beside computing.
        overlap: Overlap = Overlap::Auto;
        /// Parameters of a block are cut into units of at most so many MiB, between parameters; 0 = never.
        unit_mib: usize = 64;
        /// Units that follow each other lie and travel together until a message has so many KiB; 0 = each by itself.
        bucket_kib: usize = 1024;
        /// Where parameters are sharded: messages gathered ahead of their use.
        prefetch: usize = 1;
        /// Where parameters are sharded: nothing is gathered ahead beyond so many MiB in memory; 0 = no bound.
        gathered_mib: usize = 0;
        /// Images in a step over all ranks and micro-batches.
        global_batch: usize = 64;
        /// Micro-batches that a rank's share of a step is cut into, their gradients summed.
        accumulate: usize = 1;
        /// Shards that each step's images are cut into whatever ranks there are, at most one rank each; all that is summed over a step is
        /// summed along a tree over them, so that any number of ranks ends in the same bits. 0 = as many as there are ranks.
        logical_ranks: usize = 0;
        /// Every so many steps ranks compare hashes of what they hold alike (parameters, state of the optimizer, averages, statistics of
        /// synchronised batch norm); the first that differs ends the run and is named, with the rank that has it; 0 = never.
        check_replicas: u64 = 0;
        /// Compute threads of each rank; 0 = the cores that it may run on, those that it shares with ranks of its host divided among them.
        threads: usize = 0;
        /// Which cores each rank keeps to; `cores` = an equal part of those that ranks of a host share. Linux only.
        bind: Bind = Bind::None;
        /// The number that everything random follows from.
        seed: u64 = 0;
        /// Length of the run, and of its schedules, in steps; 0 = as many as `train.epochs` make.
        steps: u64 = 0;
        /// Length of the run, and of its schedules, in passes over the training images.
        epochs: usize = 1;
        /// Stop after this step although the schedules go on (option `--steps`); 0 = do not.
        stop_step: u64 = 0;
        /// Stop after this epoch although the schedules go on (option `--epochs`); 0 = do not.
        stop_epoch: usize = 0;
        /// Decay of the moving average of the parameters that is evaluated and sampled; 0 = none.
        ema: f64 = 0.0;
        /// Gradients are scaled down to at most this global L2 norm; 0 = not.
        clip_norm: f64 = 0.0;
        /// What computes: the processors, or a GPU for each rank; `auto` takes GPUs where every rank has one, and says what it took.
        device: DeviceKind = DeviceKind::Auto;
        /// What lies on the host instead of a GPU, or in files instead of memory. `parameters` is for one rank, ddp, fsdp and hsdp.
        offload: Offload = Offload::None;
        /// The folder of those files, on a fast disk of each host; empty = in the run's folder. They are deleted at the end; what a killed run leaves there is of no use.
        offload_folder: String = String::new();
        /// On GPUs: what a step computes is recorded once and launched as CUDA graphs from then on.
        graphs: bool = false;
        /// What products take and activations are kept in, also in evaluation and samples.
        precision: Precision = Precision::F32;
        /// The loss is multiplied by this for backward, and gradients divided by it; 0 = not, but dynamically for `f16`.
        loss_scale: f64 = 0.0;
        /// Every so many-th block forgets its activations and runs again in backward, 1 = all; 0 = none.
        recompute: usize = 0;
    }

    /// What travels between ranks.
    comm: CommConfig {
        /// Which way gradients and sharded parameters go; a strategy that cannot go that way is refused.
        algorithm: Algorithm = Algorithm::Auto;
        /// What gradients and parameters go over.
        transport: Transport = Transport::Auto;
        /// Which connections are encrypted where ranks share a secret: `none`; `control`, those by which ranks meet and watch each
        /// other; `all`, also those of data, which needs a secret (`PHALANX_SECRET_FILE`; ranks that are started here have one).
        encryption: Encryption = Encryption::Control;
        /// A slower network than there is, for experiments on one machine: each rank's messages take as long as over a link of its own,
        /// such as `10Gbit,20us`, and ranks share no memory; empty = none.
        link: String = String::new();
        /// With `comm.link`: ranks are taken to be on so many hosts, as many one after the other on each. Those of different hosts reach
        /// each other over `comm.link`, of which each rank has one of its own, those of a host over `comm.host_link`.
        hosts: usize = 1;
        /// The link between ranks of one of several hosts, such as `100Gbit,2us`; empty = one that takes no time but the processor's.
        host_link: String = String::new();
        /// What time it is: `wall`, the machine's; `cpu`, for experiments with more ranks than cores: a rank's clock goes on while it
        /// computes, as on a core of its own, and by what its messages take over `comm.link`.
        clock: Clock = Clock::Wall;
        /// Seconds that an operation between ranks may take before the run ends with a report of who has not come to it. Above 600 all
        /// other times grow with it: how long ranks are waited for at the beginning, and after what silence one counts as dead.
        timeout: f64 = 600.0;
    }

    /// What gradients and gathered parameters are between ranks.
    codec: CodecConfig {
        /// What gradients are on their way.
        kind: CodecKind = CodecKind::None;
        /// `topk`, `randomk`, `dgc`, `topk-int8`: the part of gradients that is sent.
        density: f64 = 0.01;
        /// `powersgd`: the rank of the products that are sent.
        rank: usize = 2;
        /// `int8`, `int4`, `qsgd`, `sign`, `topk-int8`: how many numbers share a scale, a multiple of 8.
        chunk: usize = 256;
        /// `dgc`: the momentum before sending; `optim.momentum` must be 0 then.
        momentum: f64 = 0.9;
        /// `dgc`: steps over which the part that is sent falls from a quarter to `codec.density`.
        warmup_steps: u64 = 0;
        /// Between all ranks, or only between groups of ranks such as hosts.
        scope: CodecScope = CodecScope::All;
        /// Where it is measured to be faster in the first steps, or always. Workers that push to servers have nobody to measure
        /// with: under ps-bsp, ps-ssp and ps-asp `auto` is `always`.
        when: CodecWhen = CodecWhen::Auto;
        /// `fsdp`, `hsdp`: what gathered parameters are on their way; `ps-bsp`, `ps-ssp`, `ps-asp`: what pulled ones are.
        weights: WeightCodec = WeightCodec::None;
        /// When resuming, forget what codecs have kept, so that a run can go on with another number of ranks or another codec.
        reset: bool = false;
    }

    /// When ranks wait for each other, under strategies that do not take every step together.
    sync: SyncConfig {
        /// ps-ssp: how many steps a worker may be ahead of the slowest.
        staleness: u64 = 3;
        /// local-sgd, post-local-sgd, diloco: steps from one meeting of all ranks to the next.
        every: u64 = 20;
        /// post-local-sgd: steps of the first phase, in each of which gradients are summed.
        start: u64 = 0;
        /// diloco: the learning rate of the outer optimizer.
        outer_lr: f64 = 0.7;
        /// diloco: the Nesterov momentum of the outer optimizer.
        outer_momentum: f64 = 0.9;
        /// diloco: parts of the model that meet one after the other, so that bytes are spread over the steps.
        fragments: usize = 1;
        /// diloco: steps for which a meeting goes on beside training; 0 = it is waited for.
        overlap: u64 = 0;
        /// diloco with overlap: how much of its own parameters a rank keeps when a meeting ends, from 0 to 1.
        mixing: f64 = 0.5;
        /// diloco: what meetings send is rounded to bf16.
        outer_bf16: bool = false;
        /// ps-ssp, ps-asp: the learning rate is divided by how stale a gradient is, in updates.
        damp: bool = false;
        /// ps-ssp, ps-asp: old gradients are corrected by this times g²·(w − w_old); 0 = not.
        compensation: f64 = 0.0;
        /// Gossip: which ranks are neighbours.
        topology: Topology = Topology::Ring;
        /// Parameter servers: so many processes come on top of train.ranks and only serve; 0 = every worker's process serves as
        /// well.
        servers: usize = 0;
        /// ps-ssp and ps-asp with sync.servers, d-psgd, sgp, ad-psgd: the run goes on without workers that die as long as so many
        /// are left, rank 0 among them; 0 = a death ends the run.
        min_workers: usize = 0;
    }

    /// Worlds that change while training goes on, under strategies whose ranks take every step together.
    elastic: ElasticConfig {
        /// The run goes on without ranks that die or leave as long as so many are left; 0 = a death ends the run.
        min: usize = 0;
        /// At most so many ranks take part; who joins beyond that waits until there is room. 0 = train.ranks.
        max: usize = 0;
        /// So many ranks, over the whole run, are started anew by the launcher when ranks on its machine have died.
        respawn: usize = 0;
        /// zero1, zero2, fsdp: 1 = each rank keeps a copy of its neighbour's shard in memory, made anew in every step, so that a rank can
        /// be lost; 0 = none, and the run then goes on from its newest checkpoint.
        redundancy: usize = 0;
    }

    /// What is done to a run on purpose, to see what becomes of it: tools for experiments.
    chaos: ChaosConfig {
        /// Ranks that are slow in every step, `;` between them: `rank=1,ms=50,jitter=0.2` sleeps for 40 to 60 ms, `rank=1,times=3`
        /// makes steps three times as long; empty = none.
        delay: String = String::new();
        /// Bits that change by themselves, `;` between them: `rank=1,step=20` flips the lowest bit of one weight of rank 1 after step 20,
        /// `rank=1,step=20,param=NAME,bit=30` another one of a certain parameter; empty = none.
        flip: String = String::new();
        /// Ranks that hang, `;` between them: `rank=1,step=20,in=data,ms=5000` waits for so long for the batch of step 20, `in=compute`
        /// at the end of the step; empty = none.
        stall: String = String::new();
    }

    /// The optimizer.
    optim: OptimConfig {
        /// Which optimizer steps.
        kind: OptimKind = OptimKind::AdamW;
        /// The peak learning rate.
        lr: f64 = 0.001;
        /// If not 0, `optim.lr` is meant for this batch and scaled by `train.global_batch` over it.
        base_batch: usize = 0;
        /// SGD: momentum.
        momentum: f64 = 0.9;
        /// SGD: Nesterov's momentum.
        nesterov: bool = false;
        /// Adam: decay of the means of gradients and of their squares.
        betas: Vec<f64> = vec![0.9, 0.999];
        /// Adam: what is added to the denominator.
        eps: f64 = 1e-8;
        /// Weight decay: decoupled for `adamw`, added to the gradient for `sgd` and `adam`.
        weight_decay: f64 = 0.0;
        /// Norms and biases go without weight decay.
        decay_matrices_only: bool = true;
    }

    /// The learning rate over the run.
    schedule: ScheduleConfig {
        /// How the learning rate changes after the warm-up.
        kind: ScheduleKind = ScheduleKind::Cosine;
        /// Steps over which the learning rate rises from 0, at most a tenth of the run.
        warmup_steps: u64 = 0;
        /// Cosine: the last learning rate as a fraction of the peak.
        final_fraction: f64 = 0.0;
        /// Step: steps between falls of the learning rate; 0 = a third of the run.
        step_every: u64 = 0;
        /// Step: epochs between falls of the learning rate, in place of `schedule.step_every`; 0 = that.
        step_epochs: usize = 0;
        /// Step: what the learning rate is multiplied by at a fall.
        gamma: f64 = 0.1;
    }

    /// Checkpoints.
    checkpoint: CheckpointConfig {
        /// Whether checkpoints are written at all; a run without cannot be resumed, evaluated or sampled.
        enabled: bool = true;
        /// Steps between checkpoints; 0 = only at the end or when interrupted.
        every: u64 = 0;
        /// How many checkpoints are kept.
        keep: usize = 2;
        /// Training goes on while a checkpoint is written, from a copy of what each rank holds of it.
        asynchronous: bool = true;
        /// Under a scheduler: seconds before the end of the job's time at which the run saves and stops; 0 = it does not.
        limit_margin: u64 = 60;
    }

    /// Logging.
    log: LogConfig {
        /// Steps between logged lines; the first step is always logged.
        every: u64 = 10;
        /// Lines and samples are written for TensorBoard, too, into the run's folder.
        tensorboard: bool = false;
        /// Seconds between two lines of what each rank uses, in logs/rank-N.usage.jsonl; 0 = none are written.
        usage_seconds: f64 = 1.0;
        /// Watts that a busy core takes, by which the energy of processors is estimated where it cannot be measured; 0 = it is not
        /// estimated.
        cpu_watts: f64 = 0.0;
        /// The steps of which trace.json tells when each rank did what: `all`, or `a..b` from step a to step b, both included;
        /// empty = there is none.
        trace: TraceSteps = TraceSteps::None;
    }

    /// When networks against each other count as collapsed, which is told; the run goes on.
    watch: WatchConfig {
        /// Steps over which what is watched is looked at; 0 = nothing is watched.
        window: usize = 100;
        /// A loss has come to rest whose mean over the window is below this: one network has won, and the other learns nothing.
        low_loss: f64 = 0.01;
        /// A loss has come to rest whose mean over the window is above this: one network has lost.
        high_loss: f64 = 20.0;
        /// A loss has come to rest that changes by less than this part of its mean over the window.
        still_loss: f64 = 0.0001;
        /// Samples are alike whose measure of difference has a mean over the window below this.
        low_measure: f64 = 0.05;
    }

    /// Sample pictures.
    sample: SampleConfig {
        /// Steps between sample grids; 0 = only at the end.
        every: u64 = 0;
        /// What to draw; empty = captions of the test split.
        prompts: Vec<String> = Vec::new();
        /// How many prompts are taken from the test images when `sample.prompts` is empty.
        rows: usize = 8;
        /// Pictures drawn for each prompt: a row of the grid, or, if 1, the grid is filled line by line.
        columns: usize = 8;
    }

    /// How good drawn pictures are, as trained networks judge them: accuracy, Fréchet distance, precision, recall, CLIP score.
    quality: QualityConfig {
        /// Folders of runs whose networks judge the pictures (`attributes`, a ResNet, `clip`); empty = nothing is measured.
        judges: Vec<String> = Vec::new();
        /// Steps between measures; 0 = only at the end.
        every: u64 = 0;
        /// Pictures that are drawn, for as many captions of the test split.
        samples: usize = 256;
        /// Pictures that a judge looks at together.
        batch: usize = 32;
        /// Precision and recall: the neighbour whose distance says how far a picture reaches.
        neighbours: usize = 3;
    }

    /// Evaluation on the test split.
    eval: EvalConfig {
        /// Whether the test split is evaluated at all.
        enabled: bool = true;
        /// Steps between evaluations; 0 = only at the end.
        every: u64 = 0;
        /// At most this many test images; 0 = all.
        limit: usize = 0;
        /// Images in a batch of each rank; 0 = as in training.
        batch: usize = 0;
    }
}
