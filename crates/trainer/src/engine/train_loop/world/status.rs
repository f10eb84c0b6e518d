//! The status of each rank of a new world, exchanged by all ranks, and the step that they continue from.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::engine::TrainError;
use crate::engine::distributed::{Distributed, StopReason};
use crate::engine::train_loop::evaluation::Evaluation;
use crate::engine::train_loop::rank_report::RankReport;
use phalanx_checkpoint::{MODEL, Piece, PieceSource, StateSnapshot, choose};
use phalanx_run::{DeadRank, LeftRank, WorldChange};

/// A list of the state that a rank holds after a step.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(in crate::engine::train_loop) struct Version {
    pub(super) step: u64,
    /// The elements.
    pub(super) pieces: Vec<Piece>,
    /// The entries of a checkpoint's index.
    pub(super) state: Map<String, Value>,
}

impl From<&StateSnapshot> for Version {
    fn from(snapshot: &StateSnapshot) -> Self {
        let pieces = snapshot.pieces.iter().map(|piece| piece.piece.clone()).collect();
        Self { step: snapshot.step, pieces, state: snapshot.state.clone() }
    }
}

/// The progress of a rank when another was lost.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(in crate::engine::train_loop) struct Progress {
    /// Steps done.
    pub(in crate::engine::train_loop) step: u64,
    /// The last step whose evaluation, samples and checkpoint are done.
    pub(in crate::engine::train_loop) followed: u64,
    /// The step of a checkpoint that was not complete.
    pub(in crate::engine::train_loop) unsaved: Option<u64>,
    /// The last evaluation, if it may not be written.
    pub(in crate::engine::train_loop) evaluated: Option<Evaluation>,
    /// The last step whose metrics are written, as the first rank knows.
    pub(in crate::engine::train_loop) written: u64,
    /// True on the first rank if samples of its step are missing.
    pub(in crate::engine::train_loop) lacks_samples: bool,
}

impl Progress {
    /// The newest evaluation of these ranks.
    pub(in crate::engine::train_loop) fn newest_evaluation<'p>(
        all: impl Iterator<Item = &'p Self>,
    ) -> Option<&'p Evaluation> {
        all.filter_map(|progress| progress.evaluated.as_ref()).max_by_key(|evaluation| evaluation.step)
    }
}

/// The status of a rank of a new world.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(in crate::engine::train_loop) struct RankStatus {
    /// True if the rank has just joined.
    pub(in crate::engine::train_loop) is_new: bool,
    pub(in crate::engine::train_loop) progress: Progress,
    /// The state that it holds, after one step or several; none if it changed in part and there are no copies.
    pub(in crate::engine::train_loop) versions: Vec<Version>,
    /// The reports that it knows: its own, and those that rank 0 received.
    pub(in crate::engine::train_loop) reports: Vec<ReportBits>,
    /// The agreed reason to stop.
    pub(in crate::engine::train_loop) stops: Option<StopReason>,
    /// The number of worlds after the first.
    pub(in crate::engine::train_loop) meetings: u64,
    pub(in crate::engine::train_loop) dead: Vec<DeadRank>,
    pub(in crate::engine::train_loop) left: Vec<LeftRank>,
    pub(in crate::engine::train_loop) changes: Vec<WorldChange>,
    /// Seconds of training before this process began or resumed.
    pub(in crate::engine::train_loop) seconds_before: f64,
    /// Seconds of training of this process.
    pub(in crate::engine::train_loop) seconds: f64,
}

impl RankStatus {
    /// The status of a rank that has joined.
    pub(in crate::engine::train_loop) fn newcomer() -> Self {
        Self { is_new: true, ..Self::default() }
    }

    /// Adds the state that the rank holds and the reports that it knows.
    #[must_use]
    pub(in crate::engine::train_loop) fn with_state(
        self,
        snapshots: &[StateSnapshot],
        reports: &[RankReport],
    ) -> Self {
        let versions = snapshots.iter().map(Version::from).collect();
        Self { versions, reports: reports.iter().map(ReportBits::from).collect(), ..self }
    }

    /// The state that it holds after a step.
    pub(super) fn version(&self, step: u64) -> Option<&Version> {
        self.versions.iter().find(|version| version.step == step)
    }
}

