//! Every operation on every transport for worlds of 1 to 9 ranks, all types and odd lengths, against a serial reference.

mod common;

use std::time::Duration;

use common::{WAYS, Way, on_ranks};
use half::{bf16, f16};
use phalanx_collectives::{CommError, Communicator, Element, ReduceOp, threads};

const LENGTHS: [usize; 6] = [0, 1, 2, 7, 1000, 100_003];

/// Small whole numbers, exact in every type, so that the order of additions does not matter.
fn fill<T: Element>(make: fn(u8) -> T, rank: usize, len: usize) -> Vec<T> {
    (0..len).map(|i| make(((i * 7 + rank * 3) % 5) as u8)).collect()
}

fn check_type<T: Element + std::fmt::Debug>(comm: &Communicator, make: fn(u8) -> T, float: bool) {
    let (rank, world) = (comm.rank(), comm.world_size());
    for len in LENGTHS {
        let all: Vec<Vec<T>> = (0..world).map(|rank| fill(make, rank, len)).collect();
        let own = all[rank].clone();
        for op in [ReduceOp::Sum, ReduceOp::Min, ReduceOp::Max, ReduceOp::Product, ReduceOp::Mean] {
            if op == ReduceOp::Mean && !float {
                let error = comm.all_reduce(&mut own.clone(), op).expect_err("no mean of integers");
                assert!(matches!(error, CommError::Unsupported { .. }));
                continue;
            }
            let expected: Vec<T> = (0..len)
                .map(|i| {
                    let total = all[1..].iter().fold(all[0][i], |acc, other| T::combine(op, acc, other[i]));
                    if op == ReduceOp::Mean { total.divide(world) } else { total }
                })
                .collect();
            let mut values = own.clone();
            comm.all_reduce(&mut values, op).expect("a sound world");
            assert!(
                values == expected,
                "all-reduce {op:?} of {len} {:?} on rank {rank} of {world}",
                T::DTYPE
            );
            let values = comm.all_reduce_async(own.clone(), op).wait().expect("a sound world");
            assert!(values == expected, "asynchronous all-reduce {op:?} of {len}");
            let part = comm.reduce_scatter(&own, op).expect("a sound world");
            assert!(
                part == expected[rank * len / world..(rank + 1) * len / world],
                "reduce-scatter of {len}"
            );
            let root = len % world;
            let mut values = own.clone();
            comm.reduce(&mut values, op, root).expect("a sound world");
            assert!(values == if rank == root { expected } else { own.clone() }, "reduce of {len}");
        }
        assert!(comm.all_gather(&own).expect("a sound world") == all.concat(), "all-gather of {len}");
        let chunk = |rank: usize| rank * len / world..(rank + 1) * len / world;
        let mut chunks = vec![T::zeroed(); len];
        chunks[chunk(rank)].copy_from_slice(&own[chunk(rank)]);
        let expected: Vec<T> = (0..world).flat_map(|rank| all[rank][chunk(rank)].to_vec()).collect();
        let later = comm.all_gather_chunks_async(chunks.clone());
        comm.all_gather_chunks(&mut chunks).expect("a sound world");
        assert!(chunks == expected, "all-gather of chunks of {len}");
        assert!(later.wait().expect("a sound world") == expected, "asynchronous all-gather of {len}");
        let expected: Vec<T> = (0..world).flat_map(|from| all[from][chunk(rank)].to_vec()).collect();
        assert!(comm.all_to_all(&own).expect("a sound world") == expected, "all-to-all of {len}");
        let parts: Vec<Vec<T>> = (0..world).map(|to| own[..len * (to + 1) / world].to_vec()).collect();
        let got = comm.all_to_all_ragged(&parts).expect("a sound world");
        for (from, got) in got.iter().enumerate() {
            assert!(*got == all[from][..len * (rank + 1) / world], "ragged all-to-all of {len} from {from}");
        }
        let ragged = comm.all_gather_ragged(&own[..len * (rank + 1) / world]).expect("a sound world");
        for (other, got) in ragged.iter().enumerate() {
            assert!(*got == all[other][..len * (other + 1) / world], "ragged all-gather of {len}");
        }
        for root in [0, world - 1] {
            let mut values = own.clone();
            comm.broadcast(&mut values, root).expect("a sound world");
            assert!(values == all[root], "broadcast of {len} from {root}");
            let gathered = comm.gather(&own, root).expect("a sound world");
            assert!(
                gathered == if rank == root { all.clone() } else { Vec::new() },
                "gather of {len} to {root}"
            );
            let parts = if rank == root { all.clone() } else { Vec::new() };
            assert!(
                comm.scatter(&parts, root).expect("a sound world") == own,
                "scatter of {len} from {root}"
            );
        }
    }
}

