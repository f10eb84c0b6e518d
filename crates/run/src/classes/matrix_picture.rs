//! The confusion matrix as an SVG picture; of many classes the most confused pairs.

use std::fmt::Write as _;

use phalanx_charts::escape;

use super::confusion::Confused;
use super::report::ClassReport;
use super::table::cell;

/// The largest number of classes whose matrix is readable.
const MATRIX: usize = 30;
/// The number of pairs that are drawn of more classes.
const PAIRS: usize = 30;
/// The longest name, in characters.
const NAME: usize = 24;

/// Draws the confusion matrix of a report: rows are true classes, columns predicted ones, and the colour is the fraction of the row. Of more
/// than 30 classes, it draws the pairs with the most wrong predictions.
pub fn confusion_svg(report: &ClassReport) -> String {
    match report.classes.len() <= MATRIX {
        true => matrix(report),
        false => pairs(report),
    }
}

fn begin(width: f64, height: f64, title: &str) -> String {
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" width=\"{width:.0}\" height=\"{height:.0}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"12\" y=\"22\" font-size=\"14\">{}</text>\n",
        escape(title)
    )
}

/// A name of at most [`NAME`] characters.
pub(super) fn short(name: &str) -> String {
    match name.chars().count() > NAME {
        true => name.chars().take(NAME - 1).chain(['…']).collect(),
        false => name.to_owned(),
    }
}

/// The width of the longest name, in units.
fn names_width(report: &ClassReport) -> f64 {
    let longest = report.classes.iter().map(|row| short(&row.name).chars().count()).max().unwrap_or_default();
    7.0 * longest as f64 + 8.0
}

fn matrix(report: &ClassReport) -> String {
    let classes = report.classes.len();
    let side = (640.0 / classes.max(1) as f64).clamp(22.0, 56.0);
    let (left, top) = (names_width(report) + 30.0, names_width(report) + 54.0);
    let size = side * classes as f64;
    let title = format!("Confusion matrix after step {}, accuracy {:.4}", report.step, report.accuracy);
    let mut svg = begin((left + size + 12.0).max(420.0), top + size + 12.0, &title);
    let (middle, head) = (left + size / 2.0, 42.0);
    let _ = writeln!(
        svg,
        "<text x=\"{middle:.1}\" y=\"{head}\" fill=\"#555\" text-anchor=\"middle\">predicted class</text>"
    );
    let middle = top + size / 2.0;
    let _ = writeln!(
        svg,
        "<text transform=\"translate(18 {middle:.1}) rotate(-90)\" fill=\"#555\" text-anchor=\"middle\">true class</text>"
    );
    for (class, row) in report.classes.iter().enumerate() {
        let (name, at) = (short(&row.name), side * (class as f64 + 0.5));
        let (x, y) = (left + at + 4.0, top - 6.0);
        let _ = writeln!(
            svg,
            "<text transform=\"translate({x:.1} {y:.1}) rotate(-90)\">{}</text>",
            escape(&name)
        );
        let (x, y) = (left - 6.0, top + at + 4.0);
        let _ = writeln!(svg, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"end\">{}</text>", escape(&name));
    }
    for truth in 0..classes {
        for predicted in 0..classes {
            let place = (left + side * predicted as f64, top + side * truth as f64);
            svg.push_str(&square(report, (truth, predicted), place, side));
        }
    }
    let _ = writeln!(
        svg,
        "<path d=\"M{left:.1} {top:.1}h{size:.1}v{size:.1}h-{size:.1}z\" fill=\"none\" stroke=\"#888\"/>"
    );
    svg.push_str("</svg>\n");
    svg
}

