//! The time of one rank by category.

use std::collections::BTreeMap;

use serde::Serialize;

use super::super::category::Category;
use super::super::file::FileEvent;
use super::intervals::Intervals;
use super::timeline::{SpanSlice, span_slices};

/// The time of a rank by category, from the beginning of its first recorded step to the end of the last, in seconds.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RankTime {
    /// The rank.
    pub rank: u64,
    /// The total time.
    pub seconds: f64,
    /// The time in which its own thread computed.
    pub computing: f64,
    /// The time of evaluation and sampling, without the compute of blocks.
    pub evaluating: f64,
    /// The time in which any of its threads communicated.
    pub communication: f64,
    /// The share of the communication time that overlaps with compute, as defined by Holistic Trace Analysis; `None`
    /// without communication.
    pub overlap: Option<f64>,
    /// The idle time of its own thread, by cause.
    pub idle: IdleTime,
}

/// The idle seconds of a rank's own thread, by cause.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct IdleTime {
    /// Waiting for communication, or communicating itself.
    pub communication: f64,
    /// Waiting for losses or messages of other ranks.
    pub ranks: f64,
    /// Waiting for a batch.
    pub data: f64,
    /// Copying a checkpoint, or waiting for one.
    pub saving: f64,
    /// Not covered by spans.
    pub other: f64,
}

impl IdleTime {
    /// Returns the total.
    pub fn total(&self) -> f64 {
        self.communication + self.ranks + self.data + self.saving + self.other
    }
}

/// The spans of a rank.
pub(super) struct RankView<'a> {
    pub(super) rank: u64,
    pub(super) spans: &'a [FileEvent],
    /// The step spans, by step number.
    pub(super) steps: BTreeMap<u64, &'a FileEvent>,
    /// The spans of its own thread.
    pub(super) own: Vec<SpanSlice<'a>>,
    /// The communication spans of its other threads, by thread, in order.
    pub(super) communication: Vec<&'a [FileEvent]>,
}

/// Returns true if a wait is for overlapped communication.
pub(super) fn waits_for_communication(span: &FileEvent) -> bool {
    span.category == Some(Category::Waiting) && span.name.starts_with("wait for communication")
}

impl<'a> RankView<'a> {
    pub(super) fn new(rank: u64, spans: &'a [FileEvent]) -> Self {
        let steps: BTreeMap<u64, &FileEvent> = spans
            .iter()
            .filter(|span| span.category == Some(Category::Step))
            .filter_map(|span| Some((span.count("step")?, span)))
            .collect();
        let own_thread = steps.values().next().map(|step| step.tid);
        let own = span_slices(spans.iter().filter(|span| Some(span.tid) == own_thread));
        let moves = |thread: &&[FileEvent]| {
            let communicates = |span: &FileEvent| span.category == Some(Category::Communication);
            thread.iter().any(communicates) && thread.first().map(|span| span.tid) != own_thread
        };
        let communication = spans.chunk_by(|a, b| a.tid == b.tid).filter(moves).collect();
        Self { rank, spans, steps, own, communication }
    }

    pub(super) fn has_steps(&self) -> bool {
        !self.steps.is_empty()
    }

    /// Returns the spans of its own thread between two times, clipped to them.
    pub(super) fn between(&self, begin: f64, end: f64) -> impl Iterator<Item = SpanSlice<'a>> {
        let first = self.own.partition_point(|at| at.end <= begin);
        let inside = self.own[first..].iter().take_while(move |at| at.begin < end);
        inside.map(move |at| SpanSlice { begin: at.begin.max(begin), end: at.end.min(end), ..*at })
    }

    /// Returns the seconds of a step without communication and waiting for other ranks.
    pub(super) fn own_part(&self, step: u64) -> f64 {
        let Some(step) = self.steps.get(&step) else { return 0.0 };
        let others = |at: &SpanSlice<'_>| {
            matches!(
                at.span.category,
                Some(Category::Waiting | Category::Communication | Category::Agreement)
            )
        };
        let waited: f64 = self.between(step.begin, step.end).filter(others).map(|at| at.end - at.begin).sum();
        (step.duration() - waited) * 1e-6
    }

    pub(super) fn time(&self) -> RankTime {
        let begin = self.steps.values().map(|step| step.begin).fold(f64::INFINITY, f64::min);
        let end = self.steps.values().map(|step| step.end).fold(f64::NEG_INFINITY, f64::max);
        let (mut idle, mut evaluating, mut covered) = (IdleTime::default(), 0.0, 0.0);
        let mut computing = Vec::new();
        for SpanSlice { span, begin, end } in self.between(begin, end) {
            let seconds = (end - begin) * 1e-6;
            covered += seconds;
            match span.category {
                Some(Category::Compute | Category::Gradients | Category::Issuing) => {
                    computing.push((begin, end));
                }
                Some(Category::Evaluation) => evaluating += seconds,
                Some(Category::Communication | Category::Agreement) => idle.communication += seconds,
                Some(Category::Waiting) if waits_for_communication(span) => idle.communication += seconds,
                Some(Category::Waiting) => idle.ranks += seconds,
                Some(Category::Data) => idle.data += seconds,
                Some(Category::Saving) => idle.saving += seconds,
                Some(Category::Step | Category::Rank | Category::Counter) | None => idle.other += seconds,
            }
        }
        idle.other += ((end - begin) * 1e-6 - covered).max(0.0);
        let computing = Intervals::union(computing);
        let moves = self.spans.iter().filter(|span| span.category == Some(Category::Communication));
        let moves = moves.map(|span| (span.begin.max(begin), span.end.min(end)));
        let communication = Intervals::union(moves);
        let (moved, both) = (communication.length(), communication.and(&computing).length());
        RankTime {
            rank: self.rank,
            seconds: (end - begin) * 1e-6,
            computing: computing.length() * 1e-6,
            evaluating,
            communication: moved * 1e-6,
            overlap: (moved > 0.0).then(|| both / moved),
            idle,
        }
    }
}
