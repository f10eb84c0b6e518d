//! Communicators of some of a world's ranks, and buffers in shared memory.

use crate::common::{TOPOLOGIES, Topology, on_ranks};
use phalanx_collectives::{CommError, ReduceOp};

#[test]
fn parts_have_the_ranks_of_their_colour_in_the_order_of_keys() {
    for topology in TOPOLOGIES {
        for world in [1, 4, 7] {
            on_ranks(topology.world(world), move |comm| {
                // Two rows in reverse order.
                let (rank, colour) = (comm.rank(), comm.rank() % 2);
                let part = comm.split(Some(colour as u32), -(rank as i64)).expect("sound").expect("a colour");
                let members: Vec<usize> = (0..world).rev().filter(|rank| rank % 2 == colour).collect();
                assert_eq!(part.world_size(), members.len());
                assert_eq!(members[part.rank()], rank);
                let all = part.all_gather(&[rank as i64]).expect("sound");
                assert_eq!(all, members.iter().map(|rank| *rank as i64).collect::<Vec<_>>());
                // Parts work at the same time as the whole, and in any order.
                let whole = comm.all_reduce_async(vec![1_i32], ReduceOp::Sum);
                let mut values = vec![1.0_f32; 100_000];
                part.all_reduce(&mut values, ReduceOp::Sum).expect("sound");
                assert!(values.iter().all(|v| *v == members.len() as f32));
                assert_eq!(whole.wait(), Ok(vec![world as i32]));
                // A part of a part, for some of its ranks.
                let leader = part.rank() == 0;
                let of_part = part.split(leader.then_some(5), 0).expect("sound");
                assert_eq!(of_part.is_some(), leader);
                if let Some(alone) = of_part {
                    assert_eq!(alone.all_gather(&[7_u8]), Ok(vec![7]));
                }
                comm.barrier("end").expect("sound");
            });
        }
    }
}

#[test]
fn buffers_that_no_memory_can_hold_are_refused() {
    for topology in TOPOLOGIES {
        on_ranks(topology.world(2), |comm| {
            for len in [(1 << 62) + 1024, (1 << 61) + 1, usize::MAX / 4, usize::MAX] {
                let refused = comm.alloc::<f32>(len).expect_err("too large");
                assert!(
                    matches!(refused, CommError::Argument { operation: "alloc", .. }),
                    "{len}: {refused}"
                );
            }
            let shared = comm.alloc::<f32>(1024).expect("the world goes on");
            assert!(shared.len() == 1024 && shared.iter().all(|value| *value == 0.0));
        });
    }
}

#[test]
fn a_mesh_of_rows_and_columns_sums_the_whole() {
    on_ranks(Topology::Shared.world(6), |comm| {
        let (row, column) = (comm.rank() / 3, comm.rank() % 3);
        let in_row = comm.split(Some(row as u32), 0).expect("sound").expect("a colour");
        let in_column = comm.split(Some(column as u32), 0).expect("sound").expect("a colour");
        let mut values = [comm.rank() as i64];
        in_row.all_reduce(&mut values, ReduceOp::Sum).expect("sound");
        in_column.all_reduce(&mut values, ReduceOp::Sum).expect("sound");
        assert_eq!(values, [15]);
    });
}

#[test]
fn a_failure_in_a_part_names_ranks_of_the_world() {
    let results = on_ranks(Topology::Tcp.world(4), |comm| {
        // The failure may reach other ranks while they still split.
        let part = comm.split(Some((comm.rank() / 2) as u32), 0)?.expect("a colour");
        if comm.rank() < 2 {
            return comm.barrier("never");
        }
        // Ranks 2 and 3 disagree in their part, which breaks the whole world.
        part.all_reduce(&mut vec![0.0_f32; comm.rank()], ReduceOp::Sum)
    });
    for result in &results {
        let error = result.as_ref().expect_err("broken");
        let named = match error {
            CommError::Mismatch { rank, .. } | CommError::Aborted { rank, .. } => *rank,
            other => panic!("{other}"),
        };
        assert!(named >= 2, "{error}");
    }
}

