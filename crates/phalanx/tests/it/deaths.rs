//! Workers that are killed, and runs that go on without them: who is named, who takes over, what is saved, and what ends a run.

use crate::victims;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use phalanx_checkpoint::Checkpoint;
use phalanx_run::{Doing, Request, RunState, Summary, read_metrics};
use victims::{kill, ranks_of};

/// A run of the program, with its launcher.
struct Running {
    place: PathBuf,
    launcher: Child,
}

const SMALL: &str = "--set train.global_batch=12 --set train.threads=1 --set log.every=1 --set data.images=60 --set data.test_images=12 \
    --set sample.rows=1 --set sample.columns=1 --set eval.batch=4";

fn phalanx(place: &Path, line: &str) -> Command {
    let mut program = Command::new(env!("CARGO_BIN_EXE_phalanx"));
    program.args(line.split_whitespace()).current_dir(place).stdout(Stdio::null()).stderr(Stdio::piped());
    program
}

impl Running {
    fn start(place: &Path, line: &str) -> Self {
        let launcher = phalanx(place, &format!("train tiny {SMALL} {MLP} {line} --out run"));
        Self { place: place.join("run"), launcher: { launcher }.spawn().expect("phalanx runs") }
    }

    /// Starts a run whose standard output goes to the file `printed`.
    fn start_telling(place: &Path, line: &str) -> Self {
        let mut launcher = phalanx(place, &format!("train tiny {SMALL} {MLP} {line} --out run"));
        launcher.stdout(std::fs::File::create(place.join("printed")).expect("a file"));
        Self { place: place.join("run"), launcher: launcher.spawn().expect("phalanx runs") }
    }

    /// The processes that were started as ranks, in order.
    fn ranks(&self) -> Vec<u32> {
        ranks_of(&self.launcher)
    }

    /// The last step that the run has told of.
    fn step(&self) -> u64 {
        let lines = read_metrics(&self.place.join("metrics.jsonl")).unwrap_or_default();
        lines.last().map_or(0, phalanx_run::Line::step)
    }

