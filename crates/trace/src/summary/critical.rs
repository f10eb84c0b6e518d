//! The critical path of a step: what would have to be shorter for the step to be.
//!
//! It is walked from the end of the rank that ended last, backwards. What its own thread computed lies on the path. Where the
//! thread waited for communication, the path goes to the operation that it waited for, and from there to the rank that came to
//! that operation last, at the moment when it did: behind the operation that kept its communication thread busy until then, or to
//! where its own thread issued it.

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
    /// From the beginning of the path to the end of the step. Where ranks begin a step at different times it begins with the one
    /// that it leads to.
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

/// An operation of several ranks: the communicator and its number there.
type Collective = (u64, u64);

/// The data that paths are computed from.
pub(super) struct Paths<'a> {
    views: &'a [RankView<'a>],
    /// By operation, the ranks' spans of it: the places of ranks and the spans.
    collectives: BTreeMap<Collective, Vec<(usize, &'a FileEvent)>>,
}

fn collective(span: &FileEvent) -> Option<Collective> {
    Some((span.count("communicator")?, span.count("sequence")?))
}

/// A path under way.
struct Walk {
    /// The place of the rank that it is at, and the time.
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

    /// The steps that all ranks have recorded.
    pub(super) fn steps(&self) -> Vec<u64> {
        let Some(first) = self.views.first() else { return Vec::new() };
        let steps = first.steps.keys().copied();
        steps.filter(|step| self.views.iter().all(|view| view.steps.contains_key(step))).collect()
    }

    /// The path of a step that all ranks have recorded.
    pub(super) fn of_step(&self, step: u64) -> Option<StepPath> {
        let ends = self
            .views
            .iter()
            .enumerate()
            .filter_map(|(place, view)| Some((place, view.steps.get(&step)?.end)));
        let (rank, end) = ends.max_by(|a, b| a.1.total_cmp(&b.1))?;
        let mut walk = Walk { rank, at: end, parts: BTreeMap::new() };
        // Every turn goes back in time, by a span at least.
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

    /// Goes back over what the rank did last in a step, but not before `begin`.
    fn go_back(&self, walk: &mut Walk, step: u64, begin: f64) {
        let view = &self.views[walk.rank];
        let before = view.own.partition_point(|stretch| stretch.begin < walk.at);
        let Some(stretch) = before.checked_sub(1).map(|at| view.own[at]) else {
            return walk.add(view.rank, "between spans", Category::Step, begin);
        };
        if stretch.end < walk.at {
            return walk.add(view.rank, "between spans", Category::Step, stretch.end.max(begin));
        }
        let span = stretch.span;
        let category = span.category.unwrap_or(Category::Step);
        if span.name == LOSSES
            && let Some((last, told)) = self.told_last(walk, step, stretch.begin)
        {
            walk.add(view.rank, LOSSES, category, told);
            walk.rank = last;
            return;
        }
        let moved = match category {
            Category::Communication => Some(span),
            Category::Waiting => self.awaited(view, stretch.begin, walk.at),
            _ => None,
        };
        match moved {
            Some(operation) => self.through(walk, operation, stretch.begin.max(begin)),
            None => walk.add(view.rank, &span.name, category, stretch.begin.max(begin)),
        }
    }

    /// Finds the rank that ended a step last while this rank waited for losses, from `begin` on, and the time: a rank
    /// sends its losses at the end of its step.
    fn told_last(&self, walk: &Walk, step: u64, begin: f64) -> Option<(usize, f64)> {
        let others = self.views.iter().enumerate().filter(|(place, _)| *place != walk.rank);
        let ends = others.filter_map(|(place, view)| Some((place, view.steps.get(&step)?.end)));
        let during = ends.filter(|(_, end)| (begin..walk.at).contains(end));
        during.max_by(|a, b| a.1.total_cmp(&b.1))
    }

    /// The operation on another thread of the rank whose end ended a wait, which lasted from `begin` to `end`.
    fn awaited(&self, view: &RankView<'a>, begin: f64, end: f64) -> Option<&'a FileEvent> {
        let last_of = |thread: &&'a [FileEvent]| {
            let begun = thread.partition_point(|span| span.begin < end);
            // A waiting thread wakes a moment after the end.
            let ended = thread[..begun].iter().rev().take_while(|span| span.end > begin);
            ended.filter(|span| span.end <= end).find(|span| span.category == Some(Category::Communication))
        };
        view.communication.iter().filter_map(last_of).max_by(|a, b| a.end.total_cmp(&b.end))
    }

    /// Goes back through an operation, to the rank that came to it last, and through those that it had to wait for. A wait that it
    /// ends began at `waited`.
    fn through(&self, walk: &mut Walk, operation: &'a FileEvent, waited: f64) {
        let mut next = Some((operation, waited));
        while let Some((operation, waited)) = next {
            next = self.through_one(walk, operation, waited);
        }
    }

    /// Goes back through one operation: the one before it on its thread and where that begins, if it had to wait for that.
    fn through_one(
        &self,
        walk: &mut Walk,
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
            // Clocks are not that exact.
            walk.add(rank, &operation.name, Category::Communication, waited);
            return None;
        }
        walk.add(rank, &operation.name, Category::Communication, theirs.begin);
        walk.rank = last;
        let (_, issued) = theirs.issued?;
        // What was before it on its thread, if that is why it had to wait.
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

impl Walk {
    /// Goes back to `to`, in which time the rank did this.
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
