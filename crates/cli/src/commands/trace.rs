//! `phalanx trace summary`: what a trace says of a run's time.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::error::CliError;
use phalanx_run::format;

use crate::console::out;
use phalanx_trace::{Category, RankTime, TraceFile, TraceSummary};

/// Read traces, which `phalanx train --trace` writes.
#[derive(Debug, Args)]
pub(super) struct TraceArgs {
    #[command(subcommand)]
    command: TraceCommand,
}

#[derive(Debug, Subcommand)]
enum TraceCommand {
    /// Summarise a trace: what ranks waited for, how much communication was hidden, the slowest rank, the parts of a
    /// step.
    Summary {
        /// The trace, or the folder of its run.
        file: PathBuf,
        /// Prints it as JSON.
        #[arg(long)]
        json: bool,
    },
}

pub(super) fn run(args: &TraceArgs) -> Result<(), CliError> {
    let TraceCommand::Summary { file, json } = &args.command;
    let path = if file.is_dir() { file.join("trace.json") } else { file.clone() };
    let trace = TraceFile::read(&path).map_err(CliError::failed)?;
    if trace.spans.is_empty() {
        return Err(CliError::failed(format!("{} holds no spans", path.display())));
    }
    let summary = TraceSummary::of(&trace);
    if *json {
        out(&serde_json::to_string_pretty(&summary).map_err(CliError::failed)?);
        return Ok(());
    }
    lines(&summary).iter().for_each(|line| out(line));
    Ok(())
}

fn seconds(value: f64) -> String {
    match value {
        value if value >= 1.0 => format!("{value:.2} s"),
        value if value >= 1e-3 => format!("{:.2} ms", value * 1e3),
        value => format!("{:.1} us", value * 1e6),
    }
}

fn percent(share: f64) -> String {
    format!("{:.1} %", 100.0 * share)
}

/// A summary as text.
fn lines(summary: &TraceSummary) -> Vec<String> {
    let mut lines = Vec::new();
    if !summary.is_own {
        lines.push(
            "Another program has written this trace: its spans are not told apart by what ranks wait for."
                .to_owned(),
        );
    } else if summary.ranks.is_empty() {
        lines.push("No step was recorded.".to_owned());
    } else {
        lines.extend(of_ranks(summary));
        lines.extend(of_path(summary));
    }
    if summary.left_out > 0 {
        lines.push(format!("{} events were left out for want of room.", format::count(summary.left_out)));
    }
    lines.push(String::new());
    lines.push("Operations, all ranks together, without what ran inside of them:".to_owned());
    let mut rows = vec![["", "about", "times", "time", "share"].map(str::to_owned).to_vec()];
    for operation in &summary.operations {
        rows.push(vec![
            operation.name.clone(),
            operation.category.map_or("", Category::name).to_owned(),
            format::count(operation.count as u64),
            seconds(operation.seconds),
            percent(operation.share),
        ]);
    }
    lines.extend(format::columns(&rows));
    lines
}

fn of_ranks(summary: &TraceSummary) -> Vec<String> {
    let mut lines = vec![format!(
        "{} steps of {} ranks; times of different ranks may be {} apart",
        format::count(summary.steps as u64),
        summary.ranks.len(),
        seconds(summary.clock_uncertainty)
    )];
    let heads = [
        "",
        "time",
        "computes",
        "idle",
        "for communication",
        "for ranks",
        "for data",
        "for saving",
        "other",
        "overlap",
    ];
    let mut rows = vec![heads.map(str::to_owned).to_vec()];
    for RankTime { rank, seconds: all, computing, overlap, idle, .. } in &summary.ranks {
        let share = |of: f64| percent(if *all > 0.0 { of / all } else { 0.0 });
        rows.push(vec![
            format!("rank {rank}"),
            seconds(*all),
            share(*computing),
            share(idle.total()),
            share(idle.communication),
            share(idle.ranks),
            share(idle.data),
            share(idle.saving),
            share(idle.other),
            overlap.map_or_else(|| "-".to_owned(), percent),
        ]);
    }
    lines.extend(format::columns(&rows));
    lines.push("Overlap is the share of communication's time in which the rank computed too.".to_owned());
    if let Some(slowest) = &summary.slowest {
        let more = slowest.seconds_per_step / slowest.others_per_step - 1.0;
        lines.push(format!(
            "Slowest: rank {} needs {} for its own part of a step, the others {} ({} more); it needs most in {} of {}.",
            slowest.rank,
            seconds(slowest.seconds_per_step),
            seconds(slowest.others_per_step),
            percent(more),
            slowest.slowest_in,
            summary.steps
        ));
    }
    lines
}

fn of_path(summary: &TraceSummary) -> Vec<String> {
    let Some(path) = &summary.path else { return Vec::new() };
    let shares: Vec<String> = summary
        .path_shares
        .iter()
        .map(|(category, share)| format!("{} {}", category.name(), percent(*share)))
        .collect();
    let mut lines = vec![
        String::new(),
        format!("Critical paths of all steps: {}.", shares.join(", ")),
        format!("That of step {}, whose path is of median length ({}):", path.step, seconds(path.seconds)),
    ];
    let rows = path.parts.iter().take(10).map(|part| {
        vec![
            part.name.clone(),
            format!("rank {}", part.rank),
            part.category.name().to_owned(),
            seconds(part.seconds),
            percent(part.seconds / path.seconds),
        ]
    });
    lines.extend(format::columns(&rows.collect::<Vec<_>>()));
    lines
}
