//! What is said before the first step and after the last.

use std::time::Duration;

use super::format::{bytes, count, duration, number};
use crate::engine::Started;
use crate::run::{EnergyKind, EnergySummary, Summary};

/// Pairs as lines with the second column aligned.
pub(super) fn aligned(rows: &[(String, String)]) -> Vec<String> {
    let width = rows.iter().map(|(name, _)| name.chars().count()).max().unwrap_or_default();
    rows.iter().map(|(name, value)| format!("  {name:<width$}  {value}")).collect()
}

/// What is known before the first step.
pub(super) fn started(started: &Started) -> Vec<String> {
    let row = |name: &str, value: String| (name.to_owned(), value);
    let epochs = started.total as f64 / started.steps_per_epoch.max(1) as f64;
    let mut rows = vec![
        row("run", started.folder.display().to_string()),
        row("model", format!("{}, {} parameters", started.model, count(started.parameters))),
        row("data", format!("{}, {} training images", started.data, count(started.images as u64))),
        row(
            "ranks",
            format!(
                "{} x {} threads, {}{}",
                started.world_size,
                started.threads,
                started.strategy,
                if started.servers > 0 { format!(", {} servers", started.servers) } else { String::new() }
            ),
        ),
    ];
    if !started.cores.is_empty() {
        rows.push(row("cores", started.cores.clone()));
    }
    rows.extend([
        row("device", started.device.clone()),
        row(
            "steps",
            format!("{} ({:.1} epochs of {})", count(started.total), epochs, count(started.steps_per_epoch)),
        ),
    ]);
    aligned(&rows)
}

/// What is known of the energy that a run took, and how; nothing if nothing is.
fn energy(energy: &EnergySummary) -> Option<String> {
    let known = [("processors", &energy.cpu), ("GPUs", &energy.gpu)];
    let known = known.into_iter().filter_map(|(whose, part)| {
        let how = if part.kind == EnergyKind::Measured { "measured" } else { "estimated" };
        Some(format!("{} J of {whose} ({how})", count(part.joules?.round() as u64)))
    });
    let known: Vec<String> = known.collect();
    let watts = energy.mean_watts?;
    Some(format!("{}; {} W in the mean", known.join(", "), number(watts)))
}

/// How the run ended.
pub(super) fn finished(summary: &Summary) -> Vec<String> {
    let mut rows = vec![
        ("steps".to_owned(), format!("{} ({:.2} epochs)", count(summary.step), summary.epochs)),
        ("time".to_owned(), duration(Duration::from_secs_f64(summary.wall_seconds.max(0.0)))),
        ("speed".to_owned(), format!("{} images/s", count(summary.images_per_second.round() as u64))),
    ];
    if let Some(energy) = summary.energy.as_ref().and_then(energy) {
        rows.push(("energy".to_owned(), energy));
    }
    for (name, value) in &summary.metrics {
        if let Some(value) = value.as_f64() {
            rows.push((name.clone(), number(value)));
        }
    }
    for rank in &summary.ranks {
        let whole = rank.step_seconds.max(1e-9);
        rows.push((
            format!("rank {}", rank.rank),
            format!(
                "peak memory {}; parameters {}, gradients {}, optimizer {}; sent {}; data {:.0}%, communication {:.0}% \
                 exposed and {:.0}% hidden",
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
