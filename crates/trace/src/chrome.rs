//! Writes traces in Chrome's format, for Perfetto and `chrome://tracing`.
//!
//! The file is one JSON object. In `traceEvents`, each rank is a process. Spans are events `X`, counters `C`, names
//! `M`. A flow of the events `s` and `f` connects the issue of an operation with its execution. Times are microseconds
//! since the first event, by rank 0's clock. `otherData` has the uncertainty of the clocks.

use std::fmt::Write as _;

use serde_json::{Map, Value, json};

use super::clock::Alignment;
use super::event::{Arg, Event, EventKind, IssuePoint};
use super::recorder::RecordedTrace;

/// The producer in `otherData`, which identifies files of this program.
pub const PRODUCER: &str = "phalanx";

/// Properties of a rank that its events do not have.
#[derive(Debug, Clone, PartialEq)]
pub struct RankFacts {
    /// Its rank number when the run began.
    pub rank: usize,
    /// The name of its host.
    pub host: String,
    /// Its clock relative to rank 0's.
    pub alignment: Alignment,
    /// The number of dropped events.
    pub left_out: usize,
}

/// Returns the start of the first event in nanoseconds of rank 0's clock.
pub fn first_of(trace: &RecordedTrace, alignment: &Alignment) -> Option<f64> {
    let first = trace.events.iter().map(|event| event.begin).min()?;
    Some(alignment.to_first(first))
}

/// Serialises the events of a rank as comma-separated lines of JSON, sorted by start for each thread. Times are
/// microseconds since `origin`, which is in nanoseconds of rank 0's clock.
pub fn events_json(trace: RecordedTrace, facts: &RankFacts, origin: f64) -> String {
    let RecordedTrace { tracks, mut events, .. } = trace;
    let pid = facts.rank;
    // Rounded to nanoseconds, so that spans that end together still do in the file.
    let time = |at: u64| ((facts.alignment.to_first(at) - origin).max(0.0).round()) / 1000.0;
    let mut lines = Vec::with_capacity(events.len() + tracks.len());
    let meta = |name: &str, tid: usize, args: Value| {
        json!({"ph": "M", "name": name, "pid": pid, "tid": tid, "ts": 0, "args": args}).to_string()
    };
    lines.push(meta("process_name", 0, json!({"name": format!("rank {pid} on {}", facts.host)})));
    lines.push(meta("process_sort_index", 0, json!({"sort_index": pid})));
    let mut used: Vec<usize> = events.iter().map(|event| event.track).collect();
    used.sort_unstable();
    used.dedup();
    for track in used {
        let role = role(&tracks[track].name, tracks[track].computes);
        lines.push(meta("thread_name", track, json!({"name": role})));
        let order = if tracks[track].computes { 0 } else { track + 1 };
        lines.push(meta("thread_sort_index", track, json!({"sort_index": order})));
    }
    // Outer spans come first.
    events.sort_by_key(|event| (event.track, event.begin, std::cmp::Reverse(event.end())));
    let mut flows = 0_u64;
    // Serialised by serde_json, because names may contain quotes.
    let quoted = |text: &str| Value::from(text).to_string();
    for event in &events {
        let (begin, tid, args) = (time(event.begin), event.track, Value::Object(args(event)));
        let (name, category) = (quoted(&event.name), event.category.name());
        let what =
            format!("\"name\":{name},\"cat\":\"{category}\",\"pid\":{pid},\"tid\":{tid},\"ts\":{begin}");
        let EventKind::Span { end, issued } = event.kind else {
            lines.push(format!("{{\"ph\":\"C\",{what},\"args\":{args}}}"));
            continue;
        };
        let duration = ((time(end) - begin) * 1000.0).round().max(0.0) / 1000.0;
        lines.push(format!("{{\"ph\":\"X\",{what},\"dur\":{duration},\"args\":{args}}}"));
        if let Some(IssuePoint { track, at }) = issued {
            flows += 1;
            // Flow ids are unique within a rank.
            let flow = format!("\"name\":\"issued\",\"cat\":\"flow\",\"id\":\"{pid}.{flows}\",\"pid\":{pid}");
            let at = time(at).min(begin);
            lines.push(format!("{{\"ph\":\"s\",{flow},\"tid\":{track},\"ts\":{at}}}"));
            lines.push(format!("{{\"ph\":\"f\",\"bp\":\"e\",{flow},\"tid\":{tid},\"ts\":{begin}}}"));
        }
    }
    lines.join(",\n")
}

/// Returns the role of a thread from its name.
fn role(name: &str, computes: bool) -> String {
    if computes {
        return "compute".to_owned();
    }
    let roles =
        [("phalanx-comm", "communication"), ("phalanx-data", "data"), ("phalanx-checkpoint", "saving")];
    let known = roles.iter().find_map(|(start, role)| Some((role, name.strip_prefix(start)?)));
    match known {
        Some((role, rest)) => format!("{role} {}", rest.trim_start_matches('-')).trim_end().to_owned(),
        None => name.to_owned(),
    }
}

