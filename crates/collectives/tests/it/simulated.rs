//! Simulated links: every operation has the same results, none is faster than the link, and simulated clocks agree with the
//! formulas.
#![cfg(target_os = "linux")]

use std::time::{Duration, Instant};

use crate::common::{Topology, checks, on_ranks};
use phalanx_collectives::{
    Algorithm, Clock, CommError, Communicator, CostModel, ReduceOp, Rehearsal, SimulatedLink, WorldConfig,
    threads_over,
};

fn link(text: &str, clock: Clock) -> SimulatedLink {
    SimulatedLink { clock, ..text.parse().expect("a link") }
}

/// Returns a world of threads, or of ranks that are connected like processes.
fn world(topology: Topology, size: usize, link: SimulatedLink) -> Vec<Communicator> {
    match topology {
        Topology::Threads => threads_over(size, link).expect("threads"),
        topology => topology.world_with(size, |mut config| {
            config.transport.simulated = Some(link);
            config
        }),
    }
}

#[test]
fn every_operation_gives_what_it_gives_on_the_machine() {
    for (topology, size, clock) in [
        (Topology::Shared, 2, Clock::Wall),
        (Topology::Threads, 3, Clock::Cpu),
        (Topology::Shared, 4, Clock::Cpu),
        (Topology::Tcp, 3, Clock::Cpu),
    ] {
        on_ranks(world(topology, size, link("10Gbit,5us", clock)), |comm| checks::check_all(&comm, false));
    }
}

#[test]
fn ranks_share_no_memory_and_no_message_is_faster_than_the_link() {
    for topology in [Topology::Threads, Topology::Shared, Topology::Tcp] {
        let seconds = on_ranks(world(topology, 2, link("400Mbit,2ms", Clock::Wall)), |comm| {
            let direct = comm.using(Algorithm::Direct).all_reduce(&mut [1.0_f32][..], ReduceOp::Sum);
            assert!(matches!(direct, Err(CommError::Argument { .. })), "{direct:?}");
            // 4 MiB, of which each rank sends half twice: 84 ms, in 8 pieces each way of which each waits for the one before.
            let mut values = vec![comm.rank() as f32; 1 << 20];
            comm.barrier("all are here").expect("the world is sound");
            let start = Instant::now();
            comm.using(Algorithm::Ring).all_reduce(&mut values[..], ReduceOp::Sum).expect("sound");
            assert!(values.iter().all(|value| *value == 1.0));
            start.elapsed().as_secs_f64()
        });
        let least = (4 << 20) as f64 / 50e6 + 16.0 * 0.002;
        let slowest = seconds.iter().copied().fold(0.0, f64::max);
        assert!(slowest >= 0.98 * least, "{topology:?}: {slowest} s, at least {least}");
    }
}

#[test]
fn messages_from_any_rank_take_their_time_and_stay_in_order() {
    let ranks = world(Topology::Shared, 3, link("80Mbit,20ms", Clock::Wall));
    let start = Instant::now();
    let got = on_ranks(ranks, move |comm| {
        if comm.rank() > 0 {
            for part in 0..3_u8 {
                comm.send_to(0, 7, &vec![part; 100_000]).expect("sound");
            }
            comm.barrier("all have come").expect("sound");
            return start.elapsed();
        }
        let mut parts = [0, 0, 0];
        for _ in 0..6 {
            let (from, bytes) = comm.recv_any(7).expect("they come");
            assert_eq!(usize::from(bytes[0]), parts[from], "in order");
            parts[from] += 1;
        }
        let took = start.elapsed();
        comm.barrier("all have come").expect("sound");
        took
    });
    // Six messages of 10 ms each come through one wire, the first after 20 ms more.
    assert!(got[0] >= Duration::from_millis(79), "{got:?}");
}

#[test]
fn simulated_clocks_go_by_the_formulas_and_not_by_the_machine() {
    const BYTES: usize = 4 << 20;
    let network = link("400Mbit,100us", Clock::Cpu);
    let model = CostModel::over(&network);
    for (algorithm, size) in
        [(Algorithm::Ring, 2), (Algorithm::Ring, 4), (Algorithm::SingleReducer, 4), (Algorithm::Tree, 4)]
    {
        let seconds = on_ranks(world(Topology::Threads, size, network), move |comm| {
            let mut values = vec![1.0_f32; BYTES / 4];
            let comm = comm.using(algorithm);
            comm.all_reduce(&mut values[..1], ReduceOp::Sum).expect("sound");
            // All ranks start at the same time by their own clocks.
            let mut begun = [comm.clock().now().as_secs_f64()];
            comm.all_reduce(&mut begun, ReduceOp::Max).expect("sound");
            comm.all_reduce(&mut values[..], ReduceOp::Sum).expect("sound");
            comm.clock().now().as_secs_f64() - begun[0]
        });
        let slowest = seconds.iter().copied().fold(0.0, f64::max);
        let predicted = model.predict("all-reduce", algorithm, BYTES, &[size]).expect("known");
        let part = slowest / predicted;
        assert!((0.9..1.25).contains(&part), "{algorithm} on {size}: {slowest} s, by formula {predicted} s");
    }
}

