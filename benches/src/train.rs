//! Whole training steps: forward, loss, backward, all-reduce, optimizer.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use anyhow::{Context as _, Result, anyhow};
use candle_core::{Device, Tensor};
use clap::{Args, ValueEnum};
use phalanx_collectives::{Communicator, threads};
use phalanx_kernels::Products;
use phalanx_models::stackgan::{stage_one_discriminator_loss, stage_one_generator_loss};
use phalanx_models::{
    ClipTextConfig, CvaeConfig, MobileNetV2, MobileNetV2Config, ResNet, ResNetConfig, ResNetVariant,
    StackGanConfig, StageOneDiscriminator, StageOneGenerator, TextToImage,
};
use phalanx_sharding::{DataParallel, Options, Strategy};
use phalanx_tensor::loss::{self, Over};
use phalanx_tensor::optim::{Adam, Optimizer, Sgd, scale_grads};
use phalanx_tensor::{BuildOptions, Context, Key, ParamStore, Recompute, Session, StoreBuilder, Tape, Value};
use serde_json::json;

use crate::Common;
use crate::peer::{Peer, torch_ranks};
use crate::rounds::alternate;

/// What to measure.
#[derive(Debug, Args)]
pub(crate) struct TrainArgs {
    /// The model
    #[arg(long, value_enum, default_value_t = Model::Resnet18)]
    model: Model,
    /// Images of each rank in a step
    #[arg(long, default_value_t = 64)]
    batch: usize,
    /// Height and width of the images
    #[arg(long, default_value_t = 32)]
    image_size: usize,
    /// Ranks, as threads of this process
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    ranks: u64,
    /// How the ranks share the work: ddp, zero1, zero2, fsdp; or none, without any communication
    #[arg(long, default_value = "ddp")]
    strategy: String,
    /// What is multiplied and kept: f32; bf16 or f16, with weights in f32; or f32 whose products are rounded to bf16 where that
    /// is faster
    #[arg(long, value_enum, default_value_t = Precision::F32)]
    precision: Precision,
    /// Every so many-th block runs again in backward instead of keeping its activations, 1 for all; 0 for none
    #[arg(long, default_value_t = 0)]
    recompute: usize,
    /// The first convolution is 3x3 without stride and there is no pooling after it
    #[arg(long)]
    cifar_stem: bool,
    /// Messages are merged until they have so many KiB
    #[arg(long, default_value_t = 1024)]
    bucket_kib: usize,
    #[command(flatten)]
    common: Common,
}

/// The models.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Model {
    Resnet18,
    Resnet34,
    Resnet50,
    Mobilenetv2,
    Cvae,
    /// StackGAN's first stage, GF 128, DF 64: a step of the discriminator and one of the generator, at 64x64
    Stackgan,
}

/// What is multiplied and kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Precision {
    F32,
    /// Activations in bf16
    Bf16,
    /// Activations in f16
    F16,
    /// Activations in f32, products of bf16 where they are faster
    Bf16Products,
}

impl Precision {
    fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
            Self::F16 => "f16",
            Self::Bf16Products => "bf16-products",
        }
    }

    fn products(self) -> Products {
        match self {
            Self::F32 | Self::F16 => Products::F32,
            Self::Bf16 | Self::Bf16Products => Products::Bf16,
        }
    }

    /// What activations are kept in.
    fn kept(self) -> phalanx_tensor::Precision {
        match self {
            Self::F32 | Self::Bf16Products => phalanx_tensor::Precision::F32,
            Self::Bf16 => phalanx_tensor::Precision::Bf16,
            Self::F16 => phalanx_tensor::Precision::F16,
        }
    }

    /// The scale of the loss, which a dynamic one would not have changed in so few steps.
    fn loss_scale(self) -> f64 {
        if self == Self::F16 { 65_536.0 } else { 1.0 }
    }

    /// What the peer computes in.
    fn of_peer(self) -> &'static str {
        if self == Self::Bf16Products { "bf16" } else { self.name() }
    }
}

type Forward = Box<dyn Fn(&Tape, Over) -> phalanx_tensor::Result<Value>>;

