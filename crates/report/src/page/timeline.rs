//! Timelines of steps from the trace, and the time breakdown of steps.

use std::fmt::Write as _;

use super::Page;
use super::table::{Cell, table};
use crate::chart::Chart;
use crate::html::escape;
use crate::numbers::{bytes, seconds};
use crate::run::RunData;
use phalanx_charts::{labels, ticks};
use phalanx_run::format;
use phalanx_trace::{Activity, Lane, RankLanes, StepLanes, TraceFile};

/// The maximum size of a trace for a page, in bytes.
const MOST_BYTES: u64 = 256 << 20;
/// The maximum number of drawn ranks.
const RANKS: usize = 8;

const WIDTH: f64 = 1000.0;
const LEFT: f64 = 64.0;
const TOP: f64 = 20.0;
/// The height of a lane, and the gap between ranks.
const LANE: f64 = 13.0;
const GAP: f64 = 9.0;
const BOTTOM: f64 = 34.0;

/// Reads the timelines of some steps; empty without a trace.
///
/// # Errors
/// The reason why the trace cannot be drawn.
pub(super) fn read(run: &RunData) -> Result<Vec<StepLanes>, String> {
    let path = run.folder.join("trace.json");
    let Ok(known) = std::fs::metadata(&path) else { return Ok(Vec::new()) };
    if known.len() > MOST_BYTES {
        let size = bytes(known.len() as f64);
        return Err(format!(
            "trace.json has {size}, too much for a page; open it in Perfetto, or record fewer steps with --trace a..b"
        ));
    }
    let file = TraceFile::read(&path).map_err(|error| error.to_string())?;
    Ok(StepLanes::of(&file, RANKS))
}

/// Formats a time; below a second in milliseconds.
fn time(value: f64) -> String {
    if value < 1.0 { format!("{} ms", format::number(1e3 * value)) } else { seconds(value) }
}

/// Returns the colour of an activity, and true if it is drawn faintly.
fn style(activity: Activity) -> (usize, bool) {
    match activity {
        Activity::Forward => (5, false),
        Activity::Backward => (0, false),
        Activity::Update => (2, false),
        Activity::Exposed => (1, false),
        Activity::Hidden => (6, false),
        Activity::Ranks => (3, false),
        Activity::Data => (4, false),
        Activity::Evaluation => (7, false),
        Activity::Saving => (3, true),
        Activity::Other => (7, true),
    }
}

fn class(name: &str, letter: char, activity: Activity) -> String {
    let (colour, faint) = style(activity);
    format!("{name} {letter}{colour}{}", if faint { " faint" } else { "" })
}

impl Page<'_> {
    /// Writes the timelines and the time breakdown of steps.
    pub(super) fn timeline(&mut self, charts: Vec<Chart>, lanes: &Result<Vec<StepLanes>, String>) {
        let drawn = match lanes {
            Ok(drawn) => drawn.as_slice(),
            Err(_) => &[],
        };
        if charts.is_empty() && drawn.is_empty() && lanes.is_ok() {
            return;
        }
        self.push("<h3>Timeline of steps</h3>");
        for lanes in drawn {
            self.push(&figure(lanes));
        }
        if let Err(problem) = lanes {
            self.push(&format!("<p class=\"hint\">{}</p>", escape(problem)));
        }
        self.figures(charts);
    }
}

/// Renders the timeline of some steps with a legend and a table.
fn figure(lanes: &StepLanes) -> String {
    let title = match (lanes.steps.first(), lanes.steps.last()) {
        (Some((first, _)), Some((last, _))) if first != last => format!("steps {first} to {last}"),
        (Some((only, _)), _) => format!("step {only}"),
        _ => "steps".to_owned(),
    };
    let title = format!("{title}: {}", time(lanes.seconds));
    let is_there = |activity: &Activity| {
        let takes = |rank: &RankLanes| rank.seconds.get(activity).is_some_and(|of| *of > 0.0);
        lanes.ranks.iter().any(|rank| takes(rank) || in_lanes(rank, *activity))
    };
    let present: Vec<Activity> = Activity::ALL.into_iter().filter(is_there).collect();
    let mut html = format!(
        "<figure><figcaption>{0}</figcaption><div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"{0}\">{1}</div><ul class=\"legend\">",
        escape(&title),
        picture(lanes, &title)
    );
    for activity in &present {
        let _ = write!(
            html,
            "<li><span class=\"{}\"></span>{}</li>",
            class("block", 'b', *activity),
            activity.name()
        );
    }
    let head: Vec<String> = std::iter::once("rank")
        .chain(present.iter().map(|activity| activity.name()))
        .map(str::to_owned)
        .collect();
    let row = |rank: &RankLanes| {
        let cells = present.iter().map(|activity| Cell::number(rank.seconds.get(activity).copied(), time));
        std::iter::once(Cell::Number(rank.rank.to_string(), rank.rank as f64)).chain(cells).collect()
    };
    let rows: Vec<Vec<Cell>> = lanes.ranks.iter().map(row).collect();
    let _ = write!(
        html,
        "</ul><details class=\"behind\"><summary>Numbers</summary>{}</details></figure>",
        table(&title, &head, &rows)
    );
    html
}

