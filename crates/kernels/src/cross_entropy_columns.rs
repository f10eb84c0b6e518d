//! Cross-entropy of rows whose columns are on several ranks, in two passes with an exchange between them.

use crate::context::Context;
use crate::cross_entropy::{CrossEntropyOptions, CrossEntropyRows};
use crate::error::{Result, check_len};
use crate::float::Float;
use crate::reduce::sum_slice;
use crate::softmax::row_max;
use crate::unary::tanh;

/// Some columns of the rows of a cross-entropy.
#[derive(Debug, Clone, Copy)]
pub struct CrossEntropyColumns<'a> {
    /// The rows; labels and `classes` count all columns.
    pub rows: CrossEntropyRows<'a>,
    /// The class of the first column that is here.
    pub first: usize,
    /// The number of all columns.
    pub columns: usize,
}

/// The numbers that [`cross_entropy_parts`] finds of each row.
pub const ROW_PARTS: usize = 5;

/// The logits of a row that are worked on at a time.
const PIECE: usize = 1024;

/// The numbers that a row's loss follows from, of some columns or of all.
#[derive(Debug, Clone, Copy, PartialEq)]
struct RowPart {
    /// The largest logit.
    max: f64,
    /// Σ e^(logit − max).
    sum: f64,
    /// The logit of the label; 0 if it is elsewhere.
    label: f64,
    /// The sum of the logits.
    total: f64,
    /// The class of the first of the largest logits; infinite if these are all −∞ or no numbers.
    best: f64,
}

impl RowPart {
    const NONE: Self = Self { max: f64::NEG_INFINITY, sum: 0.0, label: 0.0, total: 0.0, best: f64::INFINITY };

    fn read(numbers: &[f64]) -> Self {
        Self { max: numbers[0], sum: numbers[1], label: numbers[2], total: numbers[3], best: numbers[4] }
    }

    fn with(self, other: Self) -> Self {
        let max = self.max.max(other.max);
        // A sum that is no number stays none.
        let scaled = |part: Self| if part.sum == 0.0 { 0.0 } else { part.sum * (part.max - max).exp() };
        Self {
            max,
            sum: scaled(self) + scaled(other),
            label: self.label + other.label,
            total: self.total + other.total,
            // Later columns are of the other one.
            best: if other.max > self.max { other.best } else { self.best },
        }
    }
}

impl CrossEntropyColumns<'_> {
    /// The number of classes.
    fn classes(&self) -> usize {
        self.rows.options.classes.unwrap_or(self.columns)
    }

    /// The number of columns here that are classes.
    fn own_classes(&self, width: usize) -> usize {
        self.classes().saturating_sub(self.first).min(width)
    }

    /// The column of a row's label, if it is here.
    fn own_label(&self, row: usize, own: usize) -> Option<usize> {
        (self.rows.labels[row] as usize).checked_sub(self.first).filter(|column| *column < own)
    }

    fn capped<T: Float>(&self, x: T) -> T {
        match self.rows.options.soft_cap {
            Some(cap) => T::from_f64(cap) * tanh(x * T::from_f64(1.0 / cap)),
            None => x,
        }
    }
}

/// Finds of each row of `logits` [rows, width] the largest logit, the sum of the exponentials of the others relative to it, the logit
/// of the label if it is here, the sum, and the class of the first of the largest ones: [rows, [`ROW_PARTS`]].
///
/// # Errors
/// If a length does not match, or the label of a row with weight is no class.
pub fn cross_entropy_parts<T: Float>(
    context: &Context,
    width: usize,
    of: CrossEntropyColumns<'_>,
    logits: &[T],
    parts: &mut [f64],
) -> Result<()> {
    const KERNEL: &str = "cross_entropy_parts";
    of.rows.check(KERNEL, of.classes())?;
    check_len(KERNEL, "logits", of.rows.labels.len() * width, logits.len())?;
    check_len(KERNEL, "parts", of.rows.labels.len() * ROW_PARTS, parts.len())?;
    if logits.is_empty() {
        return Ok(());
    }
    let own = of.own_classes(width);
    let rows = context.piece(logits.len(), width) / width;
    let tasks = logits.chunks(rows * width).zip(parts.chunks_mut(rows * ROW_PARTS)).enumerate();
    context.run_each(tasks.collect(), |(task, (logits, parts))| {
        context.simd(
            #[inline(always)]
            || {
                let rows_of = logits.chunks_exact(width).zip(parts.chunks_exact_mut(ROW_PARTS));
                for (at, (row, part)) in rows_of.enumerate() {
                    let found = row_part(&row[..own], of.own_label(task * rows + at, own), &of);
                    part.copy_from_slice(&[found.max, found.sum, found.label, found.total, found.best]);
                }
            },
        );
    });
    Ok(())
}

