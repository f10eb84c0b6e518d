//! The `tracing` layer that collects spans.

use std::borrow::Cow;
use std::fmt;

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::Interest;
use tracing::{Event as TracingEvent, Metadata, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::{Context, Filter};
use tracing_subscriber::registry::LookupSpan;

use super::category::{Category, PREFIX};
use super::clock;
use super::event::{Arg, Event, EventKind, IssuePoint};
use super::recorder::Recorder;

/// Collects the spans of a trace: see [`layer`].
#[derive(Debug)]
pub struct TraceLayer(&'static Recorder);

/// Returns the layer that collects spans for this process's [`Recorder`], next to the other layers of a subscriber. It
/// enables spans of a trace only. While nothing is recorded, it enables only those that say which rank a thread is.
///
/// ```
/// use tracing_subscriber::layer::SubscriberExt as _;
///
/// let subscriber = tracing_subscriber::registry().with(phalanx_trace::layer());
/// let recorder = phalanx_trace::Recorder::installed().expect("the layer was made");
/// tracing::subscriber::with_default(subscriber, || {
///     recorder.record(true);
///     drop(tracing::trace_span!(target: "phalanx_trace::compute", "forward", block = "stem").entered());
///     recorder.record(false);
/// });
/// assert_eq!(recorder.take(0, true).events[0].name, "forward stem");
/// ```
pub fn layer<S: Subscriber + for<'a> LookupSpan<'a>>() -> impl Layer<S> {
    let recorder = Recorder::install();
    TraceLayer(recorder).with_filter(TraceFilter(recorder))
}

/// The filter of the layer: accepts only spans of a trace.
struct TraceFilter(&'static Recorder);

impl<S> Filter<S> for TraceFilter {
    fn enabled(&self, metadata: &Metadata<'_>, _: &Context<'_, S>) -> bool {
        metadata.target().starts_with(PREFIX)
            && (self.0.is_recording() || Category::of_target(metadata.target()) == Some(Category::Rank))
    }

    fn callsite_enabled(&self, metadata: &'static Metadata<'static>) -> Interest {
        match metadata.target().starts_with(PREFIX) {
            true => Interest::sometimes(),
            false => Interest::never(),
        }
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(LevelFilter::TRACE)
    }
}

/// A span that has not closed.
struct OpenSpan {
    category: Category,
    rank: Option<usize>,
    created: IssuePoint,
    /// The track of the thread that entered it, the time of the first entry, and of the last exit.
    entered: Option<(usize, u64, u64)>,
    fields: Fields,
}

/// The fields of a span.
#[derive(Default)]
struct Fields(Vec<(&'static str, Arg)>);

impl Fields {
    fn put(&mut self, field: &Field, arg: Arg) {
        match self.0.iter_mut().find(|(name, _)| *name == field.name()) {
            Some((_, there)) => *there = arg,
            None => self.0.push((field.name(), arg)),
        }
    }

    fn count(&self, name: &str) -> Option<u64> {
        self.0.iter().find_map(|(known, arg)| match arg {
            Arg::Count(count) if *known == name => Some(*count),
            _ => None,
        })
    }

    /// Returns the displayed name of a span: an operation's own name, and for a block's span both names.
    fn name(&self, name: &'static str) -> Cow<'static, str> {
        let text = |of: &str| {
            self.0.iter().find_map(|(known, arg)| match arg {
                Arg::Text(text) if *known == of => Some(text),
                _ => None,
            })
        };
        match (text("operation"), text("block")) {
            (Some(operation), _) => operation.clone(),
            (None, Some(block)) if !block.is_empty() => Cow::Owned(format!("{name} {block}")),
            _ => Cow::Borrowed(name),
        }
    }
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.put(field, Arg::Text(Cow::Owned(format!("{value:?}"))));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.put(field, Arg::Text(Cow::Owned(value.to_owned())));
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.put(field, Arg::Count(value));
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.put(field, u64::try_from(value).map_or(Arg::Number(value as f64), Arg::Count));
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.put(field, Arg::Number(value));
    }
}

impl TraceLayer {
    fn issue_point(&self) -> IssuePoint {
        IssuePoint { track: self.0.current_track(), at: clock::now() }
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for TraceLayer {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let Some(category) = Category::of_target(attributes.metadata().target()) else { return };
        let Some(span) = context.span(id) else { return };
        let mut fields = Fields::default();
        attributes.record(&mut fields);
        let own = fields.count("rank").filter(|_| category == Category::Rank).map(|rank| rank as usize);
        let of_parent = || span.parent()?.extensions().get::<OpenSpan>()?.rank;
        let rank = own.or_else(of_parent).or_else(|| self.0.current_rank());
        if let Some(parent) = span.parent()
            && let Some(parent) = parent.extensions().get::<OpenSpan>()
            && parent.category == Category::Gradients
            && let Some(bucket) = parent.fields.count("bucket")
        {
            fields.0.push(("bucket", Arg::Count(bucket)));
        }
        span.extensions_mut().insert(OpenSpan {
            category,
            rank,
            created: self.issue_point(),
            entered: None,
            fields,
        });
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        if let Some(open) = span.extensions_mut().get_mut::<OpenSpan>() {
            values.record(&mut open.fields);
        }
    }

    fn on_enter(&self, id: &Id, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        let mut extensions = span.extensions_mut();
        let Some(open) = extensions.get_mut::<OpenSpan>() else { return };
        if open.category == Category::Rank {
            return self.0.become_rank(open.rank);
        }
        if open.entered.is_none() {
            let now = self.issue_point();
            open.entered = Some((now.track, now.at, now.at));
        }
    }

    fn on_exit(&self, id: &Id, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        let mut extensions = span.extensions_mut();
        let Some(open) = extensions.get_mut::<OpenSpan>() else { return };
        if open.category == Category::Rank {
            return self.0.become_rank(None);
        }
        if let Some((_, _, left)) = &mut open.entered {
            *left = clock::now();
        }
    }

    fn on_close(&self, id: Id, context: Context<'_, S>) {
        let Some(span) = context.span(&id) else { return };
        let Some(open) = span.extensions_mut().remove::<OpenSpan>() else { return };
        // A span that was never entered has no duration.
        let Some((track, begin, end)) = open.entered else { return };
        let issued = (open.created.track != track).then_some(open.created);
        self.0.keep(Event {
            rank: open.rank,
            track,
            name: open.fields.name(span.name()),
            category: open.category,
            begin,
            kind: EventKind::Span { end, issued },
            args: open.fields.0,
        });
    }

    fn on_event(&self, event: &TracingEvent<'_>, context: Context<'_, S>) {
        let metadata = event.metadata();
        if Category::of_target(metadata.target()) != Some(Category::Counter) {
            return;
        }
        let mut fields = Fields::default();
        event.record(&mut fields);
        let of_parent = || context.event_span(event)?.extensions().get::<OpenSpan>()?.rank;
        let own = fields.count("rank").map(|rank| rank as usize);
        let rank = own.or_else(of_parent).or_else(|| self.0.current_rank());
        let name = match fields.0.iter().find(|(name, _)| *name == "message") {
            Some((_, Arg::Text(text))) => text.clone(),
            _ => Cow::Borrowed(metadata.name()),
        };
        fields.0.retain(|(name, _)| !["message", "rank"].contains(name));
        let now = self.issue_point();
        let (track, begin) = (now.track, now.at);
        let (category, kind) = (Category::Counter, EventKind::Counter);
        self.0.keep(Event { rank, track, name, category, begin, kind, args: fields.0 });
    }
}
