//! The results of a run: pictures of its evaluations, and samples over time with a slider.

use std::fmt::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::Page;
use crate::evaluation::Picture;
use crate::html::escape;
use crate::run::RunData;
use crate::samples::Sample;

/// The maximum number of bytes of all samples on a page. Larger samples are scaled down, each to at least [`LEAST`]
/// bytes.
const BYTES: usize = 8 << 20;
const LEAST: usize = 24 << 10;

impl Page<'_> {
    /// Writes the pictures of evaluations and the samples of all runs.
    pub(super) fn results(&mut self) {
        let has_results =
            |run: &RunData| !run.samples.shown.is_empty() || !run.evaluation.pictures.is_empty();
        if self.report.runs.iter().any(has_results) {
            self.section("Results");
            self.evaluations();
            self.samples();
            self.push("</section>");
        }
    }

    /// Writes the pictures of the evaluations of all runs.
    fn evaluations(&mut self) {
        let report = self.report;
        let mut html = String::new();
        for run in &report.runs {
            let whose = if report.runs.len() > 1 { format!("{}: ", run.name) } else { String::new() };
            let pictures = run.evaluation.pictures.iter();
            html.extend(pictures.map(|picture| evaluation(picture, &format!("{whose}{}", picture.title))));
        }
        if !html.is_empty() {
            self.push(&format!("<div class=\"figures\">{html}</div>"));
        }
    }

    /// Writes the samples of all runs.
    fn samples(&mut self) {
        let report = self.report;
        let drawn: Vec<(usize, &RunData)> =
            report.runs.iter().enumerate().filter(|(_, run)| !run.samples.shown.is_empty()).collect();
        if drawn.is_empty() {
            return;
        }
        let pictures: usize = drawn.iter().map(|(_, run)| run.samples.shown.len()).sum();
        let each = (BYTES / pictures).max(LEAST);
        self.push("<div class=\"samples\">");
        for (number, run) in drawn {
            let html = samples(run, number, report.runs.len() > 1, each);
            self.push(&html);
        }
        self.push("</div>");
    }
}

/// Renders a picture of an evaluation.
fn evaluation(picture: &Picture, title: &str) -> String {
    let size = picture
        .size
        .map_or_else(String::new, |(width, height)| format!(" width=\"{width}\" height=\"{height}\""));
    format!(
        "<figure class=\"evaluation\"><figcaption>{0}</figcaption><img{size} alt=\"{0}\" src=\"data:{1};base64,{2}\"></figure>",
        escape(title),
        picture.kind,
        STANDARD.encode(&picture.bytes)
    )
}

/// Renders the samples of a run, each within `bytes`. Without scripts, only the last one is visible.
fn samples(run: &RunData, number: usize, named: bool, bytes: usize) -> String {
    let samples = &run.samples;
    let mut html = format!("<figure class=\"sample\" id=\"sample-{number}\">");
    let mut caption = match (named, samples.all > samples.shown.len()) {
        (true, false) => run.name.clone(),
        (false, false) => "grids of samples".to_owned(),
        (named, true) => format!(
            "{}{} of {} pictures",
            if named { format!("{}: ", run.name) } else { String::new() },
            samples.shown.len(),
            samples.all
        ),
    };
    let shown: Vec<Sample> = samples.shown.iter().map(|sample| sample.within(bytes)).collect();
    let pairs = || shown.iter().zip(&samples.shown);
    if let Some((small, whole)) = pairs().find(|(small, whole)| small.width < whole.width) {
        let _ = write!(caption, ", scaled down to {} of {} pixels in width", small.width, whole.width);
    }
    let _ = write!(html, "<figcaption>{}</figcaption><div class=\"pictures\">", escape(&caption));
    let last = samples.shown.len() - 1;
    for (at, sample) in shown.iter().enumerate() {
        let _ = write!(
            html,
            "<img width=\"{}\" height=\"{}\" alt=\"Samples after step {}\" data-step=\"{}\" src=\"data:image/png;base64,{}\"{}>",
            sample.width,
            sample.height,
            sample.step,
            sample.step,
            STANDARD.encode(&sample.png),
            if at == last { "" } else { " hidden" }
        );
    }
    let step = samples.shown[last].step;
    let _ = write!(
        html,
        "</div><p class=\"slider\"><label>Step <output>{step}</output><input type=\"range\" min=\"0\" max=\"{last}\" value=\"{last}\" step=\"1\" \
         aria-label=\"Step of the samples\" hidden></label></p>"
    );
    if !samples.prompts.is_empty() {
        let lines: String =
            samples.prompts.iter().map(|prompt| format!("<li>{}</li>", escape(prompt))).collect();
        let _ = write!(
            html,
            "<details><summary>{} captions, in the order of the pictures</summary><ol>{lines}</ol></details>",
            samples.prompts.len()
        );
    }
    html.push_str("</figure>");
    html
}
