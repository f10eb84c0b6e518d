//! The critical path of a step: the operations that determine its duration.
//!
//! The path is walked backwards from the end of the last rank. Compute of the rank's own thread lies on the path. Where
//! the thread waited for communication, the path continues at the awaited operation, and from there at the rank that
//! reached the operation last. There it continues with the operation that kept the communication thread busy, or with
//! the thread that issued the operation.

use std::collections::BTreeMap;

use serde::Serialize;

use super::super::category::Category;
use super::super::file::FileEvent;
use super::rank::RankView;

/// The critical path of a step.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct StepPath {
    /// The step, counted from 1.
    pub step: u64,
    /// The seconds from the start of the path to the end of the step. The path starts on the rank where the walk ends.
    pub seconds: f64,
    /// The parts of the path, the longest first.
    pub parts: Vec<CriticalPart>,
}

/// A part of a critical path.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CriticalPart {
    /// The rank.
    pub rank: u64,
    /// The name of its span.
    pub name: String,
    /// Its category.
    pub category: Category,
    /// Seconds on the path.
    pub seconds: f64,
}

/// The name of the span in which a rank waits for the losses of the others.
const LOSSES: &str = "wait for losses";

/// A collective operation: its communicator and sequence number.
type Collective = (u64, u64);

/// The data from which paths are computed.
pub(super) struct Paths<'a> {
    views: &'a [RankView<'a>],
    /// The spans of each operation, with the indices of their ranks.
    collectives: BTreeMap<Collective, Vec<(usize, &'a FileEvent)>>,
}

fn collective(span: &FileEvent) -> Option<Collective> {
    Some((span.count("communicator")?, span.count("sequence")?))
}

/// A path during the backward walk.
struct PathWalk {
    /// The index of the current rank, and the current time.
    rank: usize,
    at: f64,
    parts: BTreeMap<(u64, String, Category), f64>,
}

