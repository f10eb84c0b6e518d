//! Meshes with axes along which ranks have the same samples: they change no loss.

use phalanx_collectives::threads;
use phalanx_config::Resolved;
use phalanx_run::StopFlag;
use phalanx_sharding::STRATEGIES;
use phalanx_trainer::engine::{NoopObserver, Observer, World, train};

use crate::harness::Place;
use crate::harness::engine::{Recorder, resolve, run_in};

const STEPS: usize = 4;

/// The losses of all steps, and the measures of the test split.
type Curve = Vec<Vec<f64>>;

fn resolved(strategy: &str, ranks: usize, further: &[&str]) -> Resolved {
    let common = "train.global_batch=6 train.bucket_kib=32 data.images=14 data.test_images=5 train.threads=1 eval.batch=2 eval.every=0 \
        sample.rows=1 sample.columns=1 data.tail=ragged train.clip_norm=0.5 train.ema=0.8";
    let own = format!("train.steps={STEPS} train.ranks={ranks} train.strategy={strategy}");
    resolve(&[common, &own, &further.join(" ")])
}

/// Trains with `ranks` threads for each of the `duplicates` ranks that do the same work.
fn curve(resolved: &Resolved, ranks: usize, duplicates: usize) -> Curve {
    let program = phalanx::program();
    let task = program.task_of(&resolved.config).expect("a task");
    let place = Place::new();
    let folder = run_in(&place.path("run"));
    let recorder = Recorder::of_steps(|report| report.phases.iter().map(|phase| phase.loss).collect());
    let recorder = recorder.and_evaluations(|measures| measures.iter().map(|(_, value)| *value).collect());
    let stop = StopFlag::default();
    std::thread::scope(|scope| {
        for comm in threads(ranks * duplicates).expect("a world") {
            let observer: Box<dyn Observer + Send> = match comm.rank() {
                0 => Box::new(recorder.clone()),
                _ => Box::new(NoopObserver),
            };
            let (folder, stop) = (&folder, &stop);
            scope.spawn(move || {
                let world = World::thread(comm).duplicated(duplicates);
                let strategy = resolved.config.train.strategy;
                train(task, folder, resolved, &world, stop, observer)
                    .unwrap_or_else(|error| panic!("{strategy} on {ranks} × {duplicates}: {error}"));
            });
        }
    });
    let curve: Curve = recorder.take();
    assert_eq!(curve.len(), STEPS + 1, "{}: every step and the test split", resolved.config.train.strategy);
    curve
}

#[test]
fn a_further_axis_of_one_rank_changes_no_bit() {
    for strategy in STRATEGIES {
        let plain = curve(&resolved(strategy.name, 2, &[]), 2, 1);
        let further = curve(&resolved(strategy.name, 2, &["parallel.context=1 parallel.pipeline=1"]), 2, 1);
        // Ranks of other strategies are any number of steps apart.
        if strategy.is_bulk_synchronous() {
            assert_eq!(further, plain, "{strategy}");
        }
    }
}

#[test]
fn ranks_that_do_the_same_work_count_once() {
    for strategy in STRATEGIES.iter().filter(|strategy| strategy.is_bulk_synchronous()) {
        for ranks in [1, 2] {
            let once = curve(&resolved(strategy.name, ranks, &[]), ranks, 1);
            let twice = curve(&resolved(strategy.name, ranks, &[]), ranks, 2);
            assert_eq!(twice, once, "{strategy} on {ranks} data ranks");
        }
    }
}

#[test]
fn degrees_of_the_data_axes_change_no_loss() {
    let losses = |strategy: &str, degrees: &[&str]| curve(&resolved(strategy, 4, degrees), 4, 1);
    let plain = losses("hsdp", &[]);
    assert_eq!(losses("hsdp", &["parallel.replicate=2", "parallel.shard=-1"]), plain);
    let ddp = losses("ddp", &[]);
    for (row, split) in ddp.iter().zip(losses("ddp", &["parallel.replicate=2", "parallel.shard=2"])) {
        for (one, other) in row.iter().zip(split) {
            assert!((one - other).abs() <= 1e-5 * one.abs(), "{one} and {other}");
        }
    }
}
