//! Local SGD, post-local SGD and DiLoCo: recorded rounds, equalities between them, and resumption to the bit.

use std::sync::{Arc, Mutex};

use candle_core::{Device, Tensor};
use phalanx_collectives::{Algorithm, Communicator};
use phalanx_sharding::{
    OptimizerUpdate, Options, ParallelStrategy, SharedUpdate, Strategy, SyncOptions, parallelize,
};
use phalanx_tensor::optim::{Adam, Optimizer, Sgd};
use phalanx_tensor::{BuildOptions, Context, Init, ParamBucket, ParamStore, StoreBuilder};
use serde_json::json;

use crate::common::layers::{AnyError, Layers, backward, model, set_values, shown, values};
use crate::common::on_ranks;
use crate::common::problem::{Problem, SIZE, assert_near, recorded, sym};

/// Adam whose state a test can look at.
#[derive(Debug)]
struct OwnAdam(Adam, Context);

impl OptimizerUpdate for OwnAdam {
    fn apply(&mut self, params: &[ParamBucket], learning_rate: f64) -> phalanx_tensor::Result<()> {
        self.0.step(params, learning_rate, &self.1)
    }
}

fn adam() -> Arc<Mutex<OwnAdam>> {
    Arc::new(Mutex::new(OwnAdam(Adam::decoupled((0.9, 0.999), 1e-8, 0.1), Context::new(1))))
}

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

/// Steps of a rank on its own samples, with losses divided by its own batch.
fn train(
    layers: &Layers,
    parallel: &Arc<dyn ParallelStrategy>,
    rule: &SharedUpdate,
    (rank, steps): (usize, std::ops::Range<u64>),
) -> Result<(), AnyError> {
    for at in steps {
        let step = parallel.begin_step()?;
        backward(layers, parallel, (rank, at, 1))?;
        step.finish_with(rule, 0.05)?;
    }
    Ok(())
}

#[test]
fn diloco_goes_the_recorded_way() {
    let ranks = on_ranks(2, |comm| {
        let (rank, recorded) = (comm.rank(), &recorded()["diloco"]);
        let builder = StoreBuilder::new(BuildOptions::default());
        let w = builder.root().pp("layer").block().param("w", (1, SIZE), Init::ZEROS).expect("new");
        let store = builder.build().expect("small");
        w.set(&Tensor::from_vec(Problem::start(), (1, SIZE), &Device::Cpu).expect("small"))
            .expect("in memory");
        let sync = SyncOptions { every: 5, ..SyncOptions::default() };
        let parallel = start(&store, comm, "diloco", sync).expect("starts");
        let (problem, rule): (_, SharedUpdate) = (Problem::new(), adam());
        for round in recorded["rounds"].as_array().expect("rounds") {
            let mut losses = Vec::new();
            for _ in 0..5 {
                let now = values(&store).expect("in memory");
                losses.push(problem.loss(rank, &now) as f32);
                let step = parallel.begin_step().expect("none under way");
                let gradient =
                    Tensor::from_vec(problem.gradient(rank, &now), SIZE, &Device::Cpu).expect("small");
                let gradient = phalanx_tensor::FlatStorage::new(gradient).expect("flat");
                store.buckets()[0].set_grads(&gradient).expect("accumulating");
                step.finish_with(&rule, 0.01).expect("steps");
            }
            assert_near("losses", &losses, &round["inner_losses"][rank], 1e-5);
            let global = values(&store).expect("in memory");
            assert_near("global weights", &global, &round["w"], 1e-5);
            assert_near(
                "loss",
                &[problem.loss(rank, &global) as f32],
                &json!([round["global_losses"][rank]]),
                1e-5,
            );
        }
        assert_eq!(parallel.sync_stats().meetings, 4);
        values(&store).expect("in memory")
    });
    assert_eq!(ranks[0], ranks[1], "all have the global weights after a round");
    assert_eq!(sym("w", SIZE, 1.0), Problem::start());
}