/// One cell of the matrix: correct predictions are blue, wrong ones red.
fn square(report: &ClassReport, (truth, predicted): (usize, usize), (x, y): (f64, f64), side: f64) -> String {
    let confusion = &report.confusion;
    let count = confusion.count(truth, predicted);
    if count == 0.0 {
        return String::new();
    }
    let part = count / confusion.samples(truth);
    let colour = if truth == predicted { "#1f6feb" } else { "#d1242f" };
    // Rare mistakes remain visible.
    let strength = 0.08 + 0.92 * part.sqrt();
    let text = cell(count);
    let size = (1.5 * side / text.chars().count().max(2) as f64).min(12.0);
    let (ink, middle, base) =
        (if strength > 0.6 { "white" } else { "#222" }, x + side / 2.0, y + side / 2.0 + size / 3.0);
    let (truth, predicted) = (report.name(truth), report.name(predicted));
    let label = format!("{truth} predicted as {predicted}: {text} ({:.1} %)", 100.0 * part);
    format!(
        "<g><title>{}</title><rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{side:.1}\" height=\"{side:.1}\" fill=\"{colour}\" \
         fill-opacity=\"{strength:.2}\"/><text x=\"{middle:.1}\" y=\"{base:.1}\" font-size=\"{size:.1}\" fill=\"{ink}\" \
         text-anchor=\"middle\">{text}</text></g>\n",
        escape(&label)
    )
}

fn pairs(report: &ClassReport) -> String {
    let found = report.confusion.most_confused(PAIRS);
    let (row, top, bar) = (20.0, 40.0, 320.0);
    let name = |pair: &Confused| {
        let (truth, predicted) = (short(report.name(pair.truth)), short(report.name(pair.predicted)));
        format!("{truth} → {predicted}")
    };
    let left = 7.0 * found.iter().map(|pair| name(pair).chars().count()).max().unwrap_or(1) as f64 + 20.0;
    let most = found.first().map_or(1.0, |pair| pair.count);
    let title = match found.len() {
        0 => format!("No wrong prediction after step {}", report.step),
        shown => format!(
            "The {shown} most confused pairs of {} classes after step {}: true class → predicted class",
            report.classes.len(),
            report.step
        ),
    };
    let width = (left + bar + 110.0).max(7.0 * title.chars().count() as f64 + 24.0);
    let mut svg = begin(width, top + row * found.len() as f64 + 12.0, &title);
    for (at, pair) in found.iter().enumerate() {
        let y = top + row * at as f64;
        let (base, length) = (y + 13.0, bar * pair.count / most);
        let part = 100.0 * pair.count / report.confusion.samples(pair.truth);
        let _ = writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{base:.1}\" text-anchor=\"end\">{}</text><rect x=\"{left:.1}\" y=\"{:.1}\" width=\"{length:.1}\" \
             height=\"14\" fill=\"#d1242f\"/><text x=\"{:.1}\" y=\"{base:.1}\">{} ({part:.1} %)</text>",
            left - 6.0,
            escape(&name(pair)),
            y + 2.0,
            left + length + 6.0,
            cell(pair.count)
        );
    }
    svg.push_str("</svg>\n");
    svg
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ConfusionMatrix;

    #[test]
    fn cells_have_counts_and_names_are_escaped() {
        let mut confusion = ConfusionMatrix::new(2);
        confusion.add(0, 0, 3.0);
        confusion.add(1, 0, 1.0);
        let names = ["a<b", "a name that is far longer than a cell"].map(str::to_owned);
        let svg = confusion_svg(&ClassReport::new(5, &names, confusion));
        assert_eq!(svg.matches("<rect x=").count(), 2, "cells without samples are left out");
        assert!(svg.contains("a&lt;b") && !svg.contains("a<b"), "{svg}");
        assert!(svg.contains("a name that is far long…</text>"), "{svg}");
        assert!(svg.contains("predicted as a&lt;b: 1 (100.0 %)"), "{svg}");
    }

    #[test]
    fn many_classes_have_pairs() {
        let mut confusion = ConfusionMatrix::new(1000);
        (0..1000).for_each(|class| confusion.add(class, class / 2, 1.0 + class as f64));
        let svg = confusion_svg(&ClassReport::new(5, &[], confusion));
        assert!(svg.contains("The 30 most confused pairs of 1000 classes after step 5"), "{svg}");
        assert!(svg.contains("999 → 499</text>") && svg.len() < 20_000, "{}", svg.len());
        let right = ConfusionMatrix::new(31);
        assert!(confusion_svg(&ClassReport::new(5, &[], right)).contains("No wrong prediction after step 5"));
    }
}
