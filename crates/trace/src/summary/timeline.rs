//! The innermost span of a thread at each time.

use super::super::file::FileEvent;

/// An interval in which one span of a thread was the innermost.
#[derive(Debug, Clone, Copy)]
pub(super) struct SpanSlice<'a> {
    pub(super) span: &'a FileEvent,
    pub(super) begin: f64,
    pub(super) end: f64,
}

/// Returns the slices of a thread in order. The spans must be sorted by start, outer spans first. Gaps between spans
/// are left out.
pub(super) fn span_slices<'a>(spans: impl IntoIterator<Item = &'a FileEvent>) -> Vec<SpanSlice<'a>> {
    let mut found = Vec::new();
    let mut open: Vec<&FileEvent> = Vec::new();
    let mut at = f64::NEG_INFINITY;
    let mut until = |open: &mut Vec<&'a FileEvent>, at: &mut f64, time: f64| {
        while let Some(inner) = open.last().copied() {
            let end = inner.end.min(time);
            if end > *at {
                found.push(SpanSlice { span: inner, begin: *at, end });
                *at = end;
            }
            if inner.end > time {
                break;
            }
            open.pop();
        }
        *at = at.max(time);
    };
    for span in spans {
        until(&mut open, &mut at, span.begin);
        open.push(span);
    }
    until(&mut open, &mut at, f64::INFINITY);
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_innermost_span_has_the_time() {
        let span = |name: &str, begin: f64, end: f64| FileEvent {
            pid: 0,
            tid: 0,
            name: name.to_owned(),
            category: None,
            begin,
            end,
            args: serde_json::Map::new(),
            issued: None,
        };
        let spans = [
            span("a", 0.0, 10.0),
            span("b", 2.0, 6.0),
            span("c", 3.0, 4.0),
            span("d", 6.0, 7.0),
            span("e", 12.0, 13.0),
        ];
        let found: Vec<_> =
            span_slices(&spans).iter().map(|at| (at.span.name.clone(), at.begin, at.end)).collect();
        let expected = [
            ("a", 0.0, 2.0),
            ("b", 2.0, 3.0),
            ("c", 3.0, 4.0),
            ("b", 4.0, 6.0),
            ("d", 6.0, 7.0),
            ("a", 7.0, 10.0),
            ("e", 12.0, 13.0),
        ];
        assert_eq!(found, expected.map(|(name, begin, end)| (name.to_owned(), begin, end)));
    }
}
