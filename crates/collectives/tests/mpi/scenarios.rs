//! Scenarios of ranks.

use half::bf16;
use phalanx_collectives::{Algorithm, CommError, Communicator, OperationState, ReduceOp, connect_mpi};

use super::failures;
use crate::common::checks::check_all;

/// Runs a scenario on this rank, with the expected number of ranks if it is known.
pub(crate) fn run(scenario: &str, ranks: Option<usize>) {
    match scenario {
        "conformance" => conformance(ranks),
        "pieces" => pieces(),
        "disagreement" => failures::disagreement(),
        "message" => failures::message(),
        "messages" => failures::messages(),
        "too-long" => failures::unequal_lengths(5, 3),
        "too-short" => failures::unequal_lengths(3, 4),
        "abort" => failures::abort(),
        "panic" => failures::panic(),
        "malformed" => failures::malformed(),
        "unequal" => failures::unequal(),
        "large" => large(),
        "huge" => huge(),
        "serialized" => failures::serialized(),
        "single" => failures::single(),
        other => panic!("no scenario `{other}`"),
    }
}

pub(crate) fn join() -> Communicator {
    connect_mpi().expect("MPI runs")
}

fn conformance(ranks: Option<usize>) {
    let comm = join();
    assert!(
        ranks.is_none_or(|ranks| ranks == comm.world_size()),
        "{ranks:?} ranks are {}",
        comm.world_size()
    );
    check_all(&comm, false);
    messages(&comm);
    from_any_rank(&comm);
    sums(&comm);
    parts(&comm);
    facts(&comm);
    two_communicators(&comm);
    barriers(&comm);
    drop(comm);
    assert!(mpi::is_finalized(), "the last communicator ends MPI");
    assert!(matches!(connect_mpi(), Err(CommError::Mpi { .. })), "it cannot begin again");
}

/// Two ranks send to each other before they receive, more than MPI's buffers hold, while others do nothing.
fn messages(comm: &Communicator) {
    let rank = comm.rank();
    if comm.world_size() > 1 && rank < 2 {
        let other = 1 - rank;
        for round in 0..3 {
            let mut values = vec![0_i64; 1 << 20];
            comm.send(&vec![(10 * rank + round) as i64; 1 << 20], other).expect("sound");
            comm.recv(&mut values, other).expect("sound");
            assert!(values.iter().all(|value| *value == (10 * other + round) as i64));
        }
        // More messages than may be under way, one of them empty.
        for length in 0..200 {
            comm.send(&vec![1_u8; length], other).expect("sound");
            let mut values = vec![0_u8; length];
            comm.recv(&mut values, other).expect("sound");
            assert!(values.iter().all(|value| *value == 1));
        }
        // Both directions at once, of different lengths, answered by a send and a receive.
        let own = vec![rank as i32; 200_000 + rank];
        let mut theirs = vec![9; 200_000 + other];
        comm.send_recv(&own, other, &mut theirs, other).expect("sound");
        assert!(theirs.iter().all(|value| *value == other as i32));
        theirs.fill(9);
        if rank == 0 {
            comm.send_recv(&own, other, &mut theirs, other).expect("sound");
        } else {
            comm.send(&own, other).expect("sound");
            comm.recv(&mut theirs, other).expect("sound");
        }
        assert!(theirs.iter().all(|value| *value == other as i32));
    }
    assert!(matches!(comm.send(&[1_u8], rank), Err(CommError::Argument { .. })));
}

/// Messages on two channels to all ranks, this one included, more than may be under way, during operations.
fn from_any_rank(comm: &Communicator) {
    let (rank, world) = (comm.rank(), comm.world_size());
    let length = |number: usize| [0, 1, 70_001, 17][number % 4];
    for number in 0..100 {
        for to in 0..world {
            comm.send_to(to, (number % 2) as u32, &vec![(number + rank) as u8; length(number)])
                .expect("sound");
        }
        if number % 30 == 0 {
            comm.all_reduce(&mut [1.0_f32; 1000], ReduceOp::Sum).expect("sound");
        }
    }
    for channel in 0..2 {
        let mut next = vec![channel; world];
        for _ in 0..50 * world {
            let (from, bytes) = comm.recv_any(channel as u32).expect("sound");
            let number = next[from];
            assert!(bytes == vec![(number + from) as u8; length(number)], "message {number} from {from}");
            next[from] += 2;
        }
        assert_eq!(comm.try_recv(channel as u32), Ok(None));
    }
    let part = comm.split(Some((rank % 2) as u32), 0).expect("sound").expect("a colour");
    let next = (part.rank() + 1) % part.world_size();
    part.send_to(next, 0, b"of the part").expect("sound");
    assert_eq!(comm.try_recv(0), Ok(None));
    assert_eq!(part.recv_any(0).expect("sound").1, b"of the part");
    assert!(matches!(comm.control(), Err(CommError::NotOffered { by: "MPI", .. })));
    // Messages that are not taken affect nothing.
    comm.send_to((rank + 1) % world, 9, &[7; 300_000]).expect("sound");
}

