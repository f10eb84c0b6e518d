//! The activity of ranks in some steps as lanes of a timeline: the thread that computes, communication, data, and
//! saving.

use std::collections::BTreeMap;

use super::super::category::Category;
use super::super::file::{FileEvent, TraceFile};
use super::intervals::Intervals;
use super::rank::{RankView, waits_for_communication};
use super::timeline::span_slices;

/// Consecutive steps that are drawn together.
const STEPS: usize = 3;
/// A step longer than this multiple of the median is shown on its own.
const SLOW: f64 = 1.2;
/// Stretches of a drawing at most; the shortest are left out.
const STRETCHES: usize = 8000;

/// The activity of a rank in a stretch of time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Activity {
    /// Up to the loss.
    Forward,
    /// From the loss to gradients, with handing them over.
    Backward,
    /// Changing parameters.
    Update,
    /// Communication that is waited for.
    Exposed,
    /// Communication while the rank computes.
    Hidden,
    /// Waiting for losses or messages of other ranks.
    Ranks,
    /// Making batches, or waiting for them.
    Data,
    /// Evaluating, and drawing samples.
    Evaluation,
    /// Copying and writing checkpoints.
    Saving,
    /// The rest of steps.
    Other,
}

impl Activity {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::Forward,
        Self::Backward,
        Self::Update,
        Self::Exposed,
        Self::Hidden,
        Self::Ranks,
        Self::Data,
        Self::Evaluation,
        Self::Saving,
        Self::Other,
    ];

    /// In words.
    pub fn name(self) -> &'static str {
        match self {
            Self::Forward => "forward",
            Self::Backward => "backward",
            Self::Update => "update",
            Self::Exposed => "communication, waited for",
            Self::Hidden => "communication, hidden",
            Self::Ranks => "waiting for other ranks",
            Self::Data => "data",
            Self::Evaluation => "evaluation",
            Self::Saving => "saving",
            Self::Other => "other",
        }
    }

    /// Returns the activity of a span of the thread that computes; `None` for a span between steps.
    fn of_own(span: &FileEvent) -> Option<Self> {
        Some(match span.category? {
            Category::Compute if span.name.starts_with("forward") => Self::Forward,
            Category::Compute if span.name.starts_with("backward") => Self::Backward,
            Category::Compute if span.name.starts_with("update") => Self::Update,
            Category::Gradients | Category::Issuing => Self::Backward,
            Category::Communication | Category::Agreement => Self::Exposed,
            Category::Waiting if waits_for_communication(span) => Self::Exposed,
            Category::Waiting => Self::Ranks,
            Category::Data => Self::Data,
            Category::Evaluation => Self::Evaluation,
            Category::Saving => Self::Saving,
            Category::Compute | Category::Step => Self::Other,
            Category::Rank | Category::Counter => return None,
        })
    }
}

/// Stretches of time in which one thing was done, in seconds from the beginning of a drawing.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Lane(pub Vec<(Activity, f64, f64)>);

impl Lane {
    /// Seconds by activity, before anything was left out.
    fn seconds(&self) -> BTreeMap<Activity, f64> {
        let mut sums = BTreeMap::new();
        for (activity, begin, end) in &self.0 {
            *sums.entry(*activity).or_insert(0.0) += end - begin;
        }
        sums
    }

    /// Joins what is less than `apart` apart, and leaves out what is then shorter.
    fn coarsen(&mut self, apart: f64) {
        let mut joined: Vec<(Activity, f64, f64)> = Vec::with_capacity(self.0.len());
        for (activity, begin, end) in self.0.drain(..) {
            match joined.last_mut() {
                Some(last) if last.0 == activity && begin - last.2 <= apart => last.2 = last.2.max(end),
                _ => joined.push((activity, begin, end)),
            }
        }
        joined.retain(|(_, begin, end)| end - begin >= apart);
        self.0 = joined;
    }
}

/// The lanes of a rank.
#[derive(Debug, Clone, PartialEq)]
pub struct RankLanes {
    /// The rank.
    pub rank: u64,
    /// The thread that computes.
    pub own: Lane,
    /// Threads that move bytes between ranks.
    pub communication: Lane,
    /// Threads that make batches and write checkpoints.
    pub background: Lane,
    /// Seconds by activity, of the thread that computes and of hidden communication.
    pub seconds: BTreeMap<Activity, f64>,
}

/// The lanes of all ranks in some steps.
#[derive(Debug, Clone, PartialEq)]
pub struct StepLanes {
    /// The steps, and when rank 0 began each.
    pub steps: Vec<(u64, f64)>,
    /// The seconds from the first rank's beginning to the last rank's end.
    pub seconds: f64,
    /// The lanes of each rank.
    pub ranks: Vec<RankLanes>,
}

