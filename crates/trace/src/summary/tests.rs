//! Traces made by hand, of which it is known what they say.

use serde_json::{Value, json};

use super::super::category::Category;
use super::super::file::TraceFile;
use super::{CriticalPart, TraceSummary};

/// A span from `begin` to `end`, in microseconds.
fn span(pid: u64, tid: u64, category: &str, name: &str, (begin, end): (f64, f64), args: &Value) -> Value {
    let duration = end - begin;
    json!({"ph": "X", "cat": category, "name": name, "pid": pid, "tid": tid, "ts": begin, "dur": duration, "args": args})
}

/// An all-reduce on the communication thread, issued at `issued` by the rank's own thread.
fn reduction(pid: u64, sequence: u64, issued: f64, (begin, end): (f64, f64)) -> [Value; 3] {
    let args = json!({"communicator": 0, "sequence": sequence, "sent": 8, "bytes": 8});
    let id = format!("{pid}.{sequence}");
    [
        span(pid, 1, "communication", "all-reduce", (begin, end), &args),
        json!({"ph": "s", "id": id, "pid": pid, "tid": 0, "ts": issued}),
        json!({"ph": "f", "bp": "e", "id": id, "pid": pid, "tid": 1, "ts": begin}),
    ]
}

fn read(events: &[Value]) -> TraceFile {
    let clocks = json!([{"rank": 0, "uncertainty_us": 0.0}, {"rank": 1, "uncertainty_us": 30.0}]);
    let text = json!({"otherData": {"producer": "phalanx", "clocks": clocks}, "traceEvents": events});
    TraceFile::parse(&text.to_string()).expect("a trace")
}

fn near(a: f64, b: f64) -> bool {
    (a - b).abs() < 1e-12
}

/// Microseconds on a path, by rank and name.
fn microseconds(parts: &[CriticalPart]) -> Vec<(u64, &str, i64)> {
    let mut all: Vec<_> = parts
        .iter()
        .map(|part| (part.rank, part.name.as_str(), (part.seconds * 1e6).round() as i64))
        .collect();
    all.sort_unstable();
    all
}

#[test]
fn overlap_and_idle_time_are_those_that_were_drawn() {
    let none = json!({});
    let mut events = vec![
        span(0, 0, "step", "step", (0.0, 100.0), &json!({"step": 1})),
        span(0, 0, "data", "wait for a batch", (0.0, 6.0), &none),
        span(0, 0, "compute", "forward", (6.0, 40.0), &none),
        span(0, 0, "compute", "forward stem", (10.0, 30.0), &none),
        span(0, 0, "compute", "backward", (40.0, 80.0), &none),
        span(0, 0, "gradients", "gradients ready", (55.0, 56.0), &none),
        span(0, 0, "waiting", "wait for communication", (80.0, 95.0), &none),
        span(0, 0, "waiting", "wait for losses", (97.0, 99.0), &none),
    ];
    events.extend(reduction(0, 0, 55.5, (60.0, 95.0)));
    let summary = TraceSummary::of(&read(&events));
    let [rank] = &summary.ranks[..] else { panic!("one rank: {summary:?}") };
    assert!(near(rank.seconds, 100e-6) && near(rank.computing, 74e-6), "{rank:?}");
    assert!(
        near(rank.communication, 35e-6) && near(rank.overlap.expect("there is some"), 20.0 / 35.0),
        "{rank:?}"
    );
    let idle = rank.idle;
    assert!(near(idle.data, 6e-6) && near(idle.communication, 15e-6) && near(idle.ranks, 2e-6), "{idle:?}");
    assert!(near(idle.other, 3e-6) && near(idle.saving, 0.0) && near(idle.total(), 26e-6), "{idle:?}");
    assert_eq!(summary.slowest, None, "there is one rank");
    let first = &summary.operations[0];
    assert_eq!((first.name.as_str(), first.category, first.count), ("backward", Some(Category::Compute), 1));
    assert!(near(first.seconds, 39e-6), "what ran inside is not its own: {first:?}");
    assert!(near(summary.clock_uncertainty, 30e-6));
}

#[test]
fn a_path_goes_through_the_reduction_to_the_rank_that_came_last() {
    let none = json!({});
    let mut events = Vec::new();
    for (rank, computed, end) in [(0, 50.0, 122.0), (1, 90.0, 120.0)] {
        events.extend([
            span(rank, 0, "step", "step", (0.0, end), &json!({"step": 7})),
            span(rank, 0, "compute", "backward", (0.0, computed), &none),
            span(rank, 0, "waiting", "wait for communication", (computed, 111.0), &none),
            span(rank, 0, "compute", "update", (111.0, 120.0), &none),
        ]);
        events.extend(reduction(rank, 3, computed - 2.0, (computed, 110.0)));
    }
    let summary = TraceSummary::of(&read(&events));
    let path = summary.path.as_ref().expect("a step");
    assert_eq!(path.step, 7);
    assert!(near(path.seconds, 122e-6), "{path:?}");
    let expected = [
        (0, "all-reduce", 21),
        (0, "step", 2),
        (0, "update", 9),
        (1, "backward", 88),
        (1, "issued and not begun", 2),
    ];
    assert_eq!(microseconds(&path.parts), expected);
    let slowest = summary.slowest.expect("two ranks");
    assert_eq!((slowest.rank, slowest.slowest_in), (1, 1));
    assert!(near(slowest.seconds_per_step, 99e-6) && near(slowest.others_per_step, 61e-6), "{slowest:?}");
    let shares: f64 = summary.path_shares.iter().map(|(_, share)| share).sum();
    assert!(near(shares, 1.0) && summary.path_shares[0].0 == Category::Compute, "{:?}", summary.path_shares);
}

