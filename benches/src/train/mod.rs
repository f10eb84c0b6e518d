//! Whole training steps: forward, loss, backward, communication, optimizer.

mod device;
mod language;
mod model;
mod precision;
mod rank;
mod replica;
mod stackgan;
mod stages;
mod strategy_ranks;

use anyhow::{Context as _, Result};
use clap::{Args, FromArgMatches as _, ValueEnum};
use phalanx_sharding::Overlap;
use serde_json::{Value as Json, json};

use crate::Common;
use crate::peer::{Peer, torch_ranks};
use crate::rounds::alternate;
pub(crate) use language::next_tokens;

use device::Device;
use model::Model;
use precision::Precision;
use rank::RankThreads;
use strategy_ranks::cuts_layers;

/// The arguments of a measurement.
#[derive(Debug, Clone, Args)]
pub(crate) struct TrainArgs {
    /// The model [default: resnet18; with --device cuda a table of all models at their usual sizes]
    #[arg(long, value_enum)]
    model: Option<Model>,
    /// Images or texts of each rank in a step
    #[arg(long, default_value_t = 64)]
    batch: usize,
    /// Tokens of a text of language models
    #[arg(long, default_value_t = 256, value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..))]
    tokens: usize,
    /// Height and width of the images
    #[arg(long, default_value_t = 32)]
    image_size: usize,
    /// Ranks, as threads of this process
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    ranks: u64,
    /// The parallel strategy: ddp, zero1, zero2, fsdp, hsdp; tensor, whose ranks share the layers of language models, or sequence, whose
    /// ranks share sequences too, and pipeline, gpipe, interleaved or zero-bubble, whose ranks compute some layers each, all on the samples
    /// of all ranks; or none, without communication. Several, separated by commas, alternate
    /// by round and are compared with the first
    #[arg(long, default_value = "ddp", value_delimiter = ',')]
    strategy: Vec<String>,
    /// The device of the ranks
    #[arg(long, value_enum, default_value_t = Device::Cpu)]
    device: Device,
    /// Precision of products and activations: f32; tf32, for GPUs; bf16 or f16, with weights in f32; or f32 with
    /// products in bf16 where that is faster
    #[arg(long, value_enum, default_value_t = Precision::F32)]
    precision: Precision,
    /// Recompute every N-th block in backward instead of keeping its activations; 1 for all, 0 for none
    #[arg(long, default_value_t = 0)]
    recompute: usize,
    /// Use a first convolution of 3x3 without stride, and no pooling after it
    #[arg(long)]
    cifar_stem: bool,
    /// Merge messages up to this size in KiB
    #[arg(long, default_value_t = 1024)]
    bucket_kib: usize,
    /// Overlap of communication and computing
    #[arg(long, value_enum, default_value_t = OverlapChoice::Auto)]
    overlap: OverlapChoice,
    /// With --device cuda: record steps and launch them as CUDA graphs
    #[arg(long)]
    graphs: bool,
    #[command(flatten)]
    common: Common,
}

/// The overlap of communication and computing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum OverlapChoice {
    /// On, except for sharded parameters if every core already computes
    Auto,
    Always,
    Never,
}

impl OverlapChoice {
    fn overlap(self) -> Overlap {
        match self {
            Self::Auto => Overlap::Auto,
            Self::Always => Overlap::Always,
            Self::Never => Overlap::Never,
        }
    }
}

/// The costs of a strategy.
struct Row<'a> {
    strategy: &'a str,
    seconds: f64,
    /// Seconds of communication in a step, of rank 0: exposed and hidden.
    exposed: f64,
    hidden: f64,
    bytes_sent: f64,
    /// Floating-point operations of a step of rank 0.
    operations: u64,
    /// The peer's name, and its seconds of a step.
    peer: Option<(String, f64)>,
}

/// The table of a GPU: the model, the size of images, the batch, and the stem for small images.
const ON_GPUS: &[(Model, usize, usize, bool)] = &[
    (Model::Resnet18, 32, 512, true),
    (Model::Resnet50, 224, 64, false),
    (Model::Mobilenetv2, 32, 512, true),
    (Model::VitB16, 224, 64, false),
    (Model::Cvae, 32, 512, false),
    (Model::Unet, 32, 64, false),
    (Model::Stackgan1, 64, 64, false),
    (Model::Stackgan2, 256, 16, false),
];

