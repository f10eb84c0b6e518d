//! Every algorithm on every transport for worlds of 1 to 9 ranks, against a serial reference.

use crate::common::{TOPOLOGIES, Topology, on_ranks};
use half::{bf16, f16};
use phalanx_collectives::{
    Algorithm, CommError, Communicator, CostModel, DType, Element, LinkCost, LinkCosts, OperationRecord,
    ReduceOp, WorldConfig,
};

/// Empty, one element, fewer than ranks, odd, and more than one piece.
const LENGTHS: [usize; 5] = [0, 1, 5, 1003, 70_001];

/// Small whole numbers, exact in every type, so that the order of additions does not matter.
fn values<T: Element>(make: fn(u8) -> T, rank: usize, len: usize) -> Vec<T> {
    (0..len).map(|i| make(((i * 7 + rank * 3) % 5) as u8)).collect()
}

fn check_types(comm: &Communicator, algorithm: Algorithm, full: bool) {
    check::<f32>(comm, algorithm, f32::from);
    check::<u8>(comm, algorithm, |v| v);
    if full {
        check::<f64>(comm, algorithm, f64::from);
        check::<f16>(comm, algorithm, |v| f16::from_f32(v.into()));
        check::<bf16>(comm, algorithm, |v| bf16::from_f32(v.into()));
        check::<i32>(comm, algorithm, i32::from);
        check::<i64>(comm, algorithm, i64::from);
    }
}

