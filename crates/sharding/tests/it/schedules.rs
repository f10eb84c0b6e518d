//! Schedules of pipelines: checked, played, and run by threads that wait for each other.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use phalanx_sharding::pipeline::{
    PassSeconds, PipelineSchedule, PipelineSizes, PlayCosts, ScheduleLimits, SentValue, StagePass, StageWork,
};
use phalanx_tensor::Key;

/// Each chunk hands a value to the next one.
fn chain(chunks: usize) -> Vec<SentValue> {
    (1..chunks).map(|to| SentValue { value: to, from: to - 1, to: vec![to] }).collect()
}

fn named(name: &str, ranks: usize, chunks: usize, micros: usize) -> PipelineSchedule {
    PipelineSchedule::named(name, PipelineSizes { ranks, chunks, micros }).expect("sizes that fit")
}

fn told(result: phalanx_sharding::Result<impl std::fmt::Debug>) -> String {
    result.expect_err("is wrong").to_string()
}

#[test]
fn peaks_are_those_of_the_papers() {
    for (name, ranks, chunks, micros, peaks) in [
        ("gpipe", 3, 1, 5, vec![5, 5, 5]),
        ("1f1b", 4, 1, 8, vec![4, 3, 2, 1]),
        ("1f1b", 4, 1, 2, vec![2, 2, 2, 1]),
        ("interleaved", 4, 2, 8, vec![11, 9, 7, 5]),
        ("zero-bubble", 4, 1, 8, vec![4, 4, 4, 4]),
        ("1f1b", 1, 1, 3, vec![1]),
    ] {
        let schedule = named(name, ranks, chunks, micros);
        let checked = schedule.check(&chain(ranks * chunks), ScheduleLimits::default()).expect("can run");
        assert_eq!(checked.peak_kept, peaks, "{name} on {ranks} ranks, {micros} micro-batches");
    }
}

/// The bubbles of Qi et al. 2024, for passes of F, B and W seconds: (p − 1)(F + B + W), over v for chunks that take turns, and
/// (p − 1)(F + B − W) for a backward in two parts.
#[test]
fn bubbles_are_those_of_the_formulas() {
    let seconds = PassSeconds { forward: 1.0, input: 1.0, weight: 1.0 };
    for (ranks, micros) in [(2, 4), (4, 8), (4, 16), (8, 16), (8, 32)] {
        let bubble = |name: &str, chunks: usize| {
            let all = ranks * chunks;
            let part = 1.0 / chunks as f64;
            let seconds = PassSeconds { forward: part, input: part, weight: part };
            let costs = PlayCosts { chunks: vec![seconds; all], message: 0.0, buffers: 2 };
            named(name, ranks, chunks, micros).play(&chain(all), &costs).expect("can run").bubble()
        };
        let whole = (ranks - 1) as f64 * (seconds.forward + seconds.input + seconds.weight);
        let near = |found: f64, expected: f64| (found - expected).abs() < 1e-9;
        let (gpipe, one) = (bubble("gpipe", 1), bubble("1f1b", 1));
        assert!(near(gpipe, whole) && near(one, whole), "{ranks}, {micros}: {gpipe} and {one}, not {whole}");
        let turns = bubble("interleaved", 2);
        assert!(near(turns, whole / 2.0), "{ranks}, {micros}: {turns}, not {}", whole / 2.0);
        let zero = bubble("zero-bubble", 1);
        let expected = (ranks - 1) as f64 * (seconds.forward + seconds.input - seconds.weight);
        assert!(near(zero, expected), "{ranks}, {micros}: {zero}, not {expected}");
    }
}

#[test]
fn sizes_that_do_not_fit_are_refused() {
    let named = |name: &str, ranks, chunks, micros| {
        told(PipelineSchedule::named(name, PipelineSizes { ranks, chunks, micros }))
    };
    let told = named("interleaved", 4, 2, 6);
    assert!(told.contains("the 4 ranks must divide the 6 micro-batches"), "{told}");
    let told = named("1f1b", 2, 2, 4);
    assert!(told.contains("a rank has one chunk, and 2 are asked for; `interleaved` has several"), "{told}");
    let told = named("2f2b", 2, 1, 4);
    assert!(
        told.contains("there is no such schedule; there is: gpipe, 1f1b, interleaved, zero-bubble"),
        "{told}"
    );
    let told = named("gpipe", 2, 1, 0);
    assert!(told.contains("none may be 0"), "{told}");
}