pub(crate) fn run(args: &TrainArgs) -> Result<()> {
    if args.model.is_some() || args.device == Device::Cpu {
        return args.common.write(&measure(args)?);
    }
    let told = TrainArgs { device: Device::Cuda, ..TrainArgs::parse_from_nothing()? };
    anyhow::ensure!(
        (args.batch, args.image_size, args.cifar_stem, args.precision)
            == (told.batch, told.image_size, told.cifar_stem, told.precision),
        "--batch, --image-size, --cifar-stem and --precision are of one model: name it with --model"
    );
    let (mut all, mut failed) = (Vec::new(), 0);
    for &(model, image_size, batch, cifar_stem) in ON_GPUS {
        for precision in [Precision::Tf32, Precision::Bf16] {
            let one =
                TrainArgs { model: Some(model), image_size, batch, cifar_stem, precision, ..args.clone() };
            // A failed model, such as one that exceeds the memory, does not end the measurement.
            all.push(measure(&one).unwrap_or_else(|error| {
                failed += 1;
                println!("{model:?}, {}: {error:#}", precision.name());
                let (model, precision) = (format!("{model:?}").to_lowercase(), precision.name());
                json!({ "model": model, "precision": precision, "error": format!("{error:#}") })
            }));
            println!();
        }
    }
    args.common.write(&json!({ "trainings": all }))?;
    anyhow::ensure!(failed == 0, "{failed} of {} trainings failed", all.len());
    Ok(())
}

/// The arguments of a comparison of models whose layers are cut with models whose batch is.
#[derive(Debug, Clone, Args)]
pub(crate) struct ParallelArgs {
    /// Texts of each rank in a step; ranks that share layers all compute those of all ranks
    #[arg(long, default_value_t = 1, value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..))]
    batch: usize,
    /// Tokens of a text
    #[arg(long, default_value_t = 256, value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..))]
    tokens: usize,
    /// Ranks, as threads of this process; those of the peer are processes
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..))]
    ranks: u64,
    /// The strategies, of `bench train`; the first is compared with
    #[arg(long, default_value = "ddp,tensor", value_delimiter = ',')]
    strategy: Vec<String>,
    #[command(flatten)]
    common: Common,
}

/// Measures two sizes of GPT-2 in f32 and in bf16: cut by samples, and by layers.
pub(crate) fn run_parallel(args: &ParallelArgs) -> Result<()> {
    let ParallelArgs { batch, tokens, ranks, strategy, common } = args;
    let mut all = Vec::new();
    for model in [Model::GptSmall, Model::GptWide] {
        for precision in [Precision::F32, Precision::Bf16] {
            all.push(measure(&TrainArgs {
                model: Some(model),
                batch: *batch,
                tokens: *tokens,
                ranks: *ranks,
                strategy: strategy.clone(),
                precision,
                common: common.clone(),
                ..TrainArgs::parse_from_nothing()?
            })?);
            println!();
        }
    }
    common.write(&json!({ "trainings": all }))
}

/// Rejects options that exclude each other.
fn check(args: &TrainArgs) -> Result<()> {
    let (world, common) = (args.ranks, &args.common);
    anyhow::ensure!(args.batch > 0, "--batch 0: a rank needs an image");
    anyhow::ensure!(
        args.device == Device::Cuda || args.precision != Precision::Tf32,
        "--precision tf32 is of GPUs; CPUs multiply f32, or bf16-products"
    );
    anyhow::ensure!(
        common.peer.is_none()
            || matches!(args.precision, Precision::F32 | Precision::Tf32)
            || args.precision != Precision::F16 && (world == 1 || args.model().is_language()),
        "--peer computes in f32, or in bf16 with one rank or a language model; not in {} on {world} ranks",
        args.precision.name()
    );
    anyhow::ensure!(
        common.peer.is_none() || world == 1 || args.model() != Model::Bert,
        "--peer has one rank of bert; leave it out, or --ranks {world}"
    );
    anyhow::ensure!(
        common.peer.is_none()
            || !args.strategy.iter().any(|strategy| cuts_layers(strategy))
            || matches!(args.model(), Model::Gpt2 | Model::GptSmall | Model::GptWide),
        "--peer cuts layers of gpt2, gpt-small and gpt-wide"
    );
    anyhow::ensure!(
        common.peer.is_none()
            || !args.strategy.iter().any(|strategy| stages::schedule_of(strategy).is_some())
            || matches!(args.model(), Model::Gpt2 | Model::GptSmall | Model::GptWide | Model::Resnet18),
        "--peer has stages of gpt2, gpt-small, gpt-wide and resnet18"
    );
    anyhow::ensure!(
        args.device == Device::Cpu || world == 1 || common.peer.is_none(),
        "--peer has one GPU; leave it out, or --ranks {world}"
    );
    Ok(())
}

