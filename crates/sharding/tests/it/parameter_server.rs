//! Parameter servers: ps-bsp against ddp, recorded schedules through real servers, bounds on real threads.

use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use candle_core::{Device, Tensor};
use phalanx_collectives::Communicator;
use phalanx_sharding::synchrony::{Act, RequestQueues, VersionedStore};
use phalanx_sharding::{
    CodecKind, CodecSettings, OptimizerUpdate, Options, ParallelStrategy, PlainUpdate, SharedUpdate,
    Strategy, SyncOptions, parallelize,
};
use phalanx_tensor::optim::{Adam, Optimizer, Sgd, clip_to_norm, grad_sum_of_squares};
use phalanx_tensor::{BuildOptions, Context, Init, ParamBucket, ParamStore, StoreBuilder};
use serde_json::Value as Json;

use crate::common::layers::{AnyError, backward, model, set_values, shown, values};
use crate::common::on_ranks;
use crate::common::problem::{Problem, SIZE, assert_near, recorded};

fn start(
    store: &ParamStore,
    comm: Communicator,
    row: &str,
    sync: SyncOptions,
) -> Result<Arc<dyn ParallelStrategy>, AnyError> {
    let row = Strategy::named(row)?;
    Ok(parallelize(
        store,
        phalanx_sharding::ProcessMesh::suiting(comm, &row, 0)?,
        row,
        Options::default(),
        sync,
    )?)
}

fn adam() -> SharedUpdate {
    PlainUpdate::of(Adam::new((0.9, 0.999), 1e-8, 0.01), 1)
}

#[test]
fn ps_bsp_is_ddp_to_the_bit() {
    for world in 1..=4 {
        let of = |row: &'static str, by_rule: bool| {
            on_ranks(world, move |comm| {
                let (layers, store) = model().expect("small");
                let rank = comm.rank();
                let parallel = start(&store, comm, row, SyncOptions::default()).expect("starts");
                let (rule, context) = (adam(), Context::new(1));
                let mut optimizer = Adam::new((0.9, 0.999), 1e-8, 0.01);
                parallel.set_optimizer(&rule).expect("taken");
                for at in 0..7 {
                    let mut step = parallel.begin_step().expect("none under way");
                    for (micro_batch, more) in [(0, true), (1, false)] {
                        step.micro_batch(more);
                        // One rank has no sample in the last step.
                        if (rank, at) != (world - 1, 6) {
                            backward(&layers, &parallel, (rank, 2 * at + micro_batch, 2 * world))
                                .expect("computes");
                        }
                    }
                    let reduced = step.reduce().expect("sums");
                    let squares = grad_sum_of_squares(reduced.params(), &context).expect("computes");
                    reduced.sum(&squares).expect("sums");
                    let norm = squares.number().expect("of the host").sqrt();
                    clip_to_norm(reduced.params(), norm, 0.1, &context).expect("scales");
                    if by_rule {
                        reduced.update_with(&rule, 0.02).expect("updates");
                    } else {
                        reduced.update(|params| optimizer.step(params, 0.02, &context)).expect("updates");
                    }
                }
                let stats = parallel.sync_stats();
                assert_eq!(stats.staleness.max(), (row == "ps-bsp").then_some(0));
                shown(&parallel, &store).expect("shows")
            })
        };
        // Sharded squares are added in another order than those of the whole.
        let zero = of("zero1", false);
        assert_eq!(of("ps-bsp", false), zero, "{world} ranks, by a closure");
        assert_eq!(of("ps-bsp", true), zero, "{world} ranks, by a rule");
    }
}

