//! The results of a run: pictures of its evaluations, and samples over time with a slider, pictures or texts.

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
        let has_results = |run: &RunData| {
            let RunData { samples, evaluation, .. } = run;
            !(samples.shown.is_empty() && samples.texts.shown.is_empty() && evaluation.pictures.is_empty())
        };
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
        let has_samples =
            |run: &RunData| !(run.samples.shown.is_empty() && run.samples.texts.shown.is_empty());
        let with_samples: Vec<(usize, &RunData)> =
            report.runs.iter().enumerate().filter(|(_, run)| has_samples(run)).collect();
        if with_samples.is_empty() {
            return;
        }
        let pictures: usize = with_samples.iter().map(|(_, run)| run.samples.shown.len()).sum();
        let each = (BYTES / pictures.max(1)).max(LEAST);
        self.push("<div class=\"samples\">");
        for (number, run) in with_samples {
            let is_named = report.runs.len() > 1;
            // A run draws pictures or writes texts.
            let html = match run.samples.shown.is_empty() {
                true => texts(run, number, is_named),
                false => samples(run, number, is_named, each),
            };
            self.push(&html);
        }
        self.push("</div>");
    }
}

/// Renders a picture of an evaluation.
pub(super) fn evaluation(picture: &Picture, title: &str) -> String {
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
    html.push_str("</div>");
    html.push_str(&slider(samples.shown[last].step, last));
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

/// Renders the texts of a run. Without scripts, only the last ones are visible.
fn texts(run: &RunData, number: usize, named: bool) -> String {
    let texts = &run.samples.texts;
    let mut caption = if named { format!("{}: texts", run.name) } else { "texts".to_owned() };
    if texts.all > texts.shown.len() {
        let _ = write!(caption, " of {} of {} steps", texts.shown.len(), texts.all);
    }
    let mut html = format!(
        "<figure class=\"sample\" id=\"sample-{number}\"><figcaption>{}</figcaption><div class=\"texts\">",
        escape(&caption)
    );
    let last = texts.shown.len() - 1;
    for (at, sample) in texts.shown.iter().enumerate() {
        let hidden = if at == last { "" } else { " hidden" };
        let _ = write!(html, "<pre data-step=\"{}\"{hidden}>{}</pre>", sample.step, escape(&sample.text));
    }
    html.push_str("</div>");
    html.push_str(&slider(texts.shown[last].step, last));
    html.push_str("</figure>");
    html
}

/// Renders the choice of one of `last` + 1 samples; the last one is that of `step`.
fn slider(step: u64, last: usize) -> String {
    format!(
        "<p class=\"slider\"><label>Step <output>{step}</output><input type=\"range\" min=\"0\" max=\"{last}\" value=\"{last}\" step=\"1\" \
         aria-label=\"Step of the samples\" hidden></label></p>"
    )
}
