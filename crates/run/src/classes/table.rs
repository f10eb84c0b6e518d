//! The evaluation of a classifier as text.

use super::confusion::ConfusionMatrix;
use super::report::{ClassReport, ClassRow};
use crate::format::{columns, count, number};

/// The largest number of classes whose matrix fits on a terminal.
const MATRIX: usize = 16;
/// The number of classes that are listed of more than [`MANY`]: the worst ones.
const WORST: usize = 20;
/// The largest number of classes that are all listed.
const MANY: usize = 40;
/// The number of pairs of confused classes that are listed.
const PAIRS: usize = 10;

/// Formats a report as lines: a table of the classes, the confusion matrix or the most confused pairs.
pub fn class_lines(report: &ClassReport) -> Vec<String> {
    let mut lines = classes(report);
    if (2..=MATRIX).contains(&report.classes.len()) {
        lines.push(String::new());
        lines.extend(matrix(report));
    }
    let pairs = report.confusion.most_confused(PAIRS);
    if report.classes.len() > MATRIX && !pairs.is_empty() {
        lines.extend([String::new(), "most confused: true class, predicted class, samples".to_owned()]);
        let row = |pair: &super::Confused| {
            let (truth, predicted) = (report.name(pair.truth), report.name(pair.predicted));
            vec![format!("  {truth} -> {predicted}"), cell(pair.count)]
        };
        lines.extend(columns(&pairs.iter().map(row).collect::<Vec<_>>()));
    }
    lines
}

/// The table of classes: all, or those with the lowest F1 score.
fn classes(report: &ClassReport) -> Vec<String> {
    let mut shown: Vec<(usize, &ClassRow)> = report.classes.iter().enumerate().collect();
    let all = shown.len();
    let mut title = "class".to_owned();
    if all > MANY {
        shown.retain(|(_, row)| row.samples > 0.0);
        // The sort is stable: equal classes keep their order.
        shown.sort_by(|a, b| a.1.f1.total_cmp(&b.1.f1));
        shown.truncate(WORST);
        title = format!("class (the {} lowest F1 scores of {all})", shown.len());
    }
    let head = ["samples", "precision", "recall", "F1"].map(str::to_owned);
    let mut rows = vec![[vec![title], head.to_vec()].concat()];
    let scores = |scores: [f64; 3]| scores.map(number).to_vec();
    for (class, row) in shown {
        let name = vec![format!("  {class} {}", row.name), cell(row.samples)];
        rows.push([name, scores([row.precision, row.recall, row.f1])].concat());
    }
    let means = scores([report.macro_precision, report.macro_recall, report.macro_f1]);
    rows.push([vec!["  macro mean".to_owned(), cell(report.confusion.total())], means].concat());
    columns(&rows)
}

/// The confusion matrix, with classes by number above the columns.
fn matrix(report: &ClassReport) -> Vec<String> {
    let confusion: &ConfusionMatrix = &report.confusion;
    let head = (0..confusion.classes()).map(|class| class.to_string());
    let title = "true class (rows), predicted class (columns)".to_owned();
    let mut rows = vec![std::iter::once(String::new()).chain(head).collect::<Vec<_>>()];
    for class in 0..confusion.classes() {
        let name = format!("  {class} {}", report.name(class));
        rows.push(
            std::iter::once(name).chain(confusion.row(class).iter().map(|count| cell(*count))).collect(),
        );
    }
    std::iter::once(title).chain(columns(&rows)).collect()
}

/// A count: a whole number, or the sum of fractional weights.
pub(super) fn cell(value: f64) -> String {
    if value.fract() == 0.0 && value.abs() < 9e15 { count(value as u64) } else { number(value) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_classes_have_a_matrix_and_many_have_pairs() {
        let mut confusion = ConfusionMatrix::new(2);
        for (truth, predicted, weight) in [(0, 0, 1200.0), (0, 1, 3.0), (1, 1, 4.0)] {
            confusion.add(truth, predicted, weight);
        }
        let names = ["cat", "dog"].map(str::to_owned);
        let lines = class_lines(&ClassReport::new(1, &names, confusion));
        assert_eq!(
            lines,
            [
                "class         samples  precision  recall      F1",
                "  0 cat         1,203      1.000  0.9975  0.9988",
                "  1 dog             4     0.5714   1.000  0.7273",
                "  macro mean    1,207     0.7857  0.9988  0.8630",
                "",
                "true class (rows), predicted class (columns)",
                "             0  1",
                "  0 cat  1,200  3",
                "  1 dog      0  4",
            ]
        );
        let mut many = ConfusionMatrix::new(1000);
        (0..1000).for_each(|class| many.add(class, if class % 7 == 0 { class / 7 } else { class }, 2.0));
        let lines = class_lines(&ClassReport::new(1, &[], many));
        assert!(lines[0].starts_with("class (the 20 lowest F1 scores of 1000)"), "{lines:?}");
        assert!(lines.len() < 40 && lines.iter().any(|line| line.contains("7 -> 1 ")), "{lines:?}");
    }
}