#[test]
fn ps_bsp_without_clipping_is_ddp_to_the_bit() {
    let of = |row: &'static str| {
        on_ranks(4, move |comm| {
            let (layers, store) = model().expect("small");
            let rank = comm.rank();
            let parallel = start(&store, comm, row, SyncOptions::default()).expect("starts");
            let rule = PlainUpdate::of(Sgd::new(0.9, true, 0.01), 1);
            for at in 0..8 {
                let step = parallel.begin_step().expect("none under way");
                backward(&layers, &parallel, (rank, at, 4)).expect("computes");
                step.finish_with(&rule, 0.1).expect("steps");
            }
            shown(&parallel, &store).expect("shows")
        })
    };
    assert_eq!(of("ps-bsp"), of("ddp"));
}

/// A command to a worker of a script.
#[derive(Debug, Clone, Copy)]
enum Order {
    Act(Act),
    End,
}

/// Two workers on threads of their own, which act when they are told, against real servers.
struct ScriptedWorkers {
    orders: Vec<Sender<Order>>,
    workers: Vec<std::thread::JoinHandle<Vec<f32>>>,
    strategies: Vec<Arc<dyn ParallelStrategy>>,
}

impl ScriptedWorkers {
    fn start(row: &'static str, staleness: u64) -> Self {
        let started = on_ranks(2, move |comm| {
            let rank = comm.rank();
            let builder = StoreBuilder::new(BuildOptions::default());
            // Outside of any block, so that a step begins when it has come.
            let w = builder.root().param("w", (1, SIZE), Init::ZEROS).expect("new");
            let store = builder.build().expect("small");
            let first = Tensor::from_vec(Problem::start(), (1, SIZE), &Device::Cpu).expect("small");
            w.set(&first).expect("in memory");
            let sync = SyncOptions { staleness, pull_ahead: false, ..SyncOptions::default() };
            (rank, start(&store, comm, row, sync).expect("starts"), store)
        });
        let (mut orders, mut workers, mut strategies) = (Vec::new(), Vec::new(), Vec::new());
        for (rank, parallel, store) in started {
            strategies.push(parallel.clone());
            let (give, take) = channel();
            orders.push(give);
            workers.push(std::thread::spawn(move || {
                let rule = PlainUpdate::of(Sgd::new(0.0, false, 0.0), 1);
                parallel.set_optimizer(&rule).expect("taken");
                let problem = Problem::new();
                let mut open = None;
                for order in take {
                    match order {
                        Order::Act(Act::Pull) => open = Some(parallel.begin_step().expect("none under way")),
                        Order::Act(Act::Push) => {
                            let gradient = problem.gradient(rank, &values(&store).expect("in memory"));
                            let gradient = Tensor::from_vec(gradient, SIZE, &Device::Cpu).expect("small");
                            let gradient = phalanx_tensor::FlatStorage::new(gradient).expect("flat");
                            store.buckets()[0].set_grads(&gradient).expect("accumulating");
                            open.take().expect("a step").finish_with(&rule, 1.0).expect("pushes");
                        }
                        Order::End => break,
                    }
                }
                drop(open);
                shown(&parallel, &store).expect("shows")
            }));
        }
        Self { orders, workers, strategies }
    }

    /// Waits until all servers have seen these pulls and pushes.
    fn settle(&self, pulls: u64, pushes: u64) {
        let begun = Instant::now();
        let seen = |parallel: &Arc<dyn ParallelStrategy>| {
            let stats = parallel.sync_stats();
            (stats.leads.total(), stats.staleness.total()) == (pulls, pushes)
        };
        while !self.strategies.iter().all(seen) {
            assert!(
                begun.elapsed() < Duration::from_secs(20),
                "{pulls} pulls and {pushes} pushes are not done"
            );
            std::thread::sleep(Duration::from_micros(50));
        }
    }
}

fn worker_and_act(event: &Json) -> (usize, Act) {
    let act = if event[1] == "pull" { Act::Pull } else { Act::Push };
    (event[0].as_u64().expect("a worker") as usize, act)
}

