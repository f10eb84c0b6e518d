//! Charts of a run's resources over time: CPUs, memory, network, disks, energy, and the parts of a step's time.

use phalanx_charts::Unit;

use crate::chart::{Chart, Kind, Line, XAxis};
use crate::run::RunData;
use crate::usage::KINDS;

/// Charts with a line for each rank: title, quantity and unit.
const BY_RANK: [(&str, &str, Unit); 11] = [
    ("CPU", "cpu_percent", Unit::Percent),
    ("GPU", "gpu_percent", Unit::Percent),
    ("resident memory", "resident_bytes", Unit::Bytes),
    ("memory of the GPU", "gpu_memory_bytes", Unit::Bytes),
    ("sent to other ranks", "network_sent", Unit::BytesPerSecond),
    ("received from other ranks", "network_received", Unit::BytesPerSecond),
    ("read from disks", "disk_read", Unit::BytesPerSecond),
    ("written to disks", "disk_written", Unit::BytesPerSecond),
    ("minor page faults", "minor_faults", Unit::PerSecond),
    ("major page faults", "major_faults", Unit::PerSecond),
    ("hidden communication", "hidden_share", Unit::Share),
];

/// A stacked chart of one rank: title, unit, and names and quantities.
type Stack = (&'static str, Unit, &'static [(&'static str, &'static str)]);

const STACKS: [Stack; 4] = [
    (
        "memory by kind",
        Unit::Bytes,
        &[
            ("parameters", KINDS[0]),
            ("gradients", KINDS[1]),
            ("optimizer", KINDS[2]),
            ("gathered parameters", KINDS[3]),
            ("activations", KINDS[4]),
            ("other", "other_bytes"),
        ],
    ),
    (
        "where time goes",
        Unit::Share,
        &[
            ("computing", "computing_share"),
            ("exposed communication", "exposed_share"),
            ("data loading", "data_share"),
            ("outside steps", "besides_share"),
        ],
    ),
    ("power", Unit::Watts, &[("CPU", "cpu_watts"), ("GPU", "gpu_watts")]),
    ("cumulative energy", Unit::Joules, &[("CPU", "cpu_joules"), ("GPU", "gpu_joules")]),
];

/// Returns the charts with a line for each rank of a run.
pub(crate) fn by_rank(run: &RunData, number: usize) -> Vec<Chart> {
    let ranks = run.columns.ranks("usage/");
    let chart = |(title, what, unit): (&str, &str, Unit)| {
        let line = |rank: &usize| {
            let key = format!("usage/{rank}/{what}");
            let column = run.columns.get(&key).filter(|column| column.len() > 1)?;
            Some(Line { run: number, ..Line::of(&format!("rank {rank}"), &key, column) })
        };
        let lines: Vec<Line> = ranks.iter().filter_map(line).collect();
        (!lines.is_empty()).then(|| Chart { across: XAxis::Clock, ..Chart::lines(title, unit, lines) })
    };
    BY_RANK.into_iter().filter_map(chart).collect()
}

/// Returns the stacked charts of each rank of a run.
pub(crate) fn stacks(run: &RunData, number: usize) -> Vec<(usize, Vec<Chart>)> {
    let of_rank = |rank: usize| {
        let charts = STACKS.into_iter().filter_map(|(title, unit, parts)| {
            let key = |what: &str| format!("usage/{rank}/{what}");
            let columns: Vec<_> = parts
                .iter()
                .filter_map(|(name, what)| Some((*name, key(what), run.columns.get(&key(what))?)))
                .collect();
            // Parts that some usage lines lack are filled with 0, so that all parts have the same x values.
            let places = &columns.iter().max_by_key(|(.., column)| column.len())?.2.seconds;
            if places.len() < 2 {
                return None;
            }
            let line = |(name, key, column): &(&str, String, &crate::columns::Column)| {
                let mut line = Line { run: number, ..Line::of(name, key, column) };
                if line.seconds != *places {
                    fill(&mut line, places);
                }
                line
            };
            let lines = columns.iter().map(line).collect();
            Some(Chart { kind: Kind::Areas, across: XAxis::Clock, ..Chart::lines(title, unit, lines) })
        });
        (rank, charts.collect::<Vec<_>>())
    };
    let ranks = run.columns.ranks("usage/");
    ranks.into_iter().map(of_rank).filter(|(_, charts)| !charts.is_empty()).collect()
}

/// Fills a line with 0 at x values that it lacks.
fn fill(line: &mut Line, places: &[f64]) {
    let known: Vec<(f64, f64)> = line.seconds.iter().copied().zip(line.values.iter().copied()).collect();
    let at =
        |place: &f64| known.iter().find(|(seconds, _)| seconds == place).map_or(0.0, |(_, value)| *value);
    line.values = places.iter().map(at).collect();
    line.steps = places.to_vec();
    line.seconds = places.to_vec();
}
