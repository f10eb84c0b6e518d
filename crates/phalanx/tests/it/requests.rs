//! Requests of users to a running program: pauses, checkpoints and stops, under every strategy, from another process.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use phalanx_checkpoint::Checkpoint;
use phalanx_collectives::WorldConfig;
use phalanx_run::StopFlag;
use phalanx_run::{Doing, Request, RunFolder, RunState, Summary};
use phalanx_trainer::engine::{Silent, World, train};

/// A model whose steps take milliseconds.
const SMALL: &str = "train tiny --set model.kind=mlp --set model.mlp_width=24 --set model.mlp_depth=1 --set model.image_size=8 \
    --set train.global_batch=12 --set train.threads=1 --set log.every=1 --set data.images=60 --set data.test_images=12 \
    --set sample.rows=1 --set sample.columns=1 --set eval.batch=4 --set optim.lr=0.01 --set checkpoint.every=1000";

/// Makes every step of rank 0 long enough to ask for something in.
const SLOW: &str = "--set chaos.delay=rank=0,ms=25";

fn phalanx(place: &Path, line: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_phalanx"));
    command.args(line.split_whitespace()).current_dir(place);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn said(output: &Output) -> String {
    format!("{}\n{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// Runs a command that must succeed; what it said.
fn succeed(place: &Path, line: &str) -> String {
    let output = phalanx(place, line).output().expect("phalanx runs");
    assert!(output.status.success(), "{line}: {:?}\n{}", output.status, said(&output));
    said(&output)
}

/// A training in the background.
struct Running {
    place: PathBuf,
    run: PathBuf,
    child: Option<Child>,
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Running {
    fn start(place: &Path, name: &str, line: &str) -> Self {
        let child =
            phalanx(place, &format!("{SMALL} {SLOW} {line} --out {name}")).spawn().expect("phalanx runs");
        Self { place: place.to_owned(), run: place.join(name), child: Some(child) }
    }

    fn ask(&self, request: &str) {
        let line = format!("watch {} --ask {request}", self.run.display());
        let said = succeed(&self.place, &line);
        assert!(said.contains(&format!("the run has heard: {request}")), "{said}");
    }

    fn state(&self) -> Option<RunState> {
        RunState::read(&self.run.join("state.json")).ok()
    }

    fn is(&self, doing: Doing) -> bool {
        self.state().is_some_and(|state| state.doing == doing)
    }

    fn wait_for(&mut self, what: &str, holds: impl Fn(&Self) -> bool) {
        let begun = Instant::now();
        while !holds(self) {
            let child = self.child.as_mut().expect("it runs");
            assert_eq!(child.try_wait().expect("it is there"), None, "the run ended before {what}");
            assert!(begun.elapsed() < Duration::from_secs(120), "no {what} within two minutes");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Returns its exit code, and its output.
    fn end(mut self) -> (Option<i32>, String) {
        let output = self.child.take().expect("it runs").wait_with_output().expect("phalanx ends");
        (output.status.code(), said(&output))
    }
}

/// The lines of a run's metrics, of which only losses do not depend on the machine.
fn losses(run: &Path) -> Vec<(u64, f64)> {
    let lines = std::fs::read_to_string(run.join("metrics.jsonl")).unwrap_or_default();
    let lines = lines.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    lines.filter_map(|line| Some((line["step"].as_u64()?, line["loss"].as_f64()?))).collect()
}

/// All weights of a checkpoint, as bits.
fn weights(run: &Path, step: u64) -> Vec<(String, Vec<u32>)> {
    let folder = run.join(format!("checkpoints/step-{step:08}"));
    let checkpoint = Checkpoint::open(&folder).expect("a complete checkpoint");
    let reader = checkpoint.reader();
    let read = |name: &str| {
        let whole = reader.read("model", name).expect("reads").flatten_all().expect("flat");
        whole.to_vec1::<f32>().expect("f32").into_iter().map(f32::to_bits).collect()
    };
    reader.tensors("model").map(|(name, _)| (name.to_owned(), read(name))).collect()
}

#[test]
fn a_paused_run_takes_no_step_saves_when_asked_and_goes_on_to_the_same_bits() {
    for strategy in [
        "--ranks 1",
        "--ranks 2",
        "--ranks 2 --strategy dp",
        "--ranks 3 --strategy fsdp",
        "--ranks 2 --strategy local-sgd",
        "--ranks 2 --strategy ps-bsp --servers 1",
    ] {
        let place = tempfile::tempdir().expect("a folder");
        let line = format!("{strategy} --steps 60");
        succeed(place.path(), &format!("{SMALL} {line} --out whole"));
        let mut running = Running::start(place.path(), "paused", &line);
        running.wait_for("step 5", |running| losses(&running.run).len() >= 5);
        running.ask("pause");
        running.wait_for("the pause", |running| running.is(Doing::Paused));
        let step = running.state().expect("there is one").step;
        assert!((5..60).contains(&step), "{strategy}: {step}");
        assert_eq!(losses(&running.run).len() as u64, step, "{strategy}: all that was done is told");
        std::thread::sleep(Duration::from_millis(700));
        assert!(running.is(Doing::Paused));
        assert_eq!(losses(&running.run).len() as u64, step, "{strategy}: no step is taken");
        let checkpoint = running.run.join(format!("checkpoints/step-{step:08}"));
        assert!(!checkpoint.exists(), "{strategy}: no request asked for it");
        running.ask("save");
        running.wait_for("the checkpoint", |_| Checkpoint::open(&checkpoint).is_ok());
        assert!(running.is(Doing::Paused), "{strategy}: it still is");
        running.ask("resume");
        running.wait_for("more steps", |running| running.is(Doing::Training));
        let run = running.run.clone();
        let (code, said) = running.end();
        assert_eq!(code, Some(0), "{strategy}: {said}");
        assert!(said.contains(&format!("paused after step {step}")), "{strategy}: {said}");
        let whole = place.path().join("whole");
        assert_eq!(losses(&run), losses(&whole), "{strategy}");
        assert_eq!(weights(&run, 60), weights(&whole, 60), "{strategy}");
        assert_ne!(weights(&run, step), weights(&run, 60), "{strategy}");
        assert_eq!(RunState::read(&run.join("state.json")).expect("reads").doing, Doing::Ended);
    }
}

#[test]
fn ranks_that_are_apart_pause_and_save_too() {
    let place = tempfile::tempdir().expect("a folder");
    let line = "--ranks 2 --strategy ps-ssp --servers 1 --set sync.staleness=3 --steps 100000";
    let mut running = Running::start(place.path(), "run", line);
    running.wait_for("step 5", |running| losses(&running.run).len() >= 5);
    running.ask("save");
    let saved = |running: &Running| Checkpoint::list(&running.run.join("checkpoints")).len();
    running.wait_for("a checkpoint", |running| saved(running) == 1);
    running.ask("pause");
    running.wait_for("the pause", |running| running.is(Doing::Paused));
    let done = losses(&running.run).len();
    std::thread::sleep(Duration::from_millis(600));
    assert_eq!(losses(&running.run).len(), done);
    running.ask("resume");
    running.wait_for("more steps", |running| losses(&running.run).len() > done + 3);
    running.ask("stop");
    let run = running.run.clone();
    let (code, said) = running.end();
    assert_eq!(code, Some(0), "{said}");
    let summary = Summary::read(&run.join("summary.json")).expect("a summary");
    assert_eq!(summary.status, "interrupted");
    assert!(Checkpoint::open(&run.join(format!("checkpoints/step-{:08}", summary.step))).is_ok());
}

/// Where nothing bounds how far ranks are apart, one that is ahead would wait for the slowest to come as far.
#[test]
fn ranks_that_may_be_any_number_of_steps_apart_are_not_paused() {
    let place = tempfile::tempdir().expect("a folder");
    let mut running = Running::start(place.path(), "run", "--ranks 2 --strategy ad-psgd --steps 300");
    running.wait_for("step 5", |running| losses(&running.run).len() >= 5);
    for request in ["pause", "save"] {
        let output =
            phalanx(place.path(), &format!("watch run --ask {request}")).output().expect("phalanx runs");
        assert_eq!(output.status.code(), Some(1), "{}", said(&output));
        assert!(said(&output).contains("may be any number of steps apart"), "{}", said(&output));
    }
    // One who writes the request past that is told by the run.
    Request::Pause.post(&running.run.join("requests")).expect("writes");
    let (code, said) = running.end();
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("warning: `pause`") && !said.contains("paused after"), "{said}");
}

#[test]
fn no_rank_waits_in_an_operation_while_all_are_paused() {
    for (strategy, servers) in [("fsdp", 0), ("ps-ssp", 1), ("d-psgd", 0)] {
        let place = tempfile::tempdir().expect("a folder");
        let phalanx = phalanx::program();
        let words: Vec<&str> = SMALL.split_whitespace().skip(2).collect();
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
            RunFolder::create(Some(&place.path().join("run")), place.path(), "run").expect("a new folder");
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().expect("bound").port();
        drop(listener);
        let stop = StopFlag::default();
        let rank = |rank: usize| {
            let (phalanx, resolved, folder, stop) = (&phalanx, &resolved, &folder, &stop);
            move || {
                // Both are shorter than the pause.
                let mut config = WorldConfig::local(rank, 3, port);
                config.timeouts.heartbeat_timeout = Duration::from_secs(3);
                let world = World::new(config);
                let task = phalanx.task_of(&resolved.config).expect("one of its own");
                train(task, folder, resolved, &world, stop, Box::new(Silent))
            }
        };
        let wait_for = |what: &str, doing: Doing, step: u64| {
            let begun = Instant::now();
            let state = || RunState::read(&folder.state()).ok();
            while !state().is_some_and(|state| state.doing == doing && state.step >= step) {
                assert!(begun.elapsed() < Duration::from_secs(60), "{strategy}: no {what}: {:?}", state());
                std::thread::sleep(Duration::from_millis(10));
            }
            state().map_or(0, |state| state.step)
        };
        std::thread::scope(|scope| {
            let ranks: Vec<_> = (0..3).map(|number| scope.spawn(rank(number))).collect();
            wait_for("step 3", Doing::Training, 3);
            Request::Pause.post(&folder.requests()).expect("writes");
            let step = wait_for("pause", Doing::Paused, 3);
            std::thread::sleep(Duration::from_secs(5));
            assert_eq!(wait_for("pause", Doing::Paused, 3), step);
            Request::Resume.post(&folder.requests()).expect("writes");
            wait_for("more steps", Doing::Training, step + 3);
            stop.raise();
            for rank in ranks {
                rank.join().expect("no panic").unwrap_or_else(|error| panic!("{strategy}: {error}"));
            }
        });
        let summary = Summary::read(&folder.summary()).expect("a summary");
        assert_eq!(summary.status, "interrupted", "{strategy}");
    }
}

#[test]
fn a_paused_run_can_be_stopped_and_a_late_request_fails() {
    for (ranks, signal) in [(1, false), (2, false), (2, true)] {
        let place = tempfile::tempdir().expect("a folder");
        let mut running = Running::start(place.path(), "run", &format!("--ranks {ranks} --steps 100000"));
        running.wait_for("step 3", |running| losses(&running.run).len() >= 3);
        running.ask("pause");
        running.wait_for("the pause", |running| running.is(Doing::Paused));
        let step = running.state().expect("there is one").step;
        match signal {
            true => {
                let process = running.child.as_ref().expect("it runs").id().to_string();
                assert!(Command::new("kill").args(["-INT", &process]).status().expect("kill runs").success());
            }
            false => running.ask("stop"),
        }
        let run = running.run.clone();
        let (code, said) = running.end();
        assert_eq!(code, Some(0), "{said}");
        let summary = Summary::read(&run.join("summary.json")).expect("a summary");
        assert_eq!((summary.status.as_str(), summary.step), ("interrupted", step), "{said}");
        assert!(Checkpoint::open(&run.join(format!("checkpoints/step-{step:08}"))).is_ok());

        let late = phalanx(place.path(), "watch run --ask save").output().expect("phalanx runs");
        assert_eq!(late.status.code(), Some(1));
        assert!(
            self::said(&late).contains("`save` is not possible: the run is over"),
            "{}",
            self::said(&late)
        );
        let shown = succeed(place.path(), "watch run");
        let total = "step      1/100000  loss ";
        assert!(
            shown.contains(total) && shown.contains("interrupted") && shown.contains("images/s"),
            "{shown}"
        );
        assert_eq!(
            shown.lines().filter(|line| line.contains("/100000  loss")).count() as u64,
            step,
            "{shown}"
        );
    }
}

#[test]
fn a_run_that_fails_and_a_folder_without_one_are_told() {
    let place = tempfile::tempdir().expect("a folder");
    let none = phalanx(place.path(), "watch nothing").output().expect("phalanx runs");
    assert_eq!(none.status.code(), Some(1));
    assert!(said(&none).contains("nothing holds no run"), "{}", said(&none));

    let mut running = Running::start(place.path(), "run", "--ranks 2 --steps 100000");
    running.wait_for("step 3", |running| losses(&running.run).len() >= 3);
    let watching = phalanx(place.path(), "watch run").spawn().expect("phalanx runs");
    let mut killed = running.child.take().expect("it runs");
    killed.kill().expect("it lives");
    killed.wait().expect("ends");
    // Its ranks end with it, and leave no word, unless one misses another before.
    let seen = watching.wait_with_output().expect("ends");
    assert_eq!(seen.status.code(), Some(1), "{}", said(&seen));
    let told = ["the run's process is gone", "the run has failed"];
    assert!(told.iter().any(|told| said(&seen).contains(told)), "{}", said(&seen));
}

#[test]
fn without_a_terminal_there_are_plain_lines() {
    let place = tempfile::tempdir().expect("a folder");
    let said = succeed(place.path(), &format!("{SMALL} --tui --ranks 2 --steps 4 --out run"));
    assert!(said.contains("step 4/4  loss ") && said.contains("finished"), "{said}");
    assert!(!said.contains('\u{1b}'), "{said:?}");
}