/// A rank's model and its part of the batch.
fn build(args: &TrainArgs, batch: usize) -> Result<(ParamStore, Forward)> {
    let builder = StoreBuilder::new(BuildOptions::default());
    let size = args.image_size;
    let images = Value::constant(Tensor::rand(-1.0_f32, 1.0, (batch, 3, size, size), &Device::Cpu)?);
    let labels: Vec<u32> = (0..batch as u32).map(|i| i % 10).collect();
    let resnet = |variant| ResNetConfig { cifar_stem: args.cifar_stem, ..ResNetConfig::new(variant, 10) };
    let forward: Forward = match args.model {
        Model::Resnet18 | Model::Resnet34 | Model::Resnet50 => {
            let variant = match args.model {
                Model::Resnet34 => ResNetVariant::R34,
                Model::Resnet50 => ResNetVariant::R50,
                _ => ResNetVariant::R18,
            };
            let model = ResNet::new(&builder.root(), &resnet(variant))?;
            Box::new(move |tape, over| {
                loss::cross_entropy(tape, &model.forward(tape, &images)?, &labels, 0.0, over)
            })
        }
        Model::Mobilenetv2 => {
            let config = MobileNetV2Config { cifar_stem: args.cifar_stem, ..MobileNetV2Config::new(10) };
            let model = MobileNetV2::new(&builder.root(), &config)?;
            Box::new(move |tape, over| {
                loss::cross_entropy(tape, &model.forward(tape, &images)?, &labels, 0.0, over)
            })
        }
        Model::Cvae => {
            let text = ClipTextConfig::small();
            let cvae =
                CvaeConfig { image_size: size, widths: vec![32, 64, 128], latent: 64, text_dim: text.embed };
            let model = TextToImage::new(&builder.root(), &text, &cvae, false)?;
            let end = text.vocab as u32 - 1;
            let ids =
                (0..batch as u32).flat_map(|i| (0..16).map(move |t| if t == 15 { end } else { i * 7 + t }));
            let ids = Tensor::from_vec(ids.collect::<Vec<u32>>(), (batch, 16), &Device::Cpu)?;
            Box::new(move |tape, over| Ok(model.loss(tape, &images, &ids, (1e-4, 1.0), over)?.total))
        }
        Model::Stackgan => anyhow::bail!("StackGAN has two losses"),
    };
    Ok((builder.build()?, forward))
}

/// A rank's training step.
type Step = Box<dyn FnMut(&Arc<Context>, u64) -> Result<()>>;

/// A model, and what adds its gradients over the ranks.
struct Replica {
    store: ParamStore,
    parallel: Arc<DataParallel>,
    precision: Precision,
    recompute: Recompute,
}

impl Replica {
    fn new(args: &TrainArgs, store: ParamStore, comm: Communicator) -> Result<Self> {
        // Without communication each rank is a world of its own.
        let (comm, strategy) = match args.strategy.as_str() {
            "none" => (threads(1)?.remove(0), "ddp"),
            name => (comm, name),
        };
        let bucket_bytes = args.bucket_kib << 10;
        let options = Options { bucket_bytes, ..Options::default() };
        let parallel = DataParallel::with_options(&store, comm, Strategy::named(strategy)?, options)?;
        let recompute = if args.recompute > 0 { Recompute::Every(args.recompute) } else { Recompute::Never };
        Ok(Self { store, parallel, precision: args.precision, recompute })
    }

    fn tape(&self, context: &Arc<Context>, step: u64) -> Tape {
        let world = self.parallel.communicator().world_size();
        Tape::recording(Session {
            listener: (world > 1).then(|| self.parallel.clone() as _),
            precision: self.precision.kept(),
            recompute: self.recompute,
            ..Session::training(context.clone(), Key::new(0).step(step))
        })
    }

    /// Differentiates and adds over the ranks.
    fn backward(&self, tape: &Tape, loss: &Value) -> Result<()> {
        self.store.zero_grads();
        tape.backward_scaled(loss, self.precision.loss_scale())?;
        Ok(self.parallel.finish_gradients()?)
    }

    fn update(&self, optimizer: &mut impl Optimizer, lr: f64, context: &Context) -> Result<()> {
        let units = self.parallel.units();
        if self.precision == Precision::F16 {
            scale_grads(&units, 1.0 / self.precision.loss_scale(), context)?;
        }
        optimizer.step(&units, lr, context)?;
        Ok(self.parallel.finish_update()?)
    }
}

/// The step of a model with one loss and SGD.
fn single_loss_step(args: &TrainArgs, comm: Communicator) -> Result<Step> {
    let global = args.batch * comm.world_size();
    let (store, forward) = build(args, args.batch)?;
    let replica = Replica::new(args, store, comm)?;
    let mut sgd = Sgd::new(0.9, false, 5e-4);
    Ok(Box::new(move |context, step| {
        let tape = replica.tape(context, step);
        let loss = forward(&tape, Over::Count(global))?;
        replica.backward(&tape, &loss)?;
        replica.update(&mut sgd, 1e-4, context)
    }))
}

