//! Numbers as the page writes them, and places for them along an axis.

use super::chart::Unit;
use phalanx_run::format;

/// A number with its unit.
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

/// Bytes with a binary unit.
pub(crate) fn bytes(value: f64) -> String {
    // Bytes of a process are below 2^53.
    format::bytes(value.max(0.0) as u64)
}

/// Seconds in the two largest units; short ones with their digits.
pub(crate) fn seconds(value: f64) -> String {
    if value < 60.0 {
        return format!("{} s", format::number(value));
    }
    format::duration(std::time::Duration::from_secs_f64(value.min(1e15)))
}

/// Joules, large ones also as watt-hours.
pub(crate) fn joules(value: f64) -> String {
    match value {
        large if large >= 36_000.0 => {
            format!("{} kJ ({} Wh)", format::number(large / 1e3), format::number(large / 3600.0))
        }
        small => format!("{} J", format::number(small)),
    }
}

/// Round numbers between two, about `count` of them.
pub(crate) fn ticks(low: f64, high: f64, count: usize, unit: Unit) -> Vec<f64> {
    let span = high - low;
    if !(span > 0.0 && span.is_finite()) {
        return vec![low];
    }
    // Bytes are round in powers of 1024.
    let base = match unit {
        Unit::Bytes | Unit::BytesPerSecond => {
            1024_f64.powf((high.abs().max(1.0).ln() / 1024_f64.ln()).floor())
        }
        _ => 1.0,
    };
    let rough = span / base / count.max(1) as f64;
    let power = 10_f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].into_iter().find(|step| step * power >= rough * 0.999).unwrap_or(10.0);
    let step = step * power * base;
    // A tick that rounding has moved past the end is at the end.
    let first = (low / step - 1e-9).ceil();
    (0..=2 * count)
        .map(|at| (first + at as f64) * step)
        .take_while(|tick| *tick <= high + 1e-9 * span)
        // Rounding leaves -0 and 0.30000000000000004.
        .map(|tick| if tick.abs() < step * 1e-9 { 0.0 } else { tick })
        .collect()
}

/// Renders the label of an axis.
pub(crate) fn tick(value: f64, unit: Unit) -> String {
    let plain = |value: f64| -> String {
        let size = value.abs();
        if value == 0.0 {
            "0".to_owned()
        } else if !(1e-3..1e9).contains(&size) {
            trimmed(&format!("{value:.1e}"))
        } else if size >= 1e6 {
            format!("{}M", trimmed(&format!("{:.2}", value / 1e6)))
        } else if size >= 1e4 {
            format!("{}k", trimmed(&format!("{:.1}", value / 1e3)))
        } else {
            trimmed(&format!("{value:.*}", (3 - size.log10().floor() as i32).clamp(0, 6) as usize))
        }
    };
    match unit {
        Unit::Bytes | Unit::BytesPerSecond => {
            let names = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
            let at = (value.abs().max(1.0).ln() / 1024_f64.ln() + 1e-9).floor().min(5.0);
            let rest = if unit == Unit::Bytes { "" } else { "/s" };
            format!("{} {}{rest}", plain(value / 1024_f64.powf(at)), names[at as usize])
        }
        Unit::Share => format!("{} %", plain(100.0 * value)),
        Unit::Percent => format!("{} %", plain(value)),
        Unit::Seconds => format!("{} s", plain(value)),
        Unit::Watts => format!("{} W", plain(value)),
        Unit::Joules => format!("{} J", plain(value)),
        Unit::Plain => plain(value),
    }
}

/// Without zeros behind the point.
fn trimmed(text: &str) -> String {
    let (number, exponent) =
        text.split_once('e').map_or((text, None), |(number, exponent)| (number, Some(exponent)));
    let number =
        if number.contains('.') { number.trim_end_matches('0').trim_end_matches('.') } else { number };
    exponent.map_or_else(|| number.to_owned(), |exponent| format!("{number}e{exponent}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round() {
        let told = |low, high, unit| {
            ticks(low, high, 5, unit).into_iter().map(|t| tick(t, unit)).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(told(0.0, 1.0, Unit::Plain), "0 0.2 0.4 0.6 0.8 1");
        assert_eq!(told(-0.31, 0.3, Unit::Plain), "-0.2 0 0.2");
        assert_eq!(told(0.0, 60_000.0, Unit::Plain), "0 20k 40k 60k");
        assert_eq!(told(0.0, 3.2 * f64::from(1 << 30), Unit::Bytes), "0 B 1 GiB 2 GiB 3 GiB");
        assert_eq!(told(0.0, 0.42, Unit::Share), "0 % 10 % 20 % 30 % 40 %");
        assert_eq!(told(1.5e-5, 3.5e-5, Unit::Plain), "1.5e-5 2e-5 2.5e-5 3e-5 3.5e-5");
        assert_eq!(told(7.0, 7.0, Unit::Plain), "7");
        assert_eq!(told(0.0, f64::INFINITY, Unit::Plain), "0");
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