/// Everything that does not take a buffer, without waiting.
fn check_asynchronous(comm: &Communicator) {
    let (rank, world) = (comm.rank(), comm.world_size());
    let own = vec![rank as i32; 3];
    let root = world - 1;
    let all: Vec<Vec<i32>> = (0..world).map(|rank| vec![rank as i32; 3]).collect();
    let ragged = comm.all_gather_ragged_async(own.clone());
    let gathered = comm.gather_async(own.clone(), root);
    let scattered = comm.scatter_async(if rank == root { all.clone() } else { Vec::new() }, root);
    let exchanged = comm.all_to_all_async((0..world as i32).collect());
    let parts = comm.all_to_all_ragged_async(vec![own.clone(); world]);
    let reduced = comm.reduce_async(own.clone(), ReduceOp::Max, root);
    let chunks = comm.reduce_scatter_chunks_async(vec![1_i64; world], ReduceOp::Sum);
    let sent = comm.broadcast_async(own.clone(), root);
    let together =
        comm.all_reduce_coalesced_async(vec![vec![1_u8; 5], Vec::new(), vec![2; 3]], ReduceOp::Max);
    let barrier = comm.barrier_async("asynchronous");
    assert_eq!(ragged.wait().expect("sound"), all);
    assert_eq!(gathered.wait().expect("sound"), if rank == root { all.clone() } else { Vec::new() });
    assert_eq!(scattered.wait().expect("sound"), own);
    assert_eq!(exchanged.wait().expect("sound"), vec![rank as i32; world]);
    assert_eq!(parts.wait().expect("sound"), all);
    assert_eq!(reduced.wait().expect("sound"), if rank == root { all[root].clone() } else { own.clone() });
    assert_eq!(chunks.wait().expect("sound")[rank], world as i64);
    assert_eq!(sent.wait().expect("sound"), all[root]);
    assert_eq!(together.wait().expect("sound"), [vec![1; 5], Vec::new(), vec![2; 3]]);
    barrier.wait().expect("sound");
    if world > 1 {
        let (next, previous) = ((rank + 1) % world, (rank + world - 1) % world);
        let sent = comm.send_async(own.clone(), next);
        let got = comm.receive_async(vec![0; 3], previous);
        assert_eq!((sent.wait(), got.wait()), (Ok(own), Ok(all[previous].clone())));
    }
    let mut two = [vec![1.0_f32, 2.0], vec![3.0]];
    comm.all_reduce_coalesced(&mut two, ReduceOp::Mean).expect("sound");
    assert_eq!(two, [vec![1.0, 2.0], vec![3.0]]);
}

/// Every operation: of all types in small worlds or if that is wanted, of two of them in larger ones.
fn check_all(comm: &Communicator, full: bool) {
    check_type::<f32>(comm, f32::from, true);
    check_type::<bf16>(comm, |v| bf16::from_f32(v.into()), true);
    if full || comm.world_size() <= 4 {
        check_type::<f64>(comm, f64::from, true);
        check_type::<f16>(comm, |v| f16::from_f32(v.into()), true);
        check_type::<i32>(comm, i32::from, false);
        check_type::<i64>(comm, i64::from, false);
        check_type::<u8>(comm, |v| v, false);
    }
    check_asynchronous(comm);
    comm.barrier("end").expect("a sound world");
    let stats = comm.stats();
    assert!(stats.operations > 100);
    assert_eq!(stats.bytes_sent > 0, comm.world_size() > 1);
}

