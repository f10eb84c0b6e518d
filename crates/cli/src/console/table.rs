//! The table before the first step.

use phalanx_run::aligned;
use phalanx_run::format::count;

use phalanx_trainer::engine::{ScaledRate, Started, StartedRanks, named};

/// Renders the facts that are known before the first step.
pub(super) fn started(started: &Started) -> Vec<String> {
    let row = |name: &str, value: String| (name.to_owned(), value);
    let epochs = started.steps.total as f64 / started.steps.per_epoch.max(1) as f64;
    let mut rows = vec![
        row("run", started.folder.display().to_string()),
        row("model", format!("{}, {} parameters", started.model, count(started.parameters))),
        row("data", format!("{}, {} training samples", started.data, count(started.images as u64))),
        row("ranks", ranks(&started.ranks)),
    ];
    if !started.ranks.cores.is_empty() {
        rows.push(row("cores", started.ranks.cores.clone()));
    }
    rows.extend([
        row("device", started.device.clone()),
        row(
            "steps",
            format!(
                "{} ({:.1} epochs of {})",
                count(started.steps.total),
                epochs,
                count(started.steps.per_epoch)
            ),
        ),
    ]);
    for ScaledRate { network, rate, configured, batch, base_batch } in &started.scaled_rates {
        let key = if network.is_empty() { "optim.lr".to_owned() } else { format!("{network}.optim.lr") };
        // As many digits as the numbers have, without those of rounding.
        let rate = (rate * 1e12).round() / 1e12;
        rows.push(row(&named(network, "lr"), format!("{rate} ({key} {configured} × {batch}/{base_batch})")));
    }
    aligned(&rows)
}

/// Renders the number of ranks, and how they share the work.
fn ranks(ranks: &StartedRanks) -> String {
    let mut words = format!("{} x {} threads, {}", ranks.training, ranks.threads, ranks.strategy);
    match ranks.tensor {
        None => {}
        Some(1) => words.push_str(", the plan of layers is checked"),
        Some(number) => words.push_str(&format!(", each layer over {number}")),
    }
    if !ranks.stages.is_empty() {
        words.push_str(&format!(", {}", ranks.stages));
    }
    match ranks.servers {
        0 => {}
        1 => words.push_str(", 1 server"),
        servers => words.push_str(&format!(", {servers} servers")),
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_that_share_layers_are_told() {
        let line = |tensor, servers| {
            ranks(&StartedRanks {
                training: 4,
                servers,
                threads: 2,
                strategy: "ddp".into(),
                tensor,
                ..StartedRanks::default()
            })
        };
        let table = [
            (None, 0, "4 x 2 threads, ddp"),
            (None, 1, "4 x 2 threads, ddp, 1 server"),
            (Some(1), 0, "4 x 2 threads, ddp, the plan of layers is checked"),
            (Some(2), 0, "4 x 2 threads, ddp, each layer over 2"),
        ];
        for (tensor, servers, words) in table {
            assert_eq!(line(tensor, servers), words);
        }
    }

    #[test]
    fn a_scaled_rate_is_explained() {
        let rate = ScaledRate {
            rate: 0.1 * 12.0 / 128.0,
            configured: 0.1,
            batch: 12,
            base_batch: 128,
            ..ScaledRate::default()
        };
        let lines = started(&Started { scaled_rates: vec![rate], ..Started::default() });
        assert_eq!(lines.last().map(|line| line.trim()), Some("lr      0.009375 (optim.lr 0.1 × 12/128)"));
        assert!(!started(&Started::default()).iter().any(|line| line.contains("lr ")));
    }
}
