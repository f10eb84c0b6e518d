//! Lines of `metrics.jsonl`.

use phalanx_sharding::SyncStats;

use crate::engine::StepReport;
use crate::engine::distributed::Distributed;
use crate::engine::train_loop::world::WorldChanges;
use phalanx_run::Line;

/// Builds the line of a step, with measures of an evaluation and values of the GPU.
pub(super) fn line(report: &StepReport, evaluated: &[(String, f64)], gpu: &[(&'static str, f64)]) -> Line {
    let mut line = report.metrics();
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
