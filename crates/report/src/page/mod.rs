//! The HTML page of a report.

mod captions;
mod classes;
mod compare;
mod figure;
mod overview;
mod resources;
mod results;
mod sweep;
mod table;
mod timeline;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Serialize;
use sha2::{Digest as _, Sha256};

use super::chart::{Chart, Line};
use super::charts::{self, curves, ranks, usage};
use super::collect::Report;
use super::html::{escape, script_json, slug};
use super::run::RunData;
use super::sweep::Sweep;
use phalanx_charts::{Styles, page_style};
use phalanx_trace::StepLanes;

/// The style of all pages.
pub(crate) const STYLE: &str = include_str!("../assets/page.css");
/// The script of all pages: sorts and filters tables.
pub(crate) const TABLES: &str = include_str!("../assets/tables.js");
/// The scripts of charts: zoom, smoothing and cursor.
const SCALES: &str = include_str!("../assets/scales.js");
const CHARTS: &str = include_str!("../assets/charts.js");
const REPORT: &str = include_str!("../assets/report.js");
/// The script of live updates.
const LIVE: &str = include_str!("../assets/live.js");

/// The maximum number of points on a page. Each takes about 20 bytes.
const POINTS: usize = 60_000;
/// The maximum number of points that are drawn without scripts.
const STATIC_POINTS: usize = 12_000;
/// The maximum number of runs with sections for each run.
const DETAILED: usize = 12;

/// The mode of a page.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Mode {
    /// A self-contained file.
    File,
    /// A page from the live server.
    #[cfg(feature = "live")]
    Served {
        /// The address of the event stream; `None` if the runs are over.
        events: Option<String>,
    },
}

/// The charts of one run.
struct RunCharts {
    by_rank: Vec<Chart>,
    stacks: Vec<(usize, Vec<Chart>)>,
    apart: Vec<Chart>,
    /// The time breakdown of steps.
    steps: Vec<Chart>,
    /// The timelines of some steps, or the reason why the trace cannot be shown.
    lanes: Result<Vec<StepLanes>, String>,
}

/// The data for scripts.
#[derive(Serialize)]
struct Data<'a> {
    runs: Vec<RunEntry<'a>>,
    charts: &'a [Chart],
    events: Option<&'a str>,
}

#[derive(Serialize)]
struct RunEntry<'a> {
    name: &'a str,
}

/// A page under construction.
struct Page<'a> {
    html: String,
    report: &'a Report,
    charts: Vec<Chart>,
    /// The maximum number of points of a line: with scripts, and without.
    limits: (usize, usize),
    /// The ids and titles of headings, for the navigation.
    headings: Vec<(String, String)>,
}

impl Report {
    /// Returns the page as a self-contained HTML file.
    pub fn html(&self) -> String {
        page(self, &Mode::File)
    }

    /// Returns the page for the live server. `events` is the address of the event stream.
    #[cfg(feature = "live")]
    pub(crate) fn served(&self, events: Option<String>) -> String {
        page(self, &Mode::Served { events })
    }
}

/// Renders the page of a report.
fn page(report: &Report, mode: &Mode) -> String {
    let (mut groups, once) = curves::curves(&report.runs);
    let detailed: &[RunData] = if report.runs.len() <= DETAILED { &report.runs } else { &[] };
    let own = |(number, run): (usize, &RunData)| RunCharts {
        by_rank: usage::by_rank(run, number),
        stacks: usage::stacks(run, number),
        apart: ranks::apart(run, number),
        steps: charts::steps::seconds(run, number),
        lanes: timeline::read(run),
    };
    let mut own: Vec<RunCharts> = detailed.iter().enumerate().map(own).collect();
    let of_sweep = |sweep: &Sweep| -> Vec<Vec<Chart>> {
        sweep.tables.iter().map(|table| charts::sweep::of_table(sweep, table, &report.runs)).collect()
    };
    let mut of_tables: Vec<Vec<Vec<Chart>>> = report.sweeps.iter().map(of_sweep).collect();
    let all = groups.iter_mut().flat_map(|(_, charts)| charts).chain(own.iter_mut().flat_map(RunCharts::all));
    let mut all: Vec<&mut Chart> = all.chain(of_tables.iter_mut().flatten().flatten()).collect();
    set_styles(&mut all);
    let lines: usize = all.iter().map(|chart| chart.lines.len()).sum();
    let limits = ((POINTS / lines.max(1)).clamp(16, 2000), (STATIC_POINTS / lines.max(1)).clamp(8, 300));
    let mut page = Page { html: String::new(), report, charts: Vec::new(), limits, headings: Vec::new() };
    page.overview();
    page.warnings();
    page.sweeps(of_tables);
    let several = report.runs.len() > 1;
    if several {
        page.list_of_runs();
    }
    page.results();
    page.curves(groups, &once);
    if !several {
        page.facts();
    }
    page.captions();
    page.classes();
    page.resources(detailed, own);
    page.settings();
    page.finish(mode)
}

