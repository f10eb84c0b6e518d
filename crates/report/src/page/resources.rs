//! The resource use of a run: over time, by rank, and the balance of ranks.

use std::fmt::Write as _;

use serde_json::Value;

use super::table::{Cell, table};
use super::{Page, RunCharts};
use crate::chart::Chart;
use crate::charts::ranks::{Bars, accounts, bars, histograms};
use crate::facts::energies;
use crate::html::escape;
use crate::numbers::{joules, seconds, with_unit};
use crate::run::RunData;
use crate::settings::at;
use phalanx_charts::Unit;

/// The columns of the table of ranks: name, key and unit.
const COLUMNS: [(&str, &str, Unit); 20] = [
    ("peak memory", "peak_memory_bytes", Unit::Bytes),
    ("parameters", "parameter_bytes", Unit::Bytes),
    ("gradients", "gradient_bytes", Unit::Bytes),
    ("optimizer", "optimizer_bytes", Unit::Bytes),
    ("gathered", "gathered_bytes", Unit::Bytes),
    ("sent", "bytes_sent", Unit::Bytes),
    ("received", "bytes_received", Unit::Bytes),
    ("steps", "step_seconds", Unit::Seconds),
    ("exposed communication", "communication_exposed_seconds", Unit::Seconds),
    ("hidden communication", "communication_hidden_seconds", Unit::Seconds),
    ("data loading", "data_seconds", Unit::Seconds),
    ("waiting for other ranks", "synchrony.waited_seconds", Unit::Seconds),
    ("waiting for other stages", "stages.waited_seconds", Unit::Seconds),
    ("CPU time", "cpu_seconds", Unit::Seconds),
    ("minor page faults", "minor_faults", Unit::Plain),
    ("major page faults", "major_faults", Unit::Plain),
    ("read from disks", "disk_read_bytes", Unit::Bytes),
    ("written to disks", "disk_written_bytes", Unit::Bytes),
    ("energy", "joules", Unit::Joules),
    ("distance from the mean", "synchrony.consensus_distance", Unit::Plain),
];

