//! Every key of the configuration: its type, its default and its meaning.

use phalanx_collectives::Algorithm;
use toml::Value;

use super::section::{KeyDoc, KeyType, Mismatch, choices, sections};

choices! {
    /// Which model is trained.
    ModelKind {
        /// The text-conditioned variational autoencoder.
        Cvae = "cvae",
        /// CLIP's contrastive loss between a text tower and an image tower.
        Clip = "clip",
        /// ResNet-18.
        Resnet18 = "resnet18",
        /// ResNet-34.
        Resnet34 = "resnet34",
        /// ResNet-50.
        Resnet50 = "resnet50",
        /// MobileNetV2.
        MobileNetV2 = "mobilenetv2",
        /// A multilayer perceptron on flattened images.
        Mlp = "mlp",
    }

    /// Which images are trained on.
    DataKind {
        /// The embedded captioned shapes.
        Shapes = "shapes",
        /// CIFAR-10, as binary batches, parquet files or class folders.
        Cifar10 = "cifar10",
        /// A folder with a folder of images for every class.
        Folder = "folder",
    }

    /// What happens to the last, incomplete batch of an epoch.
    TailKind {
        /// It is left out.
        Drop = "drop",
        /// It is filled up with samples from the epoch's beginning.
        Pad = "pad",
        /// It is used as it is, smaller than the others.
        Ragged = "ragged",
    }

    /// How images are resized.
    FilterKind {
        /// The nearest pixel.
        Nearest = "nearest",
        /// Linear interpolation.
        Bilinear = "bilinear",
        /// Catmull-Rom cubic interpolation.
        Bicubic = "bicubic",
        /// Lanczos with three lobes.
        Lanczos3 = "lanczos3",
    }

    /// What bytes become numbers by: mean and standard deviation of each channel.
    NormaliseKind {
        /// From -1 to 1, as generative models want it.
        Symmetric = "symmetric",
        /// Those of CIFAR-10.
        Cifar10 = "cifar10",
        /// Those of ImageNet, for torchvision's weights.
        ImageNet = "imagenet",
        /// Those of CLIP.
        Clip = "clip",
    }

    /// How ranks share the work; `phalanx_sharding::PRESETS` lists those that are built.
    StrategyKind {
        /// One process with a replica on each thread; the first feeds the others, sums gradients and updates.
        Dp = "dp",
        /// Data parallelism whose reduction of a block starts while backward still runs.
        Ddp = "ddp",
        /// Optimizer state sharded over the ranks.
        Zero1 = "zero1",
        /// Optimizer state and gradients sharded over the ranks.
        Zero2 = "zero2",
        /// Parameters, gradients and optimizer state sharded over the ranks.
        Fsdp = "fsdp",
        /// Another name of `fsdp`.
        Zero3 = "zero3",
        /// Sharded within groups of ranks, replicated between them.
        Hsdp = "hsdp",
        /// A parameter server and steps in unison.
        PsBsp = "ps-bsp",
        /// A parameter server and no waiting.
        PsAsp = "ps-asp",
        /// A parameter server and bounded staleness.
        PsSsp = "ps-ssp",
        /// Steps on one's own, averaged every few.
        LocalSgd = "local-sgd",
    }

    /// Which way gradients and sharded parameters go between ranks.
    AlgorithmKind {
        /// Whichever is fastest by measured costs of the links.
        Auto = "auto",
        /// Around a ring.
        Ring = "ring",
        /// Up a binomial tree and down again.
        Tree = "tree",
        /// By recursive halving, then doubling.
        HalvingDoubling = "halving-doubling",
        /// Inside each host, then between hosts, then inside again.
        Hierarchical = "hierarchical",
        /// Everything to one rank and back.
        SingleReducer = "single-reducer",
    }

    /// What gradients are on their way between ranks.
    CodecKind {
        /// The numbers themselves.
        None = "none",
        /// Rounded to bf16: half of the bytes.
        Bf16 = "bf16",
    }

    /// Whether communication runs beside computing.
    OverlapKind {
        /// Where it helps: always, but for sharded parameters on one host whose every core computes already.
        Auto = "auto",
        /// Always, on a thread of its own.
        Always = "always",
        /// Never: gathers and reductions take their turn with computing, and nothing is gathered ahead.
        Never = "never",
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

    /// What products take and activations are kept in; weights, their gradients, norms and losses are f32 with each.
    PrecisionKind {
        /// 32-bit floats throughout.
        F32 = "f32",
        /// bfloat16.
        Bf16 = "bf16",
        /// IEEE half precision, with loss scaling.
        F16 = "f16",
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

impl AlgorithmKind {
    /// What the communicator calls it.
    pub fn algorithm(self) -> Algorithm {
        match self {
            Self::Auto => Algorithm::Auto,
            Self::Ring => Algorithm::Ring,
            Self::Tree => Algorithm::Tree,
            Self::HalvingDoubling => Algorithm::HalvingDoubling,
            Self::Hierarchical => Algorithm::Hierarchical,
            Self::SingleReducer => Algorithm::SingleReducer,
        }
    }
}

sections! {
    /// A whole configuration.
    Config;

    /// The model.
    model: ModelConfig {
        /// Which model is trained.
        kind: ModelKind = ModelKind::Cvae;
        /// Height and width of the images in pixels.
        image_size: usize = 32;
        /// Batch norm uses the statistics of the global batch instead of each rank's own.
        sync_batch_norm: bool = false;
        /// ResNet: channels of the first stage; the reference has 64.
        width: usize = 64;
        /// ResNet and MobileNetV2 start with a 3x3 convolution of stride 1 made for small images.
        cifar_stem: bool = true;
        /// Probability of dropping a feature before the classifier of MobileNetV2.
        dropout: f64 = 0.2;
        /// MLP: features of each hidden layer.
        mlp_width: usize = 512;
        /// MLP: hidden layers.
        mlp_depth: usize = 3;
        /// CVAE: numbers in the latent code.
        latent: usize = 64;
        /// CVAE: channels after each halving of the image, from the image inwards.
        widths: Vec<usize> = vec![32, 64, 128];
        /// Text encoder: width of the feature of a text; for `clip` that of the images as well.
        embed: usize = 64;
        /// Text encoder: width of the transformer.
        text_width: usize = 64;
        /// Text encoder: number of layers.
        text_layers: usize = 2;
        /// Text encoder: number of attention heads.
        text_heads: usize = 4;
        /// Text encoder: different tokens, the most frequent of CLIP's 49408; at least 514.
        text_vocab: usize = 4096;
        /// Text encoder: tokens in a caption, begin and end marks counted.
        text_context: usize = 32;
        /// Safetensors file with CLIP text weights (openai's or Hugging Face's names); empty = train from scratch.
        text_weights: String = String::new();
    }

    /// The images and their captions.
    data: DataConfig {
        /// Which images are trained on.
        kind: DataKind = DataKind::Shapes;
        /// The folder of the images; `shapes` needs none.
        path: String = String::new();
        /// This many training images of each class; 0 = all.
        per_class: usize = 0;
        /// At most this many training images; 0 = all.
        limit: usize = 0;
        /// Training images are padded by this many pixels on each side and cropped at random; 0 = not.
        crop_padding: usize = 0;
        /// Training images are mirrored left to right at random.
        flip: bool = false;
        /// How images are resized to `model.image_size`.
        resize_filter: FilterKind = FilterKind::Bilinear;
        /// Mean and deviation that channels are normalised by; generative models want `symmetric`.
        normalise: NormaliseKind = NormaliseKind::Symmetric;
        /// Threads of each rank that prepare batches.
        workers: usize = 1;
        /// Batches of each rank that are prepared ahead.
        prefetch: usize = 4;
        /// What happens to the last, incomplete batch of an epoch.
        tail: TailKind = TailKind::Drop;
        /// Shapes: at most this many objects in a picture, 1 or 2.
        objects: usize = 1;
        /// Shapes: training pictures in an epoch.
        images: usize = 8192;
        /// Shapes: test pictures.
        test_images: usize = 512;
    }

    /// The training.
    train: TrainConfig {
        /// How many ranks train together.
        ranks: usize = 1;
        /// How ranks share the work.
        strategy: StrategyKind = StrategyKind::Ddp;
        /// Whether communication runs beside computing.
        overlap: OverlapKind = OverlapKind::Auto;
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
        /// Compute threads of each rank; 0 = the machine's cores divided among its ranks.
        threads: usize = 0;
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
        /// CVAE: weight of the KL term after its warm-up, beside an L1 term that is a mean over pixels.
        kl_weight: f64 = 0.0005;
        /// CVAE: steps over which the weight of the KL term rises from 0.
        kl_warmup_steps: u64 = 200;
        /// CVAE: the L1 loss is quadratic for errors below this (pixels are in -1 to 1); 0 = plain L1.
        l1_smooth: f64 = 0.0;
        /// CVAE: steps over which `train.l1_smooth` falls to 0; 0 = it stays.
        l1_smooth_steps: u64 = 0;
        /// Probability that cross-entropy takes from the true class and spreads over all.
        label_smoothing: f64 = 0.0;
        /// Decay of the moving average of the parameters that is evaluated and sampled; 0 = none.
        ema: f64 = 0.0;
        /// Gradients are scaled down to at most this global L2 norm; 0 = not.
        clip_norm: f64 = 0.0;
        /// What products take and activations are kept in, also in evaluation and samples.
        precision: PrecisionKind = PrecisionKind::F32;
        /// The loss is multiplied by this for backward, and gradients divided by it; 0 = not, but dynamically for `f16`.
        loss_scale: f64 = 0.0;
        /// Every so many-th block forgets its activations and runs again in backward, 1 = all; 0 = none.
        recompute: usize = 0;
    }

    /// What travels between ranks.
    comm: CommConfig {
        /// Which way gradients and sharded parameters go; a strategy that cannot go that way is refused.
        algorithm: AlgorithmKind = AlgorithmKind::Auto;
        /// What gradients are on their way.
        codec: CodecKind = CodecKind::None;
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
    }

    /// Logging.
    log: LogConfig {
        /// Steps between logged lines; the first step is always logged.
        every: u64 = 10;
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
