//! Formatting of numbers, durations and metrics lines.

use std::time::Duration;

use super::Line;

/// Formats a number with about four significant digits.
pub fn number(value: f64) -> String {
    let magnitude = value.abs();
    if value == 0.0 {
        "0".to_owned()
    } else if (1e-3..1e5).contains(&magnitude) {
        let digits = (3 - magnitude.log10().floor() as i32).clamp(0, 6) as usize;
        format!("{value:.digits$}")
    } else {
        format!("{value:.2e}")
    }
}

/// Formats bytes with a binary unit and two decimals.
pub fn bytes(bytes: u64) -> String {
    indicatif::BinaryBytes(bytes).to_string()
}

/// Formats rows as lines. The first column is left-aligned, the others are right-aligned.
pub fn columns(rows: &[Vec<String>]) -> Vec<String> {
    let count = rows.iter().map(Vec::len).max().unwrap_or_default();
    let width =
        |column: usize| rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max();
    let widths: Vec<usize> = (0..count).map(|column| width(column).unwrap_or_default()).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).enumerate().map(|(column, (cell, width))| match column {
            0 => format!("{cell:<width$}"),
            _ => format!("{cell:>width$}"),
        });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    rows.iter().map(line).collect()
}

/// Formats a count with thousands separators.
pub fn count(value: u64) -> String {
    indicatif::HumanCount(value).to_string()
}

/// Formats a duration in its two largest units.
pub fn duration(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
        (0, 0, _) => format!("{:.1} s", duration.as_secs_f64()),
        (0, minutes, seconds) => format!("{minutes} min {seconds:02} s"),
        (hours, minutes, _) => format!("{hours} h {minutes:02} min"),
    }
}

/// The share of a step's time above which waiting is worth a word.
const NOTABLE: f64 = 0.05;

/// Formats the shares of time that are spent waiting for data and for communication, if they are notable.
pub fn waiting(data: Option<f64>, communication: Option<f64>) -> Vec<String> {
    let shares = [("data", data), ("communication", communication)];
    let notable = shares.into_iter().filter_map(|(what, share)| Some((what, share?)));
    let notable = notable.filter(|(_, share)| *share >= NOTABLE);
    notable.map(|(what, share)| format!("{:.0}% waiting for {what}", 100.0 * share)).collect()
}

/// Formats the share of a device's peak that its arithmetic has.
pub fn of_peak(share: f64) -> String {
    format!("{:.0}% of peak", 100.0 * share)
}

/// Formats a line of `metrics.jsonl` like the console output, but with the values of its step alone. The measure `headline` comes first.
pub fn metrics(line: &Line, headline: Option<&str>) -> String {
    let bookkeeping =
        ["epoch", "seconds", "memory_bytes", "data_share", "communication_share", "gflops", "peak_share"];
    let measures = line.numbers().filter(|(name, _)| {
        !bookkeeping.contains(name) && !name.starts_with("test_") && !name.ends_with("_per_s")
    });
    let mut measures: Vec<(&str, f64)> = measures.collect();
    // The sort is stable.
    measures.sort_by_key(|(name, _)| Some(*name) != headline);
    let short = |name: &str| name.strip_suffix("_norm").unwrap_or(name).to_owned();
    let mut parts: Vec<String> =
        measures.iter().map(|(name, value)| format!("{} {}", short(name), number(*value))).collect();
    let rates = line.numbers().filter_map(|(name, rate)| Some((name.strip_suffix("_per_s")?, rate)));
    // Units that samples consist of, such as tokens, say more than samples.
    parts.extend(rates.last().map(|(unit, rate)| speed(unit, rate)));
    parts.extend(line.number("peak_share").map(of_peak));
    parts.extend(waiting(line.number("data_share"), line.number("communication_share")));
    parts.join("  ")
}

/// Formats a number of units per second.
pub fn speed(unit: &str, per_second: f64) -> String {
    format!("{} {unit}/s", count(per_second.round() as u64))
}

/// Formats the test metrics in a line of `metrics.jsonl`; `None` if the test split was not evaluated.
pub fn evaluated(line: &Line) -> Option<String> {
    let measures: Vec<String> = line
        .numbers()
        .filter_map(|(name, value)| Some(format!("{} {}", name.strip_prefix("test_")?, number(value))))
        .collect();
    (!measures.is_empty()).then(|| format!("step {}: test {}", line.step(), measures.join("  ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_metrics_reads_like_that_of_its_step() {
        let text = r#"{"step":5,"loss":0.25,"epoch":0,"kl":0.5,"lr":0.002,"grad_norm":1.5,"seconds":2.0,
            "samples_per_s":1234.4,"memory_bytes":1048576,"data_share":0.01,"communication_share":0.2,
            "test_accuracy":0.5}"#;
        let line = Line::parse(text).expect("an object");
        let expected =
            "loss 0.2500  kl 0.5000  lr 0.002000  grad 1.500  1,234 samples/s  20% waiting for communication";
        assert_eq!(metrics(&line, None), expected);
        let tokens =
            Line::parse(r#"{"step":5,"loss":0.25,"samples_per_s":12.0,"data_share":0,"tokens_per_s":3072}"#);
        assert_eq!(metrics(&tokens.expect("an object"), None), "loss 0.2500  3,072 tokens/s");
        assert!(metrics(&line, Some("kl")).starts_with("kl 0.5000  loss 0.2500  lr "));
        assert_eq!(evaluated(&line).as_deref(), Some("step 5: test accuracy 0.5000"));
        assert_eq!(evaluated(&Line::new(3).with("loss", 1.0)), None);
        assert_eq!(Line::parse("{\"step\":"), None);
    }

    #[test]
    fn numbers_are_short() {
        let cases = [
            (0.0, "0"),
            (1.0, "1.000"),
            (0.012_345_6, "0.01235"),
            (1234.4, "1234"),
            (3e-5, "3.00e-5"),
            (2e7, "2.00e7"),
        ];
        for (value, text) in cases {
            assert_eq!(number(value), text);
        }
        assert_eq!([bytes(12), bytes(1 << 20), bytes(3 << 29)].join(" "), "12 B 1.00 MiB 1.50 GiB");
        assert_eq!(bytes(44_695_848), "42.63 MiB");
        assert_eq!([count(7), count(1000), count(11_173_962)].join(" "), "7 1,000 11,173,962");
        let times = [4.21, 65.0, 7260.0].map(|seconds| duration(Duration::from_secs_f64(seconds)));
        assert_eq!(times, ["4.2 s", "1 min 05 s", "2 h 01 min"]);
    }
}
