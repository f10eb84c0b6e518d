//! Cross-entropy of rows whose columns are on several ranks: the numbers that a rank finds of its columns, and their gradient.

use super::grid::{check, launch, narrow_size, rows};
use super::losses::CrossEntropyTargets;
use super::sources::LOSSES;
use crate::{ElementType, Gpu, Result, Slice};

/// The numbers that [`cross_entropy_parts`] finds of each row.
const ROW_PARTS: usize = 5;

/// The columns of the rows of a cross-entropy that a rank has.
#[derive(Debug, Clone, Copy)]
pub struct CrossEntropyColumns<'a> {
    /// The targets; classes count all columns.
    pub rows: CrossEntropyTargets<'a>,
    /// The class of the first column that is here.
    pub first: usize,
    /// The number of all columns.
    pub columns: usize,
}

impl CrossEntropyColumns<'_> {
    fn classes(&self) -> usize {
        self.rows.options.classes.unwrap_or(self.columns)
    }

    /// The number of columns here that are classes.
    fn own_classes(&self, width: usize) -> usize {
        self.classes().saturating_sub(self.first).min(width)
    }
}

/// Finds of each row of `width` logits, f32 or f64, the largest one, the sum of the exponentials relative to it, the logit of the label
/// if it is here, the sum, and the class of the first of the largest ones: f64 [rows, 5].
///
/// # Errors
/// If lengths or types do not match.
pub fn cross_entropy_parts(
    gpu: &Gpu,
    logits: &Slice,
    width: usize,
    of: CrossEntropyColumns<'_>,
) -> Result<Slice> {
    const FUNCTION: &str = "cross_entropy_parts";
    let count = of.rows.check(FUNCTION, logits, width)?;
    let parts = gpu.unwritten(ElementType::F64, count * ROW_PARTS)?;
    let (group, grid) = rows(count, width);
    launch(gpu, &LOSSES, &format!("{FUNCTION}_{group}_{}", logits.dtype()), grid)
        .slice(logits)
        .slice(of.rows.labels)
        .number(of.rows.options.soft_cap.unwrap_or(0.0))
        .slice(&parts)
        .number(count as i64)
        .number(narrow_size(FUNCTION, width)?)
        .number(narrow_size(FUNCTION, of.own_classes(width))?)
        .number(narrow_size(FUNCTION, of.first)?)
        .run()?;
    Ok(parts)
}

/// Replaces logits by the gradient of the loss; `log_sums`, f64, has the logarithm of the sum of exponentials of each row, over all
/// columns.
///
/// # Errors
/// If lengths or types do not match.
pub fn cross_entropy_slopes(
    gpu: &Gpu,
    logits: &Slice,
    width: usize,
    of: CrossEntropyColumns<'_>,
    log_sums: &Slice,
) -> Result<()> {
    const FUNCTION: &str = "cross_entropy_slopes";
    let count = of.rows.check(FUNCTION, logits, width)?;
    check(FUNCTION, "log_sums", log_sums, ElementType::F64, count)?;
    let CrossEntropyTargets { labels, weights, options, factor } = of.rows;
    let (group, grid) = rows(count, width);
    launch(gpu, &LOSSES, &format!("{FUNCTION}_{group}_{}", logits.dtype()), grid)
        .slice(logits)
        .slice(labels)
        .optional(weights)
        .number(options.smoothing)
        .number(options.z_loss)
        .number(options.soft_cap.unwrap_or(0.0))
        .number(factor)
        .slice(log_sums)
        .number(count as i64)
        .number(narrow_size(FUNCTION, width)?)
        .number(narrow_size(FUNCTION, of.own_classes(width))?)
        .number(narrow_size(FUNCTION, of.first)?)
        .number(narrow_size(FUNCTION, of.classes())?)
        .run()
}
