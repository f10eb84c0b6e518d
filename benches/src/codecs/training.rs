//! Training over a slow link: two ranks on separate hosts, without and with each codec.

use std::io::{BufRead as _, BufReader};
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use candle_core::{Device, Tensor};
use phalanx_collectives::{ReduceOp, WorldConfig, connect};
use phalanx_models::{MobileNetV2, MobileNetV2Config};
use phalanx_sharding::{CodecSettings, CodecWhen, DataParallel, Observed as _, Options, Overlap, Strategy};
use phalanx_tensor::loss::{LossDivisor, cross_entropy};
use phalanx_tensor::optim::{Optimizer as _, Sgd};
use phalanx_tensor::{BuildOptions, Context, Key, Session, StoreBuilder, Tape, Value};
use serde_json::{Value as Json, json};

use super::link::Link;
use crate::rounds::median;

/// The environment variable of a rank's process. It holds the rank's work as JSON.
const RANK_VARIABLE: &str = "PHALANX_BENCH_CODEC_RANK";

/// The settings of a training over the link.
#[derive(Debug, Clone, Copy)]
pub(super) struct Order {
    pub(super) settings: CodecSettings,
    /// Measured steps, after one warm-up step.
    pub(super) steps: u64,
    /// Images of each rank in a step.
    pub(super) batch: usize,
    /// When the codec runs. With a measured decision, it also measures the codec's computing time.
    pub(super) when: CodecWhen,
}

/// The measurements of rank 0.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Measurements {
    /// Median seconds of a step.
    pub(super) step: f64,
    /// Bytes that a rank sends in a step.
    pub(super) sent: f64,
    /// Bytes that the codec saves in a step, if measured.
    pub(super) saved: f64,
    /// Seconds that the codec computes in a step, if measured.
    pub(super) coding: f64,
}

/// Runs the rank's part and returns true if this process was started as a rank of this benchmark.
pub(crate) fn as_rank() -> Result<bool> {
    let Ok(text) = std::env::var(RANK_VARIABLE) else { return Ok(false) };
    let order: Json = serde_json::from_str(&text).context("the work of a rank")?;
    let number = |key: &str| order[key].as_f64().with_context(|| format!("`{key}` in {order}"));
    let settings = CodecSettings {
        kind: order["kind"].as_str().unwrap_or_default().parse()?,
        density: number("density")?,
        rank: number("rank")? as usize,
        chunk: number("chunk")? as usize,
        ..CodecSettings::default()
    };
    let when = order["when"].as_str().unwrap_or_default().parse()?;
    let order = Order { settings, steps: number("steps")? as u64, batch: number("batch")? as usize, when };
    let mut config = WorldConfig::from_env()?.context("ranks are given in the environment")?;
    config.timeouts.connect = Duration::from_secs(60);
    let seen = rank(&config, &order)?;
    if config.rank == 0 {
        println!(
            "{}",
            json!({ "step": seen.step, "sent": seen.sent, "saved": seen.saved, "coding": seen.coding })
        );
    }
    Ok(true)
}

/// Trains a MobileNetV2 for CIFAR-10 with ddp, on one rank.
fn rank(config: &WorldConfig, order: &Order) -> Result<Measurements> {
    let comm = connect(config)?;
    let builder =
        StoreBuilder::new(BuildOptions { key: Key::new(1), bucket_bytes: 4 << 20, ..Default::default() });
    let model = MobileNetV2::new(
        &builder.root(),
        &MobileNetV2Config { cifar_stem: true, ..MobileNetV2Config::new(10) },
    )?;
    let store = builder.build()?;
    let options = Options {
        codec: order.settings.codec()?,
        codec_when: order.when,
        overlap: Overlap::Always,
        ..Options::default()
    };
    let row = Strategy::named("ddp")?;
    let parallel = DataParallel::with_options(
        &store,
        phalanx_sharding::ProcessMesh::suiting(comm.clone(), &row, 0)?,
        row,
        options,
    )?;
    let context = Arc::new(Context::new(1));
    let images = Tensor::rand(-1.0_f32, 1.0, (order.batch, 3, 32, 32), &Device::Cpu)?;
    let labels: Vec<u32> = (0..order.batch as u32).map(|at| at % 10).collect();
    let mut sgd = Sgd::new(0.9, false, 5e-4);
    let (mut seconds, mut sent, mut seen) = (Vec::new(), 0, Measurements::default());
    // The codec decides before the tenth step.
    let steps = if order.when == CodecWhen::Auto { 9 } else { order.steps };
    for step in 0..=steps {
        comm.barrier("step")?;
        let (start, before) = (Instant::now(), parallel.stats().bytes_sent);
        let session = Session {
            listener: Some(parallel.clone()),
            ..Session::training(context.clone(), Key::new(2).step(step))
        };
        let tape = Tape::recording(session);
        let logits = model.forward(&tape, &Value::constant(images.clone()))?;
        let loss = cross_entropy(&tape, &logits, &labels, 0.0, LossDivisor::Count(2 * order.batch))?;
        let under_way = parallel.begin_step()?;
        tape.backward(&loss)?;
        under_way.finish(|params| sgd.step(params, 1e-3, &context))?;
        // The step of the slower rank.
        let mut elapsed = [start.elapsed().as_secs_f64()];
        sent = parallel.stats().bytes_sent - before;
        comm.all_reduce(&mut elapsed, ReduceOp::Max)?;
        if step > 0 {
            seconds.push(elapsed[0]);
        }
        for verdict in parallel.codec_verdicts() {
            seen.saved += verdict.bytes[0] as f64 - verdict.bytes[1] as f64;
            seen.coding += verdict.coding_seconds;
        }
    }
    comm.barrier("end")?;
    Ok(Measurements { step: median(seconds), sent: sent as f64, ..seen })
}

/// Runs a training over the link.
pub(super) fn over(link: &Link, order: &Order) -> Result<Measurements> {
    let Order { settings, steps, batch, when } = order;
    let work = json!({
        "kind": settings.kind.name(), "density": settings.density, "rank": settings.rank, "chunk": settings.chunk,
        "steps": steps, "batch": batch, "when": when.to_string(),
    });
    let start = |rank: usize| -> Result<_> {
        let output = if rank == 0 { Stdio::piped() } else { Stdio::null() };
        Ok(link.command(rank)?.env(RANK_VARIABLE, work.to_string()).stdout(output).spawn()?)
    };
    let mut ranks = [start(0)?, start(1)?];
    let mut line = String::new();
    BufReader::new(ranks[0].stdout.take().context("rank 0 has an output")?).read_line(&mut line)?;
    for (rank, child) in ranks.iter_mut().enumerate() {
        let status = child.wait()?;
        ensure!(status.success(), "rank {rank} ended with {status}; its output is above");
    }
    let told: Json = serde_json::from_str(&line).with_context(|| format!("rank 0 answered {line:?}"))?;
    let number = |key: &str| told[key].as_f64().unwrap_or(f64::NAN);
    Ok(Measurements {
        step: number("step"),
        sent: number("sent"),
        saved: number("saved"),
        coding: number("coding"),
    })
}
