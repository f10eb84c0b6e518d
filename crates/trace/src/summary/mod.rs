//! The summary of a trace: hidden communication, waiting, the slowest rank, and the parts of a step's time.

mod critical;
mod intervals;
mod lanes;
mod operations;
mod rank;
#[cfg(test)]
mod tests;
mod timeline;

pub use critical::{CriticalPart, StepPath};
pub use lanes::{Activity, Lane, RankLanes, StepLanes};
pub use operations::OperationTime;
pub use rank::{IdleTime, RankTime};

use serde::Serialize;

use super::category::Category;
use super::file::TraceFile;
use critical::Paths;
use operations::operations;
use rank::RankView;

/// The maximum number of listed operations.
const TOLD: usize = 15;

/// The summary of a trace. Times are in seconds.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TraceSummary {
    /// True if this program has written the trace. For traces of other programs only [`TraceSummary::operations`] is
    /// filled in.
    pub is_own: bool,
    /// The number of steps that all ranks have recorded.
    pub steps: usize,
    /// The uncertainty of times between ranks, because they have no common clock.
    pub clock_uncertainty: f64,
    /// The number of events that were dropped because the buffer was full.
    pub left_out: u64,
    /// The time of each rank by category.
    pub ranks: Vec<RankTime>,
    /// The slowest rank by its own part of a step; `None` for a single rank.
    pub slowest: Option<SlowestRank>,
    /// The critical path of the step of median length.
    pub path: Option<StepPath>,
    /// The shares of categories in the critical paths of all steps, the largest first.
    pub path_shares: Vec<(Category, f64)>,
    /// The operations with the largest times over all ranks, without nested spans.
    pub operations: Vec<OperationTime>,
}

/// The rank that the others wait for.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SlowestRank {
    /// The rank.
    pub rank: u64,
    /// Its mean time for its own part of a step: everything except communication and waiting for others.
    pub seconds_per_step: f64,
    /// The mean time of the other ranks.
    pub others_per_step: f64,
    /// The number of steps in which it was the slowest.
    pub slowest_in: usize,
}

impl TraceSummary {
    /// Summarises `file`.
    pub fn of(file: &TraceFile) -> Self {
        let views: Vec<RankView<'_>> = match file.is_own {
            true => file.ranks().into_iter().map(|rank| RankView::new(rank, file.of_rank(rank))).collect(),
            false => Vec::new(),
        };
        let views: Vec<_> = views.into_iter().filter(RankView::has_steps).collect();
        let paths = Paths::new(&views);
        let steps = paths.steps();
        let mut all: Vec<StepPath> = steps.iter().filter_map(|step| paths.of_step(*step)).collect();
        let path_shares = critical::shares(&all);
        all.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
        Self {
            is_own: file.is_own,
            steps: steps.len(),
            clock_uncertainty: file.uncertainty * 1e-6,
            left_out: file.left_out,
            ranks: views.iter().map(RankView::time).collect(),
            slowest: slowest(&views, &steps),
            path: (!all.is_empty()).then(|| all.swap_remove(all.len() / 2)),
            path_shares,
            operations: operations(file, TOLD),
        }
    }
}

/// Returns the slowest rank by its own part of these steps.
fn slowest(views: &[RankView<'_>], steps: &[u64]) -> Option<SlowestRank> {
    if views.len() < 2 || steps.is_empty() {
        return None;
    }
    let needs: Vec<Vec<f64>> =
        views.iter().map(|view| steps.iter().map(|step| view.own_part(*step)).collect()).collect();
    let means: Vec<f64> = needs.iter().map(|of| of.iter().sum::<f64>() / steps.len() as f64).collect();
    let worst = (0..views.len()).max_by(|a, b| means[*a].total_cmp(&means[*b]))?;
    let most = |step: &usize| (0..views.len()).all(|rank| needs[rank][*step] <= needs[worst][*step]);
    let others = means.iter().sum::<f64>() - means[worst];
    Some(SlowestRank {
        rank: views[worst].rank,
        seconds_per_step: means[worst],
        others_per_step: others / (views.len() - 1) as f64,
        slowest_in: (0..steps.len()).filter(most).count(),
    })
}