#[test]
fn a_path_goes_through_operations_that_kept_the_thread_busy() {
    let none = json!({});
    let mut events = vec![
        span(0, 0, "step", "step", (0.0, 80.0), &json!({"step": 1})),
        span(0, 0, "compute", "backward", (0.0, 40.0), &none),
        span(0, 0, "waiting", "wait for communication", (40.0, 80.0), &none),
    ];
    events.extend(reduction(0, 0, 20.0, (20.0, 60.0)));
    events.extend(reduction(0, 1, 30.0, (61.0, 80.0)));
    let summary = TraceSummary::of(&read(&events));
    let path = summary.path.expect("a step");
    let expected = [(0, "all-reduce", 59), (0, "backward", 20), (0, "between operations", 1)];
    assert_eq!(microseconds(&path.parts), expected);
    assert!(near(path.seconds, 80e-6));
}

#[test]
fn an_operation_on_the_own_thread_lies_on_the_path_too() {
    let none = json!({});
    let mut events = Vec::new();
    for (rank, computed) in [(0, 70.0), (1, 30.0)] {
        let args = json!({"communicator": 5, "sequence": 0});
        events.extend([
            span(rank, 0, "step", "step", (0.0, 100.0), &json!({"step": 1})),
            span(rank, 0, "compute", "backward", (0.0, computed), &none),
            span(rank, 0, "communication", "all-reduce", (computed, 95.0 + rank as f64), &args),
        ]);
    }
    let summary = TraceSummary::of(&read(&events));
    let path = summary.path.expect("a step");
    let by_rank_0: i64 =
        microseconds(&path.parts).iter().filter(|part| part.1 == "backward").map(|part| part.2).sum();
    assert_eq!(by_rank_0, 70, "{path:?}");
    assert!(summary.ranks.iter().all(|rank| rank.overlap.is_some_and(|overlap| near(overlap, 0.0))));
}

#[test]
fn a_path_goes_to_the_rank_whose_losses_came_last() {
    let none = json!({});
    let events = [
        span(0, 0, "step", "step", (0.0, 100.0), &json!({"step": 1})),
        span(0, 0, "compute", "forward", (0.0, 30.0), &none),
        span(0, 0, "waiting", "wait for losses", (30.0, 100.0), &none),
        span(1, 0, "step", "step", (0.0, 95.0), &json!({"step": 1})),
        span(1, 0, "compute", "forward", (0.0, 95.0), &none),
    ];
    let path = TraceSummary::of(&read(&events)).path.expect("a step");
    assert_eq!(microseconds(&path.parts), [(0, "wait for losses", 5), (1, "forward", 95)]);
}

#[test]
fn traces_of_others_and_broken_ones_are_told_apart() {
    let product = json!({"ph": "X", "name": "aten::mm", "cat": "cpu_op", "pid": "python", "tid": 3, "ts": 1.5, "dur": 2});
    let theirs = json!({"traceEvents": [product]});
    let summary = TraceSummary::of(&TraceFile::parse(&theirs.to_string()).expect("another program's"));
    assert!(!summary.is_own && summary.ranks.is_empty() && summary.path.is_none());
    assert_eq!((summary.operations[0].name.as_str(), summary.operations[0].category), ("aten::mm", None));
    let bare = json!([{"ph": "X", "name": "a", "pid": 1, "tid": 1, "ts": 0, "dur": 1}]);
    assert_eq!(TraceFile::parse(&bare.to_string()).expect("the bare list").spans.len(), 1);
    for (broken, complaint) in [
        ("{}", "no list `traceEvents`"),
        ("{", "EOF"),
        (r#"{"traceEvents": [{"name": "a"}]}"#, "event 0 has no `ph`"),
        (r#"{"traceEvents": [{"ph": "X", "pid": 1, "tid": 1}]}"#, "event 0 has no time `ts`"),
        (
            r#"{"traceEvents": [{"ph": "X", "pid": 1, "tid": 1, "ts": 2, "dur": -1}]}"#,
            "ends before it begins",
        ),
        (
            r#"{"otherData": {"producer": "phalanx"}, "traceEvents": [{"ph": "f", "id": "0.1", "pid": 0, "tid": 1, "ts": 2}]}"#,
            "ends without a start",
        ),
    ] {
        let problem = TraceFile::parse(broken).expect_err(broken);
        assert!(problem.contains(complaint), "{broken}: {problem}");
    }
}
