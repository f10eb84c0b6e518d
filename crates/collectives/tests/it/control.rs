//! The control plane: notices between ranks, and the agreement to stop after the same step. Random ranks request it at random
//! times, ranks are in step or not, and one dies during the vote.

use std::process::{Child, Command};
use std::time::{Duration, Instant};

use crate::common::{Random, Topology, listener_of_rank_0, on_ranks, own_port, rank_process, side_by_side};
use phalanx_collectives::{
    CommError, Communicator, Control, Notice, ReduceOp, Stop, Timeouts, WorldConfig, connect,
    connect_with_listener, threads,
};

/// Takes steps until all ranks stop; returns the last step and the agreement. Ranks in step run an operation in each step.
fn train(comm: &Communicator, in_step: bool, requests: &[u64], draw: &mut Random) -> (Option<u64>, Stop) {
    let control = comm.control().expect("there is one");
    let mut last = None;
    for step in 0.. {
        if let Some(stop) = control.begin_step(step).expect("a sound world") {
            // An agreement is final.
            assert_eq!(control.begin_step(step), Ok(Some(stop.clone())));
            assert_eq!(control.stop().as_ref(), Some(&stop));
            return (last, stop);
        }
        last = Some(step);
        std::thread::sleep(Duration::from_micros(draw.below(400)));
        if requests.contains(&step) {
            let asked = control.request_stop(&format!("rank {} at step {step}", comm.rank()));
            // Other ranks may have stopped and left, once all have agreed.
            assert!(asked.is_ok() || control.stop().is_some(), "{asked:?}");
        }
        if in_step {
            let mut ranks = [1_i32];
            comm.all_reduce(&mut ranks, ReduceOp::Sum).expect("no rank takes a step that another does not");
            assert_eq!(ranks[0] as usize, comm.world_size());
        }
    }
    unreachable!("steps go on until all stop")
}

#[test]
fn all_ranks_stop_after_the_same_step_for_any_request() {
    let mut draw = Random(11);
    for topology in [Topology::Threads, Topology::Tcp, Topology::Shared, Topology::TwoHosts] {
        for round in 0..12 {
            let size = 1 + draw.below(4) as usize;
            let in_step = round % 2 == 0;
            // One to three requests, some of them at the same time or by the same rank.
            let requests: Vec<(usize, u64)> =
                (0..=draw.below(3)).map(|_| (draw.below(size as u64) as usize, draw.below(12))).collect();
            let (asked, seed) = (requests.clone(), draw.below(1 << 30));
            let results = on_ranks(topology.world(size), move |comm| {
                let own = |(rank, step): &(usize, u64)| (*rank == comm.rank()).then_some(*step);
                let own: Vec<u64> = asked.iter().filter_map(own).collect();
                train(&comm, in_step, &own, &mut Random(seed + comm.rank() as u64))
            });
            let stop = &results[0].1;
            let what = format!("{topology:?}, {size} ranks, {requests:?}: {results:?}");
            assert!(results.iter().all(|(last, other)| *last == stop.after && other == stop), "{what}");
            let first = requests.iter().map(|(_, step)| *step).min();
            assert!(stop.after >= first, "no rank had asked yet: {what}");
            let of_requests =
                |(rank, step): &(usize, u64)| format!("rank {rank} at step {step}") == stop.reason;
            assert!(requests.iter().any(|request| request.0 == stop.rank && of_requests(request)), "{what}");
        }
    }
}

#[test]
fn a_request_from_outside_the_steps_stops_them_too() {
    for topology in [Topology::Threads, Topology::Tcp] {
        let results = on_ranks(topology.world(3), |comm| {
            let asking = (comm.rank() == 1).then(|| {
                let control = comm.control().expect("there is one");
                std::thread::spawn(move || {
                    std::thread::sleep(Duration::from_millis(20));
                    control.request_stop("a signal").expect("a sound world");
                    control.request_stop("another signal").expect("a sound world");
                })
            });
            let found = train(&comm, true, &[], &mut Random(comm.rank() as u64));
            asking.into_iter().for_each(|asking| asking.join().expect("no panic"));
            found
        });
        let (last, stop) = &results[0];
        assert!(
            results.iter().all(|other| (&other.0, &other.1) == (last, stop)),
            "{topology:?}: {results:?}"
        );
        assert_eq!((stop.rank, stop.reason.as_str()), (1, "a signal"));
    }
}