/// Returns the place of the first number that equals `value`.
#[inline(always)]
fn first_of<T: Float>(row: &[T], value: T) -> Option<usize> {
    let is_in = |piece: &[T]| piece.iter().fold(false, |found, x| found | (*x == value));
    let (at, piece) = row.chunks(PIECE).enumerate().find(|(_, piece)| is_in(piece))?;
    Some(at * PIECE + piece.iter().position(|x| *x == value)?)
}

/// Finds the numbers of a row.
#[inline(always)]
fn row_part<T: Float>(row: &[T], label: Option<usize>, of: &CrossEntropyColumns<'_>) -> RowPart {
    if row.is_empty() {
        return RowPart::NONE;
    }
    // The bound grows with the logit, so the largest stays the largest.
    let largest = row_max(row);
    let best = first_of(row, largest).map_or(f64::INFINITY, |column| (of.first + column) as f64);
    let max = of.capped(largest);
    let mut part = RowPart { max: max.to_f64(), best, ..RowPart::NONE };
    // Of columns that are all −∞ the sum is 0.
    let max = if part.max == f64::NEG_INFINITY { T::ZERO } else { max };
    // Pieces stay in the cache, and are summed as the whole row of one rank is.
    let mut piece = [T::ZERO; PIECE];
    for values in row.chunks(PIECE) {
        let piece = &mut piece[..values.len()];
        piece.copy_from_slice(values);
        if of.rows.options.soft_cap.is_some() {
            piece.iter_mut().for_each(|x| *x = of.capped(*x));
        }
        part.total += sum_slice(piece);
        piece.iter_mut().for_each(|x| *x = (*x - max).exp());
        part.sum += sum_slice(piece);
    }
    part.label = label.map_or(0.0, |label| of.capped(row[label]).to_f64());
    part
}

/// Brings the numbers together that several ranks have found of their columns, rank after rank. Returns the loss of all rows, and of
/// each row the logarithm of the sum of exponentials.
///
/// # Errors
/// If the length is not that of the rows on several ranks, or the label of a row with weight is no class.
pub fn cross_entropy_of_parts(of: CrossEntropyColumns<'_>, parts: &[f64]) -> Result<(f64, Vec<f64>)> {
    const KERNEL: &str = "cross_entropy_of_parts";
    let (rows, classes) = (of.rows.labels.len(), of.classes());
    of.rows.check(KERNEL, classes)?;
    let of_rank = rows * ROW_PARTS;
    check_len(KERNEL, "parts", (parts.len() / of_rank.max(1)) * of_rank, parts.len())?;
    let CrossEntropyOptions { smoothing, z_loss, .. } = of.rows.options;
    let (mut loss, mut log_sums) = (0.0, Vec::with_capacity(rows));
    for row in 0..rows {
        let scale = of.rows.scale(row);
        let of_ranks = parts.chunks_exact(of_rank).map(|all| RowPart::read(&all[row * ROW_PARTS..]));
        let all = of_ranks.fold(RowPart::NONE, RowPart::with);
        let log_sum = all.sum.ln() + all.max;
        log_sums.push(log_sum);
        if scale != 0.0 {
            let mean = if smoothing > 0.0 { all.total / classes as f64 } else { 0.0 };
            loss += scale
                * (log_sum - (1.0 - smoothing) * all.label - smoothing * mean + z_loss * log_sum * log_sum);
        }
    }
    Ok((loss, log_sums))
}

/// Adds up the weights of the rows whose label is the first of the largest logits, from the numbers that ranks have found of their
/// columns, rank after rank.
///
/// # Errors
/// As [`cross_entropy_of_parts`].
pub fn weight_of_most_probable(of: CrossEntropyColumns<'_>, parts: &[f64]) -> Result<f64> {
    const KERNEL: &str = "weight_of_most_probable";
    let rows = of.rows.labels.len();
    of.rows.check(KERNEL, of.classes())?;
    let of_rank = rows * ROW_PARTS;
    check_len(KERNEL, "parts", (parts.len() / of_rank.max(1)) * of_rank, parts.len())?;
    let is_best = |row: &usize| {
        let of_ranks = parts.chunks_exact(of_rank).map(|all| RowPart::read(&all[row * ROW_PARTS..]));
        let all = of_ranks.fold(RowPart::NONE, RowPart::with);
        // Nothing is the largest of logits that are no numbers.
        all.best == f64::from(of.rows.labels[*row]) && !all.sum.is_nan()
    };
    let weight = |row| of.rows.weights.map_or(1.0, |weights| f64::from(weights[row]));
    Ok((0..rows).filter(is_best).map(weight).sum())
}

