//! `phalanx doctor --hosts`: checks the ranks of a launcher against each other.

use std::path::Path;

use phalanx_collectives::{WorldConfig, connect};

use crate::commands::error::CliError;
use phalanx_launch::checkup::{Checkup, Pair};
use phalanx_run::format;

use crate::console::out;
use phalanx_run::host_name;

/// The maximum number of hosts for which every pair is shown.
const MOST_SHOWN: usize = 12;

/// Checks the ranks that a launcher has started. Rank 0 prints the results.
pub(super) fn run(data: Option<&Path>, slow: f64) -> Result<(), CliError> {
    let config = WorldConfig::from_env().map_err(|error| CliError::Usage(error.to_string()))?;
    let config = config.ok_or_else(|| {
        CliError::Usage(
            "--hosts looks at the ranks that a launcher starts: give it the launcher's command, as in \
             `srun --nodes 2 --ntasks-per-node 1 phalanx doctor --hosts`"
                .to_owned(),
        )
    })?;
    let communicator = connect(&config).map_err(CliError::failed)?;
    let host = config.host.clone().unwrap_or_else(host_name);
    let checkup = Checkup::of(&communicator, &host, data).map_err(CliError::failed)?;
    communicator.shutdown();
    let findings = checkup.findings(slow);
    if config.rank == 0 {
        show(&checkup);
        for finding in &findings {
            out(&format!("wrong      {finding}"));
        }
    }
    match findings.len() {
        0 => {
            if config.rank == 0 {
                out("nothing is wrong");
            }
            Ok(())
        }
        // Rank 0 prints the problems.
        _ if config.rank > 0 => Err(CliError::Reported),
        1 => Err(CliError::failed("1 thing is wrong")),
        count => Err(CliError::failed(format!("{count} things are wrong"))),
    }
}

fn show(checkup: &Checkup) {
    let mut hosts: Vec<(usize, &str, Vec<usize>)> = Vec::new();
    for facts in &checkup.ranks {
        match hosts.iter_mut().find(|(number, ..)| *number == facts.host_number) {
            Some((.., ranks)) => ranks.push(facts.rank),
            None => hosts.push((facts.host_number, &facts.host, vec![facts.rank])),
        }
    }
    let several = |count: usize, what: &str| format!("{count} {what}{}", if count == 1 { "" } else { "s" });
    out(&format!(
        "{:<10} {}, {}",
        "world",
        several(hosts.len(), "host"),
        several(checkup.ranks.len(), "rank")
    ));
    let mut rows = Vec::new();
    for (_, host, ranks) in &hosts {
        let facts = &checkup.ranks[ranks[0]];
        let clock = facts.clock.map_or_else(String::new, |clock| {
            format!("clock {:+.3} ms, to {:.3}", clock.ahead as f64 / 1e6, clock.uncertainty as f64 / 1e6)
        });
        let data = facts.data.as_ref().and_then(|data| data.content.as_ref().ok());
        let data = data.map_or_else(String::new, |(files, bytes, digits)| {
            format!("data {digits}, {files} files, {}", format::bytes(*bytes))
        });
        rows.push(vec![
            (*host).to_owned(),
            several(ranks.len(), "rank"),
            several(facts.machine.cores, "core"),
            format!("version {} {}", facts.machine.version, facts.program),
            clock,
            data,
        ]);
    }
    format::columns(&rows).iter().for_each(|line| out(&format!("{:<10} {}", "host", line.trim_end())));
    let name = |rank: usize| {
        let host = checkup.host_of(rank);
        if hosts.len() > 1 { host.to_owned() } else { format!("{host}, rank {rank}") }
    };
    let mut pairs: Vec<&Pair> = checkup.pairs.iter().collect();
    if pairs.len() > MOST_SHOWN * (MOST_SHOWN - 1) / 2 {
        pairs.sort_by(|one, other| one.there.min(one.back).total_cmp(&other.there.min(other.back)));
        out(&format!("{:<10} {}; the slowest of them:", "pairs", pairs.len()));
        pairs.truncate(MOST_SHOWN);
    }
    let rows: Vec<Vec<String>> = pairs
        .iter()
        .map(|pair| {
            vec![
                format!("{} and {}", name(pair.from), name(pair.to)),
                format!("{:.1} us", pair.latency * 1e6),
                format!("{:.2} and {:.2} Gbit/s", pair.there * 8e-9, pair.back * 8e-9),
            ]
        })
        .collect();
    format::columns(&rows).iter().for_each(|line| out(&format!("{:<10} {}", "pair", line.trim_end())));
}