/// A step of StackGAN's discriminator and one of its generator, with Adam as in the authors' code.
fn stackgan_step(args: &TrainArgs, comm: Communicator) -> Result<Step> {
    anyhow::ensure!(args.image_size == 64, "StackGAN's first stage makes images of 64x64: --image-size 64");
    anyhow::ensure!(args.strategy != "fsdp", "StackGAN's networks run on each other's tapes; not by fsdp");
    let batch = args.batch;
    let config = StackGanConfig::new();
    let (of_g, of_d) =
        (StoreBuilder::new(BuildOptions::default()), StoreBuilder::new(BuildOptions::default()));
    let generator = StageOneGenerator::new(&of_g.root(), &config)?;
    let discriminator = StageOneDiscriminator::new(&of_d.root(), &config)?;
    let (g, d) = (Replica::new(args, of_g.build()?, comm.clone())?, Replica::new(args, of_d.build()?, comm)?);
    let random = |dims: &[usize]| {
        Ok::<_, anyhow::Error>(Value::constant(Tensor::rand(-1.0_f32, 1.0, dims, &Device::Cpu)?))
    };
    let (real, text) = (random(&[batch, 3, 64, 64])?, random(&[batch, config.text_dim])?);
    let (noise, condition_noise) = (random(&[batch, config.z_dim])?, random(&[batch, config.condition_dim])?);
    let (mut adam_g, mut adam_d) = (Adam::new((0.5, 0.999), 1e-8, 0.0), Adam::new((0.5, 0.999), 1e-8, 0.0));
    Ok(Box::new(move |context, step| {
        let tape = g.tape(context, step);
        let generated = generator.forward(&tape, &text, &noise, &condition_noise)?;
        let shown = generated.condition.mu.detach();
        let judging = d.tape(context, step);
        let fake = generated.image.detach();
        let loss = stage_one_discriminator_loss(&judging, &discriminator, &real, &fake, &shown)?;
        d.backward(&judging, &loss)?;
        d.update(&mut adam_d, 2e-4, context)?;
        let losses = stage_one_generator_loss(&tape, &discriminator, &generated, &shown)?;
        g.backward(&tape, &losses.total)?;
        g.update(&mut adam_g, 2e-4, context)
    }))
}

/// One rank: a step each time that it is told to.
fn rank(args: &TrainArgs, comm: Communicator, go: &Receiver<()>, done: &Sender<Result<()>>) -> Result<()> {
    let context = Arc::new(Context::new(args.common.threads()).with_products(args.precision.products()));
    let mut step = match args.model {
        Model::Stackgan => stackgan_step(args, comm)?,
        _ => single_loss_step(args, comm)?,
    };
    let mut number = 0;
    while go.recv().is_ok() {
        let outcome = step(&context, number);
        number += 1;
        if done.send(outcome).is_err() {
            break;
        }
    }
    Ok(())
}

