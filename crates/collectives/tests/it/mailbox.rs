//! Messages from any rank, on every transport: in order for each sender and channel, of all lengths, during operations that they do
//! not affect, between ranks that are out of step, and when ranks leave or die.

use std::time::{Duration, Instant};

use crate::common::{
    Random, TOPOLOGIES, Topology, listener_of_rank_0, on_ranks, own_port, rank_process, side_by_side,
};
use phalanx_collectives::{CommError, Communicator, ReduceOp, WorldConfig, connect, connect_with_listener};

const CHANNELS: u32 = 3;

/// A message of the schedule: sender, receiver, channel, and length.
type ScheduledMessage = (usize, usize, u32, usize);

fn schedule(draw: &mut Random, world: usize) -> Vec<ScheduledMessage> {
    let lengths = [0, 0, 1, 17, 300, 4096, 70_001, 1_500_000];
    let message = |_| {
        (
            draw.index(world),
            draw.index(world),
            draw.index(CHANNELS as usize) as u32,
            lengths[draw.index(lengths.len())],
        )
    };
    (0..60).map(message).collect()
}

/// Returns the content of message `number` of a sender on a channel to a receiver; short ones hold its beginning.
fn payload(number: usize, (from, to, channel, len): ScheduledMessage) -> Vec<u8> {
    let head = [number as u8, from as u8, to as u8, channel as u8];
    (0..len).map(|at| if at < 4 { head[at] } else { (at * 7 + number) as u8 }).collect()
}

/// Sends and receives the messages planned for this rank, with operations of all ranks in between.
fn exchange(comm: &Communicator, plan: &[ScheduledMessage], seed: u64) {
    let (rank, world) = (comm.rank(), comm.world_size());
    let of_pair = |pair: (usize, usize, u32)| plan.iter().filter(move |p| (p.0, p.1, p.2) == pair);
    let mut expected: usize = plan.iter().filter(|planned| planned.1 == rank).count();
    let (mut sent, mut received) = (vec![0; world * CHANNELS as usize], vec![0; world * CHANNELS as usize]);
    // Each rank chooses its own order.
    let mut own = Random(seed + rank as u64);
    let mut outgoing = plan.iter().filter(|planned| planned.0 == rank).copied();
    let mut take = |channel: u32, (from, bytes): (usize, Vec<u8>)| {
        let count = &mut received[from * CHANNELS as usize + channel as usize];
        let planned = *of_pair((from, rank, channel)).nth(*count).expect("no more than were sent");
        assert!(bytes == payload(*count, planned), "message {count} from {from} on channel {channel}");
        *count += 1;
    };
    for round in 0..40 {
        for planned in outgoing.by_ref().take(own.index(4)) {
            let (_, to, channel, _) = planned;
            let number = &mut sent[to * CHANNELS as usize + channel as usize];
            comm.send_to(to, channel, &payload(*number, planned)).expect("a sound world");
            *number += 1;
        }
        let channel = own.index(CHANNELS as usize) as u32;
        if let Some(message) = comm.try_recv(channel).expect("a sound world") {
            take(channel, message);
            expected -= 1;
        }
        if round % 8 == 0 {
            let mut values = vec![rank as i64; 50_000];
            comm.all_reduce(&mut values, ReduceOp::Sum).expect("messages harm no operation");
            assert!(values.iter().all(|value| *value == (0..world as i64).sum::<i64>()));
        }
    }
    for planned in outgoing {
        let (_, to, channel, _) = planned;
        let number = &mut sent[to * CHANNELS as usize + channel as usize];
        comm.send_to(to, channel, &payload(*number, planned)).expect("a sound world");
        *number += 1;
    }
    let deadline = Instant::now() + Duration::from_secs(60);
    while expected > 0 {
        for channel in 0..CHANNELS {
            if let Some(message) = comm.try_recv(channel).expect("a sound world") {
                take(channel, message);
                expected -= 1;
            }
        }
        assert!(Instant::now() < deadline, "{expected} messages are missing");
        std::thread::yield_now();
    }
    for channel in 0..CHANNELS {
        assert_eq!(comm.try_recv(channel), Ok(None), "no message comes twice");
    }
    comm.barrier("end").expect("a sound world");
}

#[test]
fn random_messages_arrive_in_order_during_operations() {
    let mut draw = Random(5);
    for topology in TOPOLOGIES {
        for world in 1..=4 {
            let (plan, seed) = (schedule(&mut draw, world), draw.below(1 << 30));
            on_ranks(topology.world(world), move |comm| exchange(&comm, &plan, seed));
        }
    }
}