/// Takes steps until rank 0 asks to stop for good after step 40; in step only after all requested interludes. Returns the steps
/// before which there was an interlude, and the reasons.
fn train_with_interludes(
    comm: &Communicator,
    (in_step, all): (bool, usize),
    requests: &[u64],
    seed: u64,
) -> Vec<(u64, String)> {
    let (control, mut draw, mut seen) =
        (comm.control().expect("there is one"), Random(seed), Vec::<(u64, String)>::new());
    let mut enough = false;
    for step in 0.. {
        while let Some(stop) = control.begin_step(step).expect("a sound world") {
            assert!(stop.after.is_none_or(|last| last < step), "{stop:?} before step {step}");
            if !stop.goes_on {
                seen.push((step, stop.reason));
                return seen;
            }
            // All ranks can do something together between two steps.
            let mut ranks = [1_i32];
            comm.all_reduce(&mut ranks, ReduceOp::Sum).expect("all are here");
            assert_eq!(ranks[0] as usize, comm.world_size());
            seen.push((step, stop.reason));
        }
        std::thread::sleep(Duration::from_micros(200 + draw.below(400)));
        for (number, _) in requests.iter().enumerate().filter(|(_, request)| **request == step) {
            let asked = control.request_interlude(&format!("{number} of rank {}", comm.rank()));
            // Other ranks may have stopped and left, once all have agreed.
            assert!(asked.is_ok() || control.stop().is_some(), "{asked:?}");
        }
        // The machine decides how soon a request arrives, but it must arrive.
        assert!(step < 100_000, "{} of {all} requests were met: {seen:?}", seen.len());
        if !enough && step >= 40 && comm.rank() == 0 && (!in_step || seen.len() >= all) {
            enough = true;
            control.request_stop("enough").expect("a sound world");
        }
        if in_step {
            comm.barrier("a step").expect("no rank takes a step that another does not");
        }
    }
    unreachable!("steps go on until all stop")
}

#[test]
fn all_ranks_have_the_same_interludes_between_the_same_steps() {
    let mut draw = Random(5);
    for topology in [Topology::Threads, Topology::Tcp, Topology::Shared, Topology::TwoHosts] {
        for round in 0..8 {
            let (size, in_step) = (1 + draw.below(4) as usize, round % 2 == 0);
            let requests: Vec<Vec<u64>> =
                (0..size).map(|_| (0..draw.below(4)).map(|_| draw.below(20)).collect()).collect();
            let (asked, seed) = (requests.clone(), draw.below(1 << 30));
            let all = requests.iter().map(Vec::len).sum();
            let seen = on_ranks(topology.world(size), move |comm| {
                train_with_interludes(&comm, (in_step, all), &asked[comm.rank()], seed + comm.rank() as u64)
            });
            let what = format!("{topology:?}, {size} ranks, {requests:?}: {seen:?}");
            assert!(seen.iter().all(|other| *other == seen[0]), "{what}");
            assert!(seen[0].is_sorted_by_key(|(step, _)| *step), "{what}");
            assert_eq!(seen[0].last().map(|(_, reason)| reason.as_str()), Some("enough"), "{what}");
            if in_step {
                // Each request was met once, and none before it was made.
                let made = requests.iter().enumerate().flat_map(|(rank, steps)| {
                    steps
                        .iter()
                        .enumerate()
                        .map(move |(number, step)| (format!("{number} of rank {rank}"), *step))
                });
                for (reason, step) in made {
                    let met: Vec<u64> =
                        seen[0].iter().filter(|(_, other)| *other == reason).map(|(at, _)| *at).collect();
                    assert!(met.len() == 1 && met[0] > step, "{reason} at {step}: {what}");
                }
            }
        }
    }
}

#[test]
fn ranks_that_wait_between_two_steps_hear_what_comes_next() {
    for topology in [Topology::Threads, Topology::Tcp] {
        let heard = on_ranks(topology.world(3), |comm| {
            let control = comm.control().expect("there is one");
            control.request_interlude(&format!("pause of {}", comm.rank())).expect("a sound world");
            let mut heard = Vec::new();
            while heard.len() < 3 {
                heard.extend(control.next_stop(Duration::from_secs(20)).expect("a sound world"));
            }
            assert_eq!(control.next_stop(Duration::from_millis(1)), Ok(None));
            comm.barrier("all have heard").expect("a sound world");
            if comm.rank() == 2 {
                control.request_stop("enough").expect("a sound world");
            }
            heard.extend(control.next_stop(Duration::from_secs(20)).expect("a sound world"));
            // An agreement to stop for good is returned again.
            assert_eq!(control.next_stop(Duration::from_secs(20)), Ok(heard.last().cloned()));
            heard
        });
        assert!(heard.iter().all(|other| *other == heard[0]), "{topology:?}: {heard:?}");
        let last = Stop { after: None, rank: 2, reason: "enough".into(), goes_on: false };
        assert_eq!(heard[0].last(), Some(&last), "{topology:?}");
    }
}