impl RunCharts {
    /// Returns all charts of the run.
    fn all(&mut self) -> impl Iterator<Item = &mut Chart> {
        let stacks = self.stacks.iter_mut().flat_map(|(_, charts)| charts);
        self.by_rank.iter_mut().chain(stacks).chain(&mut self.apart).chain(&mut self.steps)
    }
}

/// Sets the styles of lines that have none, one for each name of the page, and the kinds of y axes.
fn set_styles(charts: &mut [&mut Chart]) {
    fn unstyled(chart: &Chart) -> impl Iterator<Item = &Line> {
        chart.lines.iter().filter(|line| line.style.is_none())
    }
    let styles =
        Styles::of(charts.iter().map(|chart| unstyled(chart).map(|line| line.name.as_str()).collect()));
    for chart in charts {
        chart.logarithmic = chart.is_flat();
        for line in &mut chart.lines {
            line.style = line.style.or_else(|| Some(styles.get(&line.name)));
        }
    }
}

impl Page<'_> {
    /// Begins a section of the page.
    fn section(&mut self, title: &str) {
        let mut id = slug(title);
        if id.is_empty() || self.headings.iter().any(|(known, _)| *known == id) {
            id = format!("{id}-{}", self.headings.len());
        }
        self.push(&format!("<section aria-labelledby=\"{id}\"><h2 id=\"{id}\">{}</h2>", escape(title)));
        self.headings.push((id, title.to_owned()));
    }

    fn push(&mut self, html: &str) {
        self.html.push_str(html);
    }

    /// Writes the curves, and the table of metrics with a single value.
    fn curves(&mut self, groups: Vec<(curves::Group, Vec<Chart>)>, once: &[curves::SingleMeasurement]) {
        if !groups.is_empty() {
            self.section("Curves");
            self.push(figure::CONTROLS);
            for (group, charts) in groups {
                self.push(&format!("<h3>{}</h3>", escape(group.title())));
                self.figures(charts);
            }
            self.push("</section>");
        }
        if !once.is_empty() {
            self.measured_once(once);
        }
    }

    /// Returns the complete document.
    fn finish(self, mode: &Mode) -> String {
        let Self { html, report, charts, headings, .. } = self;
        let (events, served) = match mode {
            Mode::File => (None, false),
            #[cfg(feature = "live")]
            Mode::Served { events } => (events.as_deref(), true),
        };
        let runs = report.runs.iter().map(|run| RunEntry { name: &run.name }).collect();
        let data = Data { runs, charts: &charts, events };
        // Serialisation of this data does not fail.
        let data = script_json(&data).unwrap_or_else(|_| "{}".to_owned());
        let links: String =
            headings.iter().map(|(id, title)| format!("<a href=\"#{id}\">{}</a>", escape(title))).collect();
        let back = if served { "<a class=\"back\" href=\"/\">All runs</a>" } else { "" };
        let script = [TABLES, SCALES, CHARTS, REPORT, if events.is_some() { LIVE } else { "" }].concat();
        let body = format!(
            "<a class=\"skip\" href=\"#content\">To the content</a>\n<nav aria-label=\"Sections\">{back}{links}</nav>\n\
             <main id=\"content\">\n{html}\n<footer>Written by Phalanx {} on {}.</footer>\n</main>\n\
             <script type=\"application/json\" id=\"data\">{data}</script>",
            env!("CARGO_PKG_VERSION"),
            now(),
        );
        document(&report.title, &body, &script, served)
    }
}

/// Returns an HTML document. Its content security policy allows only `script` and, if `served`, requests to its server.
pub(crate) fn document(title: &str, body: &str, script: &str, served: bool) -> String {
    let digest = STANDARD.encode(Sha256::digest(script.as_bytes()));
    let own = if served { "; connect-src 'self'" } else { "" };
    let images = if served { "'self' data:" } else { "data:" };
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; img-src {images}; \
         style-src 'unsafe-inline'; script-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'{own}\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<meta name=\"referrer\" content=\"no-referrer\">\n\
         <link rel=\"icon\" href=\"data:,\">\n<title>{}</title>\n<style>{}{STYLE}</style>\n</head>\n<body>\n{body}\n\
         <script>{script}</script>\n</body>\n</html>\n",
        escape(title),
        page_style(),
    )
}

/// Returns the current time in UTC, to the minute.
fn now() -> String {
    jiff::Timestamp::now().strftime("%Y-%m-%d %H:%M UTC").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_measure_texts_as_the_static_charts_do() {
        let table = SCALES.split("const ADVANCES = [").nth(1).and_then(|rest| rest.split(']').next());
        let numbers =
            table.expect("a table").split(',').filter_map(|number| number.trim().parse::<u8>().ok());
        assert!(numbers.eq(phalanx_charts::ADVANCES));
    }
}
