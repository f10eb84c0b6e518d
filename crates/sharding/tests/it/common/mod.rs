//! Worlds of threads for tests.

pub(crate) mod layers;
pub(crate) mod problem;

use phalanx_collectives::{Communicator, threads};

/// Runs `rank` on as many threads; what each returns, rank 0 first.
pub(crate) fn on_ranks<R: Send + 'static>(
    size: usize,
    rank: impl Fn(Communicator) -> R + Clone + Send + 'static,
) -> Vec<R> {
    let running: Vec<_> = threads(size)
        .expect("threads")
        .into_iter()
        .map(|comm| {
            let rank = rank.clone();
            std::thread::spawn(move || rank(comm))
        })
        .collect();
    running.into_iter().map(|rank| rank.join().expect("no panic")).collect()
}
