//! Rounds of ours and theirs in turn.

use std::time::{Duration, Instant};

use anyhow::Result;

use crate::peer::Prepared;

/// The length of one round, so that the clock and the wake-up of threads do not count.
const ROUND: Duration = Duration::from_millis(60);

/// A pause before each round of either side: idle threads of an OpenMP program go on spinning for a while, and should
/// not take the other's time.
const PAUSE: Duration = Duration::from_millis(40);

/// Median seconds of one repetition.
#[derive(Debug, Clone)]
pub(crate) struct Medians {
    /// Of each of ours.
    pub(crate) ours: Vec<f64>,
    /// The peer's, if there is one and it can do this.
    pub(crate) theirs: Option<f64>,
}

/// The middle of some numbers.
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Alternates `rounds` rounds of each of `ours`, which repeats its work so often as it is told, and of the peer. Each round
/// repeats the work so often that it lasts a while; a first one, not counted, warms up.
pub(crate) fn alternate(
    rounds: u64,
    ours: &mut [&mut dyn FnMut(u64) -> Result<()>],
    mut theirs: Option<&mut Prepared<'_>>,
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