#[test]
fn buffers_in_shared_memory_are_reduced_in_place() {
    for topology in TOPOLOGIES {
        for world in 1..=5 {
            on_ranks(topology.world(world), move |comm| {
                let rank = comm.rank();
                for len in [0, 1, 7, 5000, 70_001] {
                    let mut buffer = comm.alloc::<f32>(len).expect("sound");
                    let shared = matches!(topology, Topology::Threads | Topology::Shared) && world > 1;
                    assert_eq!(
                        buffer.is_shared(),
                        shared && cfg!(target_os = "linux"),
                        "{topology:?} {world}"
                    );
                    assert!(buffer.iter().all(|v| *v == 0.0));
                    let fill = |rank: usize, i: usize| ((i * 7 + rank * 3) % 11) as f32;
                    let sum = |i: usize| (0..world).map(|rank| fill(rank, i)).sum::<f32>();
                    let begin = |buffer: &mut [f32]| {
                        buffer.iter_mut().enumerate().for_each(|(i, v)| *v = fill(rank, i));
                    };
                    begin(&mut buffer);
                    comm.all_reduce(&mut buffer, ReduceOp::Sum).expect("sound");
                    assert!(buffer.iter().enumerate().all(|(i, v)| *v == sum(i)), "{topology:?} {len}");
                    begin(&mut buffer);
                    let mut buffer = comm.all_reduce_async(buffer, ReduceOp::Mean).wait().expect("sound");
                    let n = world as f32;
                    assert!(buffer.iter().enumerate().all(|(i, v)| *v == sum(i) / n), "{topology:?} {len}");
                    begin(&mut buffer);
                    comm.reduce_scatter_in_place(&mut buffer, ReduceOp::Sum).expect("sound");
                    let own = rank * len / world..(rank + 1) * len / world;
                    assert!(own.clone().all(|i| buffer[i] == sum(i)), "{topology:?} {len}");
                    comm.all_gather_in_place(&mut buffer).expect("sound");
                    assert!(buffer.iter().enumerate().all(|(i, v)| *v == sum(i)), "{topology:?} {len}");
                    // Other operations accept such a buffer too.
                    comm.broadcast(&mut buffer, world - 1).expect("sound");
                    begin(&mut buffer);
                    comm.reduce(&mut buffer, ReduceOp::Max, 0).expect("sound");
                }
            });
        }
    }
}

#[test]
fn a_buffer_that_only_some_share_is_a_disagreement() {
    let results = on_ranks(Topology::Shared.world(2), |comm| {
        let mut shared = comm.alloc::<f32>(8).expect("sound");
        if comm.rank() == 0 {
            let result = comm.all_reduce(&mut shared, ReduceOp::Sum);
            // Memory that other ranks may still write must not be read.
            assert!(!shared.is_shared());
            result
        } else {
            comm.all_reduce(&mut [0.0_f32; 8], ReduceOp::Sum)
        }
    });
    let text = results.iter().find_map(|r| r.as_ref().err()).expect("an error").to_string();
    assert!(text.contains("in place"), "{text}");
}

#[test]
fn a_part_works_on_after_the_whole_is_dropped() {
    for topology in TOPOLOGIES {
        for world in [1, 2, 4] {
            on_ranks(topology.world(world), move |comm| {
                let part = comm.split(Some((comm.rank() / 2) as u32), 0).expect("sound").expect("a colour");
                comm.barrier("split").expect("sound");
                drop(comm);
                let ranks = part.world_size();
                assert_eq!(part.all_gather(&[part.rank() as i64]), Ok((0..ranks as i64).collect()));
                // Each rank also sends a message to itself and to the next rank.
                for to in [part.rank(), (part.rank() + 1) % ranks] {
                    part.send_to(to, 1, &[to as u8]).expect("sound");
                }
                for _ in 0..2 {
                    assert_eq!(part.recv_any(1).expect("sound").1, [part.rank() as u8]);
                }
                part.barrier("end").expect("sound");
            });
        }
    }
}