/// Measures one training.
fn measure(args: &TrainArgs) -> Result<Json> {
    check(args)?;
    let world = usize::try_from(args.ranks)?;
    let common = &args.common;
    let name = args.model().to_possible_value().context("a model has a name")?.get_name().to_owned();
    // Several ranks are compared with as many PyTorch processes, after Phalanx's rounds.
    let alone = common.peer.filter(|_| world == 1);
    let mut peer = alone.map(|library| Peer::start(library, common.threads())).transpose()?;
    let version = peer.as_ref().map(|peer| peer.version.clone());
    let mut prepared = match &mut peer {
        Some(peer) => peer.prepare(&json!({
            "kind": "train", "model": name, "batch": args.batch, "size": args.image_size, "tokens": args.tokens,
            "cifar_stem": args.cifar_stem, "precision": args.precision.of_peer(), "device": args.device.name(),
        }))?,
        None => None,
    };
    if version.is_some() && prepared.is_none() {
        println!("the peer has no {name} like this");
    }
    let (medians, mut rows, gpu_memory) = std::thread::scope(|scope| {
        let mut teams = Vec::new();
        for strategy in &args.strategy {
            teams.push(RankThreads::start(scope, args, strategy, world)?);
        }
        let mut steps: Vec<_> = teams.iter_mut().map(|team| |count| team.steps(count)).collect();
        let mut ours: Vec<&mut dyn FnMut(u64) -> Result<()>> = Vec::new();
        ours.extend(steps.iter_mut().map(|step| step as &mut dyn FnMut(u64) -> Result<()>));
        let medians = alternate(common.rounds, &mut ours, prepared.as_mut())?;
        let rows: Vec<Row<'_>> =
            teams.iter().zip(&medians.ours).map(|(team, seconds)| team.row(*seconds)).collect();
        anyhow::Ok((medians, rows, teams.iter().filter_map(RankThreads::gpu_memory).max()))
    })?;
    if let (Some(theirs), Some(version)) = (medians.theirs, &version) {
        rows[0].peer = Some((version.clone(), theirs));
    }
    if common.peer.is_some() && world > 1 && args.device == Device::Cpu {
        for row in rows.iter_mut().filter(|row| row.strategy != "none") {
            row.peer = Some(torch_ranks(&json!({
                "model": name, "batch": args.batch, "size": args.image_size, "tokens": args.tokens,
                "cifar_stem": args.cifar_stem, "strategy": of_peer(row.strategy), "ranks": world, "threads": common.threads(),
                "rounds": common.rounds, "precision": args.precision.of_peer(),
                "schedule": stages::schedule_of(row.strategy),
                "micro_batches": stages::micro_batches(args.batch * world, world),
            }))?);
        }
    }
    // GPU memory is scarce, so it is reported.
    let memory = gpu_memory.or_else(phalanx_run::peak_memory);
    let peer_memory = prepared.as_mut().map(crate::peer::PreparedPeer::peak_memory).transpose()?;
    print(args, &name, &rows, memory, peer_memory);
    let circumstances = json!({
        "model": name, "batch": args.batch, "image_size": args.image_size, "cifar_stem": args.cifar_stem,
        "tokens": args.model().is_language().then_some(args.tokens),
        "ranks": world, "threads": common.threads(), "precision": args.precision.name(), "device": args.device.name(),
        "graphs": args.graphs,
        "recompute": args.recompute, "overlap": format!("{:?}", args.overlap).to_lowercase(), "rounds": common.rounds,
        "peak_memory_bytes": memory, "peer_peak_memory_bytes": peer_memory,
    });
    Ok(results(circumstances, rows.iter().map(|row| row.json(args, &rows[0])).collect()))
}

/// Returns the report of a measurement: its settings, and a row for each strategy. A single row's numbers are also next
/// to the settings.
fn results(mut circumstances: Json, rows: Vec<Json>) -> Json {
    if let [Json::Object(only)] = rows.as_slice() {
        for (key, value) in only {
            circumstances[key] = value.clone();
        }
    }
    circumstances["strategies"] = rows.into();
    circumstances
}

/// Returns PyTorch's counterpart of a strategy.
fn of_peer(strategy: &str) -> &'static str {
    match strategy {
        "fsdp" | "zero3" => "fsdp",
        "tensor" | "sequence" => "tensor",
        "pipeline" | "gpipe" | "interleaved" | "zero-bubble" => "pipeline",
        _ => "ddp",
    }
}