/// Replaces `logits` [rows, width] by the gradient of the loss; `log_sums` has the logarithm of the sum of exponentials of each row,
/// over all columns.
///
/// # Errors
/// If a length does not match, or the label of a row with weight is no class.
pub fn cross_entropy_slopes<T: Float>(
    context: &Context,
    width: usize,
    of: CrossEntropyColumns<'_>,
    log_sums: &[f64],
    logits: &mut [T],
) -> Result<()> {
    const KERNEL: &str = "cross_entropy_slopes";
    of.rows.check(KERNEL, of.classes())?;
    check_len(KERNEL, "logits", of.rows.labels.len() * width, logits.len())?;
    check_len(KERNEL, "log_sums", of.rows.labels.len(), log_sums.len())?;
    if logits.is_empty() {
        return Ok(());
    }
    let own = of.own_classes(width);
    let rows = context.piece(logits.len(), width) / width;
    context.run_each(logits.chunks_mut(rows * width).enumerate().collect(), |(task, logits)| {
        context.simd(
            #[inline(always)]
            || {
                for (at, row) in logits.chunks_exact_mut(width).enumerate() {
                    let at = task * rows + at;
                    let (row, padding) = row.split_at_mut(own);
                    padding.fill(T::ZERO);
                    replace_row(row, of.own_label(at, own), log_sums[at], (&of, of.rows.scale(at)));
                }
            },
        );
    });
    Ok(())
}