fn in_lanes(rank: &RankLanes, activity: Activity) -> bool {
    [&rank.own, &rank.communication, &rank.background]
        .iter()
        .any(|lane| lane.0.iter().any(|at| at.0 == activity))
}

/// Draws three lanes for each rank: compute thread, communication, and background threads.
fn picture(lanes: &StepLanes, title: &str) -> String {
    let x = |at: f64| LEFT + at / lanes.seconds.max(f64::MIN_POSITIVE) * (WIDTH - LEFT - 4.0);
    let mut body = String::new();
    let mut y = TOP;
    for rank in &lanes.ranks {
        let _ = write!(body, "<text x=\"0\" y=\"{:.0}\">rank {}</text>", y + LANE - 2.0, rank.rank);
        let all = [
            ("computing thread", &rank.own),
            ("communication", &rank.communication),
            ("background threads", &rank.background),
        ];
        for (name, lane) in all.iter().filter(|(_, lane)| !lane.0.is_empty()) {
            paths(&mut body, lane, &format!("rank {}, {name}", rank.rank), y, &x);
            y += LANE + 1.0;
        }
        y += GAP;
    }
    let height = y + BOTTOM - GAP;
    let mut html = format!(
        "<svg class=\"plot timeline\" viewBox=\"0 0 {WIDTH} {height:.0}\" role=\"img\" aria-label=\"{}\">",
        escape(&format!("Timeline of {} ranks in {title}; the table has the numbers", lanes.ranks.len()))
    );
    // Step labels must not overlap.
    let mut free = f64::NEG_INFINITY;
    for (step, at) in &lanes.steps {
        let at = x(*at);
        let _ = write!(html, "<path class=\"grid\" d=\"M{at:.1} 0V{:.1}\"/>", y - GAP);
        if at >= free {
            let _ = write!(html, "<text x=\"{:.1}\" y=\"12\">step {step}</text>", at + 4.0);
            free = at + 90.0;
        }
    }
    html.push_str(&body);
    let axis = y - GAP + 4.0;
    let _ = write!(html, "<path class=\"grid\" d=\"M{LEFT} {axis:.1}H{WIDTH}\"/>");
    let (scale, unit) = if lanes.seconds < 1.0 { (1e3, "ms") } else { (1.0, "s") };
    let all = ticks(0.0, scale * lanes.seconds, 8, false);
    for (at, label) in all.iter().zip(labels(&all)) {
        let place = x(at / scale);
        let anchor = if place > WIDTH - 30.0 { "end" } else { "middle" };
        let _ = write!(
            html,
            "<text x=\"{place:.1}\" y=\"{:.1}\" text-anchor=\"{anchor}\">{} {unit}</text>",
            axis + 16.0,
            escape(&label)
        );
    }
    html.push_str("</svg>");
    html
}

/// Draws the intervals of a lane: a path for each activity.
fn paths(html: &mut String, lane: &Lane, of: &str, y: f64, x: &dyn Fn(f64) -> f64) {
    for activity in Activity::ALL {
        let stretches = lane.0.iter().filter(|at| at.0 == activity);
        let mut path = String::new();
        let (mut count, mut sum) = (0, 0.0);
        for (_, begin, end) in stretches {
            let (from, wide) = (x(*begin), x(*end) - x(*begin));
            let _ = write!(path, "M{from:.2} {y:.0}h{wide:.2}v{LANE}h-{wide:.2}z");
            (count, sum) = (count + 1, sum + end - begin);
        }
        if count > 0 {
            let label = format!("{of}: {} {}, in {count} stretches", activity.name(), time(sum));
            let _ = write!(
                html,
                "<path class=\"{}\" d=\"{path}\"><title>{}</title></path>",
                class("lane", 's', activity),
                escape(&label)
            );
        }
    }
}
