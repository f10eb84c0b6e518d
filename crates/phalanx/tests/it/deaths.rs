//! Workers that are killed, and runs that go on without them: who is named, who takes over, what is saved, and what ends a run.

use phalanx_checkpoint::Checkpoint;
use phalanx_run::{Line, Request, RunActivity, RunState, Summary, read_metrics};

use crate::harness::processes::kill;
use crate::harness::results::{self, lines, steps, summary};
use crate::harness::{MLP, Place, Running, delayed, side_by_side};

/// Starts a training by stochastic gradient descent.
fn start(place: &Place, line: &str) -> Running {
    let optimizer = "--set optim.kind=sgd --set optim.lr=0.02";
    Running::start(place, &format!("train tiny {MLP} {optimizer} {line} --out run"))
}

/// The dead ranks of a run, in the order of their deaths.
fn dead(summary: &Summary) -> Vec<usize> {
    summary.dead.iter().map(|dead| dead.rank).collect()
}

/// The ranks that a run's summary has an account of.
fn accounts(summary: &Summary) -> Vec<usize> {
    summary.ranks.iter().map(|rank| rank.rank).collect()
}

#[test]
fn gossip_goes_on_without_those_who_die() {
    side_by_side(
        [
            ("d-psgd", "--set train.ema=0.8"),
            ("sgp", "--set sync.topology=exponential"),
            ("ad-psgd", "--set sync.topology=complete --set train.ema=0.8"),
        ],
        |(strategy, further)| {
            let place = Place::new();
            let line = format!(
                "--ranks 4 --strategy {strategy} --set sync.min_workers=2 --set train.steps=120 --set eval.every=25 --set \
            checkpoint.every=10 {further} {}",
                delayed(4, 25)
            );
            let mut running = start(&place, &line);
            let run = running.run.clone();
            running.wait_for_step(7);
            let ranks = running.ranks();
            assert_eq!(ranks.len(), 4, "{strategy}");
            kill(ranks[2]);
            let before = running.step();
            running.wait_for_step(before + 20);
            kill(ranks[1]);
            let told = running.succeed();
            assert_eq!((told.step, told.world_size), (120, 2), "{strategy}");
            assert_eq!(dead(&told), [2, 1], "{strategy}");
            for dead in &told.dead {
                assert!(dead.cause.as_ref().is_some_and(|cause| cause.contains("signal 9")), "{dead:?}");
                assert!(!dead.host.is_empty() && (8..=120).contains(&dead.from_step), "{dead:?}");
            }
            assert_eq!(accounts(&told), [0, 3], "{strategy}");
            let lines = lines(&run);
            let steps: Vec<u64> = lines.iter().map(Line::step).collect();
            assert_eq!(steps, (1..=120).collect::<Vec<_>>(), "{strategy}: every step is told once");
            assert_eq!(lines[119].number("workers"), Some(2.0), "{strategy}");
            assert!(lines.iter().all(|line| line.number("loss").is_some_and(f64::is_finite)), "{strategy}");
            let mean = |lines: &[Line]| {
                lines.iter().filter_map(|line| line.number("loss")).sum::<f64>() / lines.len() as f64
            };
            // Two passes over the samples at either end: steps of twelve samples differ by more than a few of them learn.
            let (first, last) = (mean(&lines[..10]), mean(&lines[110..]));
            assert!(last < 0.9 * first, "{strategy}: {first}, then {last}");
            let log = results::log(&run, 0);
            assert!(log.contains("rank 2 on ") && log.contains("rank 1 on "), "{strategy}: {log}");
            // What was saved by two goes on by four, and by two.
            assert_eq!(results::saved(&run).last(), Some(&120));
            for (ranks, steps) in [(4, 123), (2, 126)] {
                let told = resume(&place, ranks, steps);
                assert_eq!((told.step, told.world_size, told.dead.len()), (steps, ranks, 0), "{strategy}");
            }
        },
    );
}

/// Resumes a run up to a step, by the given number of ranks.
fn resume(place: &Place, ranks: usize, steps: u64) -> Summary {
    let line =
        format!("train --resume --out run --steps {steps} --set train.ranks={ranks} --set chaos.delay=");
    place.succeed(&line);
    summary(&place.path("run"))
}

