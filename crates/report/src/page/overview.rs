//! The top of the page: title, status, headline numbers, list of runs, and warnings.

use std::fmt::Write as _;

use super::table::{Cell, table};
use super::{DETAILED, Page};
use crate::facts::{facts, headlines};
use crate::html::escape;
use crate::numbers::{bytes, seconds, with_unit};
use crate::run::{RunData, State};
use phalanx_charts::{Style, Unit};
use phalanx_run::format;

/// The maximum number of metric columns in the list of runs.
const MEASURES: usize = 14;
/// The maximum number of headlines and losses among the first columns.
const FIRST: usize = 5;

impl Page<'_> {
    /// Writes the head of the page.
    pub(super) fn overview(&mut self) {
        let report = self.report;
        let badge = |state: State| format!("<span class=\"badge {}\">{}</span>", class(state), state.words());
        let mut html = format!("<header><h1>{}</h1>", escape(&report.title));
        if let [run] = report.runs.as_slice() {
            let _ = write!(html, "<p class=\"lead\">{}", badge(run.state));
            if let Some(about) = run.setting("description") {
                let _ = write!(html, " {}", escape(about));
            }
            html.push_str("</p>");
            html.push_str(&progress(run));
            let headlines = headlines(run);
            if !headlines.is_empty() {
                html.push_str("<dl class=\"cards\">");
                for (name, value, key) in headlines {
                    let key = key.map_or_else(String::new, |key| format!(" data-key=\"{}\"", escape(&key)));
                    let _ =
                        write!(html, "<div><dt>{}</dt><dd{key}>{}</dd></div>", escape(&name), escape(&value));
                }
                html.push_str("</dl>");
            }
        } else {
            let _ = write!(html, "<p class=\"lead\">{} runs</p>", report.runs.len());
        }
        html.push_str("</header>");
        for run in report.runs.iter().filter(|run| !run.notes.is_empty()) {
            let whose =
                if report.runs.len() > 1 { format!("<b>{}</b>\n", escape(&run.name)) } else { String::new() };
            let _ = write!(html, "<div class=\"notes\">{whose}{}</div>", escape(&run.notes));
        }
        self.push(&html);
    }

    /// Writes the facts about a single run.
    pub(super) fn facts(&mut self) {
        let Some(run) = self.report.runs.first() else { return };
        self.section("Run");
        let rows: String = facts(run)
            .iter()
            .map(|(name, value)| format!("<div><dt>{}</dt><dd>{}</dd></div>", escape(name), escape(value)))
            .collect();
        self.push(&format!("<dl class=\"facts\">{rows}</dl></section>"));
    }

    /// Writes the list of several runs.
    pub(super) fn list_of_runs(&mut self) {
        let report = self.report;
        let badge = |state: State| format!("<span class=\"badge {}\">{}</span>", class(state), state.words());
        self.section("Runs");
        let list = runs(&report.runs, &badge);
        self.push(&list);
        if report.runs.len() > DETAILED {
            self.push(&format!(
                "<p class=\"hint\">Sections on ranks and resources are shown for up to {DETAILED} runs. \
                 See the reports of single runs.</p>"
            ));
        }
        self.push("</section>");
    }

    /// Writes the warnings of all runs.
    pub(super) fn warnings(&mut self) {
        let report = self.report;
        let mut items: Vec<String> =
            report.problems.iter().map(|problem| format!("<li>{}</li>", escape(problem))).collect();
        for run in &report.runs {
            let whose =
                if report.runs.len() > 1 { format!("<b>{}</b>: ", escape(&run.name)) } else { String::new() };
            for dead in run.summary_value("dead").and_then(serde_json::Value::as_array).into_iter().flatten()
            {
                let part = |name: &str| {
                    dead.get(name)
                        .map_or_else(String::new, |v| v.as_str().map_or_else(|| v.to_string(), str::to_owned))
                };
                let cause = part("cause");
                let text = format!(
                    "rank {} on {} died; the other ranks continued from step {}{}",
                    part("rank"),
                    part("host"),
                    part("from_step"),
                    if cause.is_empty() { String::new() } else { format!(": {cause}") }
                );
                items.push(format!("<li>{whose}{}</li>", escape(&text)));
            }
            for warning in run.warnings.iter() {
                let when = match warning.steps {
                    Some((first, last)) if first == last => format!("step {first}: "),
                    Some((first, last)) => format!("steps {first} to {last}: "),
                    None if warning.from == "file" => String::new(),
                    None => format!("{}: ", warning.from),
                };
                let often =
                    if warning.count > 1 { format!(" ({} times)", warning.count) } else { String::new() };
                items.push(format!("<li>{whose}{}</li>", escape(&format!("{when}{}{often}", warning.text))));
            }
        }
        if items.is_empty() {
            return;
        }
        self.section("Warnings");
        let (shown, more) = items.split_at(items.len().min(6));
        let mut html = format!("<ul class=\"warnings\">{}</ul>", shown.concat());
        if !more.is_empty() {
            let _ = write!(
                html,
                "<details><summary>{} more</summary><ul class=\"warnings\">{}</ul></details>",
                more.len(),
                more.concat()
            );
        }
        self.push(&html);
        self.push("</section>");
    }
}

