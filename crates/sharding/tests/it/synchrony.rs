//! Clocks, bounds and staleness without threads: recorded runs, and drawn schedules under a virtual clock.

use std::time::Duration;

use phalanx_sharding::synchrony::{Act, PushResult, RequestQueues, VersionedStore, simulate};
use phalanx_tensor::Key;
use serde_json::{Value as Json, json};

use crate::common::problem::{Problem, assert_near, recorded};

/// The record of a replayed run.
#[derive(Debug, Default)]
struct Replay {
    events: Vec<Json>,
    refused: Vec<Json>,
    pushes: Vec<(usize, PushResult, f64)>,
}

/// Has two workers attempt acts in order at a store, each pull being answered once it is admitted.
fn replay(attempts: &Json, bound: Option<u64>) -> (Replay, VersionedStore<Vec<f32>>, [usize; 2]) {
    let problem = Problem::new();
    let mut store = VersionedStore::new(Problem::start(), 2, bound);
    let mut waiting = RequestQueues::new(2);
    let mut copies = [Vec::new(), Vec::new()];
    let mut run = Replay::default();
    for attempt in attempts.as_array().expect("a list") {
        let worker = attempt[0].as_u64().expect("a worker") as usize;
        let act = if attempt[1] == "pull" { Act::Pull } else { Act::Push };
        if act == Act::Pull && waiting.of(worker) == 0 && !store.clocks().admits(worker) {
            assert!(store.pull(worker).is_none(), "the store refuses as well");
            run.refused.push(json!({
                "worker": worker, "clock": store.clocks().all(), "after_events": run.events.len(),
            }));
        }
        waiting.arrive(worker, act, ());
        while let Some((worker, act, ())) = waiting.next(store.clocks()) {
            run.events.push(json!([worker, if act == Act::Pull { "pull" } else { "push" }]));
            if act == Act::Pull {
                store.pull(worker).expect("it was admitted");
                copies[worker].clone_from(store.values());
                continue;
            }
            let gradient = problem.gradient(worker, &copies[worker]);
            let descend = |w: &mut Vec<f32>, pushed| {
                w.iter_mut().zip(gradient).for_each(|(w, g)| *w -= g);
                (pushed, w.iter().map(|w| f64::from(*w).powi(2)).sum::<f64>().sqrt())
            };
            let (_, (pushed, norm)) = store.push(worker, descend);
            run.pushes.push((worker, pushed, norm));
        }
    }
    let left = [0, 1].map(|worker| waiting.of(worker));
    (run, store, left)
}

fn check_pushes(name: &str, run: &Replay, pushes: &Json) {
    let pushes = pushes.as_array().expect("a list");
    assert_eq!(run.pushes.len(), pushes.len(), "{name}");
    for ((worker, pushed, norm), recorded) in run.pushes.iter().zip(pushes) {
        assert_eq!(json!(worker), recorded["worker"], "{name}");
        assert_eq!(json!(pushed.pulled), recorded["pulled_version"], "{name}");
        assert_eq!(json!(pushed.version), recorded["server_version"], "{name}");
        assert!((norm - recorded["w_l2"].as_f64().expect("a number")).abs() < 1e-5, "{name}");
    }
}

#[test]
fn scripted_asynchronous_pushes_are_those_recorded() {
    let recorded = &recorded()["scripted"];
    let (run, store, left) = replay(&recorded["events"], None);
    assert_eq!((json!(run.events), left), (recorded["events"].clone(), [0, 0]));
    check_pushes("scripted", &run, &recorded["pushes"]);
    assert_near("scripted", store.values(), &recorded["w"], 1e-5);
    let problem = Problem::new();
    let loss = |w: &[f32]| problem.loss(0, w) + problem.loss(1, w);
    assert!(loss(store.values()) < loss(&Problem::start()));
}

#[test]
fn bounds_refuse_and_let_in_as_recorded() {
    let recorded = &recorded()["stale"];
    let runs = recorded["runs"].as_object().expect("runs");
    assert_eq!(runs.len(), 4, "asp and bounds 3, 1 and 0");
    for (name, of) in runs {
        let bound = of["bound"].as_u64();
        let (run, store, left) = replay(&recorded["attempts"], bound);
        assert_eq!(json!(run.events), of["events"], "{name}");
        assert_eq!(json!(run.refused), of["refused_pulls"], "{name}");
        assert_eq!(json!(left), of["waiting_at_end"], "{name}");
        assert_eq!(json!(store.clocks().all()), of["clocks_at_end"], "{name}");
        check_pushes(name, &run, &of["pushes"]);
        assert_near(name, store.values(), &of["w"], 1e-5);
        let counted = run.pushes.iter().map(|(_, pushed, _)| pushed.staleness()).max();
        assert_eq!(store.staleness().max(), counted, "{name}");
        assert!(bound.is_none_or(|bound| store.leads().max() <= Some(bound)), "{name}");
    }
}

