//! The table at the end of a run.

use std::time::Duration;

use super::format::{bytes, count, duration, number, of_peak, speed};
use super::{EnergyKind, EnergySummary, Summary};

/// Formats pairs as lines with the second column aligned.
pub fn aligned(rows: &[(String, String)]) -> Vec<String> {
    let width = rows.iter().map(|(name, _)| name.chars().count()).max().unwrap_or_default();
    rows.iter().map(|(name, value)| format!("  {name:<width$}  {value}")).collect()
}

/// Formats the energy of a run and its source; `None` if it is unknown.
fn energy(energy: &EnergySummary) -> Option<String> {
    let known = [("CPUs", &energy.cpu), ("GPUs", &energy.gpu)];
    let known = known.into_iter().filter_map(|(whose, part)| {
        let how = if part.kind == EnergyKind::Measured { "measured" } else { "estimated" };
        Some(format!("{} J of {whose} ({how})", count(part.joules?.round() as u64)))
    });
    let known: Vec<String> = known.collect();
    let watts = energy.mean_watts?;
    Some(format!("{}; mean power {} W", known.join(", "), number(watts)))
}

/// Formats the samples per second, and the units that they consist of.
fn speeds(summary: &Summary) -> String {
    let units = summary.units.as_ref().map(|units| speed(&units.unit, units.per_second));
    units.into_iter().chain([speed("samples", summary.samples_per_second)]).collect::<Vec<_>>().join(", ")
}

/// Formats the summary of a run.
pub fn finished(summary: &Summary) -> Vec<String> {
    let mut rows: Vec<(String, String)> = Vec::new();
    for (name, value) in &summary.metrics {
        if let Some(value) = value.as_f64() {
            rows.push((name.clone(), number(value)));
        }
    }
    if let Some(best) = &summary.best {
        let value = number(best.value);
        rows.push(("best".to_owned(), format!("{} {value} at step {}", best.measure, count(best.step))));
    }
    let early = if summary.stopped_early { ", stopped early" } else { "" };
    rows.extend([
        ("steps".to_owned(), format!("{} ({:.2} epochs{early})", count(summary.step), summary.epochs)),
        ("time".to_owned(), duration(Duration::from_secs_f64(summary.wall_seconds.max(0.0)))),
        ("speed".to_owned(), speeds(summary)),
    ]);
    if let Some(arithmetic) = &summary.arithmetic {
        let share = arithmetic.peak_share.map(|share| format!(", {}", of_peak(share)));
        let rate = format!("{} GFLOP/s on rank 0{}", number(arithmetic.gflops), share.unwrap_or_default());
        rows.push(("arithmetic".to_owned(), rate));
    }
    if let Some(energy) = summary.energy.as_ref().and_then(energy) {
        rows.push(("energy".to_owned(), energy));
    }
    for rank in &summary.ranks {
        let whole = rank.step_seconds.max(1e-9);
        let waited = rank.stages.as_ref().map(|stages| 100.0 * stages.waited_seconds / whole);
        let waited = waited.map(|part| format!("; waited for other stages {part:.0}%")).unwrap_or_default();
        rows.push((
            format!("rank {}", rank.rank),
            format!(
                "peak memory {}; parameters {}, gradients {}, optimizer {}; sent {}; data {:.0}%, communication {:.0}% \
                 exposed and {:.0}% hidden{waited}",
                rank.peak_memory_bytes.map_or_else(|| "unknown".to_owned(), bytes),
                bytes(rank.parameter_bytes),
                bytes(rank.gradient_bytes),
                bytes(rank.optimizer_bytes),
                bytes(rank.bytes_sent),
                100.0 * rank.data_seconds / whole,
                100.0 * rank.communication_exposed_seconds / whole,
                100.0 * rank.communication_hidden_seconds / whole,
            ),
        ));
    }
    let mut lines = vec![summary.status.clone()];
    lines.extend(aligned(&rows));
    lines
}
