//! The operations that took the most time, by name.

use std::collections::BTreeMap;

use serde::Serialize;

use super::super::category::Category;
use super::super::file::{FileEvent, TraceFile};
use super::timeline::{SpanSlice, span_slices};

/// The time of an operation over all ranks.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct OperationTime {
    /// Its name.
    pub name: String,
    /// The category; `None` in traces of other programs.
    pub category: Option<Category>,
    /// The number of calls.
    pub count: usize,
    /// The seconds without nested spans.
    pub seconds: f64,
    /// The share of these seconds in the seconds of all operations.
    pub share: f64,
}

/// Returns the `most` operations with the largest times, the longest first.
pub(super) fn operations(file: &TraceFile, most: usize) -> Vec<OperationTime> {
    let is_operation = |span: &FileEvent| !matches!(span.category, Some(Category::Step | Category::Rank));
    let mut found: BTreeMap<(&str, Option<Category>), (usize, f64)> = BTreeMap::new();
    for span in file.spans.iter().filter(|span| is_operation(span)) {
        found.entry((&span.name, span.category)).or_default().0 += 1;
    }
    for thread in file.spans.chunk_by(|a, b| (a.pid, a.tid) == (b.pid, b.tid)) {
        for SpanSlice { span, begin, end } in
            span_slices(thread).into_iter().filter(|at| is_operation(at.span))
        {
            found.entry((&span.name, span.category)).or_default().1 += (end - begin) * 1e-6;
        }
    }
    let total: f64 = found.values().map(|(_, seconds)| seconds).sum();
    let operation = |((name, category), (count, seconds)): ((&str, _), _)| OperationTime {
        name: name.to_owned(),
        category,
        count,
        seconds,
        share: if total > 0.0 { seconds / total } else { 0.0 },
    };
    let mut all: Vec<OperationTime> = found.into_iter().map(operation).collect();
    all.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
    all.truncate(most);
    all
}
