//! Every operation on one communicator against a serial reference, for any transport.

use half::{bf16, f16};
use phalanx_collectives::{Coalesced, CommError, Communicator, Element, ReduceOp};

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
            let (mut whole, mut part) = (own.clone(), vec![T::zeroed(); part.len()]);
            let later = comm.reduce_scatter_into_async(own.clone(), part.clone(), op);
            comm.reduce_scatter_into(&mut whole, &mut part, op).expect("a sound world");
            let expected_part = &expected[rank * len / world..(rank + 1) * len / world];
            assert!(part == expected_part, "reduce-scatter of {len} into a part");
            assert!(later.wait().expect("a sound world").1 == expected_part, "the same, asynchronous");
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
        let later = comm.all_gather_in_place_async(chunks.clone());
        comm.all_gather_in_place(&mut chunks).expect("a sound world");
        assert!(chunks == expected, "all-gather of chunks of {len}");
        assert!(later.wait().expect("a sound world") == expected, "asynchronous all-gather of {len}");
        let (mut whole, mut part) = (vec![T::zeroed(); len], own[chunk(rank)].to_vec());
        let later = comm.all_gather_into_async(whole.clone(), part.clone());
        comm.all_gather_into(&mut whole, &mut part).expect("a sound world");
        assert!(whole == expected && part == own[chunk(rank)], "all-gather of {len} from parts");
        assert!(later.wait().expect("a sound world").0 == expected, "the same, asynchronous");
        let expected: Vec<T> = (0..world).flat_map(|from| all[from][chunk(rank)].to_vec()).collect();
        assert!(comm.all_to_all(&own).expect("a sound world") == expected, "all-to-all of {len}");
        let parts: Vec<Vec<T>> = (0..world).map(|to| own[..len * (to + 1) / world].to_vec()).collect();
        let got = comm.all_to_allv(&parts).expect("a sound world");
        for (from, got) in got.iter().enumerate() {
            assert!(*got == all[from][..len * (rank + 1) / world], "ragged all-to-all of {len} from {from}");
        }
        let ragged = comm.all_gatherv(&own[..len * (rank + 1) / world]).expect("a sound world");
        for (other, got) in ragged.iter().enumerate() {
            assert!(*got == all[other][..len * (other + 1) / world], "ragged all-gather of {len}");
        }
        // Parts that grow with the rank; the last has the rest.
        let mut lengths: Vec<usize> = (0..world).map(|rank| len * rank / (world * world)).collect();
        lengths[world - 1] = len - lengths[..world - 1].iter().sum::<usize>();
        let mut expected: Vec<T> = Vec::new();
        for (from, length) in lengths.iter().enumerate() {
            expected.extend_from_slice(&all[from][expected.len()..expected.len() + length]);
        }
        let mut values = own.clone();
        comm.all_gatherv_in_place(&mut values, &lengths).expect("a sound world");
        assert!(values == expected, "all-gather of parts of {lengths:?} in place");
        for root in [0, world - 1] {
            let mut values = own.clone();
            comm.broadcast(&mut values, root).expect("a sound world");
            assert!(values == all[root], "broadcast of {len} from {root}");
            let gathered = comm.gatherv(&own, root).expect("a sound world");
            assert!(
                gathered == if rank == root { all.clone() } else { Vec::new() },
                "gather of {len} to {root}"
            );
            let parts = if rank == root { all.clone() } else { Vec::new() };
            assert!(
                comm.scatterv(&parts, root).expect("a sound world") == own,
                "scatter of {len} from {root}"
            );
        }
    }
}