impl Page<'_> {
    /// Writes the section on ranks and resources. With several runs, each is collapsed under its name.
    pub(super) fn resources(&mut self, runs: &[RunData], own: Vec<RunCharts>) {
        let has_content = |(run, own): &(&RunData, RunCharts)| {
            let charts = own.by_rank.len() + own.stacks.len() + own.apart.len() + own.steps.len();
            let charts = charts + usize::from(!own.lanes.as_ref().is_ok_and(Vec::is_empty));
            charts > 0 || !accounts(run).is_empty() || !energies(run).is_empty()
        };
        let shown: Vec<_> = runs.iter().zip(own).filter(has_content).collect();
        if shown.is_empty() {
            return;
        }
        self.section("Ranks and resources");
        let several = runs.len() > 1;
        for (run, own) in shown {
            if several {
                self.push(&format!("<details class=\"own\"><summary>{}</summary>", escape(&run.name)));
            }
            self.resources_of(run, own);
            if several {
                self.push("</details>");
            }
        }
        self.push("</section>");
    }

    /// Writes the resource use of one run.
    fn resources_of(&mut self, run: &RunData, own: RunCharts) {
        let accounts = accounts(run);
        let energy = energies(run);
        let RunCharts { by_rank, stacks, apart, steps, lanes } = own;
        self.balance(run, &accounts);
        self.timeline(steps, &lanes);
        let drawn = histograms(run);
        if !drawn.is_empty() || !apart.is_empty() {
            self.push("<h3>Differences between ranks</h3>");
            if !drawn.is_empty() {
                self.push("<div class=\"figures\">");
                drawn.iter().for_each(|(title, counts)| self.histogram(title, counts));
                self.push("</div>");
            }
            self.figures(apart);
        }
        if !energy.is_empty() {
            self.energy(run, &energy);
        }
        if !stacks.is_empty() {
            self.push("<h3>Over time, by rank</h3>");
            let many = stacks.len() > 1;
            if many {
                let options: String = stacks
                    .iter()
                    .map(|(rank, _)| format!("<option value=\"{rank}\">rank {rank}</option>"))
                    .collect();
                self.push(&format!("<p class=\"choose\" hidden><label>Of <select class=\"which-rank\">{options}</select></label></p>"));
            }
            for (rank, charts) in stacks {
                let named = charts.into_iter().map(|chart| match many {
                    true => Chart { title: format!("{}, rank {rank}", chart.title), ..chart },
                    false => chart,
                });
                let charts = named.collect();
                self.push(&format!("<div class=\"of-rank\" data-rank=\"{rank}\">"));
                self.figures(charts);
                self.push("</div>");
            }
        }
        if !by_rank.is_empty() {
            self.push("<h3>Over time, all ranks</h3>");
            self.figures(by_rank);
        }
    }

    /// Writes the bars of ranks, their load balance, and the table of all values.
    fn balance(&mut self, run: &RunData, accounts: &[Value]) {
        let (blank, bars): (Vec<Bars>, Vec<Bars>) = bars(run).into_iter().partition(Bars::is_blank);
        if bars.is_empty() {
            return;
        }
        self.push("<h3>Balance of ranks</h3>");
        let busy: Vec<f64> = accounts
            .iter()
            .filter_map(|rank| {
                let of = |name| at(rank, name).and_then(Value::as_f64);
                Some(of("step_seconds")? - of("communication_exposed_seconds")? - of("data_seconds")?)
            })
            .collect();
        let slowest = busy.iter().copied().fold(0.0, f64::max);
        // Parameter servers compute almost nothing.
        let busy: Vec<f64> = busy.into_iter().filter(|seconds| *seconds > 0.01 * slowest).collect();
        let mean = busy.iter().sum::<f64>() / busy.len().max(1) as f64;
        if busy.len() > 1 && mean > 0.0 {
            self.push(&format!(
                "<p>The slowest rank computed for {}, {:.1} % longer than the mean of {}.</p>",
                seconds(slowest),
                100.0 * (slowest / mean - 1.0),
                seconds(mean)
            ));
        }
        self.push("<div class=\"figures\">");
        bars.iter().for_each(|bars| self.bars(bars));
        self.push("</div>");
        self.blank(&blank.iter().map(|bars| bars.title.as_str()).collect::<Vec<_>>());
        let known: Vec<_> = COLUMNS
            .iter()
            .filter(|(_, key, _)| accounts.iter().any(|rank| at(rank, key).and_then(Value::as_f64).is_some()))
            .collect();
        let head: Vec<String> = std::iter::once("rank".to_owned())
            .chain(known.iter().map(|(name, ..)| (*name).to_owned()))
            .collect();
        let row = |rank: &Value| {
            let number = |key: &str| at(rank, key).and_then(Value::as_f64);
            let cells =
                known.iter().map(|(_, key, unit)| Cell::number(number(key), |value| with_unit(value, *unit)));
            std::iter::once(Cell::number(number("rank"), |rank| format!("{rank}"))).chain(cells).collect()
        };
        let rows: Vec<Vec<Cell>> = accounts.iter().map(row).collect();
        let numbers = table("Ranks", &head, &rows);
        self.push(&format!(
            "<details class=\"behind\"><summary>All numbers of the ranks</summary>{numbers}</details>"
        ));
    }

    /// Writes the energy, its source, the energy per sample and the mean power.
    fn energy(&mut self, run: &RunData, energy: &[crate::facts::Energy]) {
        let mut html = "<h3>Energy</h3><dl class=\"facts\">".to_owned();
        for of in energy {
            let sum = of.joules.map_or_else(String::new, |sum| format!("{} ", joules(sum)));
            let _ = write!(
                html,
                "<div><dt>{}</dt><dd>{}<span class=\"badge {}\">{}</span> {}</dd></div>",
                of.of,
                escape(&sum),
                if of.kind == "measured" { "good" } else { "going" },
                escape(&of.kind),
                escape(&of.model)
            );
        }
        let more = [
            ("energy per sample", "energy.joules_per_sample", Unit::Joules),
            ("mean power", "energy.mean_watts", Unit::Watts),
        ];
        for (name, key, unit) in more {
            if let Some(value) = run.number(key) {
                let _ =
                    write!(html, "<div><dt>{name}</dt><dd>{}</dd></div>", escape(&with_unit(value, unit)));
            }
        }
        html.push_str("</dl>");
        self.push(&html);
    }
}