#[test]
fn every_way_conforms() {
    for way in WAYS {
        for world in 1..=9 {
            on_ranks(way.world(world), |comm| check_all(&comm, false));
        }
    }
}

#[test]
#[ignore = "all types in all worlds take a minute: cargo xtask test --full"]
fn every_way_conforms_for_all_types_in_all_worlds() {
    for way in WAYS {
        for world in 5..=9 {
            on_ranks(way.world(world), |comm| check_all(&comm, true));
        }
    }
}

#[test]
fn lengths_around_a_slot_conform() {
    on_ranks(Way::Shared.world(9), |comm| {
        let rank = comm.rank() as f32;
        for len in [0, 1, 8, 2048, 2049, 65_535, 65_536, 65_537, 200_000, 3, 131_072, 9] {
            let mut values: Vec<f32> = (0..len).map(|i| (i % 100) as f32 + rank).collect();
            comm.all_reduce(&mut values, ReduceOp::Sum).expect("a sound world");
            let expected = |i: usize| 9.0 * (i % 100) as f32 + 36.0;
            assert!(values.iter().enumerate().all(|(i, value)| *value == expected(i)), "{len}");
            comm.all_reduce(&mut values, ReduceOp::Mean).expect("a sound world");
            assert!(values.iter().enumerate().all(|(i, value)| *value == expected(i)), "{len}");
        }
    });
}

#[test]
fn results_are_the_same_bits_on_every_rank_and_in_every_run() {
    let run = |ranks: Vec<Communicator>| {
        on_ranks(ranks, |comm| {
            let mut values: Vec<f32> =
                (0..10_007).map(|i| ((i * 37 + comm.rank() * 11) as f32).sin()).collect();
            comm.all_reduce(&mut values, ReduceOp::Sum).expect("a sound world");
            values.into_iter().map(f32::to_bits).collect::<Vec<_>>()
        })
    };
    let expected = run(threads(3).expect("threads"));
    assert!(expected.windows(2).all(|pair| pair[0] == pair[1]));
    assert_eq!(run(threads(3).expect("threads")), expected);
    assert_eq!(run(Way::Shared.world(3)), expected, "the transport does not matter");
}

#[test]
fn asynchronous_operations_finish_in_the_order_of_their_issue() {
    on_ranks(Way::Tcp.world(2), |comm| {
        let handles: Vec<_> = (0..50_u8)
            .map(|i| comm.all_reduce_async(vec![f32::from(i); 1 + usize::from(i) * 997], ReduceOp::Sum))
            .collect();
        // A blocking operation waits for all before it.
        comm.barrier("after").expect("a sound world");
        for (i, handle) in handles.into_iter().enumerate() {
            assert!(handle.is_done(), "{i}");
            assert_eq!(handle.wait().expect("a sound world")[0], 2.0 * i as f32);
        }
    });
}

#[test]
fn ranks_that_disagree_get_an_error_naming_both() {
    for way in [Way::Tcp, Way::Shared, Way::Threads] {
        let world = || way.world(2);
        let results = on_ranks(world(), |comm| {
            if comm.rank() == 0 {
                comm.all_reduce(&mut [1.0_f32; 8], ReduceOp::Sum)
            } else {
                comm.all_reduce(&mut [1.0_f64; 8], ReduceOp::Sum)
            }
        });
        assert!(
            results.iter().any(|result| match result {
                Err(CommError::Mismatch { ours, theirs, .. }) => ours.contains("f") && theirs != ours,
                _ => false,
            }),
            "types: {results:?}"
        );
        let results =
            on_ranks(world(), |comm| comm.all_reduce(&mut vec![1.0_f32; 8 + comm.rank()], ReduceOp::Sum));
        let text = results.iter().find_map(|r| r.as_ref().err()).expect("an error").to_string();
        assert!(text.contains("of 8 elements") && text.contains("of 9 elements"), "{text}");
        let results = on_ranks(world(), |comm| match comm.rank() {
            0 => comm.all_reduce(&mut [1.0_f32; 8], ReduceOp::Sum),
            _ => comm.broadcast(&mut [1.0_f32; 8], 1).and_then(|()| comm.barrier("after")),
        });
        let text = results.iter().find_map(|r| r.as_ref().err()).expect("an error").to_string();
        assert!(text.contains("all-reduce (sum) of 8"), "{text}");
        assert!(text.contains("broadcast of 8") || text.contains("barrier"), "{text}");
        let results = on_ranks(world(), |comm| comm.barrier(if comm.rank() == 0 { "epoch" } else { "save" }));
        let text = results[0].as_ref().expect_err("names differ").to_string();
        assert!(text.contains("epoch") && text.contains("save"), "{text}");
    }
}