#[test]
fn real_servers_go_the_recorded_way() {
    let all = recorded();
    let runs = [
        ("ps-asp", 0, &all["scripted"]["events"], &all["scripted"]["w"]),
        ("ps-asp", 0, &all["stale"]["attempts"], &all["stale"]["runs"]["asp"]["w"]),
        ("ps-ssp", 3, &all["stale"]["attempts"], &all["stale"]["runs"]["ssp_bound3"]["w"]),
        ("ps-ssp", 1, &all["stale"]["attempts"], &all["stale"]["runs"]["ssp_bound1"]["w"]),
        ("ps-ssp", 0, &all["stale"]["attempts"], &all["stale"]["runs"]["ssp_bound0"]["w"]),
    ];
    for (row, bound, attempts, expected) in runs {
        let scripted = ScriptedWorkers::start(row, bound);
        // What is admitted when, by the store alone, so that the next order is given when all before it is done.
        let mut store = VersionedStore::new((), 2, (row == "ps-ssp").then_some(bound));
        let mut waiting = RequestQueues::new(2);
        let (mut pulls, mut pushes) = (0, 0);
        // A worker that waits at the end would wait for ever: its last orders are held back until they are admitted.
        let mut held: [Vec<Act>; 2] = Default::default();
        for attempt in attempts.as_array().expect("a list") {
            let (worker, act) = worker_and_act(attempt);
            waiting.arrive(worker, act, ());
            held[worker].push(act);
            while let Some((worker, act, ())) = waiting.next(store.clocks()) {
                match act {
                    Act::Pull => {
                        store.pull(worker).expect("admitted");
                        pulls += 1;
                    }
                    Act::Push => {
                        store.push(worker, |(), _| ());
                        pushes += 1;
                    }
                }
                held[worker].remove(0);
                scripted.orders[worker].send(Order::Act(act)).expect("it listens");
                scripted.settle(pulls, pushes);
            }
        }
        let staleness: Vec<u64> = store.staleness().counts().to_vec();
        for parallel in &scripted.strategies {
            let stats = parallel.sync_stats();
            assert_eq!(stats.staleness.counts(), staleness, "{row} {bound}");
            assert_eq!(
                (stats.leads.max(), stats.spread),
                (store.leads().max(), store.spread()),
                "{row} {bound}"
            );
        }
        scripted.orders.iter().for_each(|orders| orders.send(Order::End).expect("it listens"));
        drop(scripted.strategies);
        let problem = Problem::new();
        for worker in scripted.workers {
            let reached = worker.join().expect("no panic");
            assert_near(row, &reached, expected, 1e-5);
            assert!(problem.loss(0, &reached) < problem.loss(0, &Problem::start()));
        }
    }
}

#[test]
fn workers_of_different_pace_keep_the_bound() {
    for (row, bound) in [("ps-ssp", 0), ("ps-ssp", 2), ("ps-asp", 0)] {
        let ranks = on_ranks(3, move |comm| {
            let (layers, store) = model().expect("small");
            let rank = comm.rank();
            let sync =
                SyncOptions { staleness: bound, damp: rank < 3, compensation: 0.1, ..SyncOptions::default() };
            let parallel = start(&store, comm, row, sync).expect("starts");
            let rule = adam();
            parallel.set_optimizer(&rule).expect("taken");
            let begun = Instant::now();
            for at in 0..20 {
                let step = parallel.begin_step().expect("none under way");
                backward(&layers, &parallel, (rank, at, 3)).expect("computes");
                if rank == 2 {
                    std::thread::sleep(Duration::from_millis(4));
                }
                step.finish_with(&rule, 0.01).expect("pushes");
            }
            let time = begun.elapsed();
            let all = shown(&parallel, &store).expect("shows");
            (parallel.sync_stats(), time, all)
        });
        for (stats, _, all) in &ranks {
            assert_eq!(*all, ranks[0].2, "{row}: all see what the servers hold");
            assert_eq!((stats.staleness.total(), stats.meetings), (60, 20), "{row}");
            if row == "ps-ssp" {
                assert!(stats.leads.max() <= Some(bound) && stats.spread <= bound + 1, "{row}: {stats:?}");
            } else {
                assert!(stats.spread > 3, "the slow one is left behind: {stats:?}");
            }
        }
        if row == "ps-asp" {
            assert!(
                ranks[0].1 < ranks[2].1,
                "who is fast does not wait: {:?} and {:?}",
                ranks[0].1,
                ranks[2].1
            );
        }
    }
}