#[test]
fn an_outer_step_of_rate_1_without_momentum_averages() {
    let of = |row: &'static str, every: u64| {
        on_ranks(3, move |comm| {
            let (layers, store) = model().expect("small");
            let rank = comm.rank();
            let sync = SyncOptions { every, outer_lr: 1.0, outer_momentum: 0.0, ..SyncOptions::default() };
            let parallel = start(&store, comm, row, sync).expect("starts");
            let rule: SharedUpdate = adam();
            train(&layers, &parallel, &rule, (rank, 0..12)).expect("trains");
            values(&store).expect("in memory")
        })
    };
    for every in [1, 4] {
        let (averaged, outer) = (of("local-sgd", every), of("diloco", every));
        assert_eq!(averaged[0], averaged[2], "equal after a meeting");
        for (a, b) in averaged[0].iter().zip(&outer[0]) {
            assert!((a - b).abs() < 1e-6, "every {every} steps: {a} and {b}");
        }
    }
}

#[test]
fn averages_of_plain_gradient_steps_are_steps_of_ddp() {
    // A mean of weights after one step of gradient descent is the step by the mean gradient.
    let of = |row: &'static str, start_steps: u64| {
        on_ranks(4, move |comm| {
            let (layers, store) = model().expect("small");
            let rank = comm.rank();
            let sync =
                SyncOptions { every: 1, start: start_steps, gradient_scale: 4.0, ..SyncOptions::default() };
            let parallel = start(&store, comm, row, sync).expect("starts");
            let rule = phalanx_sharding::PlainUpdate::of(Sgd::new(0.0, false, 0.0), 1);
            for at in 0..6 {
                let step = parallel.begin_step().expect("none under way");
                backward(&layers, &parallel, (rank, at, 4)).expect("computes");
                step.finish_with(&rule, 0.3).expect("steps");
            }
            values(&store).expect("in memory")
        })
    };
    let ddp = of("ddp", 0);
    for (a, b) in ddp[0].iter().zip(&of("local-sgd", 0)[0]) {
        assert!((a - b).abs() < 1e-6, "{a} and {b}");
    }
    assert_eq!(of("post-local-sgd", 6), ddp, "its first phase is ddp to the bit");
}

#[test]
fn nothing_travels_between_meetings_and_means_are_shown() {
    let ranks = on_ranks(2, |comm| {
        let (layers, store) = model().expect("small");
        let rank = comm.rank();
        let sync = SyncOptions { every: 4, ..SyncOptions::default() };
        let parallel = start(&store, comm, "local-sgd", sync).expect("starts");
        let rule: SharedUpdate = adam();
        let before = parallel.stats().operations;
        train(&layers, &parallel, &rule, (rank, 0..3)).expect("trains");
        assert_eq!(parallel.stats().operations, before, "each is by itself");
        let own = values(&store).expect("in memory");
        let mean = shown(&parallel, &store).expect("shows");
        assert_eq!(values(&store).expect("in memory"), own, "and they are back");
        let distance = parallel.sync_stats().consensus_distance.expect("a mean was made");
        train(&layers, &parallel, &rule, (rank, 3..4)).expect("trains");
        assert!(parallel.stats().operations > before);
        shown(&parallel, &store).expect("shows");
        assert!(parallel.sync_stats().consensus_distance < Some(1e-6), "they have met");
        (own, mean, distance)
    });
    let [(a, mean, distance), (b, other_mean, other_distance)] = &ranks[..] else { panic!("two ranks") };
    assert_ne!(a, b, "they have gone apart");
    assert_eq!((mean, distance), (other_mean, other_distance));
    let mut square = 0.0;
    for ((a, b), mean) in a.iter().zip(b).zip(mean) {
        assert!(((a + b) / 2.0 - mean).abs() < 1e-6);
        square += f64::from(a - mean).powi(2);
    }
    assert!((square.sqrt() - distance).abs() < 1e-6, "{square} and {distance}");
}