#[test]
fn wrong_schedules_are_refused() {
    let good = named("1f1b", 2, 1, 3);
    let changed = |change: &dyn Fn(&mut Vec<Vec<StageWork>>)| {
        let mut schedule = good.clone();
        change(&mut schedule.ranks);
        told(schedule.check(&chain(2), ScheduleLimits::default()))
    };
    let told_of = |change: &dyn Fn(&mut Vec<Vec<StageWork>>), expected: &str| {
        let told = changed(change);
        assert!(told.contains(expected), "{told}");
    };
    told_of(&|ranks| ranks[1].truncate(5), "rank 1 leaves out a pass of chunk 1 on micro-batch 2");
    told_of(&|ranks| ranks[1].swap(0, 1), "comes before a pass that it needs");
    told_of(
        &|ranks| {
            let first = ranks[0][0];
            ranks[0].insert(1, first);
        },
        "forward of chunk 0 on micro-batch 0 on rank 0 comes twice",
    );
    // Micro-batches in another order than on the other rank.
    told_of(
        &|ranks| ranks[0].swap(0, 1),
        "chunk 1 expects value 1 of micro-batch 0 from chunk 0, which sends",
    );
    told_of(&|ranks| ranks[0].iter_mut().for_each(|work| work.chunk = 1), "chunk 1 lies on ranks 0 and 1");
    let unordered = |ranks: &mut Vec<Vec<StageWork>>| {
        for works in ranks {
            let backward: Vec<usize> =
                (0..works.len()).filter(|at| works[*at].pass == StagePass::Backward).collect();
            works.extend(backward.iter().rev().map(|at| works[*at]).collect::<Vec<_>>());
            let mut at = 0;
            works.retain(|_| {
                at += 1;
                !backward.contains(&(at - 1))
            });
        }
    };
    told_of(&unordered, "gradients are added up in the order of micro-batches");
    // The last rank waits for all forward passes, and the first one for its first backward.
    let deadlock = |ranks: &mut Vec<Vec<StageWork>>| {
        ranks[1].sort_by_key(|work| (work.pass, work.micro));
    };
    let told = changed(&deadlock);
    assert!(
        told.contains("wait for each other forever: on rank 0 chunk 0 for value 1 of micro-batch 0"),
        "{told}"
    );
    let few = ScheduleLimits { kept: Some(1), ..ScheduleLimits::default() };
    let told = self::told(good.check(&chain(2), few));
    assert!(told.contains("rank 0 keeps 2 micro-batches of its chunks, and may keep 1"), "{told}");
    let back = [SentValue { value: 0, from: 1, to: vec![0] }];
    let told = self::told(good.check(&back, ScheduleLimits::default()));
    assert!(told.contains("value 0 goes from chunk 1 to chunk 0 of 2: values go to later chunks"), "{told}");
}

/// Numbers that are drawn.
struct Drawn {
    key: Key,
    at: u64,
}

impl Drawn {
    fn below(&mut self, limit: usize) -> usize {
        self.at += 1;
        let mut number = [0.0];
        self.key.index(self.at).uniform(0, &mut number);
        ((number[0] * limit as f64) as usize).min(limit - 1)
    }
}

/// A schedule and values that chunks send each other: each chunk one to the next one, and some to later ones.
fn drawn_case(drawn: &mut Drawn) -> (PipelineSchedule, Vec<SentValue>, usize) {
    let name = PipelineSchedule::NAMES[drawn.below(4)];
    let ranks = 1 + drawn.below(8);
    let (chunks, micros) = match name {
        "interleaved" => (1 + drawn.below(3), ranks * (1 + drawn.below(3))),
        _ => (1, 1 + drawn.below(16)),
    };
    let all = ranks * chunks;
    let mut sent = Vec::new();
    for from in 0..all.saturating_sub(1) {
        for skip in 0..1 + drawn.below(2) {
            let to = if skip == 0 {
                vec![from + 1]
            } else {
                (from + 1..all).filter(|_| drawn.below(3) == 0).collect()
            };
            if !to.is_empty() {
                sent.push(SentValue { value: sent.len(), from, to });
            }
        }
    }
    let schedule = named(name, ranks, chunks, micros);
    let buffers = schedule.needed_buffers(&sent).expect("enough messages can wait") + drawn.below(2);
    (schedule, sent, buffers)
}