/// Renders the progress of a run that is under way; empty for others.
fn progress(run: &RunData) -> String {
    let Some(progress) = run.progress.filter(|_| run.state == State::UnderWay) else { return String::new() };
    let (step, total) = (format::count(progress.step), format::count(progress.total));
    let left = match (progress.paused, progress.time_left()) {
        (true, _) => ", paused".to_owned(),
        (false, Some(left)) => format!(", {} left", format::duration(left)),
        (false, None) => String::new(),
    };
    match progress.share() {
        Some(share) => format!(
            "<p class=\"progress\"><progress max=\"1\" value=\"{share:.4}\" aria-label=\"Progress\"></progress> \
             <span>step {step} of {total}{left}</span></p>"
        ),
        None => format!("<p class=\"progress\"><span>step {step}</span></p>"),
    }
}

/// Returns the CSS class of a state.
fn class(state: State) -> &'static str {
    match state {
        State::Finished => "good",
        State::UnderWay => "going",
        State::Interrupted | State::Silent => "bad",
    }
}

/// The columns of measures: those next to the name of a run, and those at the end.
struct MeasureColumns<'a> {
    first: Vec<&'a str>,
    others: Vec<&'a str>,
}

impl<'a> MeasureColumns<'a> {
    fn of(runs: &'a [RunData]) -> Self {
        let mut measures: Vec<&str> = Vec::new();
        let names = runs
            .iter()
            .filter_map(|run| run.summary_value("metrics")?.as_object())
            .flat_map(serde_json::Map::keys);
        for name in names {
            if name != "save_seconds" && !measures.contains(&name.as_str()) && measures.len() < MEASURES {
                measures.push(name);
            }
        }
        let is_headline = |name: &str| runs.iter().any(|run| run.headline.as_deref() == Some(name));
        let place = |name: &str| match (is_headline(name), name.ends_with("loss")) {
            (true, _) => 0,
            (_, true) => 1,
            _ => 2,
        };
        measures.sort_by_key(|name| place(name));
        let first = measures.iter().take_while(|name| place(name) < 2).count().min(FIRST);
        let others = measures.split_off(first);
        Self { first: measures, others }
    }
}

/// Returns the table of runs with their metrics.
fn runs(runs: &[RunData], badge: &dyn Fn(State) -> String) -> String {
    let MeasureColumns { first, others } = MeasureColumns::of(runs);
    let words = |names: &[&str]| names.iter().map(|name| name.replace('_', " ")).collect::<Vec<_>>();
    let mut head: Vec<String> = ["run", "state", "steps"].map(str::to_owned).to_vec();
    head.extend(words(&first));
    head.extend(["samples/s", "time", "peak memory", "strategy", "ranks", "J/sample"].map(str::to_owned));
    head.extend(words(&others));
    let row = |(at, run): (usize, &RunData)| {
        let name = format!(
            "<label class=\"run\"><input type=\"checkbox\" data-run=\"{at}\" checked disabled><span class=\"swatch {}\"></span>{}</label>",
            Style::numbered(at).classes(),
            escape(&run.name)
        );
        let peak =
            run.ranks().iter().filter_map(|rank| rank.get("peak_memory_bytes")?.as_f64()).reduce(f64::max);
        let mut row = vec![
            Cell::Html(name),
            Cell::Html(badge(run.state)),
            Cell::Number(format::count(run.last_step), run.last_step as f64),
        ];
        let last = |name: &&str| {
            let column = || run.columns.get(&format!("metrics/{name}"))?.last();
            run.number(&format!("metrics.{name}")).or_else(column)
        };
        row.extend(first.iter().map(|name| Cell::number(last(name), format::number)));
        row.push(Cell::number(run.number("samples_per_second"), format::number));
        row.push(Cell::number(run.number("wall_seconds"), seconds));
        row.push(Cell::number(peak, bytes));
        row.push(Cell::Text(run.setting("train.strategy").unwrap_or_default().to_owned()));
        let ranks = run.setting("train.ranks").and_then(|ranks| ranks.parse().ok());
        row.push(Cell::number(ranks, |ranks| format!("{ranks}")));
        row.push(Cell::number(run.number("energy.joules_per_sample"), |joules| {
            with_unit(joules, Unit::Joules)
        }));
        row.extend(others.iter().map(|name| Cell::number(last(name), format::number)));
        row
    };
    let rows: Vec<Vec<Cell>> = runs.iter().enumerate().map(row).collect();
    format!(
        "<div class=\"picks\" hidden><label>Filter by name <input type=\"search\" id=\"pick\"></label> \
         <button type=\"button\" data-pick=\"all\">All</button> <button type=\"button\" data-pick=\"none\">None</button></div>{}",
        table("Runs", &head, &rows)
    )
}
