//! Every key of the configuration: its type, its default and its meaning.

use phalanx_collectives::{Algorithm, Clock, Encryption};
use phalanx_data::Tail;
use phalanx_data::transform::{Filter, Interpolation, Normalise, ResizeMode};
use phalanx_sharding::{CodecKind, CodecScope, CodecWhen, Overlap, Strategy, Topology};
use phalanx_tensor::Precision;
use phalanx_tensor::optim::Curve;
use toml::Value;

use super::parallel_degree::ParallelDegree;
use super::section::{KeyDoc, KeyType, Mismatch, sections};
use phalanx_trace::TraceSteps;

use super::key_types::ddp;
pub use super::key_types::{
    Bind, DataKind, DeviceKind, Offload, OnDamage, OptimKind, ScheduleKind, SecretPolicy, Transport,
    WeightCodec,
};

sections! {
    /// A whole configuration.
    Config;

    /// The model and its loss.
    model: ModelConfig {
        /// The model to train.
        kind: String = String::new();
        /// Height and width of the images in pixels.
        image_size: usize = 32;
        /// The weights that training begins with: a file (safetensors, or of torch.save), a folder of Hugging Face's libraries, or
        /// a run or checkpoint, whose averages count if it has any; empty = random. It is read before step 1 alone.
        weights: String = String::new();
        /// With `model.weights`: the head is made new although that of the weights fits, such as for other classes of the same
        /// number.
        new_head: bool = false;
    }

    /// The images and their captions.
    data: DataConfig {
        /// Which images are trained on.
        kind: DataKind = DataKind::Shapes;
        /// The folder of the images; `shapes` and `scenes` need none. Shards: also `PATH/name-{000..099}.tar`.
        path: String = String::new();
        /// Shards for testing, written like `data.path`; empty = its folder `test`, `val`, `valid` or `validation`, or else its last shard.
        test_path: String = String::new();
        /// A file that names images to leave out, one a line, by the ends of their paths. In shards and parquet files an image
        /// is named by its file and its key or row: `s-000.tar/000017`.
        exclude: String = String::new();
        /// The treatment of a damaged image. `skip` uses another image in its place, which follows from the number of the
        /// damaged one alone.
        on_damage: OnDamage = OnDamage::Error;
        /// The fraction of the training images of each class that are held out for testing, in place of the test split that
        /// the data may have; 0 = none.
        test_fraction: f64 = 0.0;
        /// This many training images of each class; 0 = all.
        per_class: usize = 0;
        /// At most this many training images; 0 = all.
        limit: usize = 0;
        /// Training images are padded by this many pixels on each side and cropped at random; 0 = not.
        crop_padding: usize = 0;
        /// Training images are mirrored left to right at random.
        flip: bool = false;
        /// RandAugment: operations at random on each training image, of 14; 0 = none.
        rand_augment_ops: usize = 0;
        /// RandAugment: the magnitude of all operations, 0 to 30.
        rand_augment_magnitude: usize = 9;
        /// RandAugment: the interpolation of shears, translations and rotations.
        rand_augment_interpolation: Interpolation = Interpolation::Nearest;
        /// RandAugment: red, green and blue outside of a sheared, moved or turned image, 0 to 255; empty = black.
        rand_augment_fill: Vec<usize> = Vec::new();
        /// The largest random changes of the brightness, contrast, saturation and hue of training images, such as
        /// [0.4, 0.4, 0.4, 0.1]; empty = none.
        color_jitter: Vec<f64> = Vec::new();
        /// The probability that a random rectangle of a training image is 0 after the normalisation.
        random_erasing: f64 = 0.0;
        /// The smallest and the largest part of the area that is erased.
        random_erasing_area: Vec<f64> = vec![0.02, 0.33];
        /// The smallest and the largest height over width of what is erased.
        random_erasing_aspect: Vec<f64> = vec![0.3, 3.3];
        /// Classifiers: MixUp's α, by which pairs of training images and their labels are mixed; 0 = not. With `data.cutmix` each step
        /// has one of both.
        mixup: f64 = 0.0;
        /// Classifiers: CutMix's α, by which a rectangle of a training image comes from another one, and its part of the label; 0 = not.
        cutmix: f64 = 0.0;
        /// Side that images are resized to, of which `model.image_size` is then cut: at random in training, from the middle in
        /// testing; 0 = `model.image_size`.
        resize: usize = 0;
        /// Training images are random parts of this much of the area, least and most, of proportions from 3:4 to 4:3, instead of
        /// being resized; ImageNet's are [0.08, 1.0]; empty = not.
        crop_area: Vec<f64> = Vec::new();
        /// The treatment of proportions: stretch to a square, or scale the shorter side to the size and crop the rest.
        resize_mode: ResizeMode = ResizeMode::Square;
        /// The filter of resizing.
        resize_filter: Filter = Filter::Bilinear;
        /// Mean and deviation that channels are normalised by; generative models want `symmetric`.
        normalise: Normalise = Normalise::SYMMETRIC;
        /// Threads of each rank that prepare batches.
        workers: usize = 1;
        /// Batches of each rank that are prepared ahead.
        prefetch: usize = 4;
        /// With a GPU: the MiB of a split's images that stay in its memory after the first read, if they have one size
        /// and are the same in every epoch; training's images come first; 0 = none. Under `dp` none stay.
        device_cache_mib: usize = 1024;
        /// The treatment of the last, incomplete batch of an epoch.
        tail: Tail = Tail::Drop;
        /// CUB: the folder of captions `text_c10`; empty = the one in `data.path` or next to it, `classes` = captions
        /// made of species' names.
        captions: String = String::new();
        /// CUB: a file with the names of the species for testing, one a line, the others being for training; empty = the
        /// images that train_test_split.txt says.
        test_classes: String = String::new();
        /// CUB: birds are cut out as squares of this times their box's longer side to each side of its middle; 0 = whole images.
        box_crop: f64 = 0.75;
        /// Shards: samples are shuffled within this many shards at a time.
        window: usize = 8;
        /// Texts of different lengths: the micro-batches of `train.accumulate` have texts of similar lengths, so that less is padded. A
        /// step has the same texts; their dropout, by the place in the step, is another one.
        group_by_length: bool = false;
        /// Shards: a folder that keeps their indices for other ranks and runs; empty = made by each, kept in memory.
        index: String = String::new();
        /// Shapes: at most this many objects in a picture, 1 or 2. Scenes: 2, or 3 for two or three. 0 = 1 and 3.
        objects: usize = 0;
        /// Scenes: the share of training captions that tell the place of each object in place of relations, 0 to 1.
        placed_captions: f64 = 0.0;
        /// Scenes: the share of training captions that tell all places but the last object's, and its relation to one of the others.
        partly_placed_captions: f64 = 0.0;
        /// Shapes and scenes: training pictures in an epoch.
        images: usize = 8192;
        /// Shapes and scenes: test pictures.
        test_images: usize = 512;
    }

    /// The training.
    train: TrainConfig {
        /// The number of ranks.
        ranks: usize = 1;
        /// The strategy by which ranks share the work.
        strategy: Strategy = ddp();
        /// The overlap of communication with computation.
        overlap: Overlap = Overlap::Auto;
        /// The largest size of a block's bucket in MiB, cut between parameters; 0 = unlimited.
        unit_mib: usize = 64;
        /// The size in KiB up to which consecutive buckets are joined into one message; 0 = each bucket by itself.
        bucket_kib: usize = 1024;
        /// Where parameters are sharded: messages gathered ahead of their use.
        prefetch: usize = 1;
        /// Upper limit of prefetched parameters in MiB, where parameters are sharded; 0 = unlimited.
        gathered_mib: usize = 0;
        /// Images in a step over all ranks and micro-batches.
        global_batch: usize = 64;
        /// Micro-batches that a rank's share of a step is cut into, their gradients summed.
        accumulate: usize = 1;
        /// The number of shards of each step's images, independent of the number of ranks, of which there may be at
        /// most as many. All sums of a step follow one tree over the shards, so every number of ranks ends in the same
        /// bits. 0 = one shard for each rank.
        logical_ranks: usize = 0;
        /// The interval in steps at which ranks compare hashes of replicated state (parameters, optimizer state,
        /// averages, statistics of synchronised batch norm), and before each checkpoint. The first difference ends the run and is reported
        /// with its rank; 0 = never.
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
        /// Length of the run, and of its schedules, in predicted tokens of a language model, or in the weights of other samples; 0 = that
        /// of `train.steps` or `train.epochs`. It is rounded up to steps.
        tokens: u64 = 0;
        /// Stop after this step although the schedules go on (option `--steps`); 0 = do not.
        stop_step: u64 = 0;
        /// Stop after this epoch although the schedules go on (option `--epochs`); 0 = do not.
        stop_epoch: usize = 0;
        /// Early stopping: the run ends after this many evaluations without an improvement of `checkpoint.best`, or of `test_loss`
        /// if that key is empty; 0 = do not.
        patience: u64 = 0;
        /// Decay of the moving average of the parameters that is evaluated and sampled; 0 = none.
        ema: f64 = 0.0;
        /// Gradients are scaled down to at most this global L2 norm; 0 = not.
        clip_norm: f64 = 0.0;
        /// The device: CPUs, or a GPU for each rank; `auto` uses GPUs where every rank has one, and says what it chose.
        device: DeviceKind = DeviceKind::Auto;
        /// The state kept on the host instead of a GPU, or in files instead of memory. `parameters` is for one rank,
        /// ddp, fsdp and hsdp.
        offload: Offload = Offload::None;
        /// The folder of those files, on a fast disk of each host; empty = in the run's folder. They are deleted at the end; what a killed run leaves there is of no use.
        offload_folder: String = String::new();
        /// On GPUs: what a step computes is recorded once and launched as CUDA graphs from then on.
        graphs: bool = false;
        /// The precision of products and activations, also in evaluation and samples.
        precision: Precision = Precision::F32;
        /// The loss is multiplied by this for backward, and gradients divided by it; 0 = not, but dynamically for `f16`.
        loss_scale: f64 = 0.0;
        /// Recompute every N-th block in backward instead of keeping its activations, 1 = all; 0 = none.
        recompute: usize = 0;
    }

    /// Communication between ranks.
    comm: CommConfig {
        /// Which way gradients and sharded parameters go; a strategy that cannot go that way is refused.
        algorithm: Algorithm = Algorithm::Auto;
        /// The transport of gradients and parameters.
        transport: Transport = Transport::Auto;
        /// Which connections are encrypted where ranks share a secret: `none`; `control`, those by which ranks meet and watch each
        /// other; `all`, also those of data, which needs a secret (`PHALANX_SECRET_FILE`; ranks that are started here have one).
        encryption: Encryption = Encryption::Control;
        /// The rule for ranks that other hosts can reach: `required`, they must share a secret (`PHALANX_SECRET_FILE`); `none`, they need
        /// none, as the network is trusted. Ranks that `--ranks` or `--hosts` start have one.
        secret: SecretPolicy = SecretPolicy::Required;
        /// A slower network than there is, for experiments on one machine: each rank's messages take as long as over a link of its own,
        /// such as `10Gbit,20us`, and ranks share no memory; empty = none.
        link: String = String::new();
        /// With `comm.link`: the number of simulated hosts, with consecutive ranks, equally many on each. Ranks of
        /// different hosts communicate over `comm.link`, one link for each rank; ranks of one host over
        /// `comm.host_link`.
        hosts: usize = 1;
        /// The link between ranks of one of several hosts, such as `100Gbit,2us`; empty = a link that takes no time
        /// except the CPU's.
        host_link: String = String::new();
        /// The clock: `wall`, the machine's; `cpu`, for experiments with more ranks than cores: a rank's clock advances
        /// by its CPU time, as on a core of its own, and by the time of its messages over `comm.link`.
        clock: Clock = Clock::Wall;
        /// Seconds that an operation between ranks may take before the run ends with a report of who has not come to it. Above 600 all
        /// other times grow with it: how long ranks are waited for at the beginning, and after what silence one counts as dead.
        timeout: f64 = 600.0;
    }

    /// The encoding of gradients and gathered parameters between ranks.
    codec: CodecConfig {
        /// The codec of gradients.
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
        /// When to encode: where measurements of the first steps show that it is faster, or always. Workers that push
        /// to servers cannot measure together: under ps-bsp, ps-ssp and ps-asp `auto` is `always`.
        when: CodecWhen = CodecWhen::Auto;
        /// `fsdp`, `hsdp`: what gathered parameters are on their way; `ps-bsp`, `ps-ssp`, `ps-asp`: what pulled ones are.
        weights: WeightCodec = WeightCodec::None;
        /// When resuming, forget what codecs have kept, so that a run can go on with another number of ranks or another codec.
        reset: bool = false;
    }

    /// The mesh of ranks: how many lie along each axis. Axes that are not given are chosen by the strategy.
    parallel: ParallelConfig {
        /// Ranks along the axis `replicate`, which train on different samples; -1 = the rest of the ranks, 0 = the strategy chooses.
        replicate: ParallelDegree = ParallelDegree::default();
        /// Ranks along the axis `shard`, which train on different samples and, under hsdp, share one replica of the state; -1 = the
        /// rest of the ranks, 0 = the strategy chooses.
        shard: ParallelDegree = ParallelDegree::default();
        /// Ranks along the axis `tensor`, which work on the same samples with a part of each layer; 1 checks on one rank that the layers
        /// can be cut.
        tensor: ParallelDegree = ParallelDegree::default();
        /// Ranks along the axis `pipeline`, which work on the same samples, each with some layers: its stage.
        pipeline: ParallelDegree = ParallelDegree::default();
        /// Ranks along the axis `context`; not built yet.
        context: ParallelDegree = ParallelDegree::default();
        /// Ranks that share the experts of a layer; not built yet.
        expert: ParallelDegree = ParallelDegree::default();
    }

    /// Layers that are cut over the ranks along the axis `tensor`.
    tensor: TensorConfig {
        /// Rules such as `"blocks.*.fc1 = column"`, which go before those of the model: a pattern of names of layers, and `column`,
        /// `column:heads`, `column:key-heads`, `column:projection`, `row`, `row:heads` or `whole`.
        plan: Vec<String> = Vec::new();
        /// Between layers each rank has some positions of every sequence, with their norms, residuals and dropout: activations take less
        /// memory. For language models.
        sequence: bool = false;
    }

    /// The stages of a model whose layers lie on the ranks along the axis `pipeline`.
    pipeline: PipelineConfig {
        /// The order of forward and backward passes: `gpipe`, `1f1b`, `interleaved` or `zero-bubble`.
        schedule: String = "1f1b".to_owned();
        /// The chunks of the model that each rank has, under `interleaved`.
        chunks: usize = 1;
        /// The micro-batches of a step; 0 = `train.accumulate` if that is above 1, else the largest number that divides the samples, up
        /// to four a stage.
        micro_batches: usize = 0;
        /// The first block of each chunk but the first one, such as `["blocks.2"]`; empty = chunks of equal work.
        stages: Vec<String> = Vec::new();
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
        /// diloco: steps during which a meeting overlaps with training; 0 = training waits for it.
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
        /// Parameter servers: the number of processes, in addition to train.ranks, that only serve; 0 = every worker's
        /// process serves as well.
        servers: usize = 0;
        /// ps-ssp and ps-asp with sync.servers, d-psgd, sgp, ad-psgd: the number of workers, rank 0 among them, that
        /// must remain for the run to continue when others die; 0 = a death ends the run.
        min_workers: usize = 0;
    }

    /// Worlds that change while training goes on, under strategies whose ranks take every step together.
    elastic: ElasticConfig {
        /// The number of ranks that must remain for the run to continue when others die or leave; 0 = a death ends the
        /// run.
        min: usize = 0;
        /// The largest number of ranks; further ones wait until there is room. 0 = train.ranks.
        max: usize = 0;
        /// The number of ranks, over the whole run, that the launcher starts anew when ranks on its machine have died.
        respawn: usize = 0;
        /// zero1, zero2, fsdp: 1 = each rank keeps a copy of its neighbour's shard in memory, made anew in every step, so that a rank can
        /// be lost; 0 = none, and the run then goes on from its newest checkpoint.
        redundancy: usize = 0;
    }

    /// Faults injected on purpose: tools for experiments.
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
        /// SGD, Muon: momentum; Muon's authors use 0.95.
        momentum: f64 = 0.9;
        /// SGD: Nesterov's momentum.
        nesterov: bool = false;
        /// Adam, LAMB, Muon's vectors: decay of the means of gradients and of their squares. Lion: decay of the momentum in a step's direction, and of the
        /// momentum itself. Empty = [0.9, 0.999], and [0.9, 0.99] for `lion`.
        betas: Vec<f64> = Vec::new();
        /// Adam, LAMB, Muon's vectors: the number that is added to the denominator; LAMB's authors use 1e-6.
        eps: f64 = 1e-8;
        /// Weight decay: decoupled for `adamw`, `lion`, `lamb` and `muon`, added to the gradient for `sgd` and `adam`.
        weight_decay: f64 = 0.0;
        /// Norms and biases go without weight decay, and under `lamb` without a learning rate of their own.
        decay_matrices_only: bool = true;
        /// Other parameters without weight decay, named as in `optim.freeze`, such as `["*.wte"]`.
        no_decay: Vec<String> = Vec::new();
        /// Muon: further parameters that AdamW steps, such as a head `["fc"]`, named as in `optim.freeze`. Vectors and tables of
        /// tokens are in any case.
        unturned: Vec<String> = Vec::new();
        /// Parameters that are not trained: names, their beginnings up to a dot (`layer1`), names of blocks (`stem`), or any of
        /// these with `*` for any letters and `?` for one. Batch norms of frozen parameters use their running statistics.
        freeze: Vec<String> = Vec::new();
        /// Steps after which the parameters of `optim.freeze` are trained, too; 0 = never.
        unfreeze_step: u64 = 0;
        /// Epochs after which the parameters of `optim.freeze` are trained, too; 0 = never.
        unfreeze_epoch: usize = 0;
        /// Factors of the learning rate of some parameters, such as `["fc = 10", "layer1 = 0.1"]`, which are named as in
        /// `optim.freeze`. Of several for a parameter the last one counts.
        rates: Vec<String> = Vec::new();
    }

    /// Adapters of low rank (LoRA), trained in place of the weights of `model.weights`.
    lora: LoraConfig {
        /// The rank of the adapters; 0 = none. The weights are then frozen.
        rank: usize = 0;
        /// The product of an adapter is multiplied by `lora.alpha` over `lora.rank`.
        alpha: f64 = 16.0;
        /// In training, elements of an adapter's input are set to zero with this probability.
        dropout: f64 = 0.0;
        /// The linear layers that have adapters: patterns as those of `optim.freeze`, or of the last part of a layer's name, such as
        /// `["q_proj","v_proj"]`; empty = all.
        layers: Vec<String> = Vec::new();
        /// Parameters that are trained themselves and not by adapters, such as a new head `["classifier"]`, named as in `optim.freeze`.
        trained: Vec<String> = Vec::new();
        /// A folder of adapters in the format of peft, with which training begins; empty = new ones. It is read before step 1 alone.
        from: String = String::new();
    }

    /// The learning rate over the run.
    schedule: ScheduleConfig {
        /// The schedule of the learning rate after the warm-up.
        kind: ScheduleKind = ScheduleKind::Cosine;
        /// Steps over which the learning rate rises from 0, at most a tenth of the run.
        warmup_steps: u64 = 0;
        /// Cosine, linear, warmup-stable-decay: the last learning rate as a fraction of the peak.
        final_fraction: f64 = 0.0;
        /// Warmup-stable-decay: the part of the run, at its end, in which the learning rate decays.
        decay_fraction: f64 = 0.1;
        /// Warmup-stable-decay: the curve of the decay.
        decay_curve: Curve = Curve::Linear;
        /// One-cycle: the part of the run in which the learning rate rises.
        pct_start: f64 = 0.3;
        /// One-cycle: the peak over the first learning rate.
        div_factor: f64 = 25.0;
        /// One-cycle: the first learning rate over the last.
        final_div_factor: f64 = 10_000.0;
        /// One-cycle: the momentum (the first of `optim.betas`) at the peak of the learning rate, and at both ends of the run, such as
        /// [0.85, 0.95]; empty = constant.
        momentum: Vec<f64> = Vec::new();
        /// Step: steps between falls of the learning rate; 0 = a third of the run.
        step_every: u64 = 0;
        /// Step: epochs between falls of the learning rate, in place of `schedule.step_every`; 0 = that.
        step_epochs: usize = 0;
        /// Step: the factor of the learning rate at a fall.
        gamma: f64 = 0.1;
        /// Range-test: the last learning rate, `optim.lr`, over the first.
        range_ratio: f64 = 1e8;
    }

    /// Checkpoints.
    checkpoint: CheckpointConfig {
        /// Write checkpoints; a run without them cannot be resumed, evaluated or sampled.
        enabled: bool = true;
        /// Steps between checkpoints, in place of `checkpoint.every_epochs`; 0 = by that key.
        every: u64 = 0;
        /// Epochs between checkpoints; 0 = only at the end or when interrupted.
        every_epochs: u64 = 1;
        /// The number of newest checkpoints that are kept.
        keep: usize = 2;
        /// The measure of the evaluation whose best checkpoint is saved and kept in addition, such as `test_accuracy` or `test_loss`.
        /// `min:NAME` or `max:NAME` for a measure whose name does not tell which is better. Empty = none.
        best: String = String::new();
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
        /// The peak of a rank's device in GFLOP/s, of which logs show the share; 0 = that of the data sheet of a known GPU, and on CPUs the
        /// rate of a large product, which is measured at the start.
        peak_gflops: f64 = 0.0;
        /// Watts of a busy core, from which the energy of CPUs is estimated where it cannot be measured; 0 = no
        /// estimate.
        cpu_watts: f64 = 0.0;
        /// The steps of which trace.json tells when each rank did what: `all`, or `a..b` from step a to step b, both included;
        /// empty = there is none.
        trace: TraceSteps = TraceSteps::None;
    }

    /// Warnings about a training that goes on: when networks against each other count as collapsed, and gradients as jumped.
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
        /// With `train.clip_norm`: a gradient has jumped whose norm is more than this times the median of the window; 0 = no warning.
        gradient_jump: f64 = 10.0;
    }

    /// Sample pictures and texts.
    sample: SampleConfig {
        /// Steps between samples; 0 = only at the end.
        every: u64 = 0;
        /// The prompts; empty = captions of the test split, and for language models the beginning of a text.
        prompts: Vec<String> = Vec::new();
        /// The number of prompts from the test images, or of texts, when `sample.prompts` is empty.
        rows: usize = 8;
        /// The longest text of a language model, in tokens.
        tokens: usize = 64;
        /// Pictures drawn for each prompt: a row of the grid, or, if 1, the grid is filled line by line.
        columns: usize = 8;
    }

    /// Generative metrics of samples, computed by trained networks: accuracy, Fréchet distance, precision, recall, CLIP
    /// score.
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
        /// Evaluate the test split.
        enabled: bool = true;
        /// Steps between evaluations, in place of `eval.every_epochs`; 0 = by that key.
        every: u64 = 0;
        /// Epochs between evaluations; 0 = only at the end.
        every_epochs: u64 = 1;
        /// At most this many test images; 0 = all.
        limit: usize = 0;
        /// Images in a batch of each rank; 0 = as in training.
        batch: usize = 0;
        /// Classifiers: the wrong predictions of the highest loss that are drawn, with their images; 0 = none.
        mistakes: usize = 24;
    }
}