#[test]
fn interrupted_runs_go_on_to_the_bit() {
    let base = SyncOptions { every: 4, ..SyncOptions::default() };
    let streaming = SyncOptions { fragments: 2, overlap: 2, outer_bf16: true, ..base.clone() };
    let cases = [
        ("local-sgd", base.clone()),
        ("post-local-sgd", SyncOptions { start: 3, ..base.clone() }),
        ("diloco", base),
        ("diloco", streaming),
    ];
    for (row, sync) in cases {
        // In the middle of a round, and, for the streaming one, of meetings.
        for cut in [5, 7] {
            let sync = sync.clone();
            let ranks = on_ranks(2, move |comm| {
                let (rank, through) = (comm.rank(), 14);
                let (layers, store) = model().expect("small");
                let parallel = start(&store, comm.clone(), row, sync.clone()).expect("starts");
                let own = adam();
                let rule: SharedUpdate = own.clone();
                train(&layers, &parallel, &rule, (rank, 0..cut)).expect("trains");
                let state = parallel.own_state().expect("kept");
                let moments = own.lock().expect("no panic").0.state(parallel.params()).expect("kept");
                let model_file = shown(&parallel, &store).expect("shows");
                train(&layers, &parallel, &rule, (rank, cut..through)).expect("trains");
                let uninterrupted = values(&store).expect("in memory");

                let (layers, store) = model().expect("small");
                let parallel = start(&store, comm, row, sync.clone()).expect("starts");
                set_values(&store, &model_file).expect("fits");
                parallel.load_own_state(state).expect("its own");
                parallel.broadcast_state(&store).expect("all do");
                let own = adam();
                let (steps, moments) = moments;
                own.lock().expect("no panic").0.load_state(parallel.params(), steps, &moments).expect("fits");
                let rule: SharedUpdate = own;
                train(&layers, &parallel, &rule, (rank, cut..through)).expect("trains");
                (uninterrupted, values(&store).expect("in memory"))
            });
            for (uninterrupted, resumed) in ranks {
                assert_eq!(uninterrupted, resumed, "{row}, cut after step {cut}");
            }
        }
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let refused = |row: &'static str, sync: SyncOptions| {
        let errors = on_ranks(2, move |comm| {
            let (_, store) = model().expect("small");
            start(&store, comm, row, sync.clone()).expect_err("it does not fit").to_string()
        });
        errors[0].clone()
    };
    let base = SyncOptions::default();
    let error = refused("diloco", SyncOptions { every: 4, fragments: 5, ..base.clone() });
    assert_eq!(error, "strategy `diloco` has 5 fragments in 4 steps; it needs from 1 to 4");
    let error = refused("diloco", SyncOptions { every: 4, overlap: 4, ..base.clone() });
    assert!(error.contains("must end before the next"), "{error}");
    let error = refused("local-sgd", SyncOptions { fragments: 2, ..base });
    assert!(error.contains("are of diloco"), "{error}");
    for (row, algorithm, problem) in [
        ("ps-ssp", Algorithm::Ring, "it sends messages from rank to rank; use `auto`"),
        ("sgp", Algorithm::Tree, "it sends messages from rank to rank; use `auto`"),
    ] {
        let errors = on_ranks(2, move |comm| {
            let (_, store) = model().expect("small");
            let row = Strategy::named(row).expect("a row");
            let options = Options { algorithm, ..Options::default() };
            let mesh = phalanx_sharding::ProcessMesh::suiting(comm, &row, 0).expect("a mesh");
            parallelize(&store, mesh, row, options, SyncOptions::default())
                .map(drop)
                .expect_err("no such way")
                .to_string()
        });
        assert!(errors[0].contains(problem), "{errors:?}");
    }
    let error = on_ranks(1, |comm| {
        let (_, store) = model().expect("small");
        let row = Strategy::named("local-sgd").expect("a row");
        phalanx_sharding::DataParallel::new(&store, comm, row).expect_err("another engine").to_string()
    });
    assert!(error[0].contains("does not take every step together"), "{error:?}");
}

#[test]
fn meetings_go_the_way_that_is_asked_for() {
    let of = |row: &'static str, algorithm: Algorithm| {
        on_ranks(4, move |comm| {
            let (layers, store) = model().expect("small");
            let (rank, row) = (comm.rank(), Strategy::named(row).expect("a row"));
            let sync = SyncOptions { every: 3, start: 2, ..SyncOptions::default() };
            let options = Options { algorithm, ..Options::default() };
            let parallel = parallelize(
                &store,
                phalanx_sharding::ProcessMesh::suiting(comm, &row, 0).expect("a mesh"),
                row,
                options,
                sync,
            )
            .expect("starts");
            train(&layers, &parallel, &(adam() as SharedUpdate), (rank, 0..9)).expect("trains");
            shown(&parallel, &store).expect("shows")
        })
    };
    for row in ["local-sgd", "post-local-sgd", "diloco"] {
        let auto = of(row, Algorithm::Auto);
        for algorithm in [Algorithm::Ring, Algorithm::Tree, Algorithm::PushPull] {
            let ranks = of(row, algorithm);
            for (a, b) in auto[0].iter().zip(&ranks[0]) {
                assert!((a - b).abs() < 1e-4, "{row} by {algorithm}: {a} and {b}");
            }
        }
    }
}