#[test]
fn gossip_continues_without_rank_0_and_its_successor() {
    side_by_side(
        [
            ("d-psgd", "--set train.ema=0.8", 2),
            ("sgp", "--set sync.topology=exponential --set log.every=3", 4),
            ("ad-psgd", "--set sync.topology=complete", 3),
        ],
        |(strategy, further, resumed_by)| {
            let place = Place::new();
            let line = format!(
                "--ranks 4 --strategy {strategy} --set sync.min_workers=2 --set train.steps=72 --set eval.every=24 --set \
            checkpoint.every=8 {further} {}",
                delayed(4, 15)
            );
            let mut running = start(&place, &line);
            let run = running.run.clone();
            running.wait_for_step(7);
            let ranks = running.ranks();
            kill(ranks[0]);
            let before = running.step();
            running.wait_for_step(before + 9);
            kill(ranks[1]);
            let end = running.end();
            assert_eq!(end.code, Some(0), "{strategy}: {end:?}");
            let told = summary(&run);
            assert_eq!((told.step, told.world_size), (72, 2), "{strategy}");
            assert_eq!(dead(&told), [0, 1], "{strategy}");
            for dead in &told.dead {
                assert!(dead.cause.as_ref().is_some_and(|cause| cause.contains("signal 9")), "{dead:?}");
                assert!(!dead.host.is_empty() && (8..=73).contains(&dead.from_step), "{dead:?}");
            }
            assert_eq!(accounts(&told), [2, 3], "{strategy}");
            let every = if further.contains("log.every") { 3 } else { 1 };
            let due: Vec<u64> = (1..=72).filter(|step| *step == 1 || step % every == 0).collect();
            assert_eq!(steps(&run), due, "{strategy}: every step is told once");
            let lines = lines(&run);
            assert!(lines.iter().all(|line| line.number("loss").is_some_and(f64::is_finite)), "{strategy}");
            let seconds: Vec<f64> = lines.iter().filter_map(|line| line.number("seconds")).collect();
            assert!(seconds.is_sorted(), "{strategy}: {seconds:?}");
            for line in lines.iter().filter(|line| line.step() % 24 == 0) {
                assert!(
                    line.number("test_accuracy").or(line.number("test_loss")).is_some(),
                    "{strategy}: {line:?}"
                );
            }
            assert_eq!(lines.last().and_then(|line| line.number("workers")), Some(2.0), "{strategy}");
            // By rank each step is told once too, by all who took part in it.
            let by_rank = read_metrics(&run.join("metrics-by-rank.jsonl")).expect("lines");
            for step in 1..=72 {
                let ranks: Vec<f64> = by_rank
                    .iter()
                    .filter(|line| line.step() == step)
                    .filter_map(|line| line.number("rank"))
                    .collect();
                let parts: std::collections::BTreeSet<u64> = ranks.iter().map(|rank| *rank as u64).collect();
                assert_eq!(parts.len(), ranks.len(), "{strategy}, step {step}: {ranks:?}");
                assert!(parts.contains(&2) && parts.contains(&3), "{strategy}, step {step}: {ranks:?}");
            }
            for (rank, dead) in [(1, "rank 0 on "), (2, "rank 1 on ")] {
                let log = results::log(&run, rank);
                assert!(log.contains(dead) && log.contains("takes over from rank 0"), "{strategy}: {log}");
            }
            // A reader of the launcher's output reads on.
            let printed = end.stdout;
            for words in ["rank 0 on ", "rank 1 on ", "step 72/72", "checkpoint"] {
                assert!(printed.contains(words), "{strategy}: {words} is not in {printed}");
            }
            let checkpoints = Checkpoint::list(&run.join("checkpoints"));
            assert_eq!(checkpoints.last().map(|found| found.0), Some(72));
            assert!(checkpoints.iter().all(|(_, path)| Checkpoint::open(path).is_ok()), "{strategy}");
            let told = resume(&place, resumed_by, 75);
            assert_eq!((told.step, told.world_size, told.dead.len()), (75, resumed_by, 0), "{strategy}");
        },
    );
}

