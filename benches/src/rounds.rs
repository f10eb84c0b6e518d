//! Alternating rounds of Phalanx and a peer.

use std::time::{Duration, Instant};

use anyhow::Result;

use crate::peer::PreparedPeer;

/// The length of one round. It makes clock resolution and thread wake-up negligible.
const ROUND: Duration = Duration::from_millis(60);

/// The pause before each round. Idle OpenMP threads spin for a while, which would slow the other side.
const PAUSE: Duration = Duration::from_millis(40);

/// Median seconds of one repetition.
#[derive(Debug, Clone)]
pub(crate) struct Medians {
    /// Phalanx, by piece of work.
    pub(crate) ours: Vec<f64>,
    /// The peer, if it supports the work.
    pub(crate) theirs: Option<f64>,
}

/// Returns the median.
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Alternates `rounds` rounds of each of `ours` and of the peer, after one warm-up round. A round repeats the work to
/// reach its minimum length.
pub(crate) fn alternate(
    rounds: u64,
    ours: &mut [&mut dyn FnMut(u64) -> Result<()>],
    mut theirs: Option<&mut PreparedPeer<'_>>,
) -> Result<Medians> {
    let repetitions = |seconds: f64| (ROUND.as_secs_f64() / seconds.max(1e-9)).ceil().clamp(1.0, 1e4) as u64;
    let mut our_repetitions = Vec::new();
    for work in ours.iter_mut() {
        work(1)?;
        our_repetitions.push(repetitions(seconds(work, 1)?));
    }
    let their_repetitions = match &mut theirs {
        Some(peer) => {
            peer.run(1)?;
            repetitions(peer.run(1)?)
        }
        None => 1,
    };
    let (mut our_times, mut their_times) = (vec![Vec::new(); ours.len()], Vec::new());
    for _ in 0..rounds {
        for ((work, repetitions), times) in ours.iter_mut().zip(&our_repetitions).zip(&mut our_times) {
            std::thread::sleep(PAUSE);
            times.push(seconds(work, *repetitions)? / *repetitions as f64);
        }
        if let Some(peer) = &mut theirs {
            std::thread::sleep(PAUSE);
            their_times.push(peer.run(their_repetitions)?);
        }
    }
    let theirs = (!their_times.is_empty()).then(|| median(their_times));
    Ok(Medians { ours: our_times.into_iter().map(median).collect(), theirs })
}

/// Returns the time of a number of repetitions.
fn seconds(work: &mut dyn FnMut(u64) -> Result<()>, repetitions: u64) -> Result<f64> {
    let start = Instant::now();
    work(repetitions)?;
    Ok(start.elapsed().as_secs_f64())
}
