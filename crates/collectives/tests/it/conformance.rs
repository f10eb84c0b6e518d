//! Every operation on every transport for worlds of 1 to 9 ranks, all types and odd lengths, against a serial reference.

use std::time::Duration;

use crate::common::checks::check_all;
use crate::common::{TOPOLOGIES, Topology, on_ranks};
use phalanx_collectives::{CommError, Communicator, ReduceOp, threads};

#[test]
fn every_way_conforms() {
    for topology in TOPOLOGIES {
        for world in 1..=9 {
            on_ranks(topology.world(world), |comm| check_all(&comm, false));
        }
    }
}

#[test]
#[ignore = "all types in all worlds take a minute: cargo xtask test --full"]
fn every_way_conforms_for_all_types_in_all_worlds() {
    for topology in TOPOLOGIES {
        for world in 5..=9 {
            on_ranks(topology.world(world), |comm| check_all(&comm, true));
        }
    }
}

#[test]
fn lengths_around_a_slot_conform() {
    on_ranks(Topology::Shared.world(9), |comm| {
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
    assert_eq!(run(Topology::Shared.world(3)), expected, "the transport does not matter");
}

#[test]
fn asynchronous_operations_finish_in_the_order_of_their_issue() {
    on_ranks(Topology::Tcp.world(2), |comm| {
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
    for topology in [Topology::Tcp, Topology::Shared, Topology::Threads] {
        let world = || topology.world(2);
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
fn an_abort_reaches_all_ranks_with_its_reason() {
    for ranks in TOPOLOGIES.map(|topology| topology.world(3)) {
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
            assert!(matches!(comm.scatterv(&[vec![1_u8]], 0), Err(CommError::Argument { .. })));
        }
        comm.shutdown();
        assert_eq!(comm.barrier("late"), Err(CommError::Closed));
    });
}

#[test]
fn two_ranks_may_talk_without_the_third() {
    for ranks in TOPOLOGIES.map(|topology| topology.world(3)) {
        on_ranks(ranks, |comm| {
            let (rank, other) = (comm.rank(), 1 - comm.rank().min(1));
            if rank < 2 {
                // Both send before they receive, more than the system's buffers hold.
                for round in 0..3 {
                    let mut values = vec![0_i64; 1 << 20];
                    comm.send(&vec![(10 * rank + round) as i64; 1 << 20], other).expect("a sound world");
                    comm.recv(&mut values, other).expect("a sound world");
                    assert!(values.iter().all(|v| *v == (10 * other + round) as i64));
                }
                // Both directions at once, of different lengths, answered by a send and a receive.
                let own = vec![rank as i16 as i32; 200_000 + rank];
                let mut theirs = vec![9; 200_000 + other];
                comm.send_recv(&own, other, &mut theirs, other).expect("a sound world");
                assert!(theirs.iter().all(|v| *v == other as i32));
                if rank == 0 {
                    comm.send_recv(&own, other, &mut theirs, other).expect("a sound world");
                } else {
                    comm.send(&own, other).expect("a sound world");
                    comm.recv(&mut theirs, other).expect("a sound world");
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
    for ranks in TOPOLOGIES.map(|topology| topology.world(3)) {
        on_ranks(ranks, |comm| {
            let mut values = vec![if comm.rank() == 1 { 3_u8 } else { 0 }; 40 << 20];
            comm.broadcast(&mut values, 1).expect("a sound world");
            assert!(values.iter().all(|v| *v == 3));
        });
    }
}

#[test]
fn a_ring_moves_the_least_bytes() {
    let stats = on_ranks(Topology::Tcp.world(2), |comm| {
        comm.all_reduce(&mut [1.0_f32; 1000], ReduceOp::Sum).expect("a sound world");
        comm.stats()
    });
    for stats in stats {
        // Half of the buffer in each of the two phases, with a header of 40 bytes each.
        assert_eq!((stats.operations, stats.bytes_sent, stats.bytes_received), (1, 2 * 2040, 2 * 2040));
    }
}