#[test]
fn no_schedule_sees_more_than_the_bound() {
    const SCHEDULES: u64 = 10_000;
    let mut at_bound = [0; 9];
    for schedule in 0..SCHEDULES {
        let key = Key::new(15).step(schedule);
        let mut drawn = [0.0; 64];
        key.uniform(0, &mut drawn);
        let (bound, workers) = (schedule % 9, 2 + (drawn[0] * 6.0) as usize);
        let steps = 4 + (drawn[1] * 28.0) as u64;
        // Each worker has its own pace, and each step varies.
        let delay = |worker: usize, step: u64| {
            let mood = drawn[(16 + worker * 7 + step as usize * 3) % 64];
            Duration::from_micros(1 + (1000.0 * (0.1 + drawn[2 + worker]) * (0.2 + mood * mood)) as u64)
        };
        let run = simulate(Some(bound), workers, steps, delay);
        let (lead, pushes) = (run.leads.max().unwrap_or(0), workers as u64 * steps);
        assert!(lead <= bound, "schedule {schedule}: {lead} steps ahead under a bound of {bound}");
        assert!(run.spread <= bound + 1, "schedule {schedule}");
        // Between a pull and the push another worker goes from at most s behind to at most s + 1 ahead.
        let most = (workers as u64 - 1) * (2 * bound + 1);
        assert!(run.staleness.max() <= Some(most), "schedule {schedule}: {:?}", run.staleness);
        assert_eq!(
            (run.staleness.total(), run.leads.total()),
            (pushes, pushes),
            "all workers came to their end"
        );
        at_bound[bound as usize] += u64::from(lead == bound);
        // Nothing is gained by waiting.
        assert!(simulate(None, workers, steps, delay).end <= run.end, "schedule {schedule}");
    }
    assert!(
        at_bound.iter().all(|reached| *reached > 100),
        "bounds are reached, so that this can fail: {at_bound:?}"
    );
}

#[test]
fn no_schedule_with_deaths_sees_more_than_the_bound_or_waits_for_the_dead() {
    for drawn in 0..2000_u64 {
        let mut numbers = [0.0; 4];
        Key::new(77).step(drawn).uniform(0, &mut numbers);
        let below = |at: usize, limit: u64| (numbers[at] * limit as f64) as u64;
        let (bound, mut workers) = (below(0, 5), 2 + below(1, 4) as usize);
        let (steps, first_death) = (20, below(2, 60));
        let mut store = VersionedStore::new((), workers, Some(bound));
        let mut waiting = RequestQueues::new(workers);
        (0..workers).for_each(|worker| waiting.arrive(worker, Act::Pull, ()));
        // Who computes, and until when.
        let mut computing: Vec<Option<f64>> = vec![None; workers];
        let mut events = 0;
        loop {
            while let Some((worker, act, ())) = waiting.next(store.clocks()) {
                match act {
                    Act::Pull => {
                        let pulled = store.pull(worker).expect("it was admitted");
                        assert!(pulled.lead <= bound, "schedule {drawn}: {pulled:?} under {bound}");
                        let mut takes = [0.0];
                        Key::new(78).step(drawn).step(events).rank(worker).uniform(0, &mut takes);
                        computing[worker] = Some(events as f64 + 9.0 * takes[0]);
                    }
                    Act::Push => {
                        store.push(worker, |(), _| ());
                        if store.clocks().all()[worker] < steps {
                            waiting.arrive(worker, Act::Pull, ());
                        }
                    }
                }
            }
            events += 1;
            if workers > 1 && events >= first_death && events.is_multiple_of(7) && below(3, 3) > 0 {
                // One dies: the others begin the step again that each was in, among themselves.
                let victim = (events as usize) % workers;
                let mut clocks = store.clocks().all().to_vec();
                clocks.remove(victim);
                workers -= 1;
                let version = store.version();
                store = VersionedStore::new((), workers, Some(bound));
                store.restore(version, &clocks);
                assert_eq!(store.clocks().slowest(), clocks.iter().copied().min().expect("some live"));
                waiting = RequestQueues::new(workers);
                computing = vec![None; workers];
                let left = (0..workers).filter(|worker| clocks[*worker] < steps);
                left.for_each(|worker| waiting.arrive(worker, Act::Pull, ()));
                continue;
            }
            let next = computing.iter().enumerate().filter_map(|(worker, until)| Some(((*until)?, worker)));
            let next = next.min_by(|a, b| a.partial_cmp(b).expect("numbers"));
            let Some((_, worker)) = next else { break };
            computing[worker] = None;
            waiting.arrive(worker, Act::Push, ());
        }
        assert!(
            store.clocks().all().iter().all(|clock| *clock == steps),
            "schedule {drawn}: a worker waits for ever"
        );
    }
}
