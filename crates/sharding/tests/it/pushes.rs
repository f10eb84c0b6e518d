//! Codecs between workers and parameter servers: what is pushed and pulled encoded, what is kept, and what it leads to.

use std::sync::Arc;

use phalanx_collectives::Communicator;
use phalanx_sharding::{
    CodecKind, CodecScope, CodecSettings, Options, ParallelStrategy, PlainUpdate, SharedUpdate, Strategy,
    SyncOptions, WeightRounding, parallelize,
};
use phalanx_tensor::ParamStore;
use phalanx_tensor::optim::Sgd;

use crate::common::layers::{AnyError, backward, model, set_values, shown, values};
use crate::common::on_ranks;

fn by(kind: CodecKind) -> Options {
    let settings = CodecSettings { kind, density: 0.1, chunk: 16, seed: 5, ..CodecSettings::default() };
    Options { codec: settings.codec().expect("sound"), ..Options::default() }
}

fn start(
    store: &ParamStore,
    comm: Communicator,
    row: &str,
    (options, sync): (Options, SyncOptions),
) -> Result<Arc<dyn ParallelStrategy>, AnyError> {
    let row = Strategy::named(row)?;
    Ok(parallelize(store, phalanx_sharding::ProcessMesh::suiting(comm, &row, 0)?, row, options, sync)?)
}

fn sgd() -> SharedUpdate {
    PlainUpdate::of(Sgd::new(0.0, false, 0.0), 1)
}

/// Returns the two layers after some steps of ps-bsp with `workers` workers and `servers` separate server ranks.
fn trained(workers: usize, servers: usize, options: fn() -> Options) -> Vec<f32> {
    let ranks = on_ranks(workers + servers, move |comm| {
        let (layers, store) = model().expect("small");
        let rank = comm.rank();
        let sync = SyncOptions { servers, ..SyncOptions::default() };
        let parallel = start(&store, comm, "ps-bsp", (options(), sync)).expect("starts");
        let rule = sgd();
        parallel.set_optimizer(&rule).expect("taken");
        for at in 0..12 {
            let step = parallel.begin_step().expect("none under way");
            // One rank has no sample in the last step.
            if rank < workers && (rank, at) != (workers - 1, 11) {
                backward(&layers, &parallel, (rank, at, workers)).expect("computes");
            }
            step.finish_with(&rule, 0.1).expect("steps");
        }
        if rank < workers {
            return shown(&parallel, &store).expect("shows");
        }
        parallel.unshard().and_then(|()| parallel.reshard()).expect("serves");
        Vec::new()
    });
    assert!(ranks[..workers].iter().all(|rank| *rank == ranks[0]), "all see what servers hold");
    ranks.into_iter().next().expect("a worker")
}

/// The distance of two models in L2, relative to the way that the second has gone from the beginning.
fn off(ours: &[f32], theirs: &[f32]) -> f64 {
    let (_, store) = model().expect("small");
    let first = values(&store).expect("in memory");
    let norm =
        |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(a - b).powi(2)).sum::<f64>().sqrt();
    norm(ours, theirs) / norm(theirs, &first)
}

#[test]
fn encoded_pushes_repeat_to_the_bit_and_stay_near_those_that_are_not() {
    for (workers, servers) in [(2, 0), (3, 0), (2, 1)] {
        let place = format!("{workers} workers, {servers} servers");
        let dense = trained(workers, servers, Options::default);
        let int8 = || by(CodecKind::Int8);
        let ours = trained(workers, servers, int8);
        assert_eq!(ours, trained(workers, servers, int8), "{place}");
        // A gradient is off by half of 1/127 of the largest of its chunk; the whole way by less than 2 %.
        let int8 = off(&ours, &dense);
        assert!(int8 > 0.0 && int8 < 0.02, "{place}: {int8}");
        assert_eq!(trained(workers, servers, || by(CodecKind::Lossless)), dense, "{place}");
        let bf16 = off(&trained(workers, servers, || by(CodecKind::Bf16)), &dense);
        assert!(bf16 > 0.0 && bf16 < 0.01, "{place}: {bf16}");
        let int8 = || Options { weights: Some(WeightRounding::Int8 { chunk: 16 }), ..Options::default() };
        let bf16 = || Options { weights: Some(WeightRounding::Bf16), ..Options::default() };
        let roundings: [(fn() -> Options, f64); 2] = [(int8, 0.05), (bf16, 0.02)];
        for (rounded, most) in roundings {
            let ours = trained(workers, servers, rounded);
            assert_eq!(ours, trained(workers, servers, rounded), "{place}");
            let off = off(&ours, &dense);
            assert!(off > 0.0 && off < most, "{place}, weights by {:?}: {off}", rounded().weights);
        }
    }
}