#[test]
fn what_a_worker_has_costs_no_bytes() {
    let ranks = on_ranks(2, |comm| {
        let (layers, store) = model().expect("small");
        let rank = comm.rank();
        let parallel = start(&store, comm.clone(), "ps-asp", SyncOptions::default()).expect("starts");
        let rule = adam();
        let step = parallel.begin_step().expect("none under way");
        backward(&layers, &parallel, (rank, 0, 2)).expect("computes");
        step.finish_with(&rule, 0.01).expect("pushes");
        // After this nothing is under way; the first step of the next round gets the last values.
        shown(&parallel, &store).expect("shows");
        let pull = || drop(parallel.begin_step().expect("none under way").reduce().expect("comes"));
        pull();
        comm.barrier("test").expect("sound");
        pull();
        let before = parallel.stats();
        pull();
        let after = parallel.stats();
        let error =
            parallel.begin_step().expect("none under way").finish(|_| Ok(())).expect_err("servers update");
        assert!(error.to_string().contains("give them the optimizer by `set_optimizer`"), "{error}");
        comm.barrier("test").expect("sound");
        after.bytes_received - before.bytes_received
    });
    assert_eq!(ranks, [32, 32], "the header of the other server");
}

/// Adam whose state a test can look at.
#[derive(Debug)]
struct OwnAdam(Adam, Context);

impl OptimizerUpdate for OwnAdam {
    fn apply(&mut self, params: &[ParamBucket], learning_rate: f64) -> phalanx_tensor::Result<()> {
        self.0.step(params, learning_rate, &self.1)
    }
}

#[test]
fn interrupted_runs_of_ps_bsp_go_on_to_the_bit() {
    let ranks = on_ranks(3, |comm| {
        let own = || Arc::new(Mutex::new(OwnAdam(Adam::new((0.9, 0.999), 1e-8, 0.0), Context::new(1))));
        let rank = comm.rank();
        let begin = |rule: &SharedUpdate| {
            let (layers, store) = model().expect("small");
            let parallel = start(&store, comm.clone(), "ps-bsp", SyncOptions::default()).expect("starts");
            parallel.set_optimizer(rule).expect("taken");
            (layers, store, parallel)
        };
        let train = |layers: &crate::common::layers::Layers,
                     parallel: &Arc<dyn ParallelStrategy>,
                     rule: &SharedUpdate,
                     steps| {
            for at in steps {
                // A step that is given up is as if it had not been.
                let dropped = parallel.begin_step().expect("none under way");
                backward(layers, parallel, (rank, at + 100, 3)).expect("computes");
                drop(dropped);
                let step = parallel.begin_step().expect("none under way");
                backward(layers, parallel, (rank, at, 3)).expect("computes");
                step.finish_with(rule, 0.05).expect("steps");
            }
        };
        let optimizer = own();
        let rule: SharedUpdate = optimizer.clone();
        let (layers, store, parallel) = begin(&rule);
        train(&layers, &parallel, &rule, 0..5);
        let state = parallel.own_state().expect("kept");
        let weights = shown(&parallel, &store).expect("shows");
        let (steps, moments) = optimizer.lock().expect("no panic").0.state(parallel.params()).expect("kept");
        train(&layers, &parallel, &rule, 5..9);
        let uninterrupted = shown(&parallel, &store).expect("shows");

        let optimizer = own();
        let rule: SharedUpdate = optimizer.clone();
        let (layers, store, parallel) = begin(&rule);
        set_values(&store, &weights).expect("fits");
        parallel.load_own_state(state).expect("its own");
        parallel.broadcast_state(&store).expect("all do");
        let load = |own: &mut OwnAdam| own.0.load_state(parallel.params(), steps, &moments);
        load(&mut optimizer.lock().expect("no panic")).expect("fits");
        train(&layers, &parallel, &rule, 5..9);
        (uninterrupted, shown(&parallel, &store).expect("shows"))
    });
    for (uninterrupted, resumed) in ranks {
        assert_eq!(uninterrupted, resumed);
    }
}

