//! The description of a simulated link.

use std::time::Duration;

use super::clock::Clock;
use crate::error::CommError;

/// A link from each rank to a switch, written `10Gbit,20us`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SimulatedLink {
    /// Bytes per second in each direction.
    pub bandwidth: f64,
    /// The time between the departure of a message's last byte and its arrival.
    pub latency: Duration,
    /// The clock: messages are awaited, or clocks simulated.
    pub clock: Clock,
}

impl SimulatedLink {
    /// The link that takes no time.
    pub const fn timeless() -> Self {
        Self { bandwidth: f64::INFINITY, latency: Duration::ZERO, clock: Clock::Wall }
    }

    /// Returns the nanoseconds that `bytes` bytes occupy a wire.
    pub(super) fn nanos(&self, bytes: usize) -> u64 {
        (bytes as f64 / self.bandwidth * 1e9) as u64
    }
}

const BITS: [(&str, f64); 4] = [("Gbit", 1e9), ("Mbit", 1e6), ("kbit", 1e3), ("Kbit", 1e3)];
const SECONDS: [(&str, f64); 5] = [("ns", 1e-9), ("us", 1e-6), ("µs", 1e-6), ("ms", 1e-3), ("s", 1.0)];

/// A number with one of some units.
fn quantity(text: &str, units: &[(&str, f64)]) -> Option<f64> {
    let (number, unit) =
        units.iter().find_map(|(name, unit)| Some((text.trim().strip_suffix(name)?.trim(), unit)))?;
    let number: f64 = number.parse().ok()?;
    (number.is_finite() && number >= 0.0).then_some(number * unit)
}

impl std::str::FromStr for SimulatedLink {
    type Err = CommError;

    /// Parses a bandwidth (kbit, Mbit or Gbit per second) and, after a comma, a latency (ns, us, ms or s; none without).
    fn from_str(text: &str) -> Result<Self, CommError> {
        let wrong = |what: &str| CommError::Argument {
            operation: "simulate a link",
            problem: format!("`{text}`: {what}; a link is a bandwidth and a latency, such as 10Gbit,20us"),
        };
        let (bandwidth, latency) = text.split_once(',').unwrap_or((text, "0us"));
        let bits = quantity(bandwidth.trim().trim_end_matches("/s"), &BITS)
            .filter(|bits| (1e3..=1e13).contains(bits))
            .ok_or_else(|| wrong("its bandwidth is no number of kbit, Mbit or Gbit"))?;
        let latency = quantity(latency, &SECONDS)
            .filter(|latency| *latency <= 10.0)
            .ok_or_else(|| wrong("its latency is no number of ns, us, ms or s, of at most 10 s"))?;
        Ok(Self { bandwidth: bits / 8.0, latency: Duration::from_secs_f64(latency), clock: Clock::Wall })
    }
}

impl std::fmt::Display for SimulatedLink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let bits = 8.0 * self.bandwidth;
        let (unit, of) = BITS.iter().find(|(_, of)| bits >= *of).unwrap_or(&BITS[2]);
        write!(f, "{}{unit},{}us", bits / of, self.latency.as_secs_f64() * 1e6)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_written_as_their_makers_write_them() {
        for (text, bandwidth, micros) in [
            ("10Gbit,20us", 1.25e9, 20.0),
            ("100Mbit/s, 1.5ms", 1.25e7, 1500.0),
            ("800 kbit,0.1s", 1e5, 1e5),
            ("1Gbit", 1.25e8, 0.0),
        ] {
            let link: SimulatedLink = text.parse().expect(text);
            assert!((link.bandwidth - bandwidth).abs() < 1e-3, "{text}: {link:?}");
            assert!((link.latency.as_secs_f64() * 1e6 - micros).abs() < 1e-6, "{text}: {link:?}");
            assert_eq!(link.to_string().parse::<SimulatedLink>().expect("as it is told"), link);
        }
        for wrong in
            ["", "10", "10Gbyte,1us", "0Gbit,1us", "-1Gbit", "1Gbit,1", "1Gbit,-1us", "1Gbit,11s", "infGbit"]
        {
            let error = wrong.parse::<SimulatedLink>().expect_err(wrong).to_string();
            assert!(error.contains("10Gbit,20us"), "{error}");
        }
    }
}
