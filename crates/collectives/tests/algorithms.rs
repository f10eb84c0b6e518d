//! Every algorithm on every transport for worlds of 1 to 9 ranks, against a serial reference.

mod common;

use common::{WAYS, Way, on_ranks};
use phalanx_collectives::{Algorithm, CommError, Communicator, ReduceOp};

/// Empty, one element, fewer than ranks, odd, and more than one piece.
const LENGTHS: [usize; 5] = [0, 1, 5, 1003, 70_001];

fn values(rank: usize, len: usize) -> Vec<f32> {
    (0..len).map(|i| ((i * 7 + rank * 3) % 11) as f32).collect()
}

fn check(comm: &Communicator, algorithm: Algorithm) {
    let (rank, world) = (comm.rank(), comm.world_size());
    let comm = comm.using(algorithm);
    let lacks = |result: &Result<(), CommError>| match result {
        Err(CommError::Argument { problem, .. }) => {
            assert!(problem.contains(algorithm.name()), "{problem}");
            true
        }
        Err(other) => panic!("{other}"),
        Ok(()) => false,
    };
    for len in LENGTHS {
        let own = values(rank, len);
        let all: Vec<_> = (0..world).map(|rank| values(rank, len)).collect();
        let total: Vec<f32> = (0..len).map(|i| all.iter().map(|of| of[i]).sum()).collect();
        for op in [ReduceOp::Sum, ReduceOp::Mean] {
            let expected: Vec<f32> = match op {
                ReduceOp::Mean => total.iter().map(|v| v / world as f32).collect(),
                _ => total.clone(),
            };
            let what = format!("{algorithm} {op:?} of {len} on rank {rank} of {world}");
            let mut buffer = own.clone();
            if !lacks(&comm.all_reduce(&mut buffer, op)) {
                assert!(buffer == expected, "all-reduce by {what}");
            }
            let part = rank * len / world..(rank + 1) * len / world;
            let mut buffer = own.clone();
            if !lacks(&comm.reduce_scatter_chunks(&mut buffer, op)) {
                assert!(buffer[part.clone()] == expected[part], "reduce-scatter by {what}");
            }
            for root in [0, world / 2] {
                let mut buffer = own.clone();
                if !lacks(&comm.reduce(&mut buffer, op, root)) {
                    assert!(buffer == if rank == root { &expected } else { &own }[..], "reduce by {what}");
                }
            }
        }
        let chunk = |rank: usize| rank * len / world..(rank + 1) * len / world;
        let mut buffer = own.clone();
        if !lacks(&comm.all_gather_chunks(&mut buffer)) {
            let expected: Vec<f32> = (0..world).flat_map(|rank| all[rank][chunk(rank)].to_vec()).collect();
            assert!(buffer == expected, "all-gather by {algorithm} of {len}");
        }
        for root in [0, world - 1, world / 2] {
            let mut buffer = own.clone();
            if !lacks(&comm.broadcast(&mut buffer, root)) {
                assert!(buffer == all[root], "broadcast by {algorithm} of {len} from {root} of {world}");
            }
        }
    }
}

#[test]
fn every_algorithm_conforms_on_every_way() {
    for way in WAYS {
        for world in 1..=9 {
            on_ranks(way.world(world), |comm| {
                for algorithm in Algorithm::ALL {
                    check(&comm, algorithm);
                }
            });
        }
    }
}

#[test]
fn every_algorithm_reduces() {
    // Which ones there are for an all-reduce is not left to `lacks` above.
    for way in WAYS {
        on_ranks(way.world(4), move |comm| {
            for algorithm in Algorithm::ALL {
                let result = comm.using(algorithm).all_reduce(&mut [1.0_f32; 9], ReduceOp::Sum);
                let direct = matches!(way, Way::Threads | Way::Shared) && cfg!(target_os = "linux");
                assert_eq!(result.is_ok(), algorithm != Algorithm::Direct || direct, "{algorithm}");
            }
        });
    }
}

#[test]
fn the_same_algorithm_gives_the_same_bits_whatever_is_between_the_ranks() {
    for algorithm in Algorithm::ALL {
        if matches!(algorithm, Algorithm::Auto | Algorithm::Direct | Algorithm::Hierarchical) {
            continue;
        }
        let run = |way: Way| {
            on_ranks(way.world(5), move |comm| {
                let mut values: Vec<f32> =
                    (0..10_007).map(|i| ((i * 37 + comm.rank() * 11) as f32).sin()).collect();
                comm.using(algorithm).all_reduce(&mut values, ReduceOp::Sum).expect("a sound world");
                values.into_iter().map(f32::to_bits).collect::<Vec<_>>()
            })
        };
        let expected = run(Way::Threads);
        assert!(expected.windows(2).all(|pair| pair[0] == pair[1]), "{algorithm}: ranks differ");
        for way in [Way::Tcp, Way::Shared, Way::TwoHosts] {
            assert!(run(way) == expected, "{algorithm}: {way:?} differs");
        }
    }
}

#[test]
fn a_reduce_scatter_and_an_all_gather_are_an_all_reduce_to_the_bit() {
    for (way, algorithm) in
        [(Way::Shared, Algorithm::Direct), (Way::Tcp, Algorithm::Ring), (Way::Tcp, Algorithm::PushPull)]
    {
        on_ranks(way.world(3), move |comm| {
            let comm = comm.using(algorithm);
            let values: Vec<f32> = (0..300_007).map(|i| ((i * 37 + comm.rank() * 11) as f32).sin()).collect();
            let (mut whole, mut parts) = (values.clone(), values);
            comm.all_reduce(&mut whole, ReduceOp::Sum).expect("a sound world");
            comm.reduce_scatter_chunks(&mut parts, ReduceOp::Sum).expect("a sound world");
            comm.all_gather_chunks(&mut parts).expect("a sound world");
            let same = whole.iter().zip(&parts).all(|(a, b)| a.to_bits() == b.to_bits());
            assert!(same, "{algorithm}");
        });
    }
}

#[test]
fn ranks_that_choose_different_algorithms_get_an_error_naming_both() {
    let results = on_ranks(Way::Tcp.world(2), |comm| {
        let algorithm = if comm.rank() == 0 { Algorithm::Ring } else { Algorithm::Tree };
        comm.using(algorithm).all_reduce(&mut [1.0_f32; 8], ReduceOp::Sum)
    });
    let text = results.iter().find_map(|r| r.as_ref().err()).expect("an error").to_string();
    assert!(text.contains("by ring") && text.contains("by tree"), "{text}");
}

#[test]
fn costs_are_measured_alike_on_every_rank() {
    for way in WAYS {
        let models = on_ranks(way.world(4), |comm| comm.costs().expect("a sound world"));
        assert!(models.windows(2).all(|pair| pair[0] == pair[1]), "{way:?}: {models:?}");
        let model = models[0];
        assert_eq!(model.direct.is_some(), matches!(way, Way::Threads | Way::Shared), "{way:?}");
        assert_eq!(model.remote.is_some(), matches!(way, Way::TwoHosts | Way::Uneven), "{way:?}");
        let links = [model.local, model.remote].into_iter().flatten();
        for link in links.flat_map(|link| [link.busy, link.alone]).chain(model.direct) {
            assert!(link.alpha > 0.0 && link.alpha < 1.0 && link.beta >= 0.0, "{link:?}");
        }
    }
}
