//! Lines of `metrics.jsonl`.

use phalanx_sharding::SyncStats;

use crate::engine::StepReport;
use crate::engine::distributed::Distributed;
use crate::engine::observer::named;
use crate::engine::train_loop::world::WorldChanges;
use phalanx_run::Line;

/// Builds the line of a step, with measures of an evaluation and values of the GPU.
pub(super) fn line(report: &StepReport, evaluated: &[(String, f64)], gpu: &[(&'static str, f64)]) -> Line {
    let mut line = Line::new(report.step);
    for phase in &report.phases {
        line = line.with(&named(&phase.name, "loss"), phase.loss);
    }
    line = line.with("epoch", report.epoch as u64);
    for phase in &report.phases {
        for (name, value) in &phase.measures {
            line = line.with(&named(&phase.name, name), *value);
        }
    }
    for update in &report.updates {
        line = line.with(&named(&update.network, "lr"), update.learning_rate);
        if let Some(norm) = update.gradient_norm {
            line = line.with(&named(&update.network, "grad_norm"), norm);
        }
        if let Some(scale) = update.loss_scale {
            line = line.with(&named(&update.network, "loss_scale"), scale);
            line = line.with(&named(&update.network, "left_out"), u64::from(update.left_out));
        }
    }
    line = line
        .with("seconds", report.seconds)
        .with("images_per_s", report.images_per_second)
        .with("memory_bytes", report.memory_bytes)
        .with("data_share", report.data_share);
    if let Some(share) = report.communication_share {
        line = line.with("communication_share", share);
    }
    for (name, value) in evaluated {
        line = line.with(&format!("test_{name}"), *value);
    }
    gpu.iter().fold(line, |line, (name, value)| line.with(name, *value))
}

/// Adds synchrony, lost ranks, ranks that left, and the last recovery.
pub(super) fn with_world(
    mut line: Line,
    stats: Option<SyncStats>,
    distributed: &Distributed,
    changes: &mut WorldChanges<'_>,
) -> Line {
    if let Some(stats) = stats {
        line = with_synchrony(line, &stats);
    }
    if !(changes.dead.is_empty() && changes.left.is_empty()) {
        line = line.with("workers", distributed.data_size() as u64);
    }
    if !changes.dead.is_empty() {
        line = line.with("dead", changes.dead.iter().map(|dead| dead.rank as u64).collect::<Vec<_>>());
    }
    if !changes.left.is_empty() {
        line = line.with("left", changes.left.iter().map(|left| left.rank as u64).collect::<Vec<_>>());
    }
    match changes.log.take_recovery() {
        Some(seconds) => line.with("recovery_seconds", seconds),
        None => line,
    }
}

/// Adds rank 0's staleness and waiting so far.
fn with_synchrony(line: Line, stats: &SyncStats) -> Line {
    let mut line = line.with("waited_seconds", stats.waited.as_secs_f64()).with("meetings", stats.meetings);
    if stats.staleness.total() > 0 {
        line = line
            .with("staleness_mean", stats.staleness.mean())
            .with("staleness_max", stats.staleness.max())
            .with("clock_spread", stats.spread);
    }
    match stats.consensus_distance {
        Some(distance) => line.with("consensus_distance", distance),
        None => line,
    }
}