/// Gives each rank's status, or progress, to all; by rank.
pub(in crate::engine::train_loop) fn exchange<S: Serialize + for<'de> Deserialize<'de>>(
    distributed: &Distributed,
    own: &S,
) -> Result<Vec<S>, TrainError> {
    let malformed =
        |error: serde_json::Error| TrainError::Setup(format!("malformed status of a rank: {error}"));
    let all = distributed.exchange().gather_text(&serde_json::to_string(own).map_err(malformed)?)?;
    all.iter().map(|text| serde_json::from_str(text).map_err(malformed)).collect()
}

/// A report with the bits of its numbers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::engine::train_loop) struct ReportBits {
    rank: usize,
    step: u64,
    seconds: u64,
    shards: [usize; 2],
    sums: Vec<u64>,
}

impl From<&RankReport> for ReportBits {
    fn from(report: &RankReport) -> Self {
        Self {
            rank: report.rank,
            step: report.step,
            seconds: report.seconds.to_bits(),
            shards: [report.shards.start, report.shards.end],
            sums: report.sums.iter().map(|sum| sum.to_bits()).collect(),
        }
    }
}

impl From<&ReportBits> for RankReport {
    fn from(bits: &ReportBits) -> Self {
        Self {
            rank: bits.rank,
            step: bits.step,
            seconds: f64::from_bits(bits.seconds),
            shards: bits.shards[0]..bits.shards[1],
            sums: bits.sums.iter().map(|sum| f64::from_bits(*sum)).collect(),
        }
    }
}

/// The newest step that all ranks can continue from.
pub(in crate::engine::train_loop) struct CommonStep {
    pub(in crate::engine::train_loop) step: u64,
    /// The pieces that ranks send each other; `None` if every rank has everything.
    pub(super) sent: Option<Vec<PieceSource>>,
}

impl CommonStep {
    /// A step whose state all ranks have, from a checkpoint.
    pub(in crate::engine::train_loop) fn of_all(step: u64) -> Self {
        Self { step, sent: None }
    }
}

/// Finds the newest step whose state is complete: everything named by `names` is held by a rank.
pub(in crate::engine::train_loop) fn newest_common_step(
    all: &[RankStatus],
    names: &[String],
) -> Option<CommonStep> {
    let versions = all.iter().flat_map(|status| &status.versions);
    let mut steps: Vec<u64> = versions.map(|version| version.step).collect();
    steps.sort_unstable();
    steps.dedup();
    let wanted = || names.iter().map(|name| (MODEL, name.as_str()));
    for step in steps.into_iter().rev() {
        let of = |status: &RankStatus| {
            status.version(step).map(|version| version.pieces.clone()).unwrap_or_default()
        };
        let pieces: Vec<Vec<Piece>> = all.iter().map(of).collect();
        let Some(chosen) = choose(&pieces, wanted()) else { continue };
        let has_all = |own: &Vec<Piece>| choose(std::slice::from_ref(own), wanted()).is_some();
        let sent = (!pieces.iter().all(has_all)).then_some(chosen);
        return Some(CommonStep { step, sent });
    }
    None
}

/// Returns the reports of a step, one for each rank, in the order of their numbers. Scales them to the whole batch if some are missing.
pub(in crate::engine::train_loop) fn reports_of(
    all: &[RankStatus],
    step: u64,
    ranks: usize,
    virtual_ranks: Option<usize>,
) -> Vec<RankReport> {
    let mut reports: Vec<RankReport> = all
        .iter()
        .flat_map(|status| &status.reports)
        .filter(|bits| bits.step == step)
        .map(RankReport::from)
        .collect();
    reports.sort_by_key(|report| (report.shards.start, report.rank));
    reports.dedup_by_key(|report| report.rank);
    let (there, whole) = match virtual_ranks {
        Some(shards) => (reports.iter().map(|report| report.shards.len()).sum::<usize>(), shards),
        None => (reports.len(), ranks),
    };
    if there > 0 && there != whole {
        // The mean is over the ranks that took part.
        reports.iter_mut().for_each(|report| scale(report, whole as f64 / there as f64));
    }
    reports
}

