//! Formats a diagnosis as text.

use super::suspects::list;
use super::{Diagnosis, RankState};

/// The maximum number of characters of a failure in the line of a rank.
const LONGEST: usize = 120;

/// The maximum number of ranks that each have a line.
const MOST_RANKS: usize = 8;

impl Diagnosis {
    /// Formats the diagnosis as lines: the suspects, who waited, and the state of ranks. With `stacks`, the states of all ranks and
    /// the stacks of their threads follow.
    pub fn text(&self, stacks: bool) -> Vec<String> {
        let mut lines = vec![format!("the run of {} ranks failed: {}", self.world_size, self.cause)];
        lines.push(String::new());
        match self.suspects.is_empty() {
            true => lines.push("the records name no suspect".to_owned()),
            false => lines.push("suspects by the records:".to_owned()),
        }
        for suspect in &self.suspects {
            lines.push(format!("  rank {}: {}", suspect.rank, suspect.because));
        }
        if !self.waits.is_empty() {
            lines.extend([String::new(), "waiting ranks:".to_owned()]);
        }
        for wait in &self.waits {
            let missing = match wait.missing.is_empty() {
                true => "all ranks have issued it".to_owned(),
                false => format!("for {}", list(&wait.missing)),
            };
            lines.push(format!(
                "  {} {:.1} s in {}: {missing}",
                list(&wait.waiting),
                wait.seconds,
                wait.operation
            ));
        }
        if let Some(first) = &self.first_difference {
            let among = list(&first.among);
            lines.extend([
                String::new(),
                format!("the first difference, operation {} of {among}:", first.sequence),
            ]);
            for one in &first.issued {
                lines.push(format!("  {}: {}", list(&one.ranks), one.operation));
            }
        }
        lines.extend([String::new(), "ranks:".to_owned()]);
        let shown = if stacks { self.ranks.len() } else { MOST_RANKS };
        lines.extend(self.ranks.iter().take(shown).map(line));
        if self.ranks.len() > shown {
            lines.push(format!("  and {} more ranks", self.ranks.len() - shown));
        }
        for rank in self.ranks.iter().filter(|rank| !rank.seen_threads.is_empty()) {
            let threads: Vec<String> =
                rank.seen_threads.iter().map(|(name, state)| format!("{name} {state}")).collect();
            lines.push(format!(
                "  threads of rank {}, as seen by other ranks: {}",
                rank.rank,
                threads.join(", ")
            ));
        }
        if stacks {
            let with_stacks = self.ranks.iter().filter(|rank| !rank.threads.is_empty());
            lines.extend(with_stacks.flat_map(stacks_of));
        }
        lines
    }

    /// Returns true if the stacks of a rank were recorded.
    pub fn has_stacks(&self) -> bool {
        self.ranks.iter().any(|rank| !rank.threads.is_empty())
    }
}

/// Formats the state of a rank as a line.
fn line(state: &RankState) -> String {
    let RankState { rank, host, process, has_record, seen, failure, last_operation, idle_seconds, .. } =
        state;
    let mut line = format!("  rank {rank}");
    if let Some(host) = host {
        line.push_str(&format!(" on {host}"));
    }
    if let Some(process) = process {
        line.push_str(&format!(", process {process}"));
    }
    match (has_record, seen) {
        (false, Some(seen)) => line.push_str(&format!(", no record, seen: {seen}")),
        (false, None) => line.push_str(", no record"),
        (true, _) => {}
    }
    if let Some(last) = last_operation {
        line.push_str(&format!(", last: {last}"));
        if let Some(idle) = idle_seconds.filter(|idle| *idle > 0.05) {
            line.push_str(&format!(" {idle:.1} s before"));
        }
    }
    if let Some(failure) = failure {
        let whole = failure.lines().next().unwrap_or_default();
        let short: String = whole.chars().take(LONGEST).collect();
        let more = if short.len() < whole.len() { "…" } else { "" };
        line.push_str(&format!(", failed: {short}{more}"));
    }
    line
}

/// Formats the stacks of a rank.
fn stacks_of(rank: &RankState) -> Vec<String> {
    let mut lines = vec![String::new(), format!("stacks of rank {}:", rank.rank)];
    for thread in &rank.threads {
        lines.push(format!("  thread {} ({})", thread.name, thread.id));
        if thread.frames.is_empty() {
            lines.push("    no response".to_owned());
        }
        for frame in &thread.frames {
            let source = frame.source.as_deref().map_or_else(String::new, |source| format!("  {source}"));
            lines.push(format!("    {}{source}", frame.function));
        }
    }
    lines
}