#[test]
fn interrupted_runs_go_on_to_the_bit() {
    for kind in [CodecKind::TopK, CodecKind::RandomK, CodecKind::Qsgd, CodecKind::Sign, CodecKind::Int4] {
        let ranks = on_ranks(3, move |comm| {
            let rank = comm.rank();
            let begin = || {
                let (layers, store) = model().expect("small");
                let options = Options { weights: Some(WeightRounding::Int8 { chunk: 16 }), ..by(kind) };
                let with = (options, SyncOptions::default());
                let parallel = start(&store, comm.clone(), "ps-bsp", with).expect("starts");
                let rule = sgd();
                parallel.set_optimizer(&rule).expect("taken");
                (layers, store, parallel, rule)
            };
            let take = |layers: &crate::common::layers::Layers,
                        parallel: &Arc<dyn ParallelStrategy>,
                        rule: &SharedUpdate,
                        steps| {
                for at in steps {
                    // A step that is given up is as if it had not been, in what is kept too.
                    let kept = parallel.codec_state().expect("kept");
                    let dropped = parallel.begin_step().expect("none under way");
                    backward(layers, parallel, (rank, at + 100, 3)).expect("computes");
                    drop(dropped);
                    assert_eq!(parallel.codec_state().expect("kept"), kept, "{kind}");
                    let step = parallel.begin_step().expect("none under way");
                    backward(layers, parallel, (rank, at, 3)).expect("computes");
                    step.finish_with(rule, 0.05).expect("steps");
                }
            };
            let (layers, store, parallel, rule) = begin();
            take(&layers, &parallel, &rule, 0..5);
            let weights = shown(&parallel, &store).expect("shows");
            let (kept, own) = (parallel.codec_state().expect("kept"), parallel.own_state().expect("kept"));
            assert_eq!(kept.is_empty(), kind == CodecKind::Int4, "{kind}");
            take(&layers, &parallel, &rule, 5..9);
            let uninterrupted =
                (shown(&parallel, &store).expect("shows"), parallel.codec_state().expect("kept"));

            let (layers, store, parallel, rule) = begin();
            set_values(&store, &weights).expect("fits");
            parallel.load_codec_state(kept).expect("its own");
            parallel.load_own_state(own).expect("its own");
            parallel.broadcast_state(&store).expect("all do");
            take(&layers, &parallel, &rule, 5..9);
            (uninterrupted, (shown(&parallel, &store).expect("shows"), parallel.codec_state().expect("kept")))
        });
        for (uninterrupted, resumed) in ranks {
            assert_eq!(uninterrupted, resumed, "{kind}");
        }
    }
}

