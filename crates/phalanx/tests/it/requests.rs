//! Requests of users to a running program: pauses, checkpoints and stops, under every strategy, from another process.

use std::time::Duration;

use phalanx_checkpoint::Checkpoint;
use phalanx_collectives::WorldConfig;
use phalanx_run::StopFlag;
use phalanx_run::{Request, RunActivity, RunFolder, RunState};
use phalanx_trainer::engine::{NoopObserver, World, train};

use crate::harness::place::free_port;
use crate::harness::processes::wait_until;
use crate::harness::results::{checkpoint, contents, losses, summary};
use crate::harness::{MLP, Place, Running, both, side_by_side};

/// A training of milliseconds a step.
fn small() -> String {
    format!("train tiny {MLP} --set optim.lr=0.01 --set checkpoint.every=1000")
}

/// Makes every step of rank 0 long enough to ask for something in.
const SLOW: &str = "--set chaos.delay=rank=0,ms=25";

/// Starts a training in the background and waits until it has done some steps.
fn begin(place: &Place, line: &str, step: u64) -> Running {
    let mut running = Running::start(place, &format!("{} {SLOW} {line} --out run", small()));
    running.wait_for_step(step);
    running
}

/// Sends a request to the run by the program.
fn ask(place: &Place, request: &str) {
    let said = place.succeed_with_errors(&format!("watch run --ask {request}"));
    assert!(said.contains(&format!("the run took the request: {request}")), "{said}");
}

fn wait_for_pause(running: &mut Running) -> u64 {
    running.wait_for("pause", |running| running.is(RunActivity::Paused));
    running.state().expect("there is one").step
}

#[test]
fn a_paused_run_takes_no_step_saves_when_asked_and_goes_on_to_the_same_bits() {
    side_by_side(
        [
            "--ranks 1",
            "--ranks 2",
            "--ranks 2 --strategy dp",
            "--ranks 3 --strategy fsdp",
            "--ranks 2 --strategy local-sgd",
            "--ranks 2 --strategy ps-bsp --servers 1",
        ],
        |strategy| {
            let place = Place::new();
            let line = format!("{strategy} --steps 60");
            place.succeed(&format!("{} {line} --out whole", small()));
            let mut running = begin(&place, &line, 5);
            let run = running.run.clone();
            ask(&place, "pause");
            let step = wait_for_pause(&mut running);
            assert!((5..60).contains(&step), "{strategy}: {step}");
            assert_eq!(losses(&run).len() as u64, step, "{strategy}: all that was done is told");
            std::thread::sleep(Duration::from_millis(700));
            assert!(running.is(RunActivity::Paused));
            assert_eq!(losses(&run).len() as u64, step, "{strategy}: no step is taken");
            let paused = checkpoint(&run, step);
            assert!(!paused.exists(), "{strategy}: no checkpoint was requested");
            ask(&place, "save");
            running.wait_for("checkpoint", |_| Checkpoint::open(&paused).is_ok());
            assert!(running.is(RunActivity::Paused), "{strategy}: it still is");
            ask(&place, "resume");
            running.wait_for("more steps", |running| running.is(RunActivity::Training));
            let end = running.end();
            assert_eq!(end.code, Some(0), "{strategy}: {end:?}");
            assert!(end.both().contains(&format!("paused after step {step}")), "{strategy}: {end:?}");
            let whole = place.path("whole");
            assert_eq!(losses(&run), losses(&whole), "{strategy}");
            let weights = |folder: std::path::PathBuf| {
                let mut all = contents(&folder);
                all.retain(|name, _| name.starts_with("model "));
                all
            };
            let last = weights(checkpoint(&run, 60));
            assert!(!last.is_empty() && last == weights(checkpoint(&whole, 60)), "{strategy}");
            assert!(weights(paused) != last, "{strategy}");
            assert_eq!(RunState::read(&run.join("state.json")).expect("reads").doing, RunActivity::Ended);
        },
    );
}

#[test]
fn ranks_that_are_apart_pause_and_save_too() {
    let place = Place::new();
    let line = "--ranks 2 --strategy ps-ssp --servers 1 --set sync.staleness=3 --steps 100000";
    let mut running = begin(&place, line, 5);
    ask(&place, "save");
    running.wait_for("checkpoint", |running| running.saved().len() == 1);
    ask(&place, "pause");
    wait_for_pause(&mut running);
    let run = running.run.clone();
    let done = losses(&run).len();
    std::thread::sleep(Duration::from_millis(600));
    assert_eq!(losses(&run).len(), done);
    ask(&place, "resume");
    running.wait_for("more steps", |running| losses(&running.run).len() > done + 3);
    ask(&place, "stop");
    let summary = running.succeed();
    assert_eq!(summary.status, "interrupted");
    assert!(Checkpoint::open(&checkpoint(&run, summary.step)).is_ok());
}

/// Where nothing bounds how far ranks are apart, one that is ahead would wait for the slowest to come as far.
#[test]
fn ranks_that_may_be_any_number_of_steps_apart_are_not_paused() {
    let place = Place::new();
    let running = begin(&place, "--ranks 2 --strategy ad-psgd --steps 300", 5);
    for request in ["pause", "save"] {
        let output = place.output(&format!("watch run --ask {request}"));
        assert_eq!(output.status.code(), Some(1), "{}", both(&output));
        assert!(both(&output).contains("may be any number of steps apart"), "{}", both(&output));
    }
    // The run itself refuses a request that is written past that.
    Request::Pause.post(&running.run.join("requests")).expect("writes");
    let end = running.end();
    assert_eq!(end.code, Some(0), "{end:?}");
    let said = end.both();
    assert!(said.contains("warning: `pause`") && !said.contains("paused after"), "{said}");
}

