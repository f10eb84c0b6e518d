//! Checking a schedule before it runs: complete, in order, within memory, without a deadlock.

use std::collections::{BTreeMap, BTreeSet};

use super::play::{PassSeconds, PlayCosts, SentValue, chunks_of_one_rank};
use super::schedule::{PipelineSchedule, StagePass, StageWork};
use crate::Result;

/// Limits of a schedule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScheduleLimits {
    /// The messages from one chunk to another that may wait for their receiver.
    pub buffers: usize,
    /// The passes of chunks over micro-batches that a rank may keep the activations of; `None` for any number.
    pub kept: Option<usize>,
}

impl Default for ScheduleLimits {
    fn default() -> Self {
        Self { buffers: 1, kept: None }
    }
}

/// The facts of a schedule that can run.
#[derive(Debug, Clone, PartialEq)]
pub struct ScheduleCheck {
    /// By rank, the passes of chunks over micro-batches that it keeps the activations of at most.
    pub peak_kept: Vec<usize>,
    /// The share of time in which the busiest rank waits, if a forward pass and each part of a backward pass take equally long and
    /// messages no time.
    pub bubble: f64,
}

impl PipelineSchedule {
    /// Checks the schedule for values that chunks send each other: each chunk has each pass of each micro-batch once and in order,
    /// gradients of weights are added up in the order of micro-batches, ranks keep no more than they may, and with these buffers
    /// no ranks wait for each other forever.
    ///
    /// # Errors
    /// [`crate::ShardingError::Schedule`] with the first pass that is wrong.
    pub fn check(&self, sent: &[SentValue], limits: ScheduleLimits) -> Result<ScheduleCheck> {
        let places = self.ranks_of_chunks()?;
        self.check_values(sent)?;
        let mut peak_kept = Vec::with_capacity(self.ranks.len());
        for (rank, works) in self.ranks.iter().enumerate() {
            let peak = self.check_order(rank, works, &chunks_of_one_rank(sent, &places))?;
            if let Some(most) = limits.kept.filter(|most| peak > *most) {
                return Err(self.wrong(format!(
                    "rank {rank} keeps {peak} micro-batches of its chunks, and may keep {most}"
                )));
            }
            peak_kept.push(peak);
        }
        let unit = PassSeconds { forward: 1.0, input: 1.0, weight: 1.0 };
        let costs = PlayCosts { chunks: vec![unit; places.len()], message: 0.0, buffers: limits.buffers };
        let timeline = self.play(sent, &costs)?;
        Ok(ScheduleCheck { peak_kept, bubble: timeline.bubble() / timeline.end })
    }

    /// Returns the least number of messages from one chunk to another that must be able to wait for their receiver, so that no ranks
    /// wait for each other forever. Values that pass over chunks wait while these compute.
    ///
    /// # Errors
    /// [`crate::ShardingError::Schedule`] if no number is enough.
    pub fn needed_buffers(&self, sent: &[SentValue]) -> Result<usize> {
        let unit = PassSeconds { forward: 1.0, input: 1.0, weight: 1.0 };
        let chunks = vec![unit; self.num_chunks()];
        let plays = |buffers| {
            self.play(sent, &PlayCosts { chunks: chunks.clone(), message: 0.0, buffers }).map(|_| buffers)
        };
        // As many as there are can always wait.
        let (mut too_few, mut enough) = (None, plays(sent.len() * self.num_micros())?);
        while enough > too_few.map_or(0, |few: usize| few + 1) {
            let middle = (enough + too_few.map_or(0, |few| few + 1)) / 2;
            match plays(middle) {
                Ok(buffers) => enough = buffers,
                Err(_) => too_few = Some(middle),
            }
        }
        Ok(enough)
    }

    fn check_values(&self, sent: &[SentValue]) -> Result<()> {
        let chunks = self.num_chunks();
        for SentValue { value, from, to } in sent {
            if let Some(to) = to.iter().find(|to| **to <= *from || **to >= chunks) {
                let problem = format!("value {value} goes from chunk {from} to chunk {to} of {chunks}");
                return Err(self.wrong(format!("{problem}: values go to later chunks")));
            }
        }
        match sent.windows(2).find(|pair| pair[0].value >= pair[1].value) {
            Some(pair) => {
                let (first, second) = (pair[0].value, pair[1].value);
                Err(self.wrong(format!("value {first} comes before value {second}: numbers ascend")))
            }
            None => Ok(()),
        }
    }

    /// Checks the passes of a rank, and returns how many forward passes it keeps the activations of at most.
    fn check_order(
        &self,
        rank: usize,
        works: &[StageWork],
        pairs: &BTreeSet<(usize, usize)>,
    ) -> Result<usize> {
        let (mut done, mut last_weight) = (BTreeSet::new(), BTreeMap::new());
        let (mut kept, mut peak) = (0_usize, 0);
        for work in works {
            let StageWork { pass, chunk, micro } = *work;
            let is_done = |pass, chunk| done.contains(&StageWork { pass, chunk, micro });
            let is_back =
                |chunk| is_done(StagePass::Backward, chunk) || is_done(StagePass::BackwardInput, chunk);
            let wrong = |problem: &str| Err(self.wrong(format!("{work} on rank {rank} {problem}")));
            let lacks = match pass {
                StagePass::Forward => {
                    pairs.iter().any(|(from, to)| *to == chunk && !is_done(StagePass::Forward, *from))
                }
                StagePass::Backward | StagePass::BackwardInput => {
                    !is_done(StagePass::Forward, chunk)
                        || pairs.iter().any(|(from, to)| *from == chunk && !is_back(*to))
                }
                StagePass::BackwardWeight => !is_done(StagePass::BackwardInput, chunk),
            };
            if lacks {
                return wrong("comes before a pass that it needs");
            }
            let is_again = match pass {
                StagePass::Backward | StagePass::BackwardInput => is_back(chunk),
                StagePass::Forward | StagePass::BackwardWeight => is_done(pass, chunk),
            };
            if is_again {
                return wrong("comes twice");
            }
            if matches!(pass, StagePass::Backward | StagePass::BackwardWeight) {
                kept = kept.saturating_sub(1);
                if last_weight.insert(chunk, micro).is_some_and(|last| last > micro) {
                    return wrong("comes late: gradients are added up in the order of micro-batches");
                }
            }
            kept += usize::from(pass == StagePass::Forward);
            peak = peak.max(kept);
            done.insert(*work);
        }
        self.check_complete(rank, works, &done)?;
        Ok(peak)
    }

    /// Checks that each chunk of a rank has all passes of all micro-batches.
    fn check_complete(&self, rank: usize, works: &[StageWork], done: &BTreeSet<StageWork>) -> Result<()> {
        let chunks: BTreeSet<usize> = works.iter().map(|work| work.chunk).collect();
        for (chunk, micro) in
            chunks.into_iter().flat_map(|chunk| (0..self.num_micros()).map(move |micro| (chunk, micro)))
        {
            let is_done = |pass| done.contains(&StageWork { pass, chunk, micro });
            let is_complete = is_done(StagePass::Forward)
                && (is_done(StagePass::Backward)
                    || is_done(StagePass::BackwardInput) && is_done(StagePass::BackwardWeight));
            if !is_complete {
                return Err(self.wrong(format!(
                    "rank {rank} leaves out a pass of chunk {chunk} on micro-batch {micro}"
                )));
            }
        }
        Ok(())
    }
}
