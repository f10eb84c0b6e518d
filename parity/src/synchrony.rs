//! `synchrony.json`: scripted asynchronous and stale-synchronous servers, synchronous steps, and rounds of DiLoCo.
//!
//! Schedules are replayed event by event on the store of parameter servers. The synchronous steps use `ps-bsp` and the
//! rounds `diloco`, each with two ranks in this process.

use candle_core::{Device, Tensor};
use phalanx_collectives::threads;
use phalanx_sharding::synchrony::{Act, PushResult, RequestQueues, VersionedStore};
use phalanx_sharding::{Options, PlainUpdate, SharedUpdate, Strategy, SyncOptions, parallelize};
use phalanx_tensor::optim::{Adam, Sgd};
use phalanx_tensor::{BuildOptions, FlatStorage, Init, StoreBuilder};
use serde_json::{Value, json};

use crate::report::numbers;
use crate::{ParityError, Quantity, Reference, fill};

/// The number of parameters of a worker's loss.
const N: usize = 64;

/// The tolerance of weights.
const TOLERANCE: f64 = 1e-5;

/// loss_i(w) = mean((A·w − b_i)²) + mean(cos w).
#[derive(Clone)]
struct Problem {
    start: Vec<f32>,
    matrix: Vec<f32>,
    targets: [Vec<f32>; 2],
}

impl Problem {
    fn new(seed: u64) -> Self {
        let targets = ["b.0", "b.1"].map(|name| fill::sym(name, seed, N, 1.0));
        Self { start: fill::sym("w", seed, N, 1.0), matrix: fill::sym("A", seed, N * N, 0.2), targets }
    }

    fn residual(&self, worker: usize, w: &[f32]) -> Vec<f64> {
        let rows = self.matrix.chunks_exact(N).zip(&self.targets[worker]);
        let row = |(row, target): (&[f32], &f32)| {
            row.iter().zip(w).map(|(a, x)| f64::from(*a) * f64::from(*x)).sum::<f64>() - f64::from(*target)
        };
        rows.map(row).collect()
    }

    fn loss(&self, worker: usize, w: &[f32]) -> f64 {
        let squares: f64 = self.residual(worker, w).iter().map(|r| r * r).sum();
        (squares + w.iter().map(|x| f64::from(*x).cos()).sum::<f64>()) / N as f64
    }

    fn gradient(&self, worker: usize, w: &[f32]) -> Vec<f32> {
        let residual = self.residual(worker, w);
        let of = |column: usize| {
            let along =
                residual.iter().enumerate().map(|(row, r)| f64::from(self.matrix[row * N + column]) * r);
            (2.0 * along.sum::<f64>() - f64::from(w[column]).sin()) / N as f64
        };
        (0..N).map(|column| of(column) as f32).collect()
    }
}

pub(super) fn check(reference: &Reference<'_>) -> Result<Vec<Quantity>, ParityError> {
    let (problem, json) = (Problem::new(reference.seed), reference.json);
    let mut quantities = replay("scripted", &problem, &json["scripted"]["events"], &json["scripted"], None);
    let runs = json["stale"]["runs"].as_object().ok_or_else(|| reference.lacks("stale"))?;
    for (name, run) in runs {
        let bound = run["bound"].as_u64();
        quantities.extend(replay(name, &problem, &json["stale"]["attempts"], run, bound));
    }
    quantities.extend(synchronous(&problem, &json["synchronous"])?);
    quantities.extend(diloco(&problem, &json["diloco"])?);
    Ok(quantities)
}

/// Replays the acts of two workers in order. Each pull is answered once it is admitted.
fn replay(name: &str, problem: &Problem, attempts: &Value, run: &Value, bound: Option<u64>) -> Vec<Quantity> {
    let mut store = VersionedStore::new(problem.start.clone(), 2, bound);
    let mut waiting = RequestQueues::new(2);
    let mut copies = [problem.start.clone(), problem.start.clone()];
    let (mut events, mut pushes, mut norms) = (Vec::new(), Vec::new(), Vec::new());
    for attempt in attempts.as_array().into_iter().flatten() {
        let worker = usize::from(attempt[0] == 1);
        waiting.arrive(worker, if attempt[1] == "pull" { Act::Pull } else { Act::Push }, ());
        while let Some((worker, act, ())) = waiting.next(store.clocks()) {
            events.push(json!([worker, if act == Act::Pull { "pull" } else { "push" }]));
            if act == Act::Pull {
                store.pull(worker);
                copies[worker].clone_from(store.values());
                continue;
            }
            let gradient = problem.gradient(worker, &copies[worker]);
            let (PushResult { pulled, version }, norm) = store.push(worker, |w: &mut Vec<f32>, _| {
                w.iter_mut().zip(gradient).for_each(|(w, g)| *w -= g);
                norm(w)
            });
            pushes.push(json!([worker, pulled, version]));
            norms.push(norm);
        }
    }
    let listed = |of: &Value| of.as_array().cloned().unwrap_or_default();
    let recorded = listed(&run["pushes"]);
    let versions: Vec<Value> = recorded
        .iter()
        .map(|push| json!([push["worker"], push["pulled_version"], push["server_version"]]))
        .collect();
    let recorded_norms: Vec<f64> =
        recorded.iter().map(|push| push["w_l2"].as_f64().unwrap_or(f64::NAN)).collect();
    vec![
        Quantity::exact(&format!("{name} events"), &events, &listed(&run["events"])),
        Quantity::exact(&format!("{name} versions"), &pushes, &versions),
        Quantity::vector(&format!("{name} norms"), &norms, &recorded_norms, TOLERANCE),
        weights(&format!("{name} weights"), store.values(), &run["w"]),
    ]
}