/// Replaces a row's logits by the gradient of its loss times `scale`.
#[inline(always)]
fn replace_row<T: Float>(
    row: &mut [T],
    label: Option<usize>,
    log_sum: f64,
    (of, scale): (&CrossEntropyColumns<'_>, f64),
) {
    if scale == 0.0 {
        return row.fill(T::ZERO);
    }
    let CrossEntropyOptions { smoothing, z_loss, soft_cap, .. } = of.rows.options;
    let (shift, factor) = (T::from_f64(log_sum), T::from_f64(scale * (1.0 + 2.0 * z_loss * log_sum)));
    let uniform = T::from_f64(scale * smoothing / of.classes() as f64);
    let target = T::from_f64(scale * (1.0 - smoothing));
    let Some(cap) = soft_cap else {
        row.iter_mut().for_each(|x| *x = (*x - shift).exp() * factor - uniform);
        if let Some(label) = label {
            row[label] -= target;
        }
        return;
    };
    let inverse = T::from_f64(1.0 / cap);
    let slope_of_cap = |x: T| T::ONE - (x * inverse) * (x * inverse);
    let of_label = label.map(|label| target * slope_of_cap(of.capped(row[label])));
    for x in row.iter_mut() {
        let capped = of.capped(*x);
        *x = ((capped - shift).exp() * factor - uniform) * slope_of_cap(capped);
    }
    if let (Some(label), Some(of_label)) = (label, of_label) {
        row[label] -= of_label;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cross_entropy::cross_entropy_rows;

    #[test]
    fn columns_on_several_ranks_have_the_loss_and_the_gradient_of_all() {
        let (rows, columns) = (5, 11);
        let logits: Vec<f64> = (0..rows * columns).map(|at| ((at * 37 % 23) as f64 - 11.0) / 3.0).collect();
        let (labels, weights) = ([3_u32, 8, 0, 6, 10], [1.0_f32, 0.5, 2.0, 1.0, 0.0]);
        let capped =
            CrossEntropyOptions { smoothing: 0.1, z_loss: 0.01, soft_cap: Some(2.0), classes: Some(9) };
        let context = Context::new(2);
        for options in [
            CrossEntropyOptions::default(),
            CrossEntropyOptions { smoothing: 0.2, ..Default::default() },
            capped,
        ] {
            let factor = 0.3;
            let of = CrossEntropyRows { labels: &labels, weights: Some(&weights), options, factor };
            let (mut whole, mut losses) = (logits.clone(), vec![0.0; rows]);
            cross_entropy_rows(&context, columns, of, &mut whole, &mut losses).expect("sound");
            for cuts in [vec![0, 11], vec![0, 4, 11], vec![0, 1, 9, 10, 11]] {
                let ranks: Vec<_> = cuts.windows(2).map(|cut| cut[0]..cut[1]).collect();
                let own = |first: usize| CrossEntropyColumns { rows: of, first, columns };
                let cut = |all: &[f64], range: &std::ops::Range<usize>| -> Vec<f64> {
                    all.chunks_exact(columns).flat_map(|row| row[range.clone()].to_vec()).collect()
                };
                let mut parts = Vec::new();
                for range in &ranks {
                    let mut part = vec![0.0; rows * ROW_PARTS];
                    let logits = cut(&logits, range);
                    cross_entropy_parts(&context, range.len(), own(range.start), &logits, &mut part)
                        .expect("sound");
                    parts.extend(part);
                }
                let best = |row: &[f64]| {
                    let row = &row[..options.classes.unwrap_or(columns)];
                    let largest = row.iter().copied().fold(f64::MIN, f64::max);
                    row.iter().position(|x| *x == largest)
                };
                let right = logits.chunks_exact(columns).zip(labels).zip(weights);
                let right = right.filter(|((row, label), _)| best(row) == Some(*label as usize));
                let expected: f64 = right.map(|(_, weight)| f64::from(weight)).sum();
                assert_eq!(weight_of_most_probable(own(0), &parts).expect("sound"), expected);
                let (loss, log_sums) = cross_entropy_of_parts(own(0), &parts).expect("sound");
                assert!((loss - losses.iter().sum::<f64>()).abs() < 1e-12, "{options:?} {cuts:?}");
                for range in &ranks {
                    let mut slopes = cut(&logits, range);
                    cross_entropy_slopes(&context, range.len(), own(range.start), &log_sums, &mut slopes)
                        .expect("sound");
                    let off = slopes.iter().zip(cut(&whole, range)).map(|(a, b)| (a - b).abs());
                    assert!(off.fold(0.0, f64::max) < 1e-12, "{options:?} {cuts:?} {range:?}");
                }
            }
        }
        let rows = CrossEntropyRows { labels: &[9], weights: None, options: capped, factor: 1.0 };
        let wrong = CrossEntropyColumns { rows, first: 0, columns };
        let error = cross_entropy_of_parts(wrong, &[0.0; ROW_PARTS]).expect_err("no class").to_string();
        assert!(error.contains("label 9 of row 0 is not below the 9 classes"), "{error}");
        let rows = CrossEntropyRows { labels: &[1, 2], weights: Some(&[1.0]), ..rows };
        let wrong = CrossEntropyColumns { rows, ..wrong };
        assert!(cross_entropy_of_parts(wrong, &[0.0; 2 * ROW_PARTS]).is_err(), "one weight of two");
    }

    #[test]
    fn the_first_of_the_largest_is_most_probable() {
        let logits = [1.0_f32, 3.0, 2.0, 3.0];
        let right = |label: u32, cut: usize| {
            let labels = [label];
            let options = CrossEntropyOptions::default();
            let rows = CrossEntropyRows { labels: &labels, weights: Some(&[0.5]), options, factor: 1.0 };
            let mut parts = [0.0; 2 * ROW_PARTS];
            for (at, own) in [0..cut, cut..4].into_iter().enumerate() {
                let of = CrossEntropyColumns { rows, first: own.start, columns: 4 };
                let to = &mut parts[at * ROW_PARTS..][..ROW_PARTS];
                cross_entropy_parts(&Context::new(1), own.len(), of, &logits[own], to).expect("sound");
            }
            let of = CrossEntropyColumns { rows, first: 0, columns: 4 };
            weight_of_most_probable(of, &parts).expect("sound")
        };
        for cut in 1..4 {
            assert_eq!([0, 1, 2, 3].map(|label| right(label, cut)), [0.0, 0.5, 0.0, 0.0], "{cut}");
        }
    }

    #[test]
    fn logits_that_are_no_numbers_are_not_hidden_by_other_ranks() {
        let options = CrossEntropyOptions::default();
        let rows = CrossEntropyRows { labels: &[0], weights: None, options, factor: 1.0 };
        let context = Context::new(1);
        let loss = |second: [f32; 2]| {
            let mut parts = [0.0; 2 * ROW_PARTS];
            for (at, logits) in [[1.0_f32, 2.0], second].iter().enumerate() {
                let of = CrossEntropyColumns { rows, first: 2 * at, columns: 4 };
                cross_entropy_parts(&context, 2, of, logits, &mut parts[at * ROW_PARTS..][..ROW_PARTS])
                    .expect("sound");
            }
            let of = CrossEntropyColumns { rows, first: 0, columns: 4 };
            cross_entropy_of_parts(of, &parts).expect("sound").0
        };
        assert!(loss([0.0, f32::NAN]).is_nan());
        for logits in [[1.0, f32::NAN], [f32::NAN, 1.0], [f32::NAN; 2], [f32::NEG_INFINITY; 2]] {
            let mut parts = [0.0; ROW_PARTS];
            let of = CrossEntropyColumns { rows, first: 0, columns: 2 };
            cross_entropy_parts(&context, 2, of, &logits, &mut parts).expect("sound");
            assert_eq!(weight_of_most_probable(of, &parts).expect("sound"), 0.0, "{logits:?}");
        }
        // Classes that cannot be.
        let without = loss([f32::NEG_INFINITY; 2]);
        assert!((without - (1.0 + f64::exp(1.0)).ln()).abs() < 1e-6, "{without}");
    }
}