#[test]
fn rounded_values_are_what_workers_compute_with_and_not_what_servers_have() {
    let ranks = on_ranks(2, |comm| {
        let (layers, store) = model().expect("small");
        let rank = comm.rank();
        let options = Options { weights: Some(WeightRounding::Int8 { chunk: 8 }), ..Options::default() };
        let parallel =
            start(&store, comm.clone(), "ps-asp", (options, SyncOptions::default())).expect("starts");
        let rule = sgd();
        let step = parallel.begin_step().expect("none under way");
        backward(&layers, &parallel, (rank, 0, 2)).expect("computes");
        step.finish_with(&rule, 0.1).expect("pushes");
        let exact = shown(&parallel, &store).expect("shows");
        let pull = || drop(parallel.begin_step().expect("none under way").reduce().expect("comes"));
        pull();
        comm.barrier("test").expect("sound");
        pull();
        let own = values(&store).expect("in memory");
        let before = parallel.stats().bytes_received;
        pull();
        let header = parallel.stats().bytes_received - before;
        assert_eq!(values(&store).expect("in memory"), own, "what is known stays");
        comm.barrier("test").expect("sound");
        (exact, own, header)
    });
    let (exact, own, _) = &ranks[0];
    assert_eq!((exact, own), (&ranks[1].0, &ranks[1].1), "all have the same, rounded and exact");
    assert!(exact.iter().zip(own).any(|(exact, own)| exact.to_bits() != own.to_bits()));
    let largest = exact.iter().fold(0.0_f32, |largest, value| largest.max(value.abs()));
    assert!(exact.iter().zip(own).all(|(exact, own)| (exact - own).abs() <= largest / 254.0 * 1.001));
    assert_eq!(ranks.iter().map(|rank| rank.2).collect::<Vec<_>>(), [32, 32], "a header of the other server");
}

#[test]
fn workers_that_go_on_without_others_keep_what_they_have_to_make_good() {
    let second: Vec<_> = phalanx_collectives::threads(2).expect("threads").into_iter().map(Some).collect();
    let second = Arc::new(std::sync::Mutex::new(second));
    // Workers 0 and 1, of which 1 dies, and a server.
    on_ranks(3, move |comm| {
        let rank = comm.rank();
        let (layers, store) = model().expect("small");
        let with = || (by(CodecKind::TopK), SyncOptions { servers: 1, ..SyncOptions::default() });
        let parallel = start(&store, comm, "ps-asp", with()).expect("starts");
        let rule = sgd();
        parallel.set_optimizer(&rule).expect("taken");
        if rank < 2 {
            for at in 0..3 {
                let step = parallel.begin_step().expect("none under way");
                backward(&layers, &parallel, (rank, at, 2)).expect("computes");
                step.finish_with(&rule, 0.05).expect("steps");
            }
        }
        parallel.unshard().and_then(|()| parallel.reshard()).expect("all is used");
        let kept = parallel.codec_state().expect("kept");
        assert_eq!(kept.is_empty(), rank == 2, "a server has nothing to make good");
        if rank == 1 {
            return;
        }
        let own = parallel.salvage(3, &mut |_| Ok(())).expect("all is there").expect("it can go on");
        let comm = second.lock().expect("no panic")[rank / 2].take().expect("one each");
        drop(parallel);
        let parallel = start(&store, comm, "ps-asp", with()).expect("starts again");
        parallel.set_optimizer(&rule).expect("taken");
        parallel.load_own_state(own).expect("its own");
        parallel.broadcast_state(&store).expect("all are there");
        assert_eq!(parallel.codec_state().expect("kept"), kept);
        if rank == 0 {
            let step = parallel.begin_step().expect("none under way");
            backward(&layers, &parallel, (rank, 3, 1)).expect("computes");
            step.finish_with(&rule, 0.05).expect("steps");
        }
        parallel.unshard().and_then(|()| parallel.reshard()).expect("all is used");
        assert_eq!(parallel.codec_state().expect("kept") == kept, rank == 2, "training goes on");
    });
}