/// Every operation that takes no buffer, without waiting.
fn check_asynchronous(comm: &Communicator) {
    let at_once = comm.is_blocking();
    let (rank, world) = (comm.rank(), comm.world_size());
    let own = vec![rank as i32; 3];
    let root = world - 1;
    let all: Vec<Vec<i32>> = (0..world).map(|rank| vec![rank as i32; 3]).collect();
    let ragged = comm.all_gatherv_async(own.clone());
    let gathered = comm.gatherv_async(own.clone(), root);
    let scattered = comm.scatterv_async(if rank == root { all.clone() } else { Vec::new() }, root);
    let exchanged = comm.all_to_all_async((0..world as i32).collect());
    let parts = comm.all_to_allv_async(vec![own.clone(); world]);
    let reduced = comm.reduce_async(own.clone(), ReduceOp::Max, root);
    let chunks = comm.reduce_scatter_in_place_async(vec![1_i64; world], ReduceOp::Sum);
    let sent = comm.broadcast_async(own.clone(), root);
    let together = Coalesced::new(vec![vec![1_u8; 5], Vec::new(), vec![2; 3]]).expect("of one type");
    let together = comm.all_reduce_async(together, ReduceOp::Max);
    let barrier = comm.barrier_async("asynchronous");
    assert!(!at_once || (ragged.is_done() && reduced.is_done() && barrier.is_done()));
    assert_eq!(ragged.wait().expect("sound"), all);
    assert_eq!(gathered.wait().expect("sound"), if rank == root { all.clone() } else { Vec::new() });
    assert_eq!(scattered.wait().expect("sound"), own);
    assert_eq!(exchanged.wait().expect("sound"), vec![rank as i32; world]);
    assert_eq!(parts.wait().expect("sound"), all);
    assert_eq!(reduced.wait().expect("sound"), if rank == root { all[root].clone() } else { own.clone() });
    assert_eq!(chunks.wait().expect("sound")[rank], world as i64);
    assert_eq!(sent.wait().expect("sound"), all[root]);
    assert_eq!(together.wait().expect("sound").into_inner(), [vec![1; 5], Vec::new(), vec![2; 3]]);
    barrier.wait().expect("sound");
    // A blocking send waits if the message has no room, and here no rank would receive.
    if world > 1 && !at_once {
        let (next, previous) = ((rank + 1) % world, (rank + world - 1) % world);
        let sent = comm.send_async(own.clone(), next);
        let got = comm.recv_async(vec![0; 3], previous);
        assert_eq!((sent.wait(), got.wait()), (Ok(own), Ok(all[previous].clone())));
    }
    let mut two = Coalesced::new(vec![vec![1.0_f32, 2.0], vec![3.0]]).expect("of one type");
    comm.all_reduce(&mut two, ReduceOp::Mean).expect("sound");
    assert_eq!(two.into_inner(), [vec![1.0, 2.0], vec![3.0]]);
    let error = comm.all_gather_into(&mut vec![0_u8; 2 * world], &mut vec![0_u8; 3]).expect_err("not a part");
    assert!(error.to_string().contains("part of"), "{error}");
    assert!(matches!(error, CommError::Argument { operation: "all-gather", .. }), "{error:?}");
    let later = comm.reduce_scatter_into_async(vec![0.0_f32; world], vec![0_i32; 1], ReduceOp::Sum);
    assert!(matches!(later.wait(), Err(CommError::Argument { operation: "reduce-scatter", .. })));
    for lengths in [vec![1; world], vec![1; world + 1]] {
        let error = comm.all_gatherv_in_place(&mut vec![0_u8; 2 * world + 1], &lengths);
        assert!(matches!(error, Err(CommError::Argument { operation: "all-gatherv", .. })), "{error:?}");
    }
    comm.check().expect("a sound world");
}

/// Every operation: of all types in small worlds or if `full`, of two types in larger ones.
pub(crate) fn check_all(comm: &Communicator, full: bool) {
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
    check_asynchronous(&comm.blocking());
    comm.barrier("end").expect("a sound world");
    let stats = comm.stats();
    assert!(stats.operations > 100);
    assert_eq!(stats.bytes_sent > 0, comm.world_size() > 1);
}