fn norm(w: &[f32]) -> f64 {
    w.iter().map(|w| f64::from(*w).powi(2)).sum::<f64>().sqrt()
}

fn weights(name: &str, found: &[f32], recorded: &Value) -> Quantity {
    let found: Vec<f64> = found.iter().map(|w| f64::from(*w)).collect();
    Quantity::vector(name, &found, &numbers(recorded), TOLERANCE)
}

/// Compares five steps along the mean gradient, by `ps-bsp`.
fn synchronous(problem: &Problem, recorded: &Value) -> Result<Vec<Quantity>, ParityError> {
    let steps = numbers(&recorded["w_l2_after_each"]).len();
    let ranks = on_two_ranks(problem, "ps-bsp", &SyncOptions::default(), (steps, 0.5, false))?;
    let after: Vec<f64> = ranks[0].after.iter().map(|w| norm(w)).collect();
    let last = ranks[0].after.last().map_or(&[][..], Vec::as_slice);
    Ok(vec![
        Quantity::vector("synchronous norms", &after, &numbers(&recorded["w_l2_after_each"]), TOLERANCE),
        weights("synchronous weights", last, &recorded["w"]),
    ])
}

/// Compares rounds of local AdamW steps, with outer steps of Nesterov momentum.
fn diloco(problem: &Problem, recorded: &Value) -> Result<Vec<Quantity>, ParityError> {
    let every = recorded["H"].as_u64().unwrap_or(1);
    let rounds = recorded["rounds"].as_array().cloned().unwrap_or_default();
    let sync = SyncOptions { every, ..SyncOptions::default() };
    let steps = rounds.len() * every as usize;
    let ranks = on_two_ranks(problem, "diloco", &sync, (steps, 0.01, true))?;
    let mut quantities = Vec::new();
    for (at, round) in rounds.iter().enumerate() {
        let (first, last) = (at * every as usize, (at + 1) * every as usize);
        for (rank, run) in ranks.iter().enumerate() {
            let name = format!("diloco round {at} losses of worker {rank}");
            let losses = &run.losses[first..last];
            quantities.push(Quantity::vector(
                &name,
                losses,
                &numbers(&round["inner_losses"][rank]),
                TOLERANCE,
            ));
        }
        let global = &ranks[0].after[last - 1];
        quantities.push(weights(&format!("diloco round {at} weights"), global, &round["w"]));
        let losses: Vec<f64> = (0..2).map(|worker| problem.loss(worker, global)).collect();
        let name = format!("diloco round {at} global losses");
        quantities.push(Quantity::vector(&name, &losses, &numbers(&round["global_losses"]), TOLERANCE));
    }
    Ok(quantities)
}

/// The losses and weights of a rank.
struct Run {
    /// The loss before each step.
    losses: Vec<f64>,
    /// The weights after each step.
    after: Vec<Vec<f32>>,
}

/// Trains two ranks with a strategy, each with its own loss, by AdamW or gradient descent.
fn on_two_ranks(
    problem: &Problem,
    strategy: &'static str,
    sync: &SyncOptions,
    (steps, rate, adam): (usize, f64, bool),
) -> Result<Vec<Run>, ParityError> {
    let ranks = threads(2).map_err(phalanx_sharding::ShardingError::from)?.into_iter().map(|comm| {
        let (problem, sync) = (problem.clone(), sync.clone());
        std::thread::spawn(move || -> Result<Run, ParityError> {
            let rank = comm.rank();
            let builder = StoreBuilder::new(BuildOptions::default());
            // The parameter is outside of any block, so it is resident at the start of a step.
            let w = builder.root().param("w", (1, N), Init::ZEROS)?;
            let store = builder.build()?;
            w.set(&Tensor::from_vec(problem.start.clone(), (1, N), &Device::Cpu)?)?;
            let row = Strategy::named(strategy)?;
            let parallel = parallelize(
                &store,
                phalanx_sharding::ProcessMesh::suiting(comm, &row, 0)?,
                row,
                Options::default(),
                sync,
            )?;
            let rule: SharedUpdate = match adam {
                true => PlainUpdate::of(Adam::decoupled((0.9, 0.999), 1e-8, 0.1), 1),
                false => PlainUpdate::of(Sgd::new(0.0, false, 0.0), 1),
            };
            parallel.set_optimizer(&rule)?;
            let values = || -> Result<Vec<f32>, ParityError> { Ok(w.tensor()?.flatten_all()?.to_vec1()?) };
            let mut run = Run { losses: Vec::new(), after: Vec::new() };
            for _ in 0..steps {
                let step = parallel.begin_step()?;
                let now = values()?;
                run.losses.push(problem.loss(rank, &now));
                let gradient = Tensor::from_vec(problem.gradient(rank, &now), N, &Device::Cpu)?;
                store.buckets()[0].set_grads(&FlatStorage::new(gradient)?)?;
                step.finish_with(&rule, rate)?;
                // Between synchronisations each rank has its own weights.
                let shown = strategy != "diloco";
                if shown {
                    parallel.unshard()?;
                }
                run.after.push(values()?);
                if shown {
                    parallel.reshard()?;
                }
            }
            Ok(run)
        })
    });
    let ranks: Vec<_> = ranks.collect();
    let lost = || ParityError::Sharding(phalanx_sharding::ShardingError::Step("a rank has panicked"));
    ranks.into_iter().map(|rank| rank.join().map_err(|_| lost())?).collect()
}
