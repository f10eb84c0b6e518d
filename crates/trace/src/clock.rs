//! The clock of a trace, and the offsets between the clocks of ranks.
//!
//! Ranks use the monotonic clock of their system, which all its processes share. The offset of another host's clock
//! from rank 0's is estimated from round trips. The uncertainty is half of the round-trip time.

use serde::{Deserialize, Serialize};

/// Returns the monotonic clock in nanoseconds. Processes of one system share it.
#[cfg(unix)]
pub fn now() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    // Neither is negative.
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Returns the nanoseconds of a monotonic clock since the first call of the process.
#[cfg(not(unix))]
pub fn now() -> u64 {
    static BEGUN: std::sync::OnceLock<std::time::Instant> = std::sync::OnceLock::new();
    BEGUN.get_or_init(std::time::Instant::now).elapsed().as_nanos() as u64
}

/// The send and receive times of a round trip, in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RoundTrip {
    /// The send time, by the own clock.
    pub sent: u64,
    /// The receive time, by the other clock.
    pub received: u64,
    /// The send time of the reply, by the other clock.
    pub answered: u64,
    /// The receive time of the reply, by the own clock.
    pub returned: u64,
}

/// The offset of another rank's clock from this rank's clock.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Offset {
    /// The time of the measurement, in nanoseconds of the own clock.
    pub at: u64,
    /// The nanoseconds by which the other clock is ahead; negative if it is behind.
    pub ahead: i64,
    /// The uncertainty in nanoseconds.
    pub uncertainty: u64,
}

impl RoundTrip {
    /// Returns the network time of the round trip in nanoseconds.
    pub fn on_the_way(&self) -> u64 {
        (self.returned - self.sent).saturating_sub(self.answered - self.received)
    }

    /// Estimates the offset, assuming that both directions take the same time.
    pub fn offset(&self) -> Offset {
        let ahead =
            (self.received as i128 - self.sent as i128) + (self.answered as i128 - self.returned as i128);
        Offset {
            at: self.sent.midpoint(self.returned),
            ahead: (ahead / 2) as i64,
            uncertainty: self.on_the_way().div_ceil(2),
        }
    }
}

impl Offset {
    /// Converts this offset from a third clock to an offset from the clock that is `other` ahead of it.
    #[must_use]
    pub fn seen_from(&self, other: &Self) -> Self {
        if other.ahead == 0 && other.uncertainty == 0 {
            return *self;
        }
        Self {
            at: self.at.saturating_add_signed(other.ahead),
            ahead: self.ahead - other.ahead,
            uncertainty: self.uncertainty + other.uncertainty,
        }
    }
}

/// Estimates the offset from the fastest of several round trips. If `same_system` and the offset is within its
/// uncertainty, both share one clock: the offset is exactly 0.
pub fn best(trips: impl IntoIterator<Item = RoundTrip>, same_system: bool) -> Option<Offset> {
    let found = trips.into_iter().min_by_key(RoundTrip::on_the_way)?.offset();
    match same_system && found.ahead.unsigned_abs() <= found.uncertainty {
        true => Some(Offset { ahead: 0, uncertainty: 0, ..found }),
        false => Some(found),
    }
}

/// A rank's clock relative to rank 0's, measured at the start and at the end of a run.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Alignment {
    /// The offset at the start.
    pub start: Offset,
    /// The offset at the end.
    pub end: Offset,
}

impl Alignment {
    /// Converts `time` of this rank's clock to rank 0's clock. The offset is interpolated linearly.
    pub fn to_first(&self, time: u64) -> f64 {
        let (start, end) = (self.start, self.end);
        let span = end.at as f64 - start.at as f64;
        let guess = time as f64 - start.ahead as f64;
        let part = if span > 0.0 { ((guess - start.at as f64) / span).clamp(0.0, 1.0) } else { 0.0 };
        time as f64 - (start.ahead as f64 + part * (end.ahead as f64 - start.ahead as f64))
    }

    /// Returns the uncertainty of times of this rank in nanoseconds.
    pub fn uncertainty(&self) -> u64 {
        self.start.uncertainty.max(self.end.uncertainty)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_quickest_message_says_how_far_clocks_are_apart() {
        // The other clock is 1000 ahead.
        let trip = |sent: u64, there: u64, back: u64| RoundTrip {
            sent,
            received: sent + there + 1000,
            answered: sent + there + 5 + 1000,
            returned: sent + there + 5 + back,
        };
        let trips = [trip(0, 80, 20), trip(200, 11, 9), trip(400, 10, 300)];
        let found = best(trips, false).expect("three");
        assert_eq!((found.ahead, found.uncertainty), (1001, 10));
        assert!(trips.iter().all(|trip| trip.offset().ahead.abs_diff(1000) <= trip.offset().uncertainty));
        assert_eq!(best(trips, true), Some(found), "it is more than it may be wrong");
        let same = RoundTrip { sent: 100, received: 109, answered: 110, returned: 121 };
        assert_eq!(best([same], true).map(|found| (found.ahead, found.uncertainty)), Some((0, 0)));
        assert_eq!(best([same], false).map(|found| (found.ahead, found.uncertainty)), Some((-1, 10)));
        assert_eq!(best([], true), None);
        let [one, two] = [70, 100].map(|ahead| Offset { at: 500, ahead, uncertainty: 2 });
        assert_eq!(two.seen_from(&one), Offset { at: 570, ahead: 30, uncertainty: 4 });
        assert_eq!(two.seen_from(&Offset { at: 9, ..Offset::default() }), two);
    }

    #[test]
    fn a_clock_that_is_faster_is_followed_from_start_to_end() {
        let (start, end) =
            (Offset { at: 1000, ahead: 50, uncertainty: 3 }, Offset { at: 2000, ahead: 60, uncertainty: 4 });
        let alignment = Alignment { start, end };
        assert!((alignment.to_first(1050) - 1000.0).abs() < 1e-9);
        assert!((alignment.to_first(1555) - 1500.0).abs() < 0.1);
        assert!((alignment.to_first(2060) - 2000.0).abs() < 0.2);
        assert_eq!(alignment.uncertainty(), 4);
        let times: Vec<f64> = (900..2300).map(|time| alignment.to_first(time)).collect();
        assert!(times.windows(2).all(|pair| pair[0] < pair[1]), "times stay in order");
        let (one, two) = (now(), now());
        assert!(one <= two);
    }
}