/// Returns the codec state of a worker of two servers after four steps. With `again` it takes the fourth a second
/// time, as after a failure before the step was counted. `lost` is true for servers that had not used it then.
fn codec_state_after_four_steps(again: bool, lost: [bool; 2]) -> Vec<(String, Vec<f32>)> {
    let second: Vec<_> = phalanx_collectives::threads(3).expect("threads").into_iter().map(Some).collect();
    let second = Arc::new(std::sync::Mutex::new(second));
    let ranks = on_ranks(3, move |comm| {
        let rank = comm.rank();
        let (layers, store) = model().expect("small");
        let with = || (by(CodecKind::TopK), SyncOptions { servers: 2, ..SyncOptions::default() });
        let parallel = start(&store, comm, "ps-asp", with()).expect("starts");
        // Values that stay: a gradient that is computed a second time is the one that it was.
        let rule = PlainUpdate::of(Sgd::new(0.0, false, 0.0), 1);
        parallel.set_optimizer(&rule).expect("taken");
        let take = |parallel: &Arc<dyn ParallelStrategy>, at| {
            let step = parallel.begin_step().expect("none under way");
            backward(&layers, parallel, (0, at, 1)).expect("computes");
            step.finish_with(&rule, 0.0).expect("steps");
        };
        if rank == 0 {
            (0..4).for_each(|at| take(&parallel, at));
        }
        parallel.unshard().and_then(|()| parallel.reshard()).expect("all is used");
        if !again {
            return parallel.codec_state();
        }
        // No server has used the fourth step.
        let mut own = parallel.salvage(3, &mut |_| Ok(())).expect("all is there").expect("it can go on");
        if rank > 0 && lost[rank - 1] {
            let clock = own.iter_mut().find(|(name, _)| name == "clock").expect("a server's");
            // Whole numbers of 16 bits in each of four: its own steps, its version, the worker's clock.
            assert_eq!(clock.1[8..], [4.0, 0.0, 0.0, 0.0]);
            clock.1[8] = 3.0;
        }
        let comm = second.lock().expect("no panic")[rank].take().expect("one each");
        drop(parallel);
        let parallel = start(&store, comm, "ps-asp", with()).expect("starts again");
        parallel.set_optimizer(&rule).expect("taken");
        parallel.load_own_state(own).expect("its own");
        parallel.broadcast_state(&store).expect("all are there");
        if rank == 0 {
            take(&parallel, 3);
        }
        parallel.unshard().and_then(|()| parallel.reshard()).expect("all is used");
        parallel.codec_state()
    });
    ranks.into_iter().next().expect("a worker").expect("on the host")
}

#[test]
fn a_step_that_is_taken_again_leaves_out_what_it_left_out_once() {
    let once = codec_state_after_four_steps(false, [false; 2]);
    assert!(once.iter().any(|(_, left)| left.iter().any(|left| *left != 0.0)), "{once:?}");
    // A server that has used it, and one that uses the repeated push.
    for lost in [[false, false], [true, true], [true, false], [false, true]] {
        assert_eq!(codec_state_after_four_steps(true, lost), once, "lost by {lost:?}");
    }
}

#[test]
fn what_cannot_be_pushed_or_pulled_is_refused() {
    let comm = phalanx_collectives::threads(1).expect("a thread").remove(0);
    let refused = |row: &str, options: Options| {
        let (_, store) = model().expect("small");
        let error = start(&store, comm.clone(), row, (options, SyncOptions::default()));
        error.map(drop).expect_err("it cannot be").to_string()
    };
    for kind in [CodecKind::PowerSgd, CodecKind::Dgc] {
        let error = refused("ps-asp", by(kind));
        let right = "there is: none, bf16, int8, int4, qsgd, sign, topk, randomk, topk-int8, lossless";
        assert!(error.contains(kind.name()) && error.ends_with(right), "{error}");
    }
    let error = refused("ps-bsp", Options { codec_scope: CodecScope::InterHost, ..by(CodecKind::Int8) });
    assert!(error.contains("use all"), "{error}");
    for row in ["local-sgd", "d-psgd"] {
        assert!(refused(row, by(CodecKind::Int8)).contains("use codec none"));
        let rounded = Options { weights: Some(WeightRounding::Int8 { chunk: 8 }), ..Options::default() };
        assert!(refused(row, rounded).contains("gathers no parameters"));
    }
    let none =
        refused("ps-bsp", Options { weights: Some(WeightRounding::Int8 { chunk: 0 }), ..Options::default() });
    assert!(none.contains("at least 1"), "{none}");
}
