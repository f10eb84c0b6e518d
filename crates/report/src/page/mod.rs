//! The page itself: one HTML document with everything in it.

mod compare;
mod figure;
mod overview;
mod resources;
mod samples;
mod sweep;
mod table;
mod timeline;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Serialize;
use sha2::{Digest as _, Sha256};

use super::chart::{COLOURS, Chart, DASHES};
use super::charts::{self, curves, ranks, usage};
use super::collect::Report;
use super::html::{escape, script_json, slug};
use super::run::RunData;
use super::sweep::Sweep;
use phalanx_trace::StepLanes;

/// The style of all pages.
pub(crate) const STYLE: &str = include_str!("../assets/page.css");
/// The script of all pages: tables that are sorted and filtered.
pub(crate) const TABLES: &str = include_str!("../assets/tables.js");
/// Charts that are zoomed, smoothed and read off.
const SCALES: &str = include_str!("../assets/scales.js");
const CHARTS: &str = include_str!("../assets/charts.js");
const REPORT: &str = include_str!("../assets/report.js");
/// Charts that grow while a run goes on.
const LIVE: &str = include_str!("../assets/live.js");

/// Points of all lines of a page together; each takes about 20 bytes.
const POINTS: usize = 60_000;
/// Points of all lines that are drawn without scripts.
const STATIC_POINTS: usize = 12_000;
/// Runs of which each has sections of its own.
const DETAILED: usize = 12;

/// Where a page is read.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Mode {
    /// In a file, which nothing is fetched from or by.
    File,
    /// From a server that tells, at this address, of new points; `None` if the runs are over.
    #[cfg(feature = "live")]
    Served {
        /// The address of the events.
        events: Option<String>,
    },
}

/// The charts of one run alone.
struct OwnCharts {
    by_rank: Vec<Chart>,
    stacks: Vec<(usize, Vec<Chart>)>,
    apart: Vec<Chart>,
    /// Where the seconds of steps go.
    steps: Vec<Chart>,
    /// The activity of ranks in some steps, or the reason why a trace cannot be shown.
    lanes: Result<Vec<StepLanes>, String>,
}

/// The data that scripts read.
#[derive(Serialize)]
struct Data<'a> {
    runs: Vec<RunEntry<'a>>,
    charts: &'a [Chart],
    events: Option<&'a str>,
}

#[derive(Serialize)]
struct RunEntry<'a> {
    name: &'a str,
    colour: usize,
    dash: usize,
}

/// A page that is being written.
struct Page<'a> {
    html: String,
    report: &'a Report,
    charts: Vec<Chart>,
    /// Points of a line, for scripts and without.
    limits: (usize, usize),
    /// Headings, for the navigation.
    headings: Vec<(String, String)>,
}

impl Report {
    /// The page, for a file of its own.
    pub fn html(&self) -> String {
        page(self, &Mode::File)
    }

    /// The page, for a server that tells of new points at an address.
    #[cfg(feature = "live")]
    pub(crate) fn served(&self, events: Option<String>) -> String {
        page(self, &Mode::Served { events })
    }
}

/// The page of a report.
fn page(report: &Report, mode: &Mode) -> String {
    let (groups, once) = curves::curves(&report.runs);
    let detailed: &[RunData] = if report.runs.len() <= DETAILED { &report.runs } else { &[] };
    let own = |(number, run): (usize, &RunData)| OwnCharts {
        by_rank: usage::by_rank(run, number),
        stacks: usage::stacks(run, number),
        apart: ranks::apart(run, number),
        steps: charts::steps::seconds(run, number),
        lanes: timeline::read(run),
    };
    let own: Vec<OwnCharts> = detailed.iter().enumerate().map(own).collect();
    let of_own = own.iter().flat_map(|own| {
        let stacks = own.stacks.iter().flat_map(|(_, charts)| charts);
        own.by_rank.iter().chain(stacks).chain(&own.apart).chain(&own.steps)
    });
    let of_sweep = |sweep: &Sweep| -> Vec<Vec<Chart>> {
        sweep.tables.iter().map(|table| charts::sweep::of_table(sweep, table, &report.runs)).collect()
    };
    let of_tables: Vec<Vec<Vec<Chart>>> = report.sweeps.iter().map(of_sweep).collect();
    let all = groups.iter().flat_map(|(_, charts)| charts).chain(of_own);
    let lines: usize = all.chain(of_tables.iter().flatten().flatten()).map(|chart| chart.lines.len()).sum();
    let limits = ((POINTS / lines.max(1)).clamp(16, 2000), (STATIC_POINTS / lines.max(1)).clamp(8, 300));
    let mut page = Page { html: String::new(), report, charts: Vec::new(), limits, headings: Vec::new() };
    page.overview();
    page.warnings();
    page.sweeps(of_tables);
    page.runs();
    page.curves(groups, &once);
    page.samples();
    page.resources(detailed, own);
    page.settings();
    page.finish(mode)
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

    /// The sections of curves, and the table of what was measured once.
    fn curves(&mut self, groups: Vec<(curves::Group, Vec<Chart>)>, once: &[curves::Once]) {
        if !groups.is_empty() {
            self.section("Curves");
            self.push(figure::CONTROLS);
            for (group, charts) in groups {
                self.push(&format!("<h3>{}</h3><div class=\"figures\">", escape(group.title())));
                charts.into_iter().for_each(|chart| self.figure(chart));
                self.push("</div>");
            }
            self.push("</section>");
        }
        if !once.is_empty() {
            self.once(once);
        }
    }

    /// Everything, with its head.
    fn finish(self, mode: &Mode) -> String {
        let Self { html, report, charts, headings, .. } = self;
        let (events, served) = match mode {
            Mode::File => (None, false),
            #[cfg(feature = "live")]
            Mode::Served { events } => (events.as_deref(), true),
        };
        let entries = report.runs.iter().enumerate().map(|(number, run)| RunEntry {
            colour: number % COLOURS,
            dash: number / COLOURS % DASHES,
            name: &run.name,
        });
        let runs = entries.collect();
        let data = Data { runs, charts: &charts, events };
        // There is nothing in it that JSON cannot hold.
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

/// A whole document. Of scripts only `script` may run in it, and it fetches nothing but, if `served`, from its own server.
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
         <link rel=\"icon\" href=\"data:,\">\n<title>{}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n{body}\n\
         <script>{script}</script>\n</body>\n</html>\n",
        escape(title),
    )
}

/// The time of day, to the minute.
fn now() -> String {
    jiff::Timestamp::now().strftime("%Y-%m-%d %H:%M UTC").to_string()
}
