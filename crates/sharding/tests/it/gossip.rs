//! Gossip: the mean is kept, ranks come together, and steps are those of the formulas.

use std::sync::Arc;

use phalanx_collectives::Communicator;
use phalanx_sharding::{
    Options, ParallelStrategy, PlainUpdate, Strategy, SyncOptions, Topology, parallelize,
};
use phalanx_tensor::ParamStore;
use phalanx_tensor::optim::Sgd;

use crate::common::layers::{AnyError, Layers, backward, model, set_values, shown, values};
use crate::common::on_ranks;

fn start(
    store: &ParamStore,
    comm: Communicator,
    row: &str,
    topology: Topology,
) -> Result<Arc<dyn ParallelStrategy>, AnyError> {
    let row = Strategy::named(row)?;
    let sync = SyncOptions { topology, ..SyncOptions::default() };
    Ok(parallelize(
        store,
        phalanx_sharding::ProcessMesh::suiting(comm, &row, 0)?,
        row,
        Options::default(),
        sync,
    )?)
}

fn train(
    layers: &Layers,
    parallel: &Arc<dyn ParallelStrategy>,
    rate: f64,
    (rank, steps): (usize, std::ops::Range<u64>),
) -> Result<(), AnyError> {
    let rule = PlainUpdate::of(Sgd::new(0.0, false, 0.0), 1);
    for at in steps {
        let step = parallel.begin_step()?;
        backward(layers, parallel, (rank, at, 1))?;
        step.finish_with(&rule, rate)?;
        if parallel.name() == "ad-psgd" {
            // As long as a step of a real model: who never waits takes these in less time than a question needs.
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    }
    Ok(())
}

/// The mean of ranks' values, element by element, in f64.
fn mean(ranks: &[Vec<f32>]) -> Vec<f64> {
    let of = |at: usize| ranks.iter().map(|rank| f64::from(rank[at])).sum::<f64>() / ranks.len() as f64;
    (0..ranks[0].len()).map(of).collect()
}

fn distance(ranks: &[Vec<f32>]) -> f64 {
    let mean = mean(ranks);
    let square = |rank: &Vec<f32>| {
        rank.iter().zip(&mean).map(|(own, mean)| (f64::from(*own) - mean).powi(2)).sum::<f64>()
    };
    (ranks.iter().map(square).sum::<f64>() / ranks.len() as f64).sqrt()
}

#[test]
fn the_mean_is_kept_and_ranks_come_together() {
    for row in ["d-psgd", "sgp", "ad-psgd"] {
        for topology in Topology::ALL {
            for world in [2, 5] {
                let ranks = on_ranks(world, move |comm| {
                    let (layers, store) = model().expect("small");
                    let rank = comm.rank();
                    let parallel = start(&store, comm, row, *topology).expect("starts");
                    // Steps of their own take the ranks apart, and steps of rate 0 bring them together.
                    train(&layers, &parallel, 0.2, (rank, 0..4)).expect("trains");
                    parallel.unshard().expect("shows");
                    parallel.reshard().expect("has its own back");
                    let apart = values(&store).expect("in memory");
                    let before = parallel.sync_stats().consensus_distance.expect("a mean was made");
                    train(&layers, &parallel, 0.0, (rank, 4..60)).expect("trains");
                    parallel.unshard().expect("shows");
                    parallel.reshard().expect("has its own back");
                    let together = values(&store).expect("in memory");
                    let stats = parallel.sync_stats();
                    (
                        apart,
                        together,
                        [before, stats.consensus_distance.expect("a mean was made")],
                        stats.meetings,
                    )
                });
                let what = format!("{row} on a {topology} of {world}");
                let apart: Vec<_> = ranks.iter().map(|rank| rank.0.clone()).collect();
                let together: Vec<_> = ranks.iter().map(|rank| rank.1.clone()).collect();
                for (before, after) in mean(&apart).into_iter().zip(mean(&together)) {
                    assert!((before - after).abs() < 2e-6, "{what}: the mean went from {before} to {after}");
                }
                let (first, last) = (distance(&apart), distance(&together));
                if row == "ad-psgd" {
                    // Who was asked when is a matter of time.
                    assert!(last < 0.7 * first || last < 1e-5, "{what}: {first}, then {last}");
                } else {
                    assert!(first > 1e-3 && last < 0.01 * first, "{what}: {first}, then {last}");
                }
                for (_, _, told, meetings) in &ranks {
                    assert!(
                        (told[0] - first).abs() < 1e-5 && (told[1] - last).abs() < 1e-5,
                        "{what}: {told:?}"
                    );
                    assert!(*meetings > 0, "{what}");
                }
            }
        }
    }
}

#[test]
fn complete_neighbours_without_steps_of_their_own_are_averages() {
    let of = |row: &'static str, topology| {
        on_ranks(4, move |comm| {
            let (layers, store) = model().expect("small");
            let rank = comm.rank();
            let parallel = start(&store, comm, row, topology).expect("starts");
            train(&layers, &parallel, 0.3, (rank, 0..6)).expect("trains");
            shown(&parallel, &store).expect("shows")
        })
    };
    // With all ranks as neighbours a step of d-psgd adds each rank's step to the mean of all: the mean moves as ddp's weights.
    let ddp = on_ranks(4, |comm| {
        let (layers, store) = model().expect("small");
        let rank = comm.rank();
        let row = Strategy::named("ddp").expect("a row");
        let mesh = phalanx_sharding::ProcessMesh::suiting(comm, &row, 0).expect("a mesh");
        let parallel =
            parallelize(&store, mesh, row, Options::default(), SyncOptions::default()).expect("shares");
        let rule = PlainUpdate::of(Sgd::new(0.0, false, 0.0), 1);
        let step = parallel.begin_step().expect("none under way");
        backward(&layers, &parallel, (rank, 0, 4)).expect("computes");
        step.finish_with(&rule, 0.3).expect("steps");
        shown(&parallel, &store).expect("shows")
    });
    let first = on_ranks(4, |comm| {
        let (layers, store) = model().expect("small");
        let rank = comm.rank();
        let parallel = start(&store, comm, "d-psgd", Topology::Complete).expect("starts");
        train(&layers, &parallel, 0.3, (rank, 0..1)).expect("trains");
        shown(&parallel, &store).expect("shows")
    });
    for (a, b) in ddp[0].iter().zip(&first[0]) {
        assert!((a - b).abs() < 1e-6, "{a} and {b}");
    }
    let (ring, exponential) = (of("d-psgd", Topology::Ring), of("sgp", Topology::Exponential));
    assert!(
        ring.iter().all(|rank| *rank == ring[0]) && exponential.iter().all(|rank| *rank == exponential[0])
    );
    assert_eq!(ring, of("d-psgd", Topology::Ring), "runs repeat to the bit");
    assert_eq!(exponential, of("sgp", Topology::Exponential), "runs repeat to the bit");
}