impl StepLanes {
    /// Selects steps of a trace of this program: up to three from the one of median length on, and the slowest if it is
    /// none of them and much slower. Includes at most `ranks` ranks. Returns nothing for a trace without steps that all
    /// ranks have recorded.
    pub fn of(file: &TraceFile, ranks: usize) -> Vec<Self> {
        if !file.is_own || ranks == 0 {
            return Vec::new();
        }
        let views = file.ranks().into_iter().map(|rank| RankView::new(rank, file.of_rank(rank)));
        let views: Vec<RankView<'_>> = views.filter(RankView::has_steps).collect();
        let Some(first) = views.first() else { return Vec::new() };
        let common = |step: &&u64| views.iter().all(|view| view.steps.contains_key(step));
        let steps: Vec<u64> = first.steps.keys().filter(common).copied().collect();
        let span = |step: u64| {
            let all = || views.iter().map(|view| view.steps[&step]);
            let begin = all().map(|step| step.begin).fold(f64::INFINITY, f64::min);
            (begin, all().map(|step| step.end).fold(f64::NEG_INFINITY, f64::max))
        };
        let length = |at: usize| span(steps[at]).1 - span(steps[at]).0;
        let mut order: Vec<usize> = (0..steps.len()).collect();
        order.sort_by(|a, b| length(*a).total_cmp(&length(*b)));
        let (Some(middle), Some(slowest)) = (order.get(order.len() / 2), order.last()) else {
            return Vec::new();
        };
        let from = (*middle).min(steps.len().saturating_sub(STEPS));
        let window = &steps[from..(from + STEPS).min(steps.len())];
        let shown = &views[..views.len().min(ranks)];
        let mut found = vec![lanes(shown, window, (span(window[0]).0, span(window[window.len() - 1]).1))];
        let slow = steps[*slowest];
        if !window.contains(&slow) && length(*slowest) > SLOW * length(*middle) {
            found.push(lanes(shown, &[slow], span(slow)));
        }
        found
    }

    /// Returns the number of stretches.
    fn stretches(&self) -> usize {
        let of = |rank: &RankLanes| rank.own.0.len() + rank.communication.0.len() + rank.background.0.len();
        self.ranks.iter().map(of).sum()
    }
}