#[test]
fn workers_at_their_own_pace_are_served() {
    const ASK: u32 = 10;
    const ANSWER: u32 = 11;
    for topology in [Topology::Threads, Topology::Tcp, Topology::Shared] {
        on_ranks(topology.world(4), |comm| {
            let rounds = |rank: usize| 20 * rank;
            if comm.rank() == 0 {
                let mut sum = 0_u64;
                for _ in 0..rounds(1) + rounds(2) + rounds(3) {
                    let (from, asked) = comm.recv_any(ASK).expect("a sound world");
                    sum += u64::from(asked[0]);
                    comm.send_to(from, ANSWER, &sum.to_le_bytes()).expect("a sound world");
                }
                assert_eq!(sum as usize, rounds(1) + 2 * rounds(2) + 3 * rounds(3));
            } else {
                let mut last = 0;
                for _ in 0..rounds(comm.rank()) {
                    comm.send_to(0, ASK, &[comm.rank() as u8]).expect("a sound world");
                    let (from, sum) = comm.recv_any(ANSWER).expect("a sound world");
                    let sum = u64::from_le_bytes(sum.try_into().expect("eight bytes"));
                    assert!(from == 0 && sum > last);
                    last = sum;
                }
            }
            comm.barrier("served").expect("a sound world");
        });
    }
}

#[test]
fn messages_that_are_not_taken_delay_no_operation() {
    for topology in [Topology::Threads, Topology::Tcp, Topology::Shared, Topology::TwoHosts] {
        on_ranks(topology.world(2), |comm| {
            let (rank, other) = (comm.rank(), 1 - comm.rank());
            for number in 0..10 {
                comm.send_to(other, 1, &vec![number; 8 << 20]).expect("a sound world");
            }
            // A thread waits for a message that comes last, while operations run.
            let waiting = {
                let comm = comm.clone();
                std::thread::spawn(move || comm.recv_any(2).expect("a sound world"))
            };
            let mut handles = Vec::new();
            for _ in 0..20 {
                handles.push(comm.all_reduce_async(vec![1.0_f32; 200_000], ReduceOp::Sum));
            }
            for handle in handles {
                assert!(handle.wait().expect("a sound world").iter().all(|value| *value == 2.0));
            }
            comm.send_to(other, 2, &[rank as u8]).expect("a sound world");
            assert_eq!(waiting.join().expect("no panic"), (other, vec![other as u8]));
            for number in 0..10 {
                let (from, bytes) = comm.recv_any(1).expect("a sound world");
                assert!(from == other && bytes.len() == 8 << 20 && bytes.iter().all(|byte| *byte == number));
            }
            comm.barrier("end").expect("a sound world");
        });
    }
}

#[test]
fn parts_of_a_world_have_channels_of_their_own() {
    for topology in [Topology::Threads, Topology::Tcp] {
        on_ranks(topology.world(4), |comm| {
            let colour = (comm.rank() % 2) as u32;
            // The part numbers its ranks in reverse.
            let part = comm.split(Some(colour), -(comm.rank() as i64)).expect("sound").expect("a colour");
            let (own, other) = (part.rank(), 1 - part.rank());
            comm.send_to((comm.rank() + 1) % 4, 5, b"world").expect("a sound world");
            part.send_to(other, 5, &[colour as u8, own as u8]).expect("a sound world");
            assert_eq!(part.recv_any(5), Ok((other, vec![colour as u8, other as u8])));
            assert_eq!(comm.recv_any(5), Ok(((comm.rank() + 3) % 4, b"world".to_vec())));
            assert_eq!((part.try_recv(5), comm.try_recv(5)), (Ok(None), Ok(None)));
            comm.barrier("end").expect("a sound world");
        });
    }
}

#[test]
fn what_was_sent_before_leaving_arrives_and_what_is_sent_to_who_left_is_an_error() {
    for topology in [Topology::Threads, Topology::Tcp, Topology::Shared] {
        on_ranks(topology.world(3), |comm| {
            if comm.rank() == 2 {
                for number in 0..30 {
                    comm.send_to(0, 9, &vec![number; 200_000]).expect("a sound world");
                }
                drop(comm);
                return;
            }
            if comm.rank() == 0 {
                for number in 0..30 {
                    assert_eq!(comm.recv_any(9), Ok((2, vec![number; 200_000])));
                }
                let deadline = Instant::now() + Duration::from_secs(20);
                let error = loop {
                    if let Err(error) = comm.send_to(2, 9, b"late") {
                        break error;
                    }
                    assert!(Instant::now() < deadline, "messages to a rank that has left are taken");
                    std::thread::sleep(Duration::from_millis(5));
                };
                assert!(matches!(error, CommError::PeerLost { rank: 2, .. }), "{error}");
            }
            // The other ranks are not affected.
            comm.send_to(1 - comm.rank(), 8, b"still here").expect("a sound world");
            assert_eq!(comm.recv_any(8), Ok((1 - comm.rank(), b"still here".to_vec())));
        });
    }
}