#[test]
fn before_the_first_step_none_is_taken() {
    for topology in [Topology::Threads, Topology::Tcp] {
        let stops = on_ranks(topology.world(2), |comm| {
            let control = comm.control().expect("there is one");
            if comm.rank() == 1 {
                control.request_stop("no time").expect("a sound world");
            }
            while control.stop().is_none() {
                std::thread::sleep(Duration::from_millis(1));
            }
            comm.barrier("all know").expect("a sound world");
            control.begin_step(0).expect("a sound world")
        });
        let expected = Stop { after: None, rank: 1, reason: "no time".into(), goes_on: false };
        assert_eq!(stops, [Some(expected.clone()), Some(expected)], "{topology:?}");
    }
}

#[test]
fn notices_come_in_order_under_their_names() {
    for topology in [Topology::Threads, Topology::Tcp, Topology::Shared] {
        for size in [1, 2, 4] {
            on_ranks(topology.world(size), move |comm| notices(&comm));
        }
    }
}

fn notices(comm: &Communicator) {
    let (rank, size) = (comm.rank(), comm.world_size());
    let control = comm.control().expect("there is one");
    let long = Duration::from_secs(20);
    for number in 0..50_u8 {
        control.post("metrics", &[rank as u8, number]).expect("a sound world");
    }
    control.post("done", &[]).expect("a sound world");
    if rank == 0 {
        for _ in 0..size {
            let done = control.wait("done", long).expect("a sound world").expect("all post");
            assert!(done.payload.is_empty());
        }
        let mut next = vec![0; size];
        while let Some(Notice { from, payload }) = control.poll("metrics").expect("a sound world") {
            assert_eq!(payload, [from as u8, next[from]]);
            next[from] += 1;
        }
        assert!(next.iter().all(|count| *count == 50), "{next:?}");
        control.announce("verdict", &vec![7; 60_000]).expect("a sound world");
        assert_eq!(control.poll("verdict"), Ok(None), "an announcement is for the others");
    } else {
        let verdict = control.wait("verdict", long).expect("a sound world").expect("rank 0 announces");
        assert_eq!((verdict.from, verdict.payload), (0, vec![7; 60_000]));
        assert!(matches!(control.announce("verdict", &[]), Err(CommError::Argument { .. })));
        assert_eq!(control.poll("metrics"), Ok(None), "notices are for rank 0");
    }
    let begun = Instant::now();
    assert_eq!(control.wait("nothing", Duration::from_millis(30)), Ok(None));
    assert!(begun.elapsed() >= Duration::from_millis(30));
    assert!(matches!(control.post("much", &vec![0; 1 << 20]), Err(CommError::Argument { .. })));
    // Notices do not affect operations, and a part of the world has the world's control plane.
    let part = comm.split(Some(0), -(rank as i64)).expect("sound").expect("all have a colour");
    part.control().expect("there is one").post("from a part", &[]).expect("a sound world");
    if rank == 0 {
        let mut from: Vec<_> = (0..size)
            .map(|_| control.wait("from a part", long).expect("sound").expect("all post").from)
            .collect();
        from.sort_unstable();
        assert_eq!(from, (0..size).collect::<Vec<_>>());
    }
    comm.barrier("end").expect("a sound world");
}

#[test]
fn a_broken_world_has_no_control_plane_either() {
    for topology in [Topology::Threads, Topology::Tcp] {
        on_ranks(topology.world(2), |comm| {
            let control = comm.control().expect("there is one");
            if comm.rank() == 1 {
                comm.abort("no disk");
            }
            let expected = CommError::Aborted { rank: 1, reason: "no disk".into() };
            assert_eq!(control.wait("never", Duration::from_secs(20)), Err(expected.clone()));
            assert_eq!(control.post("late", &[]), Err(expected.clone()));
            assert_eq!(control.request_stop("late"), Err(expected));
        });
    }
}

#[test]
fn a_rank_that_leaves_has_no_vote() {
    for topology in [Topology::Threads, Topology::Tcp] {
        let stops = on_ranks(topology.world(3), |comm| {
            let control = comm.control().expect("there is one");
            control.begin_step(if comm.rank() == 2 { 900 } else { 3 }).expect("a sound world");
            comm.barrier("all have begun").expect("a sound world");
            if comm.rank() == 2 {
                drop(comm);
                return None;
            }
            // Time for the goodbye to arrive.
            std::thread::sleep(Duration::from_millis(200));
            control.request_stop("enough").expect("a sound world");
            // The request may take a moment to hold this rank.
            let stop = (4..).find_map(|step| {
                std::thread::sleep(Duration::from_millis(1));
                control.begin_step(step).expect("a sound world")
            });
            drop(comm);
            stop.and_then(|stop| stop.after)
        });
        assert!(stops[0].is_some_and(|after| (3..900).contains(&after)), "{topology:?}: {stops:?}");
        assert_eq!((stops[0], stops[2]), (stops[1], None), "{topology:?}");
    }
}