#[test]
fn interrupted_runs_go_on_to_the_bit() {
    for row in ["d-psgd", "sgp"] {
        let ranks = on_ranks(3, move |comm| {
            let rank = comm.rank();
            let begin = || {
                let (layers, store) = model().expect("small");
                let parallel = start(&store, comm.clone(), row, Topology::Exponential).expect("starts");
                (layers, store, parallel)
            };
            let (layers, store, parallel) = begin();
            train(&layers, &parallel, 0.2, (rank, 0..5)).expect("trains");
            // A step that is given up sends nothing again.
            let dropped = parallel.begin_step().expect("none under way");
            backward(&layers, &parallel, (rank, 70, 1)).expect("computes");
            drop(dropped);
            train(&layers, &parallel, 0.2, (rank, 5..7)).expect("trains");
            let state = parallel.own_state().expect("kept");
            let weights = shown(&parallel, &store).expect("shows");
            train(&layers, &parallel, 0.2, (rank, 7..11)).expect("trains");
            let uninterrupted = values(&store).expect("in memory");
            let (layers, store, parallel) = begin();
            set_values(&store, &weights).expect("fits");
            parallel.load_own_state(state).expect("its own");
            parallel.broadcast_state(&store).expect("all do");
            train(&layers, &parallel, 0.2, (rank, 7..11)).expect("trains");
            (uninterrupted, values(&store).expect("in memory"))
        });
        for (uninterrupted, resumed) in ranks {
            assert_eq!(uninterrupted, resumed, "{row}");
        }
    }
}