#[test]
fn requests_reach_the_rank_that_has_taken_over() {
    let place = Place::new();
    let line = format!(
        "--ranks 3 --strategy d-psgd --set sync.min_workers=1 --set train.steps=100000 --set \
        checkpoint.every=100000 {}",
        delayed(3, 10)
    );
    let mut running = start(&place, &line);
    let run = running.run.clone();
    running.wait_for_step(5);
    let ranks = running.ranks();
    let folder = place.path("run/requests");
    Request::Pause.post(&folder).expect("asked");
    let state = place.path("run/state.json");
    running.wait_for("pause", |run| run.is(RunActivity::Paused));
    kill(ranks[0]);
    // Those who are left pause too, and say so themselves.
    let paused_by = |rank: u32| {
        RunState::read(&state).is_ok_and(|state| state.doing == RunActivity::Paused && state.process == rank)
    };
    running.wait_for("a pause without rank 0", |_| paused_by(ranks[1]));
    let saved = Request::Save.post(&folder).expect("asked");
    running.wait_for("a checkpoint", |run| !saved.exists() && !run.saved().is_empty());
    Request::Resume.post(&folder).expect("asked");
    let before = running.step();
    running.wait_for("more steps", |run| run.step() > before + 5);
    Request::Stop.post(&folder).expect("asked");
    let told = running.succeed();
    assert_eq!((told.status.as_str(), told.world_size, told.dead[0].rank), ("interrupted", 2, 0));
    let steps = steps(&run);
    assert_eq!(steps, (1..=told.step).collect::<Vec<_>>());
    assert_eq!(resume(&place, 3, told.step + 2).step, told.step + 2);
}

#[test]
fn too_few_workers_and_a_strategy_that_needs_all_end_the_run_with_a_name() {
    side_by_side(
        [
            (2, "--strategy d-psgd --set sync.min_workers=3"),
            (0, "--strategy d-psgd --set sync.min_workers=3"),
            (0, "--strategy ddp"),
            (0, "--strategy d-psgd"),
        ],
        |(victim, set)| {
            let place = Place::new();
            let mut running = start(&place, &format!("--ranks 3 --set train.steps=100000 {set}"));
            running.wait_for_step(5);
            kill(running.ranks()[victim]);
            let said = running.fail();
            assert!(said.contains(&format!("rank {victim} failed: was killed by signal 9")), "{set}: {said}");
        },
    );
}

#[test]
fn servers_of_their_own_go_on_without_workers_and_the_run_not_without_a_server() {
    side_by_side([("ps-asp", 1), ("ps-ssp", 0)], |(strategy, victim)| {
        let place = Place::new();
        let line = format!(
            "--ranks 3 --servers 2 --strategy {strategy} --set sync.min_workers=2 --set train.steps=100 --set eval.every=20 --set \
            checkpoint.every=10 --set train.ema=0.8 {}",
            delayed(3, 25)
        );
        let mut running = start(&place, &line);
        let run = running.run.clone();
        running.wait_for_step(7);
        let ranks = running.ranks();
        assert_eq!(ranks.len(), 5, "{strategy}: three workers and two servers");
        kill(ranks[victim]);
        let told = running.succeed();
        assert_eq!((told.step, told.world_size, told.servers), (100, 2, 2), "{strategy}");
        assert_eq!(dead(&told), [victim], "{strategy}");
        let left: Vec<usize> = (0..5).filter(|rank| *rank != victim).collect();
        assert_eq!(accounts(&told), left, "{strategy}");
        assert_eq!(steps(&run), (1..=100).collect::<Vec<_>>(), "{strategy}: every step is told once");
        // What was saved by two workers goes on by three.
        let line = "train --resume --out run --steps 100000";
        let mut running = Running::start(&place, line);
        running.wait_for_step(125);
        kill(running.ranks()[3]);
        let said = running.fail();
        assert!(said.contains("rank 3 failed: was killed by signal 9"), "{strategy}: {said}");
        let saved = results::saved(&run).pop().unwrap_or(0);
        assert!(saved >= 110, "{strategy}: {saved}");
        let line = format!("train --resume --out run --steps {}", saved + 3);
        place.succeed(&line);
        assert_eq!(summary(&run).step, saved + 3, "{strategy}");
    });
}

#[test]
fn who_cannot_go_on_says_so_before_anything_begins() {
    let place = Place::new();
    for (line, problem) in [
        ("--ranks 3 --strategy ps-asp --set sync.min_workers=2", "sync.servers above 0"),
        ("--ranks 3 --strategy ps-bsp --servers 1 --set sync.min_workers=2", "cannot go on without a worker"),
        ("--ranks 3 --strategy ddp --set sync.min_workers=2", "cannot go on without a worker"),
        ("--ranks 3 --strategy d-psgd --set sync.min_workers=4", "above train.ranks"),
        ("--ranks 3 --strategy d-psgd --servers 1", "has no servers"),
    ] {
        let said = place.fail(&format!("train tiny {line}"));
        assert!(said.contains(problem), "{line}: {said}");
    }
}