/// An environment variable that makes this program play a rank: rank and port.
const ROLE: &str = "PHALANX_TEST_CONTROL_RANK";

fn config(rank: usize, port: u16) -> WorldConfig {
    let timeouts = Timeouts {
        connect: Duration::from_secs(30),
        heartbeat_timeout: Duration::from_secs(3),
        ..Timeouts::default()
    };
    WorldConfig { timeouts, ..WorldConfig::local(rank, 3, port) }
}

/// The rank that the test below starts as a process and harms; not a test by itself.
#[test]
fn as_a_rank_of_another_process() {
    let Ok(place) = std::env::var(ROLE) else { return };
    let (rank, port) = place.split_once(',').expect("two words");
    let config = config(rank.parse().expect("a number"), port.parse().expect("a number"));
    let comm = connect(&config).expect("the others are there");
    comm.barrier("begin").expect("all work");
    std::thread::sleep(Duration::from_secs(60));
}

fn signal(child: &Child, name: &str) {
    let sent = Command::new("kill").args([name, &child.id().to_string()]).status().expect("kill runs");
    assert!(sent.success());
}

#[test]
fn a_rank_that_dies_during_the_vote_is_named_to_who_is_held() {
    side_by_side(&[0, 2], 2, |&victim| {
        let port = own_port();
        let mut listener = listener_of_rank_0(port, victim == 0);
        let test = "control::as_a_rank_of_another_process";
        let place = format!("{victim},{port}");
        let mut child = rank_process(test, ROLE, &place).spawn().expect("this program runs again");
        let (ready, working) = std::sync::mpsc::channel();
        let (harmed, go) = std::sync::mpsc::channel::<()>();
        let mut go = Some(go);
        let others: Vec<_> = [0, 1, 2]
            .into_iter()
            .filter(|rank| *rank != victim)
            .map(|rank| {
                let listener = if rank == 0 { listener.take() } else { None };
                let (ready, go) = (ready.clone(), if rank == 1 { go.take() } else { None });
                std::thread::spawn(move || {
                    let comm = connect_with_listener(&config(rank, port), listener).expect("all come");
                    let control: Control = comm.control().expect("there is one");
                    control.begin_step(5).expect("a sound world");
                    comm.barrier("begin").expect("all work");
                    ready.send(()).expect("the test waits");
                    if let Some(go) = go {
                        // The victim is stopped and does not answer.
                        go.recv().expect("the test goes on");
                        control.request_stop("enough").expect("a sound world");
                    }
                    for step in 6.. {
                        // Without rank 0 no rank is held; its loss shows in another call.
                        let begun = control.begin_step(step);
                        let looked = if victim == 0 { control.poll("nothing").map(drop) } else { Ok(()) };
                        match begun.and_then(|stop| looked.map(|()| stop)) {
                            Err(error) => return (error, Instant::now()),
                            Ok(stop) => assert_eq!(stop, None, "there can be no verdict"),
                        }
                        std::thread::sleep(Duration::from_millis(2));
                    }
                    unreachable!("steps go on until a rank is lost")
                })
            })
            .collect();
        for _ in 0..2 {
            working.recv_timeout(Duration::from_secs(30)).expect("all come");
        }
        signal(&child, "-STOP");
        harmed.send(()).expect("rank 1 waits");
        std::thread::sleep(Duration::from_millis(300));
        let killed = Instant::now();
        child.kill().expect("it lives");
        child.wait().expect("it is dead");
        for other in others {
            let (error, at) = other.join().expect("no panic");
            assert!(matches!(error, CommError::PeerLost { rank, .. } if rank == victim), "{error}");
            assert_eq!(error.to_string().contains("agreement to stop"), victim != 0, "{error}");
            assert!(at.saturating_duration_since(killed) < Duration::from_secs(5));
        }
    });
}

#[test]
fn a_world_of_one_agrees_with_itself() {
    let alone = threads(1).expect("threads").remove(0);
    let (last, stop) = train(&alone, true, &[2], &mut Random(3));
    assert_eq!((last, stop.after, stop.rank), (Some(2), Some(2), 0));
}
