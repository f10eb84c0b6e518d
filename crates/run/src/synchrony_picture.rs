//! A chart of the staleness of updates and the waiting time of each rank.

use super::summary::RankSummary;
use phalanx_charts::{Axis, Bar, Figure, Panel, Unit};

/// The size of a panel.
const SIZE: (f64, f64) = (720.0, 190.0);

/// Draws histograms of staleness and of worker leads over all ranks, and the waiting time of each rank. Returns `None`
/// if ranks took every step together.
pub fn synchrony_svg(title: &str, ranks: &[RankSummary]) -> Option<String> {
    let of: Vec<_> = ranks.iter().filter_map(|rank| rank.synchrony.as_ref()).collect();
    if of.is_empty() {
        return None;
    }
    let staleness = sum(of.iter().map(|rank| rank.staleness.as_slice()));
    let leads = sum(of.iter().map(|rank| rank.leads.as_slice()));
    let waited: Vec<f64> = of.iter().map(|rank| rank.waited_seconds).collect();
    let spread = of.iter().map(|rank| rank.clock_spread).max().unwrap_or(0);
    let panels = vec![
        panel("updates by staleness", "staleness in updates", Unit::Count, &staleness),
        panel("steps by lead over the slowest worker", "lead in steps", Unit::Count, &leads),
        panel("time waited for other ranks", "rank", Unit::Seconds, &waited),
    ];
    let note = format!("ranks at most {spread} steps apart");
    Some(Figure::new(title, panels).note(note).grid(1, SIZE).svg())
}

/// Sums histograms bin by bin.
fn sum<'a>(counts: impl Iterator<Item = &'a [u64]>) -> Vec<f64> {
    let mut sum: Vec<f64> = Vec::new();
    for counts in counts {
        sum.resize(sum.len().max(counts.len()), 0.0);
        sum.iter_mut().zip(counts).for_each(|(sum, count)| *sum += *count as f64);
    }
    sum
}

/// Returns a panel with a bar for each value, named by its number.
fn panel(title: &str, across: &str, unit: Unit, values: &[f64]) -> Panel {
    let bar = |(number, value): (usize, &f64)| Bar {
        name: number.to_string(),
        values: Some(vec![*value]),
        ..Bar::default()
    };
    let bars = values.iter().enumerate().map(bar).collect();
    Panel::bars(title, Axis::of(across, Unit::Count), Axis::of("", unit), bars)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SyncSummary;

    #[test]
    fn every_bar_is_drawn() {
        let synchrony = |staleness: Vec<u64>, waited_seconds| {
            let leads = vec![3, 1];
            Some(SyncSummary { staleness, leads, waited_seconds, clock_spread: 2, ..SyncSummary::default() })
        };
        let rank = |rank, synchrony| RankSummary { rank, synchrony, ..RankSummary::default() };
        let ranks = [rank(0, synchrony(vec![4, 0, 1], 0.5)), rank(1, synchrony(vec![1, 1], 0.0))];
        let svg = synchrony_svg("a <run>", &ranks).expect("ranks are apart");
        // Three kinds of staleness, two of leads, two ranks.
        assert_eq!(svg.matches("<rect class=\"area").count(), 3 + 2 + 2);
        assert!(svg.contains("a &lt;run&gt;") && svg.contains("ranks at most 2 steps apart"));
        assert!(svg.contains("time waited for other ranks") && !svg.contains("NaN"));
        assert_eq!(synchrony_svg("x", &[rank(0, None)]), None);
        // Local SGD has no staleness to show, and these ranks did not wait.
        let svg = synchrony_svg("x", &[rank(0, Some(SyncSummary::default()))]).expect("it waits");
        assert!(svg.contains("without values other than 0: updates by staleness"), "{svg}");
    }
}