/// The ends of the ways between chunks that a rank has.
#[derive(Default)]
struct Ends {
    out: BTreeMap<(usize, usize), SyncSender<(usize, usize)>>,
    inn: BTreeMap<(usize, usize), Receiver<(usize, usize)>>,
}

/// Runs a schedule by threads with blocking sends. Returns the activations of each rank that were kept at most.
fn run_by_threads(
    schedule: &PipelineSchedule,
    sent: &[SentValue],
    (buffers, delays): (usize, Option<u64>),
) -> Vec<usize> {
    let places = schedule.ranks_of_chunks().expect("each chunk has a rank");
    let mut ends: Vec<Ends> = schedule.ranks.iter().map(|_| Ends::default()).collect();
    let mut ways = BTreeSet::new();
    for SentValue { from, to, .. } in sent {
        let far = to.iter().filter(|to| places[**to] != places[*from]);
        ways.extend(far.flat_map(|to| [(*from, *to), (*to, *from)]));
    }
    for way in ways {
        let (out, inn) = sync_channel(buffers);
        ends[places[way.0]].out.insert(way, out);
        ends[places[way.1]].inn.insert(way, inn);
    }
    let places = &places;
    std::thread::scope(|scope| {
        let ranks = schedule.ranks.iter().zip(ends).enumerate().map(|(rank, (works, ends))| {
            scope.spawn(move || {
                let (mut kept, mut peak) = (0, 0);
                for (at, work) in works.iter().enumerate() {
                    if let Some(seed) = delays {
                        let mut drawn = Drawn { key: Key::new(seed), at: (rank * 10_000 + at) as u64 };
                        std::thread::sleep(Duration::from_micros(drawn.below(200) as u64));
                    }
                    messages(*work, sent, places, &ends);
                    kept += usize::from(work.pass == StagePass::Forward);
                    peak = peak.max(kept);
                    kept -= usize::from(matches!(work.pass, StagePass::Backward | StagePass::BackwardWeight));
                }
                peak
            })
        });
        let ranks: Vec<_> = ranks.collect();
        ranks.into_iter().map(|rank| rank.join().expect("all messages come in order")).collect()
    })
}

/// Receives what a pass needs, in the order expected, and sends its results.
fn messages(work: StageWork, sent: &[SentValue], places: &[usize], ends: &Ends) {
    let StageWork { pass, chunk, micro } = work;
    let is_far = |other: usize| places[other] != places[chunk];
    let receive = |from: usize, value: usize| {
        let found = ends.inn[&(from, chunk)].recv().expect("is sent");
        assert_eq!(found, (value, micro), "{work}");
    };
    let send = |to: usize, value: usize| ends.out[&(chunk, to)].send((value, micro)).expect("is received");
    let uses = |value: &&SentValue| value.to.contains(&chunk) && is_far(value.from);
    let makes = |value: &&SentValue| value.from == chunk;
    match pass {
        StagePass::Forward => {
            sent.iter().filter(uses).for_each(|value| receive(value.from, value.value));
            for value in sent.iter().filter(makes) {
                value.to.iter().filter(|to| is_far(**to)).for_each(|to| send(*to, value.value));
            }
        }
        StagePass::Backward | StagePass::BackwardInput => {
            for value in sent.iter().filter(makes) {
                value.to.iter().rev().filter(|to| is_far(**to)).for_each(|to| receive(*to, value.value));
            }
            sent.iter().filter(uses).for_each(|value| send(value.from, value.value));
        }
        StagePass::BackwardWeight => {}
    }
}

#[test]
fn drawn_schedules_run_as_checked() {
    let mut drawn = Drawn { key: Key::new(37), at: 0 };
    for number in 0..10_000 {
        let (schedule, sent, buffers) = drawn_case(&mut drawn);
        let checked = schedule.check(&sent, ScheduleLimits { buffers, kept: None });
        let checked = checked.unwrap_or_else(|error| panic!("{number}: {error}; {sent:?}"));
        if let Some(buffers) = schedule.needed_buffers(&sent).ok().and_then(|needed| needed.checked_sub(1)) {
            let told = told(schedule.check(&sent, ScheduleLimits { buffers, kept: None }));
            assert!(told.contains("wait for each other forever"), "{number}: {told}");
        }
        // Threads are dear: one in forty cases, half of them with delays.
        if number % 40 == 0 {
            let delays = (number % 80 == 0).then_some(number);
            assert_eq!(run_by_threads(&schedule, &sent, (buffers, delays)), checked.peak_kept, "{number}");
        }
    }
}