/// Returns the lanes of ranks between two times, in microseconds of the trace.
fn lanes(views: &[RankView<'_>], steps: &[u64], (begin, end): (f64, f64)) -> StepLanes {
    let seconds = |time: f64| (time - begin) * 1e-6;
    let ranks = views.iter().map(|view| of_rank(view, (begin, end))).collect();
    let starts = steps.iter().filter_map(|step| Some((*step, seconds(views[0].steps.get(step)?.begin))));
    let mut found = StepLanes { steps: starts.collect(), seconds: seconds(end), ranks };
    let mut apart = found.seconds / 4000.0;
    loop {
        for rank in &mut found.ranks {
            [&mut rank.own, &mut rank.communication, &mut rank.background]
                .into_iter()
                .for_each(|lane| lane.coarsen(apart));
        }
        if found.stretches() <= STRETCHES || apart <= 0.0 {
            return found;
        }
        apart *= 2.0;
    }
}

/// Returns the lanes of a rank between two times.
fn of_rank(view: &RankView<'_>, (begin, end): (f64, f64)) -> RankLanes {
    let own_thread = view.steps.values().next().map(|step| step.tid);
    let place = |from: f64, to: f64| {
        let (from, to) = (from.max(begin), to.min(end));
        (from < to).then_some(((from - begin) * 1e-6, (to - begin) * 1e-6))
    };
    let own: Vec<(Activity, f64, f64)> = view
        .between(begin, end)
        .filter_map(|at| {
            let (from, to) = place(at.begin, at.end)?;
            Some((Activity::of_own(at.span)?, from, to))
        })
        .collect();
    let computes = own.iter().filter(|(activity, ..)| {
        matches!(activity, Activity::Forward | Activity::Backward | Activity::Update)
    });
    let computing = Intervals::union(computes.map(|(_, from, to)| (*from, *to)));
    let others =
        || view.spans.chunk_by(|a, b| a.tid == b.tid).filter(|thread| Some(thread[0].tid) != own_thread);
    let of = |wanted: &dyn Fn(Category) -> bool| {
        let spans = others().flat_map(span_slices);
        let spans = spans.filter(|at| at.span.category.is_some_and(wanted));
        spans.filter_map(|at| Some((at.span, place(at.begin, at.end)?))).collect::<Vec<_>>()
    };
    let moved = of(&|category| category == Category::Communication);
    let moved = Intervals::union(moved.into_iter().map(|(_, place)| place));
    let (hidden, exposed) = (moved.and(&computing), moved.without(&computing));
    let mut communication: Vec<_> = hidden.iter().map(|(a, b)| (Activity::Hidden, a, b)).collect();
    communication.extend(exposed.iter().map(|(a, b)| (Activity::Exposed, a, b)));
    communication.sort_by(|a, b| a.1.total_cmp(&b.1));
    let mut background: Vec<_> = of(&|category| matches!(category, Category::Data | Category::Saving))
        .into_iter()
        .map(|(span, (from, to))| match span.category {
            Some(Category::Saving) => (Activity::Saving, from, to),
            _ => (Activity::Data, from, to),
        })
        .collect();
    background.sort_by(|a, b| a.1.total_cmp(&b.1));
    let own = Lane(own);
    let mut seconds = own.seconds();
    seconds.insert(Activity::Hidden, hidden.length());
    RankLanes {
        rank: view.rank,
        own,
        communication: Lane(communication),
        background: Lane(background),
        seconds,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(pid: u64, tid: u64, category: Category, name: &str, begin: f64, end: f64) -> FileEvent {
        let args = match category {
            Category::Step => {
                [("step".to_owned(), name.parse::<u64>().expect("a number").into())].into_iter().collect()
            }
            _ => serde_json::Map::new(),
        };
        FileEvent {
            pid,
            tid,
            name: name.to_owned(),
            category: Some(category),
            begin,
            end,
            args,
            issued: None,
        }
    }

    /// Steps of a rank: a third forward, a third backward with overlapped communication, a third waiting for the rest
    /// of it.
    fn steps(pid: u64, lengths: &[f64]) -> Vec<FileEvent> {
        let (mut own, mut background) = (Vec::new(), Vec::new());
        let mut at = 0.0;
        for (step, length) in lengths.iter().enumerate() {
            let part = |thirds: f64| at + thirds / 3.0 * length;
            own.push(span(pid, 0, Category::Step, &(step + 1).to_string(), part(0.0), part(3.0)));
            own.push(span(pid, 0, Category::Compute, "forward", part(0.0), part(1.0)));
            own.push(span(pid, 0, Category::Compute, "backward", part(1.0), part(2.0)));
            own.push(span(pid, 0, Category::Waiting, "wait for communication", part(2.0), part(3.0)));
            background.push(span(pid, 1, Category::Communication, "all_reduce", part(1.5), part(3.0)));
            at += length;
        }
        own.into_iter().chain(background).collect()
    }

    #[test]
    fn steps_of_median_length_are_drawn_and_the_slowest() {
        let lengths = [9e6, 3e6, 3.3e6, 3.1e6, 3.2e6, 30e6, 3e6];
        let spans = (0..3).flat_map(|rank| steps(rank, &lengths)).collect();
        let file = TraceFile { is_own: true, spans, ..TraceFile::default() };
        let drawn = StepLanes::of(&file, 2);
        let numbers = |of: &StepLanes| of.steps.iter().map(|(step, _)| *step).collect::<Vec<_>>();
        // By length 3, 3, 3.1, 3.2, 3.3, 9, 30: the median is step 5, and two more come after it.
        assert_eq!(drawn.iter().map(numbers).collect::<Vec<_>>(), [vec![5, 6, 7]]);
        assert_eq!(drawn[0].ranks.len(), 2, "no more than are asked for");
        let lengths = [9e6, 3e6, 3.3e6, 3.1e6, 3.2e6, 3e6, 3e6];
        let file = TraceFile { is_own: true, spans: steps(0, &lengths), ..TraceFile::default() };
        let drawn = StepLanes::of(&file, 8);
        assert_eq!(drawn.iter().map(numbers).collect::<Vec<_>>(), [vec![4, 5, 6], vec![1]]);
        let first = &drawn[1];
        assert!((first.seconds - 9.0).abs() < 1e-9);
        let rank = &first.ranks[0];
        let kinds = |lane: &Lane| lane.0.iter().map(|(activity, ..)| *activity).collect::<Vec<_>>();
        assert_eq!(kinds(&rank.own), [Activity::Forward, Activity::Backward, Activity::Exposed]);
        assert_eq!(kinds(&rank.communication), [Activity::Hidden, Activity::Exposed]);
        for (activity, seconds) in
            [(Activity::Forward, 3.0), (Activity::Exposed, 3.0), (Activity::Hidden, 1.5)]
        {
            assert!((rank.seconds[&activity] - seconds).abs() < 1e-9, "{activity:?}: {:?}", rank.seconds);
        }
        assert!(StepLanes::of(&TraceFile { is_own: false, ..file }, 8).is_empty());
        assert!(StepLanes::of(&TraceFile { is_own: true, ..TraceFile::default() }, 8).is_empty());
    }

    #[test]
    fn however_many_spans_there_are_few_are_drawn() {
        let mut spans = vec![span(0, 0, Category::Step, "1", 0.0, 1e6)];
        let kinds = ["forward", "backward"];
        spans.extend((0..100_000).map(|at| {
            let begin = f64::from(at) * 10.0;
            span(0, 0, Category::Compute, kinds[at as usize % 2], begin, begin + 9.0)
        }));
        let file = TraceFile { is_own: true, spans, ..TraceFile::default() };
        let drawn = StepLanes::of(&file, 8);
        assert!(drawn[0].stretches() <= STRETCHES, "{}", drawn[0].stretches());
        assert!((drawn[0].ranks[0].seconds[&Activity::Forward] - 0.45).abs() < 1e-6, "sums are whole");
    }
}