fn check<T: Element + std::fmt::Debug>(comm: &Communicator, algorithm: Algorithm, make: fn(u8) -> T) {
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
        let own = values(make, rank, len);
        let all: Vec<_> = (0..world).map(|rank| values(make, rank, len)).collect();
        let reduced = |op: ReduceOp| -> Vec<T> {
            let of = |i: usize| all[1..].iter().fold(all[0][i], |acc, other| T::combine(op, acc, other[i]));
            (0..len).map(of).map(|v| if op == ReduceOp::Mean { v.divide(world) } else { v }).collect()
        };
        let float = matches!(T::DTYPE, DType::F32 | DType::F64 | DType::F16 | DType::BF16);
        for op in [ReduceOp::Sum, if float { ReduceOp::Mean } else { ReduceOp::Max }] {
            let expected = reduced(op);
            let what = format!("{algorithm} {op:?} of {len} on rank {rank} of {world}");
            let mut buffer = own.clone();
            if !lacks(&comm.all_reduce(&mut buffer, op)) {
                assert!(buffer == expected, "all-reduce by {what}");
            }
            let part = rank * len / world..(rank + 1) * len / world;
            let mut buffer = own.clone();
            if !lacks(&comm.reduce_scatter_in_place(&mut buffer, op)) {
                assert!(buffer[part.clone()] == expected[part], "reduce-scatter by {what}");
            }
            for root in [0, world / 2] {
                let mut buffer = own.clone();
                if !lacks(&comm.reduce(&mut buffer, op, root)) {
                    assert!(buffer == *if rank == root { &expected } else { &own }, "reduce by {what}");
                }
            }
        }
        let chunk = |rank: usize| rank * len / world..(rank + 1) * len / world;
        let mut buffer = own.clone();
        if !lacks(&comm.all_gather_in_place(&mut buffer)) {
            let expected: Vec<T> = (0..world).flat_map(|rank| all[rank][chunk(rank)].to_vec()).collect();
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
    for topology in TOPOLOGIES {
        for world in 1..=9 {
            on_ranks(topology.world(world), |comm| {
                for algorithm in Algorithm::ALL {
                    check_types(&comm, algorithm, false);
                }
            });
        }
    }
}

#[test]
#[ignore = "all types take a minute: cargo xtask test --full"]
fn every_algorithm_conforms_for_all_types() {
    for topology in TOPOLOGIES {
        for world in 1..=9 {
            on_ranks(topology.world(world), |comm| {
                for algorithm in Algorithm::ALL {
                    check_types(&comm, algorithm, true);
                }
            });
        }
    }
}

#[test]
fn every_algorithm_reduces() {
    // The algorithms of an all-reduce are listed here, independently of `lacks`.
    for topology in TOPOLOGIES {
        on_ranks(topology.world(4), move |comm| {
            for algorithm in Algorithm::ALL {
                let result = comm.using(algorithm).all_reduce(&mut [1.0_f32; 9], ReduceOp::Sum);
                let direct =
                    matches!(topology, Topology::Threads | Topology::Shared) && cfg!(target_os = "linux");
                assert_eq!(result.is_ok(), algorithm != Algorithm::Direct || direct, "{algorithm}");
            }
        });
    }
}

#[test]
fn an_algorithm_gives_the_same_bits_on_every_transport() {
    for algorithm in Algorithm::ALL {
        if matches!(algorithm, Algorithm::Auto | Algorithm::Direct | Algorithm::Hierarchical) {
            continue;
        }
        let run = |topology: Topology| {
            on_ranks(topology.world(5), move |comm| {
                let mut values: Vec<f32> =
                    (0..10_007).map(|i| ((i * 37 + comm.rank() * 11) as f32).sin()).collect();
                comm.using(algorithm).all_reduce(&mut values, ReduceOp::Sum).expect("a sound world");
                values.into_iter().map(f32::to_bits).collect::<Vec<_>>()
            })
        };
        let expected = run(Topology::Threads);
        assert!(expected.windows(2).all(|pair| pair[0] == pair[1]), "{algorithm}: ranks differ");
        for topology in [Topology::Tcp, Topology::Shared, Topology::TwoHosts] {
            assert!(run(topology) == expected, "{algorithm}: {topology:?} differs");
        }
    }
}

#[test]
fn a_reduce_scatter_and_an_all_gather_are_an_all_reduce_to_the_bit() {
    for (topology, algorithm) in [
        (Topology::Shared, Algorithm::Direct),
        (Topology::Tcp, Algorithm::Ring),
        (Topology::Tcp, Algorithm::PushPull),
    ] {
        on_ranks(topology.world(3), move |comm| {
            let comm = comm.using(algorithm);
            let values: Vec<f32> = (0..300_007).map(|i| ((i * 37 + comm.rank() * 11) as f32).sin()).collect();
            let (mut whole, mut parts) = (values.clone(), values);
            comm.all_reduce(&mut whole, ReduceOp::Sum).expect("a sound world");
            comm.reduce_scatter_in_place(&mut parts, ReduceOp::Sum).expect("a sound world");
            comm.all_gather_in_place(&mut parts).expect("a sound world");
            let same = whole.iter().zip(&parts).all(|(a, b)| a.to_bits() == b.to_bits());
            assert!(same, "{algorithm}");
        });
    }
}

#[test]
fn ranks_that_choose_different_algorithms_get_an_error_naming_both() {
    let results = on_ranks(Topology::Tcp.world(2), |comm| {
        let algorithm = if comm.rank() == 0 { Algorithm::Ring } else { Algorithm::Tree };
        comm.using(algorithm).all_reduce(&mut [1.0_f32; 8], ReduceOp::Sum)
    });
    let text = results.iter().find_map(|r| r.as_ref().err()).expect("an error").to_string();
    assert!(text.contains("by ring") && text.contains("by tree"), "{text}");
}

#[test]
fn costs_are_measured_alike_on_every_rank() {
    for topology in TOPOLOGIES {
        let models = on_ranks(topology.world(4), |comm| comm.costs().expect("a sound world"));
        assert!(models.windows(2).all(|pair| pair[0] == pair[1]), "{topology:?}: {models:?}");
        let model = models[0];
        assert_eq!(
            model.direct.is_some(),
            matches!(topology, Topology::Threads | Topology::Shared),
            "{topology:?}"
        );
        assert_eq!(
            model.remote.is_some(),
            matches!(topology, Topology::TwoHosts | Topology::Uneven),
            "{topology:?}"
        );
        let links = [model.local, model.remote].into_iter().flatten();
        for link in links.flat_map(|link| [link.busy, link.alone]).chain(model.direct) {
            assert!(link.alpha > 0.0 && link.alpha < 1.0 && link.beta >= 0.0, "{link:?}");
        }
    }
}

#[test]
fn stored_costs_are_used_as_they_are() {
    let slow =
        |alpha| LinkCosts { busy: LinkCost { alpha, beta: 1e-9 }, alone: LinkCost { alpha, beta: 1e-9 } };
    for (alpha, chosen) in [(1.0, "halving-doubling"), (0.0, "ring")] {
        let costs = CostModel { direct: None, local: Some(slow(alpha)), remote: None, gamma: 1e-9 };
        let world = Topology::Tcp.world_with(7, |config| WorldConfig { costs: Some(costs), ..config });
        let found = on_ranks(world, move |comm| {
            comm.all_reduce(&mut vec![1.0_f32; 10_000], ReduceOp::Sum).expect("a sound world");
            assert_eq!(comm.costs(), Ok(costs));
            comm.recent().last().map(|last| last.algorithm.clone())
        });
        assert!(found.iter().all(|found| found.as_deref() == Some(chosen)), "{found:?}");
    }
}

/// Returns the algorithm of each of a few operations on a communicator.
fn ways_taken(comm: &Communicator) -> Vec<String> {
    comm.all_reduce(&mut [1.0_f32; 8], ReduceOp::Sum).expect("sound");
    comm.reduce_scatter_in_place(&mut [1.0_f32; 9], ReduceOp::Sum).expect("sound");
    comm.gatherv(&[1_u8], 0).expect("sound");
    // To choose an algorithm, a communicator may measure its links in between.
    let is_own = |record: &OperationRecord| !record.operation.contains("measuring");
    let taken: Vec<String> =
        comm.recent().into_iter().filter(is_own).map(|record| record.algorithm).collect();
    taken[taken.len() - 3..].to_vec()
}

#[test]
fn a_preference_is_followed_where_there_is_such_a_way_also_in_parts_of_the_world() {
    for topology in [Topology::Threads, Topology::Tcp, Topology::Shared, Topology::TwoHosts] {
        on_ranks(topology.world(3), move |comm| {
            let preferring = comm.preferring(Algorithm::HalvingDoubling);
            // Three ranks: halving-doubling has an all-reduce, but no reduce-scatter with chunks in place, and no gather.
            let taken = ways_taken(&preferring);
            assert_eq!(taken[0], "halving-doubling", "{topology:?}");
            assert!(taken[1..].iter().all(|way| way != "halving-doubling"), "{topology:?}: {taken:?}");
            let part = preferring.split(Some(0), 0).expect("sound").expect("all have a colour");
            assert_eq!(ways_taken(&part)[0], "halving-doubling", "{topology:?}");
            assert_eq!(
                ways_taken(&part.preferring(Algorithm::SingleReducer))[0],
                "single-reducer",
                "{topology:?}"
            );
            // The original communicator keeps its preference.
            assert_ne!(ways_taken(&comm)[0], "halving-doubling", "{topology:?}");
        });
    }
}

#[test]
fn algorithms_have_the_names_of_the_command_line() {
    let names = [
        "auto",
        "direct",
        "ring",
        "tree",
        "halving-doubling",
        "hierarchical",
        "single-reducer",
        "push-pull",
        "2d",
    ];
    for (name, algorithm) in names.into_iter().zip(Algorithm::ALL) {
        assert_eq!((name.parse(), algorithm.to_string()), (Ok(algorithm), name.to_owned()));
    }
    let error = "single".parse::<Algorithm>().expect_err("no such name").to_string();
    assert!(error.contains("single-reducer"), "{error}");
}