#[test]
fn ps_bsp_with_servers_of_their_own_is_ddp_to_the_bit() {
    for (workers, servers) in [(1, 1), (2, 1), (3, 2)] {
        let of = |row: &'static str, servers: usize| {
            let ranks = on_ranks(workers + servers, move |comm| {
                let (layers, store) = model().expect("small");
                let rank = comm.rank();
                let sync = SyncOptions { servers, ..SyncOptions::default() };
                let parallel = start(&store, comm, row, sync).expect("starts");
                let rule = adam();
                parallel.set_optimizer(&rule).expect("taken");
                let owns = parallel.params().iter().any(|param| !param.owned().is_empty());
                assert_eq!(owns, servers == 0 || rank >= workers);
                for at in 0..7 {
                    let step = parallel.begin_step().expect("none under way");
                    if rank < workers {
                        backward(&layers, &parallel, (rank, at, workers)).expect("computes");
                    }
                    step.finish_with(&rule, 0.05).expect("steps");
                }
                match rank < workers {
                    true => shown(&parallel, &store).expect("shows"),
                    false => {
                        // It has its elements, and nothing of the model besides.
                        assert_eq!((parallel.bytes().parameters, parallel.bytes().gradients), (0, 0));
                        parallel.unshard().and_then(|()| parallel.reshard()).expect("serves");
                        Vec::new()
                    }
                }
            });
            ranks.into_iter().take(workers).collect::<Vec<_>>()
        };
        assert_eq!(of("ps-bsp", servers), of("ddp", 0), "{workers} workers, {servers} servers");
    }
}

#[test]
fn servers_go_on_with_the_workers_that_are_left_and_make_no_change_twice() {
    let second: Vec<_> = phalanx_collectives::threads(4).expect("threads").into_iter().map(Some).collect();
    let second = Arc::new(Mutex::new(second));
    // Workers 0 to 2, of which 1 dies, and two servers.
    let ends = on_ranks(5, move |comm| {
        let rank = comm.rank();
        let (layers, store) = model().expect("small");
        let sync = SyncOptions { servers: 2, ..SyncOptions::default() };
        let rule = adam();
        let parallel = start(&store, comm, "ps-asp", sync.clone()).expect("starts");
        parallel.set_optimizer(&rule).expect("taken");
        let take = |parallel: &Arc<dyn ParallelStrategy>, steps: std::ops::Range<u64>| {
            for at in steps {
                let step = parallel.begin_step().expect("none under way");
                backward(&layers, parallel, (rank, at, 3)).expect("computes");
                step.finish_with(&rule, 0.05).expect("steps");
            }
        };
        let look = |parallel: &Arc<dyn ParallelStrategy>| match rank < 3 {
            true => shown(parallel, &store).expect("shows"),
            false => {
                parallel.unshard().and_then(|()| parallel.reshard()).map(|()| Vec::new()).expect("serves")
            }
        };
        let steps = 2 + rank as u64;
        if rank < 3 {
            take(&parallel, 0..steps);
        }
        let before = look(&parallel);
        if rank == 1 {
            return None;
        }
        // Worker 0 does not know that its last step has counted.
        let known = if rank == 0 { steps - 1 } else { steps };
        let own = parallel.salvage(known, &mut |_| Ok(())).expect("all is there").expect("it can go on");
        let place = [0, 9, 1, 2, 3][rank];
        let comm = second.lock().expect("no panic")[place].take().expect("one each");
        drop(parallel);
        let parallel = start(&store, comm, "ps-asp", sync).expect("starts again");
        parallel.set_optimizer(&rule).expect("taken");
        parallel.load_own_state(own).expect("its own");
        parallel.broadcast_state(&store).expect("all are there");
        let after = look(&parallel);
        assert_eq!(after, before, "rank {rank}: servers have what they had");
        if rank == 0 {
            take(&parallel, known..steps);
        }
        let again = look(&parallel);
        assert_eq!(again, before, "rank {rank}: the step that is taken again is no second change");
        if rank < 3 {
            take(&parallel, steps..steps + 2);
        }
        let last = look(&parallel);
        assert!(rank >= 3 || last != before, "rank {rank}: training goes on");
        Some(last)
    });
    assert_eq!(ends[0], ends[2], "both workers see the servers' values");
}

