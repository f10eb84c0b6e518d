//! Units of numbers.

use serde::Serialize;

/// The unit of the numbers of an axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Unit {
    /// Numbers without a unit.
    #[default]
    Plain,
    /// Whole numbers: steps, ranks.
    Count,
    /// Bytes.
    Bytes,
    /// Bytes per second.
    BytesPerSecond,
    /// Fractions from 0 to 1, shown in percent.
    Share,
    /// Percent.
    Percent,
    /// Seconds.
    Seconds,
    /// Watts.
    Watts,
    /// Joules.
    Joules,
    /// Images per second.
    SamplesPerSecond,
    /// Events per second.
    PerSecond,
}

/// A multiple of a unit in which the numbers of an axis are short.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Measure {
    /// The value of one multiple in the base unit.
    pub factor: f64,
    /// The name; empty for numbers without a unit.
    pub name: &'static str,
}

const BYTES: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
const BYTES_PER_SECOND: [&str; 6] = ["B/s", "KiB/s", "MiB/s", "GiB/s", "TiB/s", "PiB/s"];
/// The multiples of seconds and of joules, each from its first value on.
const SECONDS: [(f64, f64, &str); 5] =
    [(7200.0, 3600.0, "h"), (300.0, 60.0, "min"), (1.0, 1.0, "s"), (1e-3, 1e-3, "ms"), (0.0, 1e-6, "µs")];
const JOULES: [(f64, f64, &str); 2] = [(1e4, 1e3, "kJ"), (0.0, 1.0, "J")];

impl Unit {
    /// Returns the multiple for numbers up to `largest` in magnitude.
    pub fn measure(self, largest: f64) -> Measure {
        let of = |factor, name| Measure { factor, name };
        let binary = |names: [&'static str; 6]| {
            let power = (largest.max(1.0).ln() / 1024_f64.ln() + 1e-9).floor().min(5.0);
            of(1024_f64.powf(power), names[power as usize])
        };
        let from = |multiples: &[(f64, f64, &'static str)]| {
            let found = multiples.iter().find(|(first, ..)| largest >= *first);
            found.map_or(of(1.0, ""), |(_, factor, name)| of(*factor, name))
        };
        match self {
            Self::Plain | Self::Count => of(1.0, ""),
            Self::Bytes => binary(BYTES),
            Self::BytesPerSecond => binary(BYTES_PER_SECOND),
            Self::Share => of(0.01, "%"),
            Self::Percent => of(1.0, "%"),
            // A range of zeros is one of seconds.
            Self::Seconds if largest <= 0.0 => of(1.0, "s"),
            Self::Seconds => from(&SECONDS),
            Self::Watts => of(1.0, "W"),
            Self::Joules => from(&JOULES),
            Self::SamplesPerSecond => of(1.0, "samples/s"),
            Self::PerSecond => of(1.0, "1/s"),
        }
    }

    /// Returns true if values between whole numbers have no meaning.
    pub(crate) fn is_whole(self) -> bool {
        self == Self::Count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn multiples_follow_the_largest_number() {
        let name = |unit: Unit, largest: f64| unit.measure(largest).name;
        for (unit, largest, expected) in [
            (Unit::Bytes, 0.0, "B"),
            (Unit::Bytes, 1024.0, "KiB"),
            (Unit::Bytes, 3e9, "GiB"),
            (Unit::BytesPerSecond, 1e300, "PiB/s"),
            (Unit::Seconds, 0.0, "s"),
            (Unit::Seconds, 0.25, "ms"),
            (Unit::Seconds, 2e-5, "µs"),
            (Unit::Seconds, 90.0, "s"),
            (Unit::Seconds, 3600.0, "min"),
            (Unit::Seconds, 90_000.0, "h"),
            (Unit::Joules, 2e4, "kJ"),
            (Unit::Share, 1.0, "%"),
            (Unit::Plain, 5.0, ""),
        ] {
            assert_eq!(name(unit, largest), expected, "{unit:?} {largest}");
        }
        assert_eq!(Unit::Bytes.measure(3e9).factor, f64::from(1 << 30));
    }
}
