//! The table, as Markdown and as JSON.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context as _, Result};
use phalanx_run::Machine;
use serde_json::{Value as Json, json};

use super::figures::Row;
use super::{StrategiesArgs, chart};

/// The table and the settings of the measurement.
#[derive(Debug)]
pub(super) struct Report {
    what: String,
    settings: Json,
    machine: Machine,
    pub(super) rows: Vec<Row>,
}

const HEAD: &[&str] = &[
    "strategy",
    "ranks",
    "epoch, s",
    "samples/s",
    "efficiency",
    "peak memory, MiB",
    "sent a step, MiB",
    "step, ms",
    "exposed, ms",
    "exposed",
    "hidden, ms",
    "hidden",
    "loss",
    "test loss",
    "test accuracy",
];

fn mebibytes(bytes: f64) -> f64 {
    bytes / f64::from(1 << 20)
}

impl Report {
    pub(super) fn new(args: &StrategiesArgs) -> Self {
        let data = args.data.split('=').next().unwrap_or_default();
        let length = match args.steps {
            Some(steps) => format!("{steps} steps"),
            None => format!("{} epochs", args.epochs),
        };
        let what = format!(
            "{} on {data} at {1}x{1}, {2} ranks of {3} threads, global batch {4}, {length}, seed {5}",
            args.model, args.image_size, args.ranks, args.threads, args.batch, args.seed
        );
        let settings = json!({
            "model": args.model, "data": data, "ranks": args.ranks, "threads": args.threads, "batch": args.batch,
            "image_size": args.image_size, "epochs": args.epochs, "steps": args.steps, "limit": args.limit,
            "test_limit": args.test_limit, "seed": args.seed, "set": args.sets,
        });
        Self { what, settings, machine: Machine::detect(), rows: Vec::new() }
    }

    /// Writes the table in all formats.
    pub(super) fn write(&self, folder: &Path) -> Result<()> {
        let svg = chart::svg(&self.what, &self.rows);
        for (name, text) in [("strategies.md", self.markdown()), ("strategies.svg", svg)] {
            let path = folder.join(name);
            std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        }
        crate::write(Some(&folder.join("strategies.json")), &self.json())
    }

    /// Returns the parallel efficiency of a row: its speed by `ranks` times the speed of one rank. `None` if either
    /// failed.
    fn efficiency(&self, row: &Row) -> Option<f64> {
        let alone = self.rows.iter().find(|row| row.ranks == 1)?.outcome.as_ref().ok()?;
        let own = row.outcome.as_ref().ok()?;
        Some(own.samples_per_second / (row.ranks as f64 * alone.samples_per_second))
    }

    pub(super) fn markdown(&self) -> String {
        let Self { what, machine, rows, .. } = self;
        let mut text =
            format!("# Strategies\n\n{what}.\n{}, {} cores.\n\n", machine.processor, machine.cores);
        let _ = writeln!(text, "| {} |\n|{}|", HEAD.join(" | "), vec!["---"; HEAD.len()].join("|"));
        let percent = |share: f64| format!("{:.1}%", 100.0 * share);
        let or_dash = |value: Option<String>| value.unwrap_or_else(|| "–".to_owned());
        for row in rows {
            let cells = match &row.outcome {
                Ok(figures) => vec![
                    format!("{:.1}", figures.seconds_per_epoch),
                    format!("{:.1}", figures.samples_per_second),
                    or_dash(self.efficiency(row).map(percent)),
                    or_dash(figures.peak_memory.map(|bytes| format!("{:.1}", mebibytes(bytes as f64)))),
                    format!("{:.2}", mebibytes(figures.sent_per_step)),
                    format!("{:.1}", 1e3 * figures.step),
                    format!("{:.1}", 1e3 * figures.exposed),
                    percent(figures.share(figures.exposed)),
                    format!("{:.1}", 1e3 * figures.hidden),
                    percent(figures.share(figures.hidden)),
                    or_dash(figures.loss.map(|loss| format!("{loss:.4}"))),
                    or_dash(figures.test_loss.map(|loss| format!("{loss:.4}"))),
                    or_dash(figures.test_accuracy.map(percent)),
                ],
                Err(error) => {
                    // A Markdown cell has one line and no bars.
                    let error = error.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|");
                    let mut cells = vec![format!("failed: {error}")];
                    cells.resize(HEAD.len() - 2, String::new());
                    cells
                }
            };
            let _ = writeln!(text, "| {} | {} | {} |", row.name, row.ranks, cells.join(" | "));
        }
        text
    }

    fn json(&self) -> Json {
        let row = |row: &Row| match &row.outcome {
            Ok(figures) => json!({
                "strategy": row.name, "ranks": row.ranks, "steps": figures.steps,
                "seconds_per_epoch": figures.seconds_per_epoch, "samples_per_second": figures.samples_per_second,
                "scaling_efficiency": self.efficiency(row), "peak_memory_bytes": figures.peak_memory,
                "bytes_sent_per_rank_and_step": figures.sent_per_step, "seconds_per_step": figures.step,
                "communication_exposed_seconds_per_step": figures.exposed,
                "communication_exposed_share": figures.share(figures.exposed),
                "communication_hidden_seconds_per_step": figures.hidden,
                "communication_hidden_share": figures.share(figures.hidden),
                "loss": figures.loss, "test_loss": figures.test_loss, "test_accuracy": figures.test_accuracy,
            }),
            Err(error) => json!({ "strategy": row.name, "ranks": row.ranks, "error": error }),
        };
        json!({
            "settings": self.settings,
            "machine": self.machine,
            "rows": self.rows.iter().map(row).collect::<Vec<_>>(),
        })
    }
}