fn args(event: &Event) -> Map<String, Value> {
    let value = |arg: &Arg| match arg {
        Arg::Count(count) => Value::from(*count),
        Arg::Number(number) => Value::from(*number),
        Arg::Text(text) => Value::from(text.as_ref()),
    };
    event.args.iter().map(|(name, arg)| ((*name).to_owned(), value(arg))).collect()
}

/// Returns the content of a trace file, from the events of all ranks as returned by [`events_json`]. `world_size` is
/// the initial number of ranks; `complete` is true if the run ended normally.
pub fn file(ranks: &[(RankFacts, String)], world_size: usize, complete: bool) -> String {
    let clocks: Vec<Value> = ranks
        .iter()
        .map(|(facts, _)| {
            let Alignment { start, end } = facts.alignment;
            let micro = |nanoseconds: f64| nanoseconds / 1000.0;
            json!({
                "rank": facts.rank,
                "host": facts.host,
                "ahead_us": [micro(start.ahead as f64), micro(end.ahead as f64)],
                "uncertainty_us": micro(facts.alignment.uncertainty() as f64),
                "left_out": facts.left_out,
            })
        })
        .collect();
    let other = json!({
        "producer": PRODUCER,
        "version": env!("CARGO_PKG_VERSION"),
        "world_size": world_size,
        "complete": complete,
        "clocks": clocks,
    });
    let first = ranks.first().map_or(0, |(facts, _)| facts.rank);
    let distributed = json!({"backend": PRODUCER, "rank": first, "world_size": world_size});
    let mut text =
        String::with_capacity(ranks.iter().map(|(_, events)| events.len() + 2).sum::<usize>() + 2048);
    // Writing to a string does not fail.
    let _ = write!(
        text,
        "{{\"displayTimeUnit\":\"ms\",\n\"distributedInfo\":{distributed},\n\"otherData\":{other},\n"
    );
    text.push_str("\"traceEvents\":[\n");
    let events: Vec<&str> = ranks.iter().map(|(_, events)| events.as_str()).collect();
    text.push_str(&events.join(",\n"));
    text.push_str("\n]}\n");
    text
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use super::super::category::Category;
    use super::super::event::Track;
    use super::*;

    #[test]
    fn a_rank_is_a_process_and_what_is_issued_is_a_flow() {
        let event = |track, name: &'static str, begin, kind| Event {
            rank: Some(1),
            track,
            name: Cow::Borrowed(name),
            category: Category::Communication,
            begin,
            kind,
            args: vec![("bytes", Arg::Count(64)), ("algorithm", Arg::Text(Cow::Borrowed("a \"ring\"")))],
        };
        let tracks = vec![
            Track { name: "rank 1".to_owned(), computes: true },
            Track { name: "phalanx-comm-1".to_owned(), computes: false },
        ];
        let events = vec![
            event(1, "inner", 3000, EventKind::Span { end: 4000, issued: None }),
            event(
                1,
                "outer",
                3000,
                EventKind::Span { end: 5000, issued: Some(IssuePoint { track: 0, at: 2500 }) },
            ),
            event(0, "bytes", 2000, EventKind::Counter),
        ];
        let trace = RecordedTrace { tracks, events, left_out: 0 };
        let facts =
            RankFacts { rank: 1, host: "here".to_owned(), alignment: Alignment::default(), left_out: 0 };
        assert_eq!(first_of(&trace, &facts.alignment), Some(2000.0));
        let text = file(&[(facts.clone(), events_json(trace, &facts, 2000.0))], 2, true);
        let read: Value = serde_json::from_str(&text).expect("is JSON");
        let found = |ph: &str| -> Vec<Value> {
            let events = read["traceEvents"].as_array().expect("a list");
            events.iter().filter(|event| event["ph"] == ph).cloned().collect()
        };
        let spans = found("X");
        assert_eq!((&spans[0]["name"], &spans[1]["name"]), (&json!("outer"), &json!("inner")));
        assert_eq!((spans[0]["ts"].as_f64(), spans[0]["dur"].as_f64()), (Some(1.0), Some(2.0)));
        assert_eq!(spans[0]["args"]["algorithm"], "a \"ring\"");
        let (start, end) = (&found("s")[0], &found("f")[0]);
        assert_eq!(
            (&start["id"], start["tid"].as_u64(), start["ts"].as_f64()),
            (&end["id"], Some(0), Some(0.5))
        );
        assert_eq!((end["tid"].as_u64(), end["ts"].as_f64(), &end["bp"]), (Some(1), Some(1.0), &json!("e")));
        assert_eq!(found("C")[0]["args"]["bytes"], 64);
        let names: Vec<_> = found("M").iter().map(|meta| meta["args"]["name"].clone()).collect();
        assert!(names.contains(&json!("rank 1 on here")) && names.contains(&json!("compute")), "{names:?}");
        assert!(names.contains(&json!("communication 1")), "{names:?}");
        assert_eq!(read["otherData"]["producer"], PRODUCER);
    }
}
