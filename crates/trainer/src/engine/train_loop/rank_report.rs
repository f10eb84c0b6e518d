//! The losses and measures that one rank contributes to a step.

use std::ops::Range;

use phalanx_sharding::SumTree;

use crate::engine::TrainError;
use crate::engine::observer::PhaseReport;
use crate::engine::training::Phase;

/// The losses and measures of one rank in one step.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct RankReport {
    /// The rank's number when the run began.
    pub(super) rank: usize,
    /// The step, counted from 1.
    pub(super) step: u64,
    /// Seconds of training at the end of the step, by the rank's clock.
    pub(super) seconds: f64,
    /// The rank's virtual ranks; empty if there are none.
    pub(super) shards: Range<usize>,
    /// The rank's parts of the losses and measures of all phases, in order; of each virtual rank one after the other.
    pub(super) sums: Vec<f64>,
}

impl RankReport {
    /// Adds up the reports of all ranks; the seconds are the largest. Sums are in the order of ranks, so every run has the same
    /// numbers. Sums over virtual ranks follow a tree, so they do not depend on the number of ranks.
    pub(super) fn total(of_ranks: &[Self]) -> Result<Self, TrainError> {
        let Some((first, others)) = of_ranks.split_first() else {
            return Err(TrainError::Setup("no rank has reported its losses".to_owned()));
        };
        if !first.shards.is_empty() {
            return Self::total_of_virtual_ranks(of_ranks);
        }
        let mut total = first.clone();
        for report in others {
            if report.sums.len() != total.sums.len() {
                let (reported, own) = (report.sums.len(), total.sums.len());
                return Err(TrainError::Setup(format!(
                    "rank {} measures {reported} numbers a step, rank {} measures {own}",
                    report.rank, first.rank
                )));
            }
            total.seconds = total.seconds.max(report.seconds);
            total.sums.iter_mut().zip(&report.sums).for_each(|(sum, more)| *sum += more);
        }
        Ok(total)
    }

    fn total_of_virtual_ranks(of_ranks: &[Self]) -> Result<Self, TrainError> {
        let mut rows: Vec<&[f64]> = Vec::new();
        for report in of_ranks {
            let numbers = report.sums.len() / report.shards.len().max(1);
            let agree = report.shards.start == rows.len() && rows.iter().all(|sums| sums.len() == numbers);
            if !agree || numbers == 0 {
                let (rank, shards) = (report.rank, &report.shards);
                return Err(TrainError::Setup(format!(
                    "rank {rank} measures {numbers} numbers of each of logical ranks {shards:?}, after {} others",
                    rows.len()
                )));
            }
            rows.extend(report.sums.chunks_exact(numbers));
        }
        let (shards, numbers) = (rows.len(), rows.first().map_or(0, |sums| sums.len()));
        let sum = |at: usize| SumTree::new(shards).sum(rows.iter().map(|sums| sums[at]).collect());
        let seconds = of_ranks.iter().map(|report| report.seconds).fold(0.0, f64::max);
        let sums = (0..numbers).map(sum).collect();
        Ok(Self { rank: of_ranks[0].rank, step: of_ranks[0].step, seconds, shards: 0..shards, sums })
    }

    /// The message that carries the report: little-endian f64 numbers.
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let Self { rank, step, seconds, shards, sums } = self;
        let head = [*rank as f64, *step as f64, *seconds, shards.start as f64, shards.end as f64];
        head.into_iter().chain(sums.iter().copied()).flat_map(f64::to_le_bytes).collect()
    }

    /// Reads a message of [`RankReport::to_bytes`].
    pub(super) fn from_bytes(bytes: &[u8]) -> Self {
        let mut numbers = bytes.as_chunks().0.iter().copied().map(f64::from_le_bytes);
        let mut next = || numbers.next().unwrap_or_default();
        let (rank, step, seconds) = (next() as usize, next() as u64, next());
        let shards = next() as usize..next() as usize;
        Self { rank, step, seconds, shards, sums: numbers.collect() }
    }
}

/// Builds the reports of phases from their sums, one after the other.
pub(super) fn phase_reports(phases: &[&Phase], sums: &[f64]) -> Vec<PhaseReport> {
    let mut rest = sums.iter().copied();
    let report = |phase: &&Phase| PhaseReport {
        name: phase.name.clone(),
        loss: rest.next().unwrap_or(f64::NAN),
        measures: phase.measures.iter().cloned().zip(rest.by_ref()).collect(),
    };
    phases.iter().map(report).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_over_virtual_ranks_do_not_depend_on_their_placement() {
        let of_shards = [[1.0, 3.0], [1e16, 0.1], [-1e16, 0.2], [1.0, 0.3], [0.5, 0.4]];
        let total = |cuts: &[usize]| {
            let mut from = 0;
            let reports = cuts.iter().enumerate().map(|(rank, to)| {
                let shards = std::mem::replace(&mut from, *to)..*to;
                RankReport {
                    rank,
                    step: 1,
                    seconds: rank as f64,
                    sums: of_shards[shards.clone()].concat(),
                    shards,
                }
            });
            RankReport::total(&reports.collect::<Vec<_>>()).expect("sound")
        };
        let alone = total(&[5]);
        assert_eq!(alone.sums[0], ((1.0 + 1e16) + (-1e16 + 1.0)) + 0.5);
        for cuts in [&[2, 5][..], &[3, 5], &[2, 4, 5], &[1, 2, 3, 4, 5]] {
            let whole = total(cuts);
            assert_eq!((&whole.sums, whole.seconds), (&alone.sums, (cuts.len() - 1) as f64));
        }
        let missing = [RankReport { rank: 1, step: 1, seconds: 0.0, shards: 2..4, sums: vec![0.0; 4] }];
        assert!(RankReport::total(&missing).is_err());
    }
}
