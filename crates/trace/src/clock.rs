//! The clock of a trace, and how far the clocks of ranks are apart.
//!
//! A rank's clock is the system's that never goes back, which the processes of one running system share. How far that of another
//! host is from rank 0's is found by messages there and back: half of the time that they were on their way for is how wrong the
//! estimate can be.

use serde::{Deserialize, Serialize};

/// Nanoseconds of a clock that never goes back. Processes of one system have the same.
#[cfg(unix)]
pub fn now() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    // Neither is negative.
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Nanoseconds of a clock that never goes back, from the first call of the process on.
#[cfg(not(unix))]
pub fn now() -> u64 {
    static BEGUN: std::sync::OnceLock<std::time::Instant> = std::sync::OnceLock::new();
    BEGUN.get_or_init(std::time::Instant::now).elapsed().as_nanos() as u64
}

/// A message that went to a rank and came back, with the times at which it left and arrived, in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RoundTrip {
    /// When it left, by the own clock.
    pub sent: u64,
    /// When it arrived, by the other's clock.
    pub received: u64,
    /// When the answer left, by the other's clock.
    pub answered: u64,
    /// When the answer arrived, by the own clock.
    pub returned: u64,
}

/// The lead of another rank's clock over this one's.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Offset {
    /// When that was found, in nanoseconds of the own clock.
    pub at: u64,
    /// Nanoseconds by which the other's clock is ahead; below 0 if it is behind.
    pub ahead: i64,
    /// Nanoseconds by which that may be wrong.
    pub uncertainty: u64,
}

impl RoundTrip {
    /// Nanoseconds on the way, there and back.
    pub fn on_the_way(&self) -> u64 {
        (self.returned - self.sent).saturating_sub(self.answered - self.received)
    }

    /// The offset that it shows: both ways are taken to be as long.
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
    /// This offset from a third clock, as one from the clock that is `other` ahead of that.
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

/// The offset that the quickest of several messages shows. If `same_system` and it is no larger than it may be wrong, both have
/// one clock: then it is 0, and sure.
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
    /// At the start.
    pub start: Offset,
    /// At the end.
    pub end: Offset,
}

impl Alignment {
    /// The time of rank 0's clock at which this rank's clock showed `time`. In between the offset is taken to have grown evenly.
    pub fn to_first(&self, time: u64) -> f64 {
        let (start, end) = (self.start, self.end);
        let span = end.at as f64 - start.at as f64;
        let guess = time as f64 - start.ahead as f64;
        let part = if span > 0.0 { ((guess - start.at as f64) / span).clamp(0.0, 1.0) } else { 0.0 };
        time as f64 - (start.ahead as f64 + part * (end.ahead as f64 - start.ahead as f64))
    }

    /// Nanoseconds by which times of this rank may be wrong.
    pub fn uncertainty(&self) -> u64 {
        self.start.uncertainty.max(self.end.uncertainty)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_quickest_message_says_how_far_clocks_are_apart() {
        // The other's clock is 1000 ahead; ways take what they take.
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