#[test]
fn an_abort_reaches_everybody_with_its_reason() {
    for ranks in WAYS.map(|way| way.world(3)) {
        let results = on_ranks(ranks, |comm| {
            if comm.rank() == 1 {
                std::thread::sleep(Duration::from_millis(100));
                comm.abort("the loss is NaN at step 7");
                return Ok(());
            }
            comm.all_reduce(&mut [0.0_f32; 100], ReduceOp::Sum)
        });
        for rank in [0, 2] {
            let expected = CommError::Aborted { rank: 1, reason: "the loss is NaN at step 7".into() };
            assert_eq!(results[rank], Err(expected));
        }
    }
}

#[test]
fn arguments_are_checked() {
    on_ranks(threads(2).expect("threads"), |comm| {
        assert!(matches!(comm.broadcast(&mut [0_u8], 2), Err(CommError::Argument { .. })));
        if comm.rank() == 0 {
            assert!(matches!(comm.scatter(&[vec![1_u8]], 0), Err(CommError::Argument { .. })));
        }
        comm.shutdown();
        assert_eq!(comm.barrier("late"), Err(CommError::Closed));
    });
}

#[test]
fn two_ranks_may_talk_without_the_third() {
    for ranks in WAYS.map(|way| way.world(3)) {
        on_ranks(ranks, |comm| {
            let (rank, other) = (comm.rank(), 1 - comm.rank().min(1));
            if rank < 2 {
                // Both send before they receive, more than the system's buffers hold.
                for round in 0..3 {
                    let mut values = vec![0_i64; 1 << 20];
                    comm.send(&vec![(10 * rank + round) as i64; 1 << 20], other).expect("a sound world");
                    comm.receive(&mut values, other).expect("a sound world");
                    assert!(values.iter().all(|v| *v == (10 * other + round) as i64));
                }
                // Both ways at once, of different lengths, and answered by the two halves.
                let own = vec![rank as i16 as i32; 200_000 + rank];
                let mut theirs = vec![9; 200_000 + other];
                comm.send_receive(&own, other, &mut theirs, other).expect("a sound world");
                assert!(theirs.iter().all(|v| *v == other as i32));
                if rank == 0 {
                    comm.send_receive(&own, other, &mut theirs, other).expect("a sound world");
                } else {
                    comm.send(&own, other).expect("a sound world");
                    comm.receive(&mut theirs, other).expect("a sound world");
                }
                assert!(theirs.iter().all(|v| *v == other as i32));
            }
            assert_eq!(comm.all_gather(&[rank as i32]), Ok(vec![0, 1, 2]));
            assert!(matches!(comm.send(&[1_u8], rank), Err(CommError::Argument { .. })));
        });
    }
}

#[test]
fn a_broadcast_longer_than_the_queues_arrives() {
    for ranks in WAYS.map(|way| way.world(3)) {
        on_ranks(ranks, |comm| {
            let mut values = vec![if comm.rank() == 1 { 3_u8 } else { 0 }; 40 << 20];
            comm.broadcast(&mut values, 1).expect("a sound world");
            assert!(values.iter().all(|v| *v == 3));
        });
    }
}

#[test]
fn a_ring_moves_the_least_bytes() {
    let stats = on_ranks(Way::Tcp.world(2), |comm| {
        comm.all_reduce(&mut [1.0_f32; 1000], ReduceOp::Sum).expect("a sound world");
        comm.stats()
    });
    for stats in stats {
        // Half of the buffer in each of the two phases, with a header of 40 bytes each.
        assert_eq!((stats.operations, stats.bytes_sent, stats.bytes_received), (1, 2 * 2040, 2 * 2040));
    }
}