#[test]
fn arguments_are_checked_and_waiting_ends() {
    let short = |mut config: WorldConfig| {
        config.timeouts.operation = Duration::from_secs(2);
        config
    };
    on_ranks(Topology::Tcp.world_with(2, short), |comm| {
        assert!(matches!(comm.send_to(2, 0, &[]), Err(CommError::Argument { .. })));
        assert!(matches!(comm.recv_any(6), Err(CommError::NoMessage { channel: 6, .. })));
        // The world stays intact.
        // On a separate channel: the other rank's message from below may be here before.
        comm.send_to(comm.rank(), 5, b"own").expect("a sound world");
        assert_eq!(comm.recv_any(5), Ok((comm.rank(), b"own".to_vec())));
        comm.send_to(1 - comm.rank(), 7, &[]).expect("a sound world");
        let deadline = Instant::now() + Duration::from_secs(20);
        while comm.try_recv(7).expect("a sound world") != Some((1 - comm.rank(), Vec::new())) {
            assert!(Instant::now() < deadline);
        }
        // Rank 0 may still be looking.
        comm.control().expect("there is one").post("done", &[]).expect("a sound world");
        if comm.rank() == 0 {
            for _ in 0..2 {
                let done = comm.control().expect("there is one").wait("done", Duration::from_secs(20));
                assert!(done.expect("a sound world").is_some());
            }
            comm.control().expect("there is one").announce("all done", &[]).expect("a sound world");
        } else {
            let done = comm.control().expect("there is one").wait("all done", Duration::from_secs(20));
            assert!(done.expect("a sound world").is_some());
        }
    });
}

#[test]
fn an_abort_reaches_who_waits_for_a_message() {
    for topology in [Topology::Threads, Topology::Tcp, Topology::Shared] {
        let results = on_ranks(topology.world(2), |comm| {
            if comm.rank() == 1 {
                std::thread::sleep(Duration::from_millis(50));
                comm.abort("no memory");
            }
            let waited = comm.recv_any(0).map(drop);
            (waited, comm.send_to(0, 0, &[]), comm.try_recv(0).map(drop))
        });
        let aborted = Err(CommError::Aborted { rank: 1, reason: "no memory".into() });
        let expected = (aborted.clone(), aborted.clone(), aborted);
        assert_eq!(results, [expected.clone(), expected], "{topology:?}");
    }
}

/// An environment variable that makes this program play a rank: rank, port and whether memory is shared.
const ROLE: &str = "PHALANX_TEST_MAILBOX_RANK";

fn config(rank: usize, port: u16, shared: bool) -> WorldConfig {
    let mut config = WorldConfig::local(rank, 3, port);
    config.timeouts.connect = Duration::from_secs(30);
    config.transport.shared_memory = shared;
    config
}

/// The rank that the test below starts as a process and kills; not a test by itself.
#[test]
fn as_a_rank_of_another_process() {
    let Ok(place) = std::env::var(ROLE) else { return };
    let words: Vec<&str> = place.split(',').collect();
    let (rank, port) = (words[0].parse().expect("a number"), words[1].parse().expect("a number"));
    let comm = connect(&config(rank, port, words[2] == "shared")).expect("the others are there");
    for number in 0_u64.. {
        for to in (0..3).filter(|to| *to != rank) {
            if comm.send_to(to, 4, &number.to_le_bytes().repeat(5_000)).is_err() {
                return;
            }
        }
    }
}

#[test]
fn a_killed_process_is_named_to_who_waits_for_messages() {
    side_by_side(&[(2, true), (0, false)], 2, |&(victim, shared)| {
        let port = own_port();
        let mut listener = listener_of_rank_0(port, victim == 0);
        let memory = if shared { "shared" } else { "apart" };
        let test = "mailbox::as_a_rank_of_another_process";
        let place = format!("{victim},{port},{memory}");
        let mut child = rank_process(test, ROLE, &place).spawn().expect("this program runs again");
        let (heard, hearing) = std::sync::mpsc::channel();
        let others: Vec<_> = (0..3)
            .filter(|rank| *rank != victim)
            .map(|rank| {
                let (listener, heard) = (if rank == 0 { listener.take() } else { None }, heard.clone());
                std::thread::spawn(move || {
                    let comm =
                        connect_with_listener(&config(rank, port, shared), listener).expect("all come");
                    for number in 0_u64.. {
                        match comm.recv_any(4) {
                            Ok((from, bytes)) => {
                                assert!(from == victim && bytes == number.to_le_bytes().repeat(5_000));
                                if number == 20 {
                                    heard.send(()).expect("the test waits");
                                }
                            }
                            Err(error) => {
                                let at = Instant::now();
                                return (
                                    error,
                                    comm.send_to(1, 4, &[]).expect_err("the world is broken"),
                                    at,
                                );
                            }
                        }
                    }
                    unreachable!("messages come until their sender is killed")
                })
            })
            .collect();
        for _ in 0..2 {
            hearing.recv_timeout(Duration::from_secs(30)).expect("messages come");
        }
        let killed = Instant::now();
        child.kill().expect("it lives");
        child.wait().expect("it is dead");
        for other in others {
            let (error, later, at) = other.join().expect("no panic");
            assert!(at.saturating_duration_since(killed) < Duration::from_secs(5));
            for error in [error, later] {
                assert!(matches!(error, CommError::PeerLost { rank, .. } if rank == victim), "{error}");
            }
        }
    });
}
