//! Formatting of numbers with units.

use phalanx_charts::Unit;
use phalanx_run::format;

/// Formats a number with its unit.
pub(crate) fn with_unit(value: f64, unit: Unit) -> String {
    match unit {
        Unit::Plain | Unit::SamplesPerSecond | Unit::PerSecond => format::number(value),
        Unit::Count if value >= 0.0 && value.fract() == 0.0 => format::count(value as u64),
        Unit::Count => format::number(value),
        Unit::Bytes => bytes(value),
        Unit::BytesPerSecond => format!("{}/s", bytes(value)),
        Unit::Share => format!("{:.1} %", 100.0 * value),
        Unit::Percent => format!("{value:.0} %"),
        Unit::Seconds => seconds(value),
        Unit::Watts => format!("{} W", format::number(value)),
        Unit::Joules => joules(value),
    }
}

/// Formats bytes with a binary unit.
pub(crate) fn bytes(value: f64) -> String {
    // Bytes of a process are below 2^53.
    format::bytes(value.max(0.0) as u64)
}

/// Formats seconds: below a minute with decimals, otherwise in the two largest units.
pub(crate) fn seconds(value: f64) -> String {
    if value < 60.0 {
        return format!("{} s", format::number(value));
    }
    format::duration(std::time::Duration::from_secs_f64(value.min(1e15)))
}

/// Formats joules; large values also in watt-hours.
pub(crate) fn joules(value: f64) -> String {
    match value {
        large if large >= 36_000.0 => {
            format!("{} kJ ({} Wh)", format::number(large / 1e3), format::number(large / 3600.0))
        }
        small => format!("{} J", format::number(small)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_their_units() {
        let told = [
            with_unit(0.5, Unit::Share),
            with_unit(2048.0, Unit::BytesPerSecond),
            with_unit(90.0, Unit::Seconds),
            with_unit(0.25, Unit::Seconds),
            with_unit(72_000.0, Unit::Joules),
            with_unit(1234.0, Unit::Count),
        ];
        assert_eq!(told, ["50.0 %", "2.00 KiB/s", "1 min 30 s", "0.2500 s", "72.00 kJ (20.00 Wh)", "1,234"]);
    }
}
