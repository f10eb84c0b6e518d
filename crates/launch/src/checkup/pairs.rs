//! Measures latency, bandwidth and clock offsets between all pairs of ranks.

use std::time::{Instant, SystemTime};

use phalanx_collectives::Communicator;
use serde::{Deserialize, Serialize};

use super::CheckupError;
use phalanx_trace::clock::{Offset, RoundTrip, best};

/// The number of small round trips.
const TRIPS: usize = 30;

/// Bytes of the first large message. The size grows until a message takes [`LONG`].
const BYTES: usize = 1 << 20;

/// Bytes of the largest message.
const MOST_BYTES: usize = 32 << 20;

/// The seconds of a message that is large enough to measure the bandwidth.
const LONG: f64 = 0.02;

/// The measurements between two ranks.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Pair {
    /// The lower rank, which measured.
    pub from: usize,
    /// The higher rank.
    pub to: usize,
    /// The one-way time of the fastest small message, in seconds.
    pub latency: f64,
    /// Bytes per second from the lower to the higher rank.
    pub there: f64,
    /// Bytes per second from the higher to the lower rank.
    pub back: f64,
}

/// The measurements of a rank.
pub(super) struct Measured {
    pub(super) pairs: Vec<Pair>,
    /// The offset of its wall clock from rank 0's.
    pub(super) clock: Option<Offset>,
}

/// Returns the pairs of each round: a round-robin schedule of `count` ranks (circle method).
pub fn rounds(count: usize) -> Vec<Vec<(usize, usize)>> {
    // With an odd number, one rank pauses in each round.
    let places = count + count % 2;
    let seat = |round: usize, place: usize| match place {
        0 => 0,
        place => 1 + (place - 1 + round) % (places - 1),
    };
    (0..places.saturating_sub(1))
        .map(|round| {
            let pairs = (0..places / 2).map(|place| (seat(round, place), seat(round, places - 1 - place)));
            pairs
                .map(|(one, other)| (one.min(other), one.max(other)))
                .filter(|(_, other)| *other < count)
                .collect()
        })
        .collect()
}

/// Measures all pairs of `measuring`, which includes rank 0. Other ranks wait.
pub(super) fn measure(communicator: &Communicator, measuring: &[usize]) -> Result<Measured, CheckupError> {
    let rank = communicator.rank();
    let mut measured = Measured { pairs: Vec::new(), clock: None };
    for round in rounds(measuring.len()) {
        let mine = round.iter().map(|(one, other)| (measuring[*one], measuring[*other]));
        for (from, to) in mine.filter(|(from, to)| *from == rank || *to == rank) {
            let (clock, pair) = between(communicator, from, to)?;
            measured.pairs.extend(pair);
            measured.clock = measured.clock.or(clock.filter(|_| from == 0));
        }
        communicator.barrier("a round of pairs")?;
    }
    Ok(measured)
}

/// Returns the wall clock of this host in nanoseconds since 1970.
fn time_of_day() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// Measures between two ranks: the higher rank measures clocks, the lower rank everything else.
fn between(
    communicator: &Communicator,
    from: usize,
    to: usize,
) -> Result<(Option<Offset>, Option<Pair>), CheckupError> {
    let is_lower = communicator.rank() == from;
    let other = if is_lower { to } else { from };
    let (mut trips, mut latency) = (Vec::new(), f64::INFINITY);
    for _ in 0..TRIPS {
        if is_lower {
            let mut word = [0_i64; 2];
            let begun = Instant::now();
            communicator.send(&word, other)?;
            communicator.recv(&mut word, other)?;
            latency = latency.min(begun.elapsed().as_secs_f64() / 2.0);
        } else {
            let mut word = [0_i64; 2];
            communicator.recv(&mut word, other)?;
            communicator.send(&word, other)?;
        }
    }
    // The higher rank sends the request and computes its offset from the lower rank.
    for _ in 0..TRIPS {
        let mut word = [0_i64; 2];
        if is_lower {
            communicator.recv(&mut word, other)?;
            let received = time_of_day();
            communicator.send(&[received as i64, time_of_day() as i64], other)?;
        } else {
            let sent = time_of_day();
            communicator.send(&word, other)?;
            communicator.recv(&mut word, other)?;
            // Skip the measurement if a clock was set back in between.
            let returned = time_of_day().max(sent);
            let (received, answered) = (word[0] as u64, (word[1] as u64).max(word[0] as u64));
            trips.push(RoundTrip { sent, received, answered, returned });
        }
    }
    let there = bandwidth(communicator, other, is_lower)?;
    let back = bandwidth(communicator, other, !is_lower)?;
    if is_lower {
        return Ok((None, Some(Pair { from, to, latency, there, back })));
    }
    let same_system = communicator.hosts()[from] == communicator.hosts()[to];
    let ahead = best(trips, same_system).map(|found| Offset { ahead: -found.ahead, ..found });
    Ok((ahead, None))
}

/// Measures the bandwidth in bytes per second by messages of growing size with acknowledgements. Both ranks return it.
fn bandwidth(communicator: &Communicator, other: usize, sends: bool) -> Result<f64, CheckupError> {
    let (mut size, mut most) = (BYTES, 0.0_f64);
    loop {
        let mut bytes = vec![0_u8; size];
        let mut told = [0.0_f64];
        if sends {
            let begun = Instant::now();
            communicator.send(&bytes, other)?;
            communicator.recv(&mut told, other)?;
            told[0] = begun.elapsed().as_secs_f64();
            communicator.send(&told, other)?;
        } else {
            communicator.recv(&mut bytes, other)?;
            communicator.send(&told, other)?;
            communicator.recv(&mut told, other)?;
        }
        most = most.max(size as f64 / told[0].max(1e-9));
        // Both ranks use the same number, so they decide alike.
        if told[0] > LONG || size >= MOST_BYTES {
            return Ok(most);
        }
        size *= 4;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pair_meets_once_and_no_rank_is_in_two_pairs_at_once() {
        for count in 0..12 {
            let rounds = rounds(count);
            let mut met: Vec<(usize, usize)> = rounds.concat();
            met.sort_unstable();
            let all: Vec<(usize, usize)> =
                (0..count).flat_map(|one| (one + 1..count).map(move |other| (one, other))).collect();
            assert_eq!(met, all, "{count}");
            for round in rounds {
                let mut busy: Vec<usize> = round.iter().flat_map(|(one, other)| [*one, *other]).collect();
                let people = busy.len();
                busy.sort_unstable();
                busy.dedup();
                assert_eq!(busy.len(), people, "{count}: {round:?}");
            }
        }
    }
}