/// Adds up the virtual ranks of a report and multiplies the sums by `factor`.
fn scale(report: &mut RankReport, factor: f64) {
    let numbers = report.sums.len() / report.shards.len().max(1);
    let mut sums = vec![0.0; numbers];
    for row in report.sums.chunks_exact(numbers.max(1)) {
        sums.iter_mut().zip(row).for_each(|(sum, more)| *sum += more * factor);
    }
    (report.sums, report.shards) = (sums, 0..0);
}

#[cfg(test)]
mod tests {
    use super::*;
    use phalanx_checkpoint::Region;

    fn status(step: u64, start: usize, end: usize) -> RankStatus {
        let piece = Piece {
            kind: MODEL.to_owned(),
            name: "w".to_owned(),
            dtype: "f32".to_owned(),
            shape: vec![4],
            region: Region::from(start..end),
            file: String::new(),
            key: "w".to_owned(),
        };
        let version = Version { step, pieces: vec![piece], ..Version::default() };
        RankStatus { versions: vec![version], ..RankStatus::default() }
    }

    #[test]
    fn the_newest_complete_step_counts() {
        let names = ["w".to_owned()];
        let find =
            |all: &[RankStatus]| newest_common_step(all, &names).map(|common| (common.step, common.sent));
        assert_eq!(find(&[status(5, 0, 4), status(5, 0, 4)]), Some((5, None)), "all have all");
        let one = |rank| Some(vec![PieceSource { rank, at: 0 }]);
        assert_eq!(find(&[status(5, 0, 4), status(6, 0, 4)]), Some((6, one(1))), "one is ahead");
        assert_eq!(find(&[status(5, 0, 4), RankStatus::default()]), Some((5, one(0))), "one has come");
        let halves = Some(vec![PieceSource { rank: 0, at: 0 }, PieceSource { rank: 1, at: 0 }]);
        assert_eq!(find(&[status(5, 0, 2), status(5, 2, 4)]), Some((5, halves)));
        assert_eq!(find(&[status(5, 0, 2), status(6, 2, 4)]), None, "no step is whole");
        let mut both = status(6, 0, 2);
        both.versions.extend(status(5, 0, 2).versions);
        let halves = Some(vec![PieceSource { rank: 0, at: 0 }, PieceSource { rank: 1, at: 0 }]);
        assert_eq!(find(&[both, status(5, 2, 4)]), Some((5, halves)), "the older one is");
        assert_eq!(find(&[RankStatus::default()]), None);
    }

    #[test]
    fn missing_reports_are_made_up_for_by_the_others() {
        let report = |rank: usize, step: u64, shards: std::ops::Range<usize>, sums: &[f64]| {
            ReportBits::from(&RankReport { rank, step, seconds: 0.1, shards, sums: sums.to_vec() })
        };
        let of = |reports: Vec<ReportBits>| RankStatus { reports, ..RankStatus::default() };
        let both = [
            of(vec![report(4, 7, 0..0, &[0.1]), report(4, 8, 0..0, &[9.0])]),
            of(vec![report(1, 7, 0..0, &[0.3])]),
        ];
        let whole = RankReport::total(&reports_of(&both, 7, 2, None)).expect("reported");
        assert_eq!((whole.sums, whole.seconds), (vec![0.3 + 0.1], 0.1));
        // One of three has reported nothing.
        let partly = RankReport::total(&reports_of(&both, 7, 3, None)).expect("reported");
        assert!((partly.sums[0] - 0.6).abs() < 1e-12);
        let logical = [
            of(vec![report(0, 7, 0..2, &[1.0, 10.0, 2.0, 20.0])]),
            of(vec![report(2, 7, 3..4, &[4.0, 40.0])]),
        ];
        let partly = RankReport::total(&reports_of(&logical, 7, 3, Some(4))).expect("reported");
        assert!(
            (partly.sums[0] - 7.0 * 4.0 / 3.0).abs() < 1e-12
                && (partly.sums[1] - 70.0 * 4.0 / 3.0).abs() < 1e-9
        );
        assert!(reports_of(&logical, 9, 3, Some(4)).is_empty());
    }
}