fn sums(comm: &Communicator) {
    let mut values: Vec<f32> = (0..10_007).map(|i| ((i * 37 + comm.rank() * 11) as f32).sin()).collect();
    comm.all_reduce(&mut values, ReduceOp::Sum).expect("sound");
    let bits: Vec<i32> = values.iter().map(|value| value.to_bits() as i32).collect();
    let all = comm.all_gather(&bits).expect("sound");
    assert!(all.chunks(bits.len()).all(|theirs| theirs == bits), "the same bits on every rank");
    // Rounded after each addition, this would stay at 256.
    let mut values = [bf16::from_f32(if comm.rank() == 0 { 256.0 } else { 1.0 })];
    comm.all_reduce(&mut values, ReduceOp::Sum).expect("sound");
    assert_eq!(values, [bf16::from_f32(255.0 + comm.world_size() as f32)]);
}

/// Rows in reverse order, which work at the same time as the whole; and a part of a part.
fn parts(comm: &Communicator) {
    let (rank, world, colour) = (comm.rank(), comm.world_size(), comm.rank() % 2);
    let part = comm.split(Some(colour as u32), -(rank as i64)).expect("sound").expect("a colour");
    let members: Vec<i64> =
        (0..world).rev().filter(|rank| rank % 2 == colour).map(|rank| rank as i64).collect();
    assert_eq!((part.world_size(), members[part.rank()]), (members.len(), rank as i64));
    assert_eq!(part.all_gather(&[rank as i64]), Ok(members.clone()));
    let whole = comm.all_reduce_async(vec![1_i32; 50_000], ReduceOp::Sum);
    let mut values = vec![1.0_f32; 100_000];
    part.all_reduce(&mut values, ReduceOp::Sum).expect("sound");
    assert!(values.iter().all(|value| *value == members.len() as f32));
    assert_eq!(whole.wait(), Ok(vec![world as i32; 50_000]));
    let leader = part.rank() == 0;
    let of_part = part.split(leader.then_some(5), 0).expect("sound");
    assert_eq!(of_part.is_some(), leader);
    if let Some(alone) = of_part {
        assert_eq!(alone.all_gather(&[7_u8]), Ok(vec![7]));
    }
}

/// Properties of a communicator, and operations that MPI does not offer.
fn facts(comm: &Communicator) {
    let (rank, world) = (comm.rank(), comm.world_size());
    assert_eq!(comm.hosts().len(), world);
    assert!(comm.local_rank() <= rank);
    let costs = comm.costs().expect("sound");
    assert_eq!(costs.local.or(costs.remote).is_some(), world > 1);
    let gamma = comm.all_gather(&[costs.gamma]).expect("sound");
    assert!(gamma.iter().all(|theirs| *theirs == costs.gamma), "the same costs on every rank");
    let error = comm.using(Algorithm::Ring).all_reduce(&mut [1_i32], ReduceOp::Sum).expect_err("no rings");
    assert!(error.to_string().contains("ring"), "{error}");
    let mut plain = comm.alloc::<f32>(9).expect("sound");
    assert!(!plain.is_shared());
    plain.fill(2.0);
    comm.all_reduce(&mut plain, ReduceOp::Mean).expect("sound");
    assert!(plain.iter().all(|value| *value == 2.0));
    // Threads of one host share memory that MPI cannot use.
    let mut threads = phalanx_collectives::threads(2)
        .expect("threads")
        .into_iter()
        .map(|thread| std::thread::spawn(move || thread.alloc::<f32>(4).expect("sound")));
    let (first, second) = (threads.next().expect("two"), threads.next().expect("two"));
    let mut shared = first.join().expect("no panic");
    second.join().expect("no panic");
    if shared.is_shared() {
        let error = comm.all_reduce(&mut shared, ReduceOp::Sum).expect_err("another's memory");
        assert!(matches!(error, CommError::Argument { .. }), "{error}");
    }
    comm.broadcast(&mut [0_u8; 3], 0).expect("sound");
    let last = comm.recent().pop().expect("there were some");
    assert_eq!((last.operation.as_str(), last.state, last.bytes), ("broadcast", OperationState::Done, 3));
}