pub(crate) fn run(args: &TrainArgs) -> Result<()> {
    let world = usize::try_from(args.ranks)?;
    anyhow::ensure!(args.batch > 0, "--batch 0: a rank needs an image");
    anyhow::ensure!(
        args.common.peer.is_none()
            || args.precision == Precision::F32
            || (args.precision != Precision::F16 && world == 1),
        "--peer computes in f32, or with one rank in bf16; not in {} on {world} ranks",
        args.precision.name()
    );
    let name = args.model.to_possible_value().context("a model has a name")?.get_name().to_owned();
    let common = &args.common;
    // Several ranks are compared with as many processes of PyTorch's, after our rounds.
    let alone = common.peer.filter(|_| world == 1);
    let mut peer = alone.map(|library| Peer::start(library, common.threads())).transpose()?;
    let version = peer.as_ref().map(|peer| peer.version.clone());
    let mut prepared = match &mut peer {
        Some(peer) => peer.prepare(&json!({
            "kind": "train", "model": name, "batch": args.batch, "size": args.image_size,
            "cifar_stem": args.cifar_stem, "precision": args.precision.of_peer(),
        }))?,
        None => None,
    };
    if version.is_some() && prepared.is_none() {
        println!("the peer has no {name} like this");
    }
    let first = std::sync::OnceLock::new();
    let medians = std::thread::scope(|scope| {
        let mut ranks = Vec::new();
        for comm in threads(world)? {
            first.get_or_init(|| comm.clone());
            let (go, told) = channel();
            let (tell, done) = channel();
            scope.spawn(move || {
                if let Err(error) = rank(args, comm, &told, &tell) {
                    // Nobody listens if the others have failed before.
                    let _ = tell.send(Err(error));
                }
            });
            ranks.push((go, done));
        }
        let step = || -> Result<()> {
            for (go, _) in &ranks {
                go.send(()).map_err(|_| anyhow!("a rank has ended"))?;
            }
            ranks.iter().try_for_each(|(_, done)| done.recv().context("a rank has ended")?)
        };
        let steps = std::cell::Cell::new(0_u32);
        let counted = || {
            steps.set(steps.get() + 1);
            step()
        };
        let medians = alternate(common.rounds, counted, prepared.as_mut())?;
        anyhow::Ok((medians, steps.get()))
    });
    let (medians, steps) = medians?;
    let images = (args.batch * world) as f64;
    let (rate, memory) = (images / medians.ours, peak_memory());
    println!(
        "{name}, {5}, batch {} at {1}x{1}, {world} ranks of {2} threads, {6}: {3:.1} ms a step, {rate:.0} samples/s{4}",
        args.batch,
        args.image_size,
        common.threads(),
        medians.ours * 1e3,
        memory.map_or_else(String::new, |bytes| format!(
            ", at most {:.0} MiB",
            bytes as f64 / f64::from(1 << 20)
        )),
        match args.recompute {
            0 => args.precision.name().to_owned(),
            every => format!("{}, 1 of {every} blocks recomputed", args.precision.name()),
        },
        if world > 1 { args.strategy.as_str() } else { "alone" },
    );
    // Means over the steps, of rank 0.
    let stats = first.get().map(Communicator::stats).unwrap_or_default();
    let (exposed, busy) = (stats.seconds_exposed / f64::from(steps), stats.seconds_busy / f64::from(steps));
    if world > 1 {
        println!(
            "communication a step: {:.1} MB sent, exposed {:.1} ms, hidden {:.1} ms",
            stats.bytes_sent as f64 / f64::from(steps) / 1e6,
            exposed * 1e3,
            (busy - exposed).max(0.0) * 1e3
        );
    }
    let mut peer_memory = None;
    if let (Some(theirs), Some(peer), Some(version)) = (medians.theirs, &mut prepared, &version) {
        let bytes = peer.peak_memory()?;
        println!(
            "{version}: {:.1} ms a step, {:.0} samples/s, at most {:.0} MiB; ratio {:.2}x",
            theirs * 1e3,
            images / theirs,
            bytes as f64 / f64::from(1 << 20),
            theirs / medians.ours
        );
        peer_memory = Some(bytes);
    }
    let mut medians = medians;
    let mut version = version;
    if common.peer.is_some() && world > 1 {
        let strategy = if args.strategy == "fsdp" { "fsdp" } else { "ddp" };
        let (found, theirs) = torch_ranks(&json!({
            "model": name, "batch": args.batch, "size": args.image_size, "cifar_stem": args.cifar_stem,
            "strategy": strategy, "ranks": world, "threads": common.threads(), "rounds": common.rounds,
        }))?;
        println!(
            "{found}, {strategy} over Gloo: {:.1} ms a step, {:.0} samples/s; ratio {:.2}x",
            theirs * 1e3,
            images / theirs,
            theirs / medians.ours
        );
        (medians.theirs, version) = (Some(theirs), Some(found));
    }
    common.write(&json!({
        "model": name, "batch": args.batch, "image_size": args.image_size, "cifar_stem": args.cifar_stem,
        "ranks": world, "strategy": args.strategy, "threads": common.threads(), "precision": args.precision.name(),
        "recompute": args.recompute, "rounds": common.rounds,
        "samples_per_s": rate, "seconds_per_step": medians.ours, "peak_memory_bytes": memory,
        "communication_exposed_seconds": exposed, "communication_hidden_seconds": (busy - exposed).max(0.0),
        "peer": version, "peer_samples_per_s": medians.theirs.map(|theirs| images / theirs),
        "peer_peak_memory_bytes": peer_memory, "ratio": medians.ratio(),
    }))
}

/// The most memory that this process has held, where the system tells.
fn peak_memory() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()? * 1024)
}