fn print(args: &TrainArgs, name: &str, rows: &[Row<'_>], memory: Option<u64>, peer_memory: Option<u64>) {
    let world = args.ranks;
    let recomputed = match args.recompute {
        0 => String::new(),
        every => format!(", 1 of {every} blocks recomputed"),
    };
    let size = match args.model().is_language() {
        true => format!("{} tokens", args.tokens),
        false => format!("{0}x{0}", args.image_size),
    };
    println!(
        "{name}, {device}, {precision}{recomputed}, batch {batch} at {size}, ranks: {world}, threads of each: {threads}",
        device = args.device.name(),
        precision = args.precision.name(),
        batch = args.batch,
        threads = args.common.threads(),
    );
    rows.iter().for_each(|row| print_row(args, row, rows));
    let mebibytes = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    if let Some(bytes) = memory {
        print!("at most {:.0} MiB in memory", mebibytes(bytes));
        println!(
            "{}",
            peer_memory.map_or_else(String::new, |peer| format!(", the peer {:.0}", mebibytes(peer)))
        );
    }
}

/// Prints the step of a strategy, compared with that of the first of `rows`.
fn print_row(args: &TrainArgs, row: &Row<'_>, rows: &[Row<'_>]) {
    let world = args.ranks;
    let strategy = if world > 1 { row.strategy } else { "alone" };
    print!("{strategy}: {:.1} ms a step, {:.0} samples/s", row.seconds * 1e3, args.images() / row.seconds);
    if rows.len() > 1 {
        print!("; {:.3} of the step of {}", row.seconds / rows[0].seconds, rows[0].strategy);
    }
    if world > 1 && row.strategy != "none" {
        print!(
            "; communication: {:.1} MB sent, exposed {:.1} ms, hidden {:.1} ms",
            row.bytes_sent / 1e6,
            row.exposed * 1e3,
            row.hidden * 1e3
        );
    }
    if row.operations > 0 {
        let operations = row.operations as f64;
        print!("; {:.1} GFLOP of rank 0, {:.0} GFLOP/s", operations / 1e9, operations / 1e9 / row.seconds);
    }
    println!();
    if let Some((version, theirs)) = &row.peer {
        let by = if world > 1 { format!(", {} over Gloo", of_peer(row.strategy)) } else { String::new() };
        println!(
            "{version}{by}: {:.1} ms a step, {:.0} samples/s; ratio {:.2}x",
            theirs * 1e3,
            args.images() / theirs,
            theirs / row.seconds
        );
    }
}

impl TrainArgs {
    /// The arguments of an empty command line.
    fn parse_from_nothing() -> Result<Self> {
        let command = Self::augment_args(clap::Command::new("train"));
        Ok(Self::from_arg_matches(&command.try_get_matches_from(["train"])?)?)
    }

    fn model(&self) -> Model {
        self.model.unwrap_or(Model::Resnet18)
    }

    /// Images of all ranks in a step.
    fn images(&self) -> f64 {
        self.batch as f64 * self.ranks as f64
    }
}

impl Row<'_> {
    fn json(&self, args: &TrainArgs, first: &Row<'_>) -> Json {
        let theirs = self.peer.as_ref().map(|(_, seconds)| *seconds);
        json!({
            "strategy": self.strategy, "seconds_per_step": self.seconds, "samples_per_s": args.images() / self.seconds,
            "step_over_first": self.seconds / first.seconds, "bytes_sent": self.bytes_sent,
            "communication_exposed_seconds": self.exposed, "communication_hidden_seconds": self.hidden,
            "operations": self.operations, "gflops": self.operations as f64 / 1e9 / self.seconds,
            "peer": self.peer.as_ref().map(|(version, _)| version),
            "peer_samples_per_s": theirs.map(|theirs| args.images() / theirs),
            "ratio": theirs.map(|theirs| theirs / self.seconds),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_strategy_is_written_next_to_its_circumstances() {
        let row = |name: &str, rate: f64| json!({ "strategy": name, "samples_per_s": rate });
        let one = results(json!({ "model": "mlp" }), vec![row("ddp", 7.0)]);
        assert_eq!((&one["model"], &one["samples_per_s"]), (&json!("mlp"), &json!(7.0)));
        assert_eq!((&one["strategy"], &one["strategies"]), (&json!("ddp"), &json!([row("ddp", 7.0)])));
        let two = results(json!({ "model": "mlp" }), vec![row("ddp", 7.0), row("fsdp", 6.0)]);
        assert_eq!(
            (&two["samples_per_s"], two["strategies"].as_array().map(Vec::len)),
            (&Json::Null, Some(2))
        );
    }
}
