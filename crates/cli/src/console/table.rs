//! The table before the first step.

use phalanx_run::aligned;
use phalanx_run::format::count;

use phalanx_trainer::engine::Started;

/// Renders the facts that are known before the first step.
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