#[test]
fn no_rank_waits_in_an_operation_while_all_are_paused() {
    side_by_side([("fsdp", 0), ("ps-ssp", 1), ("d-psgd", 0)], |(strategy, servers)| {
        let place = Place::new();
        let phalanx = phalanx::program();
        let small = small();
        let words: Vec<&str> = small.split_whitespace().skip(2).collect();
        let mut sets: Vec<String> = words
            .chunks(2)
            .map(|set| set[1].to_owned())
            .chain(["chaos.delay=rank=0,ms=20".to_owned()])
            .collect();
        sets.extend([format!("train.strategy={strategy}"), format!("sync.servers={servers}")]);
        sets.extend([format!("train.ranks={}", 3 - servers), "train.steps=2000".to_owned()]);
        sets.push("comm.timeout=3".to_owned());
        let resolved = phalanx.resolve("tiny", &sets).expect("composes");
        resolved.validate().expect("can be");
        let folder =
            RunFolder::create(Some(&place.path("run")), place.folder(), "run").expect("a new folder");
        let port = free_port();
        let stop = StopFlag::default();
        let rank = |rank: usize| {
            let (phalanx, resolved, folder, stop) = (&phalanx, &resolved, &folder, &stop);
            move || {
                // Both are shorter than the pause.
                let mut config = WorldConfig::local(rank, 3, port);
                config.timeouts.heartbeat_timeout = Duration::from_secs(3);
                let world = World::new(config);
                let task = phalanx.task_of(&resolved.config).expect("one of its own");
                train(task, folder, resolved, &world, stop, Box::new(NoopObserver))
            }
        };
        let wait_for = |what: &str, doing: RunActivity, step: u64| {
            let state = || RunState::read(&folder.state()).ok();
            let report = || format!("{strategy}: {:?}", state());
            wait_until(what, report, || {
                state().is_some_and(|state| state.doing == doing && state.step >= step)
            });
            state().map_or(0, |state| state.step)
        };
        std::thread::scope(|scope| {
            let ranks: Vec<_> = (0..3).map(|number| scope.spawn(rank(number))).collect();
            wait_for("step 3", RunActivity::Training, 3);
            Request::Pause.post(&folder.requests()).expect("writes");
            let step = wait_for("pause", RunActivity::Paused, 3);
            std::thread::sleep(Duration::from_secs(5));
            assert_eq!(wait_for("pause", RunActivity::Paused, 3), step);
            Request::Resume.post(&folder.requests()).expect("writes");
            wait_for("more steps", RunActivity::Training, step + 3);
            stop.raise();
            for rank in ranks {
                rank.join().expect("no panic").unwrap_or_else(|error| panic!("{strategy}: {error}"));
            }
        });
        assert_eq!(summary(folder.path()).status, "interrupted", "{strategy}");
    });
}

#[test]
fn a_paused_run_can_be_stopped_and_later_requests_are_refused() {
    side_by_side([(1, false), (2, false), (2, true)], |(ranks, signal)| {
        let place = Place::new();
        let mut running = begin(&place, &format!("--ranks {ranks} --steps 100000"), 3);
        ask(&place, "pause");
        let step = wait_for_pause(&mut running);
        match signal {
            true => running.signal("-INT"),
            false => ask(&place, "stop"),
        }
        let run = running.run.clone();
        let summary = running.succeed();
        assert_eq!((summary.status.as_str(), summary.step), ("interrupted", step));
        assert!(Checkpoint::open(&checkpoint(&run, step)).is_ok());

        let late = place.output("watch run --ask save");
        assert_eq!(late.status.code(), Some(1));
        assert!(both(&late).contains("`save` is not possible: the run is over"), "{}", both(&late));
        let shown = place.succeed_with_errors("watch run");
        for words in ["step      1/100000  accuracy ", "interrupted", "samples/s"] {
            assert!(shown.contains(words), "{words:?} is not in {shown}");
        }
        let lines = shown.lines().filter(|line| line.contains("/100000  accuracy")).count();
        assert_eq!(lines as u64, step, "{shown}");
    });
}

#[test]
fn a_run_that_fails_and_a_folder_without_one_are_told() {
    let place = Place::new();
    let none = place.output("watch nothing");
    assert_eq!(none.status.code(), Some(1));
    assert!(both(&none).contains("nothing holds no run"), "{}", both(&none));

    let mut running = begin(&place, "--ranks 2 --steps 100000", 3);
    let watching = Running::spawn(place.path("watching"), place.command("watch run"));
    running.launcher().kill().expect("it lives");
    running.end();
    // Its ranks end with it, and leave no word, unless one misses another before.
    let seen = watching.end();
    assert_eq!(seen.code, Some(1), "{seen:?}");
    let told = ["the run's process is gone", "the run has failed"];
    assert!(told.iter().any(|told| seen.both().contains(told)), "{seen:?}");
}

#[test]
fn without_a_terminal_there_are_plain_lines() {
    let place = Place::new();
    let said = place.succeed_with_errors(&format!("{} --tui --ranks 2 --steps 4 --out run", small()));
    assert!(said.contains("step 4/4  accuracy ") && said.contains("finished"), "{said}");
    assert!(!said.contains('\u{1b}'), "{said:?}");
}