impl<'a> Paths<'a> {
    pub(super) fn new(views: &'a [RankView<'a>]) -> Self {
        let mut collectives: BTreeMap<Collective, Vec<(usize, &FileEvent)>> = BTreeMap::new();
        for (place, view) in views.iter().enumerate() {
            let moves = view.spans.iter().filter(|span| span.category == Some(Category::Communication));
            for (key, span) in moves.filter_map(|span| Some((collective(span)?, span))) {
                collectives.entry(key).or_default().push((place, span));
            }
        }
        Self { views, collectives }
    }

    /// Returns the steps that all ranks have recorded.
    pub(super) fn steps(&self) -> Vec<u64> {
        let Some(first) = self.views.first() else { return Vec::new() };
        let steps = first.steps.keys().copied();
        steps.filter(|step| self.views.iter().all(|view| view.steps.contains_key(step))).collect()
    }

    /// Returns the path of a step that all ranks have recorded.
    pub(super) fn of_step(&self, step: u64) -> Option<StepPath> {
        let ends = self
            .views
            .iter()
            .enumerate()
            .filter_map(|(place, view)| Some((place, view.steps.get(&step)?.end)));
        let (rank, end) = ends.max_by(|a, b| a.1.total_cmp(&b.1))?;
        let mut walk = PathWalk { rank, at: end, parts: BTreeMap::new() };
        // Every iteration goes back in time by at least one span.
        let most = 4 * self.views.iter().map(|view| view.spans.len()).sum::<usize>();
        for _ in 0..most {
            let begin = self.views[walk.rank].steps.get(&step)?.begin;
            if walk.at <= begin {
                break;
            }
            self.go_back(&mut walk, step, begin);
        }
        let parts = walk.parts.into_iter().map(|((rank, name, category), microseconds)| CriticalPart {
            rank,
            name,
            category,
            seconds: microseconds * 1e-6,
        });
        let mut parts: Vec<CriticalPart> = parts.filter(|part| part.seconds > 0.0).collect();
        parts.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
        Some(StepPath { step, seconds: (end - walk.at) * 1e-6, parts })
    }

    /// Goes back over the last activity of the rank in a step, but not before `begin`.
    fn go_back(&self, walk: &mut PathWalk, step: u64, begin: f64) {
        let view = &self.views[walk.rank];
        let before = view.own.partition_point(|slice| slice.begin < walk.at);
        let Some(slice) = before.checked_sub(1).map(|at| view.own[at]) else {
            return walk.add(view.rank, "between spans", Category::Step, begin);
        };
        if slice.end < walk.at {
            return walk.add(view.rank, "between spans", Category::Step, slice.end.max(begin));
        }
        let span = slice.span;
        let category = span.category.unwrap_or(Category::Step);
        if span.name == LOSSES
            && let Some((last, finished)) = self.last_to_finish(walk, step, slice.begin)
        {
            walk.add(view.rank, LOSSES, category, finished);
            walk.rank = last;
            return;
        }
        let moved = match category {
            Category::Communication => Some(span),
            Category::Waiting => self.awaited(view, slice.begin, walk.at),
            _ => None,
        };
        match moved {
            Some(operation) => self.through(walk, operation, slice.begin.max(begin)),
            None => walk.add(view.rank, &span.name, category, slice.begin.max(begin)),
        }
    }

    /// Finds the rank that ended a step last while this rank waited for losses, from `begin` on, and the time: a rank
    /// sends its losses at the end of its step.
    fn last_to_finish(&self, walk: &PathWalk, step: u64, begin: f64) -> Option<(usize, f64)> {
        let others = self.views.iter().enumerate().filter(|(place, _)| *place != walk.rank);
        let ends = others.filter_map(|(place, view)| Some((place, view.steps.get(&step)?.end)));
        let during = ends.filter(|(_, end)| (begin..walk.at).contains(end));
        during.max_by(|a, b| a.1.total_cmp(&b.1))
    }

    /// Finds the operation on another thread of the rank whose end ended a wait from `begin` to `end`.
    fn awaited(&self, view: &RankView<'a>, begin: f64, end: f64) -> Option<&'a FileEvent> {
        let last_of = |thread: &&'a [FileEvent]| {
            let begun = thread.partition_point(|span| span.begin < end);
            // A waiting thread wakes shortly after the end.
            let ended = thread[..begun].iter().rev().take_while(|span| span.end > begin);
            ended.filter(|span| span.end <= end).find(|span| span.category == Some(Category::Communication))
        };
        view.communication.iter().filter_map(last_of).max_by(|a, b| a.end.total_cmp(&b.end))
    }

    /// Goes back through an operation to the rank that reached it last, and through the operations that delayed it. The
    /// wait that it ended began at `waited`.
    fn through(&self, walk: &mut PathWalk, operation: &'a FileEvent, waited: f64) {
        let mut next = Some((operation, waited));
        while let Some((operation, waited)) = next {
            next = self.through_one(walk, operation, waited);
        }
    }

    /// Goes back through one operation. Returns the previous operation on its thread and its start, if that delayed it.
    fn through_one(
        &self,
        walk: &mut PathWalk,
        operation: &'a FileEvent,
        waited: f64,
    ) -> Option<(&'a FileEvent, f64)> {
        let own = (walk.rank, operation);
        let all = collective(operation).and_then(|key| self.collectives.get(&key));
        let (last, theirs) = all
            .into_iter()
            .flatten()
            .chain([&own])
            .copied()
            .max_by(|a, b| a.1.begin.total_cmp(&b.1.begin))
            .unwrap_or(own);
        let rank = self.views[walk.rank].rank;
        if theirs.begin >= walk.at {
            // Within the uncertainty of the clocks.
            walk.add(rank, &operation.name, Category::Communication, waited);
            return None;
        }
        walk.add(rank, &operation.name, Category::Communication, theirs.begin);
        walk.rank = last;
        let (_, issued) = theirs.issued?;
        // The previous operation on its thread, if it delayed this one.
        let view = &self.views[last];
        let thread =
            view.communication.iter().find(|thread| thread[0].tid == theirs.tid).copied().unwrap_or_default();
        let begun = thread.partition_point(|span| span.begin < theirs.begin);
        let before = begun.checked_sub(1).map(|at| &thread[at]);
        match before.filter(|before| before.end > issued && before.begin < walk.at) {
            Some(before) => {
                walk.add(view.rank, "between operations", Category::Communication, before.end);
                Some((before, before.begin))
            }
            None => {
                walk.add(view.rank, "issued and not begun", Category::Communication, issued);
                None
            }
        }
    }
}

impl PathWalk {
    /// Goes back to `to` and attributes the time to this activity.
    fn add(&mut self, rank: u64, name: &str, category: Category, to: f64) {
        let took = self.at - to;
        if took > 0.0 {
            *self.parts.entry((rank, name.to_owned(), category)).or_default() += took;
            self.at = to;
        }
    }
}

/// Returns the shares of categories in the paths, the largest first.
pub(super) fn shares(paths: &[StepPath]) -> Vec<(Category, f64)> {
    let mut sums: BTreeMap<Category, f64> = BTreeMap::new();
    for part in paths.iter().flat_map(|path| &path.parts) {
        *sums.entry(part.category).or_default() += part.seconds;
    }
    let total: f64 = sums.values().sum();
    let mut shares: Vec<_> = sums.into_iter().map(|(category, sum)| (category, sum / total)).collect();
    shares.sort_by(|a, b| b.1.total_cmp(&a.1));
    shares
}