/// Two communicators of one process, used in different order by different ranks.
fn two_communicators(comm: &Communicator) {
    let other = join();
    let (first, second) = if comm.rank() == 0 { (comm, &other) } else { (&other, comm) };
    let handles = [first, second].map(|comm| comm.all_reduce_async(vec![1_i64; 70_000], ReduceOp::Sum));
    for handle in handles {
        assert!(handle.wait().expect("sound").iter().all(|value| *value == comm.world_size() as i64));
    }
}

fn barriers(comm: &Communicator) {
    let name = if comm.rank() == 0 { "epoch" } else { "save" };
    match comm.barrier(name) {
        Ok(()) => assert_eq!(comm.world_size(), 1),
        Err(error) => {
            let text = error.to_string();
            assert!(text.contains("epoch") && text.contains("save"), "{text}");
        }
    }
    comm.barrier("end").expect("that breaks nothing");
}

/// Everything goes in many pieces if a call of MPI gets few elements.
fn pieces() {
    let comm = join();
    let (rank, world) = (comm.rank() as i64, comm.world_size() as i64);
    let own: Vec<i64> = (0..23).map(|i| 100 * rank + i).collect();
    let sum: Vec<i64> = (0..23).map(|i| 100 * world * (world - 1) / 2 + world * i).collect();
    let mut values = own.clone();
    comm.all_reduce(&mut values, ReduceOp::Sum).expect("sound");
    assert_eq!(values, sum);
    let chunk = (23 * rank / world) as usize..(23 * (rank + 1) / world) as usize;
    assert_eq!(comm.reduce_scatter(&own, ReduceOp::Sum), Ok(sum[chunk].to_vec()));
    let all: Vec<i64> = (0..world).flat_map(|rank| (0..23).map(move |i| 100 * rank + i)).collect();
    assert_eq!(comm.all_gather(&own), Ok(all));
}

/// More than is copied at a time.
fn large() {
    let comm = join();
    let len = (16 << 20) + 12_345;
    let mut values: Vec<u8> = (0..len).map(|i| (i % 100) as u8).collect();
    comm.all_reduce(&mut values, ReduceOp::Sum).expect("sound");
    let world = comm.world_size();
    assert!(values.iter().enumerate().all(|(i, value)| usize::from(*value) == (i % 100) * world));
    comm.reduce(&mut values, ReduceOp::Max, world - 1).expect("sound");
    let all = comm.gatherv(&values, 0).expect("sound");
    assert!(all.iter().all(|theirs| *theirs == values));
    let parts = if comm.rank() == 0 { all } else { Vec::new() };
    assert!(comm.scatterv(&parts, 0).expect("sound") == values);
    let parts = vec![values.clone(); world];
    assert!(comm.all_to_allv(&parts).expect("sound") == parts);
}

/// More than an int counts. Two ranks need 16 GB of memory, so this is started by hand.
fn huge() {
    let comm = join();
    let (rank, world, len) = (comm.rank(), comm.world_size(), (1_usize << 31) + 1001);
    let fill = |rank: usize, i: usize| (i % 100 + rank) as u8;
    let mut values: Vec<u8> = (0..len).map(|i| fill(rank, i)).collect();
    comm.all_reduce(&mut values, ReduceOp::Max).expect("sound");
    assert!(values.iter().enumerate().all(|(i, value)| *value == fill(world - 1, i)), "all-reduce");
    values.iter_mut().enumerate().for_each(|(i, value)| *value = fill(rank, i));
    comm.reduce_scatter_in_place(&mut values, ReduceOp::Max).expect("sound");
    comm.all_gather_in_place(&mut values).expect("sound");
    assert!(values.iter().enumerate().all(|(i, value)| *value == fill(world - 1, i)), "chunks");
    values.fill(rank as u8);
    comm.broadcast(&mut values, world - 1).expect("sound");
    assert!(values.iter().all(|value| usize::from(*value) == world - 1), "broadcast");
    if rank == 0 {
        comm.send(&values, 1).expect("sound");
    } else if rank == 1 {
        values.fill(9);
        comm.recv(&mut values, 0).expect("sound");
        assert!(values.iter().all(|value| usize::from(*value) == world - 1), "message");
    }
    let all = comm.gatherv(&values, 0).expect("sound");
    assert!(all.iter().all(|theirs| *theirs == values), "gather");
    println!("rank {rank} of {world}: all of {len} bytes is right");
}
