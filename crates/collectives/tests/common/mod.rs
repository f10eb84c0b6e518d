//! Worlds for tests: of threads that reach each other in every way that there is.
#![allow(dead_code, reason = "each test program uses some of it")]

pub(crate) mod checks;

use std::net::TcpListener;
use std::time::Duration;

use phalanx_collectives::{Communicator, WorldConfig, connect_with_listener, threads};

/// How the ranks of a world reach each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// As threads of one process do: channels, and memory of their own.
    Threads,
    /// TCP over loopback.
    Tcp,
    /// TCP with three connections between each two.
    Lanes,
    /// As processes of one host do: pipes and slots in shared memory.
    Shared,
    /// As processes of two hosts do: the even ranks on one, the odd on another; shared memory inside, TCP between.
    TwoHosts,
    /// Three hosts of different sizes without shared memory.
    Uneven,
}

pub(crate) const WAYS: [Way; 6] =
    [Way::Threads, Way::Tcp, Way::Lanes, Way::Shared, Way::TwoHosts, Way::Uneven];

impl Way {
    /// A world of so many ranks.
    pub(crate) fn world(self, size: usize) -> Vec<Communicator> {
        self.world_with(size, |config| config)
    }

    /// A world of so many ranks, each with a changed configuration.
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
                let config = change(WorldConfig {
                    connect_timeout: Duration::from_secs(20),
                    shared_memory: matches!(self, Self::Shared | Self::TwoHosts),
                    host: host(rank),
                    streams: if self == Self::Lanes { 3 } else { 1 },
                    ..WorldConfig::local(rank, size, port)
                });
                let listener = if rank == 0 { listener.take() } else { None };
                std::thread::spawn(move || connect_with_listener(&config, listener).expect("all ranks come"))
            })
            .collect();
        joining.into_iter().map(|rank| rank.join().expect("no panic")).collect()
    }
}

/// Runs `f` on every rank and returns what each gives.
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
