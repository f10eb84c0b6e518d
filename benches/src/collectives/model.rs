//! Measured and predicted times, and predictions for larger worlds.

use phalanx_collectives::{Algorithm, CostModel, LinkCost};
use serde_json::{Value as Json, json};

use super::work::{Measurements, Op, Work, costs_to_json};
use super::written;
use crate::rounds::median;

/// Ranks on each host of the worlds that are predicted.
const WORLDS: [&[usize]; 6] = [&[2], &[4], &[8], &[16], &[64], &[8; 8]];

fn link(name: &str, cost: Option<LinkCost>) {
    if let Some(LinkCost { alpha, beta }) = cost {
        println!("{name:>8}: {:>9.2} µs a message, {:>7.2} GB/s", alpha * 1e6, 1e-9 / beta.max(1e-15));
    }
}

/// Prints the fit and both tables. Returns their numbers.
pub(super) fn report(costs: CostModel, seen: &Measurements, work: &Work, hosts: &[usize]) -> Json {
    print_fit(&costs);
    let rows = compared(&costs, seen, work, hosts);
    let larger = predicted(costs, work);
    json!({ "costs": costs_to_json(costs), "rows": rows, "larger": larger })
}

/// Prints the costs that were fitted.
fn print_fit(costs: &CostModel) {
    println!("\nfitted costs of a message and a byte: while all ranks send, and while one pair sends");
    link("memory", costs.direct);
    for (name, alone, both) in [("local", "one pair", costs.local), ("remote", "one pair", costs.remote)] {
        link(name, both.map(|both| both.busy));
        link(alone, both.map(|both| both.alone));
    }
    println!("{:>8}: {:>32.2} GB/s", "reducing", 1e-9 / costs.gamma.max(1e-15));
}

/// Prints measured and predicted times of this world.
fn compared(costs: &CostModel, seen: &Measurements, work: &Work, hosts: &[usize]) -> Vec<Json> {
    let operation = work.op.name();
    println!("\nmeasured against predicted, {operation} among {} ranks", hosts.iter().sum::<usize>());
    println!("{:>10} {:>17} {:>12} {:>12} {:>9}", "bytes", "algorithm", "measured", "predicted", "ratio");
    let mut rows = Vec::new();
    for (index, &bytes) in work.sizes.iter().enumerate() {
        for (algorithm, row) in work.algorithms.iter().zip(&seen.timed) {
            let predicted = match work.op {
                Op::Gossip => costs.predict_gossip(2, bytes as usize, hosts),
                _ => costs.predict(&operation, *algorithm, bytes as usize, hosts),
            };
            let (Some(cell), Some(predicted)) = (&row[index], predicted) else { continue };
            let measured = median(cell.seconds.clone());
            println!(
                "{:>10} {:>17} {:>9.1} µs {:>9.1} µs {:>9.2}",
                written(bytes),
                algorithm.name(),
                measured * 1e6,
                predicted * 1e6,
                measured / predicted
            );
            rows.push(json!({
                "op": operation, "bytes": bytes, "algorithm": algorithm.name(),
                "measured_us": measured * 1e6, "predicted_us": predicted * 1e6,
            }));
        }
    }
    rows
}

/// Prints predicted times of larger worlds.
fn predicted(costs: CostModel, work: &Work) -> Vec<Json> {
    let operation = work.op.name();
    println!("\npredicted for other worlds: the fastest by messages, and its time");
    print!("{:>10}", "bytes");
    let remote = costs.remote.or(costs.local);
    let wide = CostModel { remote, ..costs };
    let names = WORLDS.map(|world| match world {
        [ranks] => format!("{ranks} ranks"),
        hosts => format!("{} hosts x {}", hosts.len(), hosts[0]),
    });
    names.iter().for_each(|name| print!(" {name:>26}"));
    println!();
    let mut larger = Vec::new();
    for &bytes in &work.sizes {
        print!("{:>10}", written(bytes));
        for (world, name) in WORLDS.iter().zip(&names) {
            let time = |algorithm: &Algorithm| wide.predict(&operation, *algorithm, bytes as usize, world);
            let by_messages = Algorithm::ALL.into_iter().filter(|algorithm| *algorithm != Algorithm::Direct);
            let timed = by_messages.filter_map(|algorithm| Some((algorithm, time(&algorithm)?)));
            let Some((best, seconds)) = timed.min_by(|a, b| a.1.total_cmp(&b.1)) else {
                print!(" {:>26}", "-");
                continue;
            };
            print!(" {:>26}", format!("{} {:.0} µs", best.name(), seconds * 1e6));
            larger.push(json!({
                "world": name, "bytes": bytes, "algorithm": best.name(), "predicted_us": seconds * 1e6,
            }));
        }
        println!();
    }
    larger
}