    fn wait_for(&mut self, what: &str, holds: impl Fn(&Self) -> bool) {
        let begun = Instant::now();
        while !holds(self) {
            let ended = self.launcher.try_wait().expect("it is there");
            assert!(ended.is_none(), "the run ended before {what}: {ended:?}");
            assert!(begun.elapsed() < Duration::from_secs(240), "no {what} within four minutes");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Returns true if it ended well, and its output.
    fn end(self) -> (bool, String) {
        let output = self.launcher.wait_with_output().expect("phalanx ends");
        (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
    }
}

fn summary(place: &Path) -> Summary {
    Summary::read(&place.join("run/summary.json")).expect("a summary")
}

/// A model whose steps take milliseconds.
const MLP: &str = "--set model.kind=mlp --set model.mlp_width=24 --set model.mlp_depth=1 --set model.image_size=8 --set \
    optim.kind=sgd --set optim.lr=0.02";

#[test]
fn gossip_goes_on_without_those_who_die() {
    for (strategy, further) in [
        ("d-psgd", "--set train.ema=0.8"),
        ("sgp", "--set sync.topology=exponential"),
        ("ad-psgd", "--set sync.topology=complete --set train.ema=0.8"),
    ] {
        let place = tempfile::tempdir().expect("a folder");
        let line = format!(
            "--ranks 4 --strategy {strategy} --set sync.min_workers=2 --set train.steps=120 --set eval.every=25 --set \
            checkpoint.every=10 --set chaos.delay=rank=0,ms=25;rank=1,ms=25;rank=2,ms=25;rank=3,ms=25 {further}"
        );
        let mut running = Running::start(place.path(), &line);
        running.wait_for("step 7", |run| run.step() >= 7);
        let ranks = running.ranks();
        assert_eq!(ranks.len(), 4, "{strategy}");
        kill(ranks[2]);
        let before = running.step();
        running.wait_for("more steps", |run| run.step() >= before + 20);
        kill(ranks[1]);
        let (ended_well, said) = running.end();
        assert!(ended_well, "{strategy}: {said}");
        let told = summary(place.path());
        assert_eq!((told.step, told.world_size), (120, 2), "{strategy}");
        assert_eq!(told.dead.iter().map(|dead| dead.rank).collect::<Vec<_>>(), [2, 1], "{strategy}");
        for dead in &told.dead {
            assert!(dead.cause.as_ref().is_some_and(|cause| cause.contains("signal 9")), "{dead:?}");
            assert!(!dead.host.is_empty() && (8..=120).contains(&dead.from_step), "{dead:?}");
        }
        assert_eq!(told.ranks.iter().map(|rank| rank.rank).collect::<Vec<_>>(), [0, 3], "{strategy}");
        let lines = read_metrics(&place.path().join("run/metrics.jsonl")).expect("lines");
        let steps: Vec<u64> = lines.iter().map(phalanx_run::Line::step).collect();
        assert_eq!(steps, (1..=120).collect::<Vec<_>>(), "{strategy}: every step is told once");
        assert_eq!(lines[119].number("workers"), Some(2.0), "{strategy}");
        assert!(lines.iter().all(|line| line.number("loss").is_some_and(f64::is_finite)), "{strategy}");
        let mean = |lines: &[phalanx_run::Line]| {
            lines.iter().filter_map(|line| line.number("loss")).sum::<f64>() / lines.len() as f64
        };
        // Two passes over the samples at either end: steps of twelve samples differ by more than a few of them learn.
        let (first, last) = (mean(&lines[..10]), mean(&lines[110..]));
        assert!(last < 0.9 * first, "{strategy}: {first}, then {last}");
        let log = std::fs::read_to_string(place.path().join("run/logs/rank-0.log")).expect("a log");
        assert!(log.contains("rank 2 on ") && log.contains("rank 1 on "), "{strategy}: {log}");
        // What was saved by two goes on by four, and by two.
        assert_eq!(
            Checkpoint::list(&place.path().join("run/checkpoints")).last().map(|found| found.0),
            Some(120)
        );
        for (ranks, steps) in [(4, 123), (2, 126)] {
            let line = format!(
                "train --resume --out run --steps {steps} --set train.ranks={ranks} --set chaos.delay="
            );
            let output = phalanx(place.path(), &line).output().expect("phalanx runs");
            assert!(output.status.success(), "{strategy}: {}", String::from_utf8_lossy(&output.stderr));
            let told = summary(place.path());
            assert_eq!((told.step, told.world_size, told.dead.len()), (steps, ranks, 0), "{strategy}");
        }
    }
}

/// The steps of all lines of metrics, in the order of the file.
fn steps_of(place: &Path) -> Vec<u64> {
    let lines = read_metrics(&place.join("run/metrics.jsonl")).expect("lines");
    lines.iter().map(phalanx_run::Line::step).collect()
}

/// Resumes a run up to a step, by the given number of ranks.
fn resume(place: &Path, ranks: usize, steps: u64) -> Summary {
    let line =
        format!("train --resume --out run --steps {steps} --set train.ranks={ranks} --set chaos.delay=");
    let output = phalanx(place, &line).output().expect("phalanx runs");
    assert!(output.status.success(), "{ranks} ranks: {}", String::from_utf8_lossy(&output.stderr));
    summary(place)
}

#[test]
fn gossip_continues_without_rank_0_and_its_successor() {
    for (strategy, further, resumed_by) in [
        ("d-psgd", "--set train.ema=0.8", 2),
        ("sgp", "--set sync.topology=exponential --set log.every=3", 4),
        ("ad-psgd", "--set sync.topology=complete", 3),
    ] {
        let place = tempfile::tempdir().expect("a folder");
        let line = format!(
            "--ranks 4 --strategy {strategy} --set sync.min_workers=2 --set train.steps=72 --set eval.every=24 --set \
            checkpoint.every=8 --set chaos.delay=rank=0,ms=15;rank=1,ms=15;rank=2,ms=15;rank=3,ms=15 {further}"
        );
        let mut running = Running::start_telling(place.path(), &line);
        running.wait_for("step 7", |run| run.step() >= 7);
        let ranks = running.ranks();
        kill(ranks[0]);
        let before = running.step();
        running.wait_for("more steps", |run| run.step() >= before + 9);
        kill(ranks[1]);
        let (ended_well, said) = running.end();
        assert!(ended_well, "{strategy}: {said}");
        let told = summary(place.path());
        assert_eq!((told.step, told.world_size), (72, 2), "{strategy}");
        assert_eq!(told.dead.iter().map(|dead| dead.rank).collect::<Vec<_>>(), [0, 1], "{strategy}");
        for dead in &told.dead {
            assert!(dead.cause.as_ref().is_some_and(|cause| cause.contains("signal 9")), "{dead:?}");
            assert!(!dead.host.is_empty() && (8..=73).contains(&dead.from_step), "{dead:?}");
        }
        assert_eq!(told.ranks.iter().map(|rank| rank.rank).collect::<Vec<_>>(), [2, 3], "{strategy}");
        let every = if further.contains("log.every") { 3 } else { 1 };
        let due: Vec<u64> = (1..=72).filter(|step| *step == 1 || step % every == 0).collect();
        assert_eq!(steps_of(place.path()), due, "{strategy}: every step is told once");
        let lines = read_metrics(&place.path().join("run/metrics.jsonl")).expect("lines");
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
        let by_rank = read_metrics(&place.path().join("run/metrics-by-rank.jsonl")).expect("lines");
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
            let log = std::fs::read_to_string(place.path().join(format!("run/logs/rank-{rank}.log")));
            let log = log.expect("a log");
            assert!(log.contains(dead) && log.contains("takes over from rank 0"), "{strategy}: {log}");
        }
        // A reader of the launcher's output reads on.
        let printed = std::fs::read_to_string(place.path().join("printed")).expect("it printed");
        for words in ["rank 0 on ", "rank 1 on ", "step 72/72", "checkpoint"] {
            assert!(printed.contains(words), "{strategy}: {words} is not in {printed}");
        }
        let checkpoints = Checkpoint::list(&place.path().join("run/checkpoints"));
        assert_eq!(checkpoints.last().map(|found| found.0), Some(72));
        assert!(checkpoints.iter().all(|(_, path)| Checkpoint::open(path).is_ok()), "{strategy}");
        let told = resume(place.path(), resumed_by, 75);
        assert_eq!((told.step, told.world_size, told.dead.len()), (75, resumed_by, 0), "{strategy}");
    }
}

#[test]
fn requests_reach_the_rank_that_has_taken_over() {
    let place = tempfile::tempdir().expect("a folder");
    let line = "--ranks 3 --strategy d-psgd --set sync.min_workers=1 --set train.steps=100000 --set \
        checkpoint.every=100000 --set chaos.delay=rank=0,ms=10;rank=1,ms=10;rank=2,ms=10";
    let mut running = Running::start(place.path(), line);
    running.wait_for("step 5", |run| run.step() >= 5);
    let ranks = running.ranks();
    let folder = place.path().join("run/requests");
    Request::Pause.post(&folder).expect("asked");
    let state = place.path().join("run/state.json");
    let doing = |doing: Doing| RunState::read(&state).is_ok_and(|state| state.doing == doing);
    running.wait_for("a pause", |_| doing(Doing::Paused));
    kill(ranks[0]);
    // Those who are left pause too, and say so themselves.
    let paused_by = |rank: u32| {
        RunState::read(&state).is_ok_and(|state| state.doing == Doing::Paused && state.process == rank)
    };
    running.wait_for("a pause without rank 0", |_| paused_by(ranks[1]));
    let saved = Request::Save.post(&folder).expect("asked");
    running.wait_for("a checkpoint", |run| {
        !saved.exists() && !Checkpoint::list(&run.place.join("checkpoints")).is_empty()
    });
    Request::Resume.post(&folder).expect("asked");
    let before = running.step();
    running.wait_for("more steps", |run| run.step() > before + 5);
    Request::Stop.post(&folder).expect("asked");
    let (ended_well, said) = running.end();
    assert!(ended_well, "{said}");
    let told = summary(place.path());
    assert_eq!((told.status.as_str(), told.world_size, told.dead[0].rank), ("interrupted", 2, 0));
    let steps = steps_of(place.path());
    assert_eq!(steps, (1..=told.step).collect::<Vec<_>>());
    assert_eq!(resume(place.path(), 3, told.step + 2).step, told.step + 2);
}

#[test]
fn too_few_workers_and_a_strategy_that_needs_all_end_the_run_with_a_name() {
    for (victim, set) in [
        (2, "--strategy d-psgd --set sync.min_workers=3"),
        (0, "--strategy d-psgd --set sync.min_workers=3"),
        (0, "--strategy ddp"),
        (0, "--strategy d-psgd"),
    ] {
        let place = tempfile::tempdir().expect("a folder");
        let mut running = Running::start(place.path(), &format!("--ranks 3 --set train.steps=100000 {set}"));
        running.wait_for("step 5", |run| run.step() >= 5);
        kill(running.ranks()[victim]);
        let (ended_well, said) = running.end();
        assert!(
            !ended_well && said.contains(&format!("rank {victim} failed: was killed by signal 9")),
            "{set}: {said}"
        );
    }
}

#[test]
fn servers_of_their_own_go_on_without_workers_and_the_run_not_without_a_server() {
    for (strategy, victim) in [("ps-asp", 1), ("ps-ssp", 0)] {
        let place = tempfile::tempdir().expect("a folder");
        let line = format!(
            "--ranks 3 --servers 2 --strategy {strategy} --set sync.min_workers=2 --set train.steps=100 --set eval.every=20 --set \
            checkpoint.every=10 --set train.ema=0.8 --set chaos.delay=rank=0,ms=25;rank=1,ms=25;rank=2,ms=25"
        );
        let mut running = Running::start(place.path(), &line);
        running.wait_for("step 7", |run| run.step() >= 7);
        let ranks = running.ranks();
        assert_eq!(ranks.len(), 5, "{strategy}: three workers and two servers");
        kill(ranks[victim]);
        let (ended_well, said) = running.end();
        assert!(ended_well, "{strategy}: {said}");
        let told = summary(place.path());
        assert_eq!((told.step, told.world_size, told.servers), (100, 2, 2), "{strategy}");
        assert_eq!(told.dead.iter().map(|dead| dead.rank).collect::<Vec<_>>(), [victim], "{strategy}");
        let left: Vec<usize> = (0..5).filter(|rank| *rank != victim).collect();
        assert_eq!(told.ranks.iter().map(|rank| rank.rank).collect::<Vec<_>>(), left, "{strategy}");
        assert_eq!(
            steps_of(place.path()),
            (1..=100).collect::<Vec<_>>(),
            "{strategy}: every step is told once"
        );
        // What was saved by two workers goes on by three.
        let line = "train --resume --out run --steps 100000";
        let launcher = phalanx(place.path(), line).spawn().expect("phalanx runs");
        let mut running = Running { place: place.path().join("run"), launcher };
        running.wait_for("step 125", |run| run.step() >= 125);
        kill(running.ranks()[3]);
        let (ended_well, said) = running.end();
        assert!(!ended_well && said.contains("rank 3 failed: was killed by signal 9"), "{strategy}: {said}");
        let saved = Checkpoint::list(&place.path().join("run/checkpoints")).last().map_or(0, |found| found.0);
        assert!(saved >= 110, "{strategy}: {saved}");
        let line = format!("train --resume --out run --steps {}", saved + 3);
        let output = phalanx(place.path(), &line).output().expect("phalanx runs");
        assert!(output.status.success(), "{strategy}: {}", String::from_utf8_lossy(&output.stderr));
        assert_eq!(summary(place.path()).step, saved + 3, "{strategy}");
    }
}

#[test]
fn who_cannot_go_on_says_so_before_anything_begins() {
    let place = tempfile::tempdir().expect("a folder");
    for (line, problem) in [
        ("--ranks 3 --strategy ps-asp --set sync.min_workers=2", "sync.servers above 0"),
        ("--ranks 3 --strategy ps-bsp --servers 1 --set sync.min_workers=2", "cannot go on without a worker"),
        ("--ranks 3 --strategy ddp --set sync.min_workers=2", "cannot go on without a worker"),
        ("--ranks 3 --strategy d-psgd --set sync.min_workers=4", "above train.ranks"),
        ("--ranks 3 --strategy d-psgd --servers 1", "has no servers"),
    ] {
        let output = phalanx(place.path(), &format!("train tiny {line}")).output().expect("phalanx runs");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains(problem), "{line}: {said}");
    }
}
