//! Worlds for tests: ranks as threads, connected in every possible way.
#![allow(dead_code, reason = "each test program uses some of it")]

pub(crate) mod checks;
mod process;
mod random;

#[allow(unused_imports, reason = "each test program uses some of them")]
pub(crate) use process::{rank_process, side_by_side};
#[allow(unused_imports, reason = "each test program uses some of them")]
pub(crate) use random::Random;

use std::net::TcpListener;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use phalanx_collectives::{
    Communicator, Timeouts, TransportOptions, WorldConfig, connect_with_listener, threads,
};

/// The connections between the ranks of a world.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Topology {
    /// As threads of one process: channels, and memory of their own.
    Threads,
    /// TCP over loopback.
    Tcp,
    /// TCP with three connections between each pair of ranks.
    Lanes,
    /// As processes of one host: pipes and slots in shared memory.
    Shared,
    /// As processes of two hosts: even ranks on one, odd ranks on the other; shared memory inside, TCP between.
    TwoHosts,
    /// Three hosts of different sizes without shared memory.
    Uneven,
}

pub(crate) const TOPOLOGIES: [Topology; 6] = [
    Topology::Threads,
    Topology::Tcp,
    Topology::Lanes,
    Topology::Shared,
    Topology::TwoHosts,
    Topology::Uneven,
];

impl Topology {
    /// Returns a world of `size` ranks.
    pub(crate) fn world(self, size: usize) -> Vec<Communicator> {
        self.world_with(size, |config| config)
    }

    /// Returns a world of `size` ranks, each with a changed configuration.
    pub(crate) fn world_with(
        self,
        size: usize,
        change: impl Fn(WorldConfig) -> WorldConfig,
    ) -> Vec<Communicator> {
        if self == Self::Threads {
            return threads(size).expect("threads");
        }
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().expect("bound").port();
        let mut listener = Some(listener);
        let host = |rank: usize| match self {
            Self::TwoHosts => Some(format!("host{}", rank % 2)),
            Self::Uneven => Some(format!("host{}", rank.min(2))),
            _ => None,
        };
        let joining: Vec<_> = (0..size)
            .map(|rank| {
                let transport = TransportOptions {
                    shared_memory: matches!(self, Self::Shared | Self::TwoHosts),
                    streams: if self == Self::Lanes { 3 } else { 1 },
                    ..TransportOptions::default()
                };
                let timeouts = Timeouts { connect: Duration::from_secs(20), ..Timeouts::default() };
                let local = WorldConfig::local(rank, size, port);
                let config = change(WorldConfig { host: host(rank), transport, timeouts, ..local });
                let listener = if rank == 0 { listener.take() } else { None };
                std::thread::spawn(move || connect_with_listener(&config, listener).expect("all ranks come"))
            })
            .collect();
        joining.into_iter().map(|rank| rank.join().expect("no panic")).collect()
    }
}

/// Runs `f` on every rank and returns the results.
pub(crate) fn on_ranks<R: Send + 'static>(
    ranks: Vec<Communicator>,
    f: impl Fn(Communicator) -> R + Clone + Send + 'static,
) -> Vec<R> {
    let running: Vec<_> = ranks
        .into_iter()
        .map(|comm| {
            let f = f.clone();
            std::thread::spawn(move || f(comm))
        })
        .collect();
    running.into_iter().map(|rank| rank.join().expect("no panic")).collect()
}

/// Returns a port for a rank of another process: the system gives it to no outgoing connection, and no other test of this process
/// has it. It is not tried: a listener that is closed again can live on for a moment in a process that another test is starting.
pub(crate) fn own_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    20_000 + (std::process::id() % 120) as u16 * 100 + NEXT.fetch_add(1, Ordering::Relaxed) % 100
}

/// Returns a listener at one's own port for rank 0, unless that is a process, which listens itself.
pub(crate) fn listener_of_rank_0(port: u16, is_process: bool) -> Option<TcpListener> {
    (!is_process).then(|| TcpListener::bind(("127.0.0.1", port)).expect("a free port"))
}
