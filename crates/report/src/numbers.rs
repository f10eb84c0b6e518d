//! Formatting of numbers with units, and ticks of axes.

use super::chart::Unit;
use phalanx_run::format;
use phalanx_run::svg::{self, tick_label};

/// Formats a number with its unit.
pub(crate) fn with_unit(value: f64, unit: Unit) -> String {
    match unit {
        Unit::Plain => format::number(value),
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

/// Returns about `count` round numbers between `low` and `high`.
pub(crate) fn ticks(low: f64, high: f64, count: usize, unit: Unit) -> Vec<f64> {
    // Bytes are round in powers of 1024.
    let base = match unit {
        Unit::Bytes | Unit::BytesPerSecond => {
            1024_f64.powf((high.abs().max(1.0).ln() / 1024_f64.ln()).floor())
        }
        _ => 1.0,
    };
    svg::ticks(low, high, count, base)
}

/// Formats the label of a tick.
pub(crate) fn tick(value: f64, unit: Unit) -> String {
    match unit {
        Unit::Bytes | Unit::BytesPerSecond => {
            let names = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
            let at = (value.abs().max(1.0).ln() / 1024_f64.ln() + 1e-9).floor().min(5.0);
            let rest = if unit == Unit::Bytes { "" } else { "/s" };
            format!("{} {}{rest}", tick_label(value / 1024_f64.powf(at)), names[at as usize])
        }
        Unit::Share => format!("{} %", tick_label(100.0 * value)),
        Unit::Percent => format!("{} %", tick_label(value)),
        Unit::Seconds => format!("{} s", tick_label(value)),
        Unit::Watts => format!("{} W", tick_label(value)),
        Unit::Joules => format!("{} J", tick_label(value)),
        Unit::Plain => tick_label(value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_in_their_unit() {
        let told = |low, high, unit| {
            ticks(low, high, 5, unit).into_iter().map(|t| tick(t, unit)).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(told(0.0, 60_000.0, Unit::Plain), "0 20k 40k 60k");
        assert_eq!(told(0.0, 3.2 * f64::from(1 << 30), Unit::Bytes), "0 B 1 GiB 2 GiB 3 GiB");
        assert_eq!(told(0.0, 0.42, Unit::Share), "0 % 10 % 20 % 30 % 40 %");
        assert_eq!(told(0.0, f64::INFINITY, Unit::Bytes), "0 B");
    }

    #[test]
    fn numbers_have_their_units() {
        let told = [
            with_unit(0.5, Unit::Share),
            with_unit(2048.0, Unit::BytesPerSecond),
            with_unit(90.0, Unit::Seconds),
            with_unit(0.25, Unit::Seconds),
            with_unit(72_000.0, Unit::Joules),
        ];
        assert_eq!(told, ["50.0 %", "2.00 KiB/s", "1 min 30 s", "0.2500 s", "72.00 kJ (20.00 Wh)"]);
    }
}
