//! Four workers, one of them slow, under every pace of a parameter server: how long it takes, who waits, how stale gradients are.
//!
//! `cargo run --release -p phalanx-sharding --example stragglers`

use std::sync::Arc;
use std::time::{Duration, Instant};

use candle_core::{Device, Tensor};
use phalanx_collectives::{Communicator, threads};
use phalanx_sharding::{Options, PlainUpdate, Strategy, SyncOptions, SyncStats, parallelize};
use phalanx_tensor::optim::Sgd;
use phalanx_tensor::{BuildOptions, Context, Key, Session, StoreBuilder, Tape, Value, loss, nn};

type AnyError = Box<dyn std::error::Error + Send + Sync>;

const WORKERS: usize = 4;
const STEPS: u64 = 60;

/// One worker's training: the seconds that it took, and how it kept step.
fn work(comm: Communicator, strategy: &str) -> Result<(Duration, SyncStats), AnyError> {
    let rank = comm.rank();
    let builder = StoreBuilder::new(BuildOptions::default());
    let layer = nn::Linear::new(&builder.root().pp("fc").block(), 16, 4)?;
    let store = builder.build()?;
    let row = Strategy::named(strategy)?;
    let sync = SyncOptions { staleness: 3, ..SyncOptions::default() };
    let parallel = parallelize(
        &store,
        phalanx_sharding::ProcessMesh::suiting(comm, &row, 0)?,
        row,
        Options::default(),
        sync,
    )?;
    let rule = PlainUpdate::of(Sgd::new(0.0, false, 0.0), 1);
    parallel.set_optimizer(&rule)?;
    let (context, begun) = (Arc::new(Context::new(1)), Instant::now());
    for at in 0..STEPS {
        let step = parallel.begin_step()?;
        let session = Session::training(context.clone(), Key::new(0).step(at).rank(rank));
        let tape = Tape::recording(Session { listener: Some(parallel.clone()), ..session });
        let sample = Tensor::randn(0.0_f32, 1.0, (8, 16), &Device::Cpu)?;
        let logits = layer.forward(&tape, &Value::constant(sample))?;
        let classes: Vec<u32> = (0..8).map(|n| n % 4).collect();
        let loss = loss::cross_entropy(&tape, &logits, &classes, 0.0, loss::LossDivisor::Count(8 * WORKERS))?;
        tape.backward(&loss)?;
        // Each worker has a slow step now and then, and worker 1 is a little slower than the others.
        let slow = at % 8 == 2 * rank as u64 || rank == 1 && at % 3 == 0;
        std::thread::sleep(Duration::from_millis(if slow { 9 } else { 3 }));
        step.finish_with(&rule, 0.1)?;
    }
    let time = begun.elapsed();
    parallel.own_state()?;
    Ok((time, parallel.sync_stats()))
}

fn main() -> Result<(), AnyError> {
    println!(
        "{:8} {:>9} {:>11} {:>10} {:>10}  staleness of updates: 0, 1, 2, …",
        "", "first", "last", "waited", "apart"
    );
    for strategy in ["ps-bsp", "ps-ssp", "ps-asp"] {
        let start = |comm| std::thread::spawn(move || work(comm, strategy));
        let workers: Vec<_> = threads(WORKERS)?.into_iter().map(start).collect();
        let all = workers
            .into_iter()
            .map(|worker| worker.join().expect("no panic"))
            .collect::<Result<Vec<_>, _>>()?;
        let ms = |time: Option<Duration>| time.unwrap_or_default().as_millis();
        let (first, last) =
            (ms(all.iter().map(|worker| worker.0).min()), ms(all.iter().map(|worker| worker.0).max()));
        let waited: Duration = all.iter().map(|worker| worker.1.waited).sum();
        let stats = &all[0].1;
        println!(
            "{strategy:8} {first:>6} ms {last:>8} ms {:>7} ms {:>10}  {:?}",
            waited.as_millis(),
            stats.spread,
            stats.staleness.counts()
        );
    }
    Ok(())
}
