//! The time breakdown of steps, from the shares that rank 0 writes to `metrics.jsonl`.

use phalanx_charts::Unit;

use crate::chart::{Chart, Kind, Line};
use crate::columns::Column;
use crate::run::RunData;

/// The parts of a step, as in the bars of ranks, with the metrics of their shares.
const PARTS: [(&str, &str); 2] =
    [("exposed communication", "communication_share"), ("data loading", "data_share")];

/// Returns a stacked chart of the seconds of a step: the mean since the previous line, split by the shares of the
/// logged step. Empty if there are fewer than two intervals.
pub(crate) fn seconds(run: &RunData, number: usize) -> Vec<Chart> {
    // Only training lines have this metric.
    let Some(lines) = run.columns.get("metrics/data_share") else { return Vec::new() };
    let share = |key: &str, step: f64| {
        let column = run.columns.get(&format!("metrics/{key}"))?;
        let at = column.steps.iter().rposition(|own| *own == step)?;
        column.values.get(at).copied().filter(|share| (0.0..=1.0).contains(share))
    };
    let mut whole: Vec<(f64, f64, f64)> = Vec::new();
    let mut last = (0.0, 0.0);
    for (step, seconds) in lines.steps.iter().zip(&lines.seconds) {
        let each = (seconds - last.1) / (step - last.0);
        // A resumed run may repeat steps.
        if each.is_finite() && each > 0.0 && *step > last.0 {
            whole.push((*step, *seconds, each));
        }
        last = (*step, *seconds);
    }
    if whole.len() < 2 {
        return Vec::new();
    }
    let mut computing = Column::default();
    let mut waited = PARTS.map(|_| Column::default());
    for (step, seconds, each) in whole {
        let shares = PARTS.map(|(_, key)| share(key, step).unwrap_or_default());
        computing.push(step, seconds, each * (1.0 - shares.iter().sum::<f64>()).max(0.0));
        for (column, share) in waited.iter_mut().zip(shares) {
            column.push(step, seconds, each * share);
        }
    }
    let line = |name: &str, column: &Column| Line { run: number, ..Line::of(name, "", column) };
    let mut parts = vec![line("computing", &computing)];
    parts.extend(PARTS.iter().zip(&waited).map(|((name, _), column)| line(name, column)));
    vec![Chart { kind: Kind::Areas, ..Chart::lines("time of a step, rank 0", Unit::Seconds, parts) }]
}