#[test]
fn steps_that_follow_each_other_take_what_is_rehearsed() {
    const BYTES: usize = 1 << 20;
    const STEPS: usize = 6;
    let computing = Duration::from_millis(10);
    let network = link("400Mbit,100us", Clock::Cpu);
    for (algorithm, size) in [
        (Algorithm::SingleReducer, 2),
        (Algorithm::SingleReducer, 4),
        (Algorithm::SingleReducer, 6),
        (Algorithm::Tree, 4),
    ] {
        let seconds = on_ranks(world(Topology::Threads, size, network), move |comm| {
            let mut values = vec![1.0_f32; BYTES / 4];
            let comm = comm.using(algorithm);
            let mut ends = Vec::new();
            for _ in 0..STEPS {
                comm.clock().sleep(computing);
                comm.all_reduce(&mut values[..], ReduceOp::Sum).expect("sound");
                ends.push(comm.clock().now().as_secs_f64());
            }
            (ends[STEPS - 1] - ends[STEPS / 2 - 1]) / (STEPS / 2) as f64
        });
        let mut world = Rehearsal::new(&CostModel::over(&network), &[size]).expect("known");
        let members: Vec<usize> = (0..size).collect();
        let (mut at, mut ends) = (vec![0.0; size], Vec::new());
        for _ in 0..STEPS {
            let from: Vec<f64> = at.iter().map(|end| end + computing.as_secs_f64()).collect();
            at = world.play("all-reduce", algorithm, BYTES as u64, &members, &from).expect("by messages");
            ends.push(at[0]);
        }
        let rehearsed = (ends[STEPS - 1] - ends[STEPS / 2 - 1]) / (STEPS / 2) as f64;
        let part = seconds[0] / rehearsed;
        assert!(
            (0.95..1.1).contains(&part),
            "{algorithm} on {size}: {} s, rehearsed {rehearsed} s",
            seconds[0]
        );
        if algorithm == Algorithm::SingleReducer {
            // A megabyte takes 21 ms on a wire, and passes one for each rank.
            let by_hand = computing.as_secs_f64() + size as f64 * BYTES as f64 / 50e6;
            assert!(
                (0.95..1.05).contains(&(rehearsed / by_hand)),
                "{size}: {rehearsed} s, by hand {by_hand} s"
            );
        }
    }
}

#[test]
fn ranks_of_a_host_have_a_link_of_their_own() {
    const BYTES: usize = 1 << 20;
    // So slow that the ranks' own CPU time counts for little.
    let (between, inside) = (link("20Mbit,20ms", Clock::Cpu), link("2Gbit,20us", Clock::Cpu));
    let seconds = on_ranks(
        Topology::Shared.world_with(4, |config| {
            let host = Some(format!("host {}", config.rank / 2));
            let mut config = WorldConfig { host, ..config };
            config.transport.simulated = Some(between);
            config.transport.simulated_on_host = Some(inside);
            config
        }),
        |comm| {
            assert_eq!(comm.hosts(), [0, 0, 1, 1]);
            let mut values = vec![1.0_f32; BYTES / 4];
            // The start and the end on this rank.
            let timed = |comm: &Communicator, values: &mut [f32]| {
                let begun = comm.clock().now().as_secs_f64();
                comm.all_reduce(values, ReduceOp::Max).expect("sound");
                (begun, comm.clock().now().as_secs_f64())
            };
            let by_hosts = timed(&comm.using(Algorithm::Hierarchical), &mut values);
            let around = timed(&comm.using(Algorithm::Ring), &mut values);
            let near = comm.split(Some(comm.rank() as u32 / 2), 0).expect("sound").expect("one of two");
            [by_hosts, around, timed(&near.using(Algorithm::Ring), &mut values)]
        },
    );
    let latest = |times: &mut dyn Iterator<Item = f64>| times.fold(0.0, f64::max);
    let took = |at: usize, ranks: &[usize]| {
        let end = latest(&mut ranks.iter().map(|rank| seconds[*rank][at].1));
        end - latest(&mut ranks.iter().map(|rank| seconds[*rank][at].0))
    };
    let all = [0, 1, 2, 3];
    for (at, algorithm) in [(0, Algorithm::Hierarchical), (1, Algorithm::Ring)] {
        let costs = CostModel::over_hosts(&inside, &between);
        let mut world = Rehearsal::new(&costs, &[2, 2]).expect("known");
        let first = all.map(|rank| seconds[rank][at].0).into_iter().fold(f64::INFINITY, f64::min);
        let from = all.map(|rank| seconds[rank][at].0 - first);
        let ends = world.play("all-reduce", algorithm, BYTES as u64, &all, &from).expect("by messages");
        let rehearsed = latest(&mut ends.into_iter());
        let found = latest(&mut all.iter().map(|rank| seconds[*rank][at].1)) - first;
        assert!(
            (0.95..1.2).contains(&(found / rehearsed)),
            "{algorithm}: {found} s, rehearsed {rehearsed} s"
        );
    }
    // Half a megabyte each way between hosts, and next to nothing inside.
    let (by_hosts, around, near) = (took(0, &all), took(1, &all), took(2, &[0, 1]));
    assert!(by_hosts < 0.8 * around && near < 0.2 * by_hosts, "{by_hosts} {around} {near}");
}

#[test]
fn what_computing_hides_is_hidden_by_simulated_clocks_too() {
    let network = link("400Mbit,100us", Clock::Cpu);
    let told = on_ranks(world(Topology::Threads, 2, network), |comm| {
        let clock = comm.clock();
        let values = vec![1.0_f32; 1 << 20];
        comm.barrier("all are here").expect("sound");
        let (start, before) = (clock.now(), comm.stats().seconds_exposed);
        let handle = comm.using(Algorithm::Ring).all_reduce_async(values, ReduceOp::Sum);
        // 84 ms of transfer run during the computation.
        while clock.now() - start < Duration::from_millis(40) {
            std::hint::spin_loop();
        }
        handle.wait().expect("sound");
        ((clock.now() - start).as_secs_f64(), comm.stats().seconds_exposed - before)
    });
    for (whole, exposed) in told {
        assert!((0.083..0.12).contains(&whole), "{whole} s");
        assert!((0.03..0.08).contains(&exposed), "{exposed} s of {whole}");
    }
}
