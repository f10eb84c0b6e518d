//! A chart of the staleness of updates and the waiting time of each rank.

use super::summary::RankSummary;
use super::svg::{Anchor, COLOURS, Svg, tick_label};

const WIDTH: f64 = 720.0;
/// The height of the title.
const HEAD: f64 = 32.0;
/// The height of a panel.
const PANEL: f64 = 150.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 16.0;

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
    let panels = [
        ("updates by staleness (in updates)", staleness),
        ("steps by lead over the slowest worker (in steps)", leads),
        ("seconds waited, by rank", waited),
    ];
    let panels: Vec<_> = panels.iter().filter(|(_, bars)| !bars.is_empty()).collect();
    let mut svg = Svg::file(WIDTH, HEAD + PANEL * panels.len() as f64);
    let title = format!("{title}: ranks at most {spread} steps apart");
    svg.text((LEFT, 20.0), Anchor::Start, "font-size=\"14\"", &title);
    for (at, (name, bars)) in panels.into_iter().enumerate() {
        panel(&mut svg, HEAD + PANEL * at as f64, name, bars, COLOURS[at]);
    }
    Some(svg.finish())
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

/// Draws a row of bars, with bin numbers below and the largest value at the left.
fn panel(svg: &mut Svg, top: f64, name: &str, bars: &[f64], colour: &str) {
    let (base, room) = (top + PANEL - 34.0, PANEL - 58.0);
    let most = bars.iter().copied().fold(0.0, f64::max);
    let step = (WIDTH - LEFT - RIGHT) / bars.len() as f64;
    svg.text((LEFT, top + 14.0), Anchor::Start, "", name);
    svg.horizontal(base, (LEFT, WIDTH - RIGHT), "stroke=\"#999\"");
    svg.text((LEFT - 6.0, base - room + 4.0), Anchor::End, "", &tick_label(most));
    // Skip numbers for which there is no room.
    let every = bars.len().div_ceil(24).max(1);
    for (number, value) in bars.iter().enumerate() {
        let (x, tall) = (LEFT + step * number as f64, if most > 0.0 { value / most * room } else { 0.0 });
        svg.bar((x + 0.1 * step, base - tall), (0.8 * step, tall), colour);
        if number % every == 0 {
            svg.text((x + 0.5 * step, base + 16.0), Anchor::Middle, "", &number.to_string());
        }
    }
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
        // The background, three kinds of staleness, two of leads, two ranks.
        assert_eq!(svg.matches("<rect").count(), 1 + 3 + 2 + 2);
        assert!(svg.contains("a &lt;run&gt;: ranks at most 2 steps apart") && !svg.contains("NaN"));
        assert_eq!(synchrony_svg("x", &[rank(0, None)]), None);
        // Local SGD has no staleness to show.
        let svg = synchrony_svg("x", &[rank(0, Some(SyncSummary::default()))]).expect("it waits");
        assert!(svg.contains("seconds waited") && !svg.contains("updates old"));
    }
}