/// A codec of a tenth of the gradients, or of chunks of 16.
fn by(kind: CodecKind) -> Options {
    let settings = CodecSettings { kind, density: 0.1, chunk: 16, seed: 5, ..CodecSettings::default() };
    Options { codec: settings.codec().expect("sound"), ..Options::default() }
}

/// The mean loss of two workers over the recorded problem after some steps of ps-bsp, and what is kept.
fn solved(options: fn() -> Options, steps: usize) -> (f64, usize) {
    let ranks = on_ranks(2, move |comm| {
        let rank = comm.rank();
        let builder = StoreBuilder::new(BuildOptions::default());
        let w = builder.root().param("w", (1, SIZE), Init::ZEROS).expect("new");
        let store = builder.build().expect("small");
        w.set(&Tensor::from_vec(Problem::start(), (1, SIZE), &Device::Cpu).expect("small")).expect("fits");
        let row = Strategy::named("ps-bsp").expect("a row");
        let mesh = phalanx_sharding::ProcessMesh::suiting(comm, &row, 0).expect("a mesh");
        let parallel = parallelize(&store, mesh, row, options(), SyncOptions::default()).expect("starts");
        let (rule, problem) = (PlainUpdate::of(Sgd::new(0.0, false, 0.0), 1), Problem::new());
        parallel.set_optimizer(&rule).expect("taken");
        for _ in 0..steps {
            let step = parallel.begin_step().expect("none under way");
            let gradient = problem.gradient(rank, &values(&store).expect("in memory"));
            let gradient = Tensor::from_vec(gradient, SIZE, &Device::Cpu).expect("small");
            store.buckets()[0]
                .set_grads(&phalanx_tensor::FlatStorage::new(gradient).expect("flat"))
                .expect("accumulating");
            step.finish_with(&rule, 0.2).expect("pushes");
        }
        let reached = shown(&parallel, &store).expect("shows");
        let kept: usize = parallel.codec_state().expect("kept").iter().map(|(_, kept)| kept.len()).sum();
        ((problem.loss(0, &reached) + problem.loss(1, &reached)) / 2.0, kept)
    });
    ranks[0]
}

#[test]
fn what_codecs_leave_out_of_pushes_is_made_good() {
    let problem = Problem::new();
    let first = (problem.loss(0, &Problem::start()) + problem.loss(1, &Problem::start())) / 2.0;
    let (dense, _) = solved(Options::default, 200);
    assert!(dense < first - 0.5, "{first} to {dense}");
    for options in [
        || by(CodecKind::TopK),
        || by(CodecKind::TopKInt8),
        || by(CodecKind::Sign),
        || by(CodecKind::RandomK),
    ] {
        let name = options().codec.expect("one").name();
        let (reached, kept) = solved(options, 200);
        assert!(reached < dense + 0.1 * (first - dense), "{name}: {first} to {reached}, without {dense}");
        assert!(kept >= SIZE, "{name}");
    }
}
