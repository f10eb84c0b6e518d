//! Worlds that change whose ranks a launcher has started, as far as this machine can play its part: by the variables of one that has
//! nothing to do with ranks that die.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use phalanx_run::{Line, RunState, Summary, read_metrics};

/// A model whose steps take milliseconds.
const MODEL: &str = "--set model.kind=mlp --set model.mlp_width=24 --set model.mlp_depth=1 --set model.image_size=8 --set \
    optim.kind=adamw --set optim.lr=0.01 --set train.global_batch=12 --set train.threads=1 --set log.every=1 --set data.images=60 --set \
    data.test_images=12 --set sample.every=0 --set eval.enabled=false --set log.usage_seconds=0 --set train.logical_ranks=4";

/// Variables of a step of SLURM in another job, which joining ranks must not take for their world.
const STEP: [(&str, &str); 9] = [
    ("SLURM_JOB_ID", "77"),
    ("SLURM_STEP_ID", "0"),
    ("SLURM_PROCID", "1"),
    ("SLURM_LOCALID", "1"),
    ("SLURM_NODEID", "0"),
    ("SLURM_NTASKS", "2"),
    ("SLURM_STEP_NODELIST", "elsewhere"),
    ("SLURM_STEP_TASKS_PER_NODE", "2"),
    // Far away, so that no rank leaves for it.
    ("SLURM_JOB_END_TIME", "99999999999"),
];

fn phalanx(place: &Path, line: &str) -> Command {
    let mut program = Command::new(env!("CARGO_BIN_EXE_phalanx"));
    program.args(line.split_whitespace()).current_dir(place).stdout(Stdio::null()).stderr(Stdio::piped());
    program
}

/// Ranks of a launcher that waits for all, and others who join.
struct Job {
    run: PathBuf,
    ranks: Vec<Child>,
}

impl Job {
    fn start(place: &Path, ranks: usize, line: &str) -> Self {
        let port = std::net::TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr());
        let port = port.expect("a port").port().to_string();
        let start = |rank: usize| {
            let mut program = phalanx(place, &format!("train tiny {MODEL} {line} --out run"));
            let (rank, ranks) = (rank.to_string(), ranks.to_string());
            program.envs([("RANK", &rank), ("WORLD_SIZE", &ranks), ("LOCAL_RANK", &rank)]);
            program
                .env("LOCAL_WORLD_SIZE", &ranks)
                .envs([("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", &port)]);
            program.env("PHALANX_SECRET_FILE", place.join("secret")).spawn().expect("phalanx runs")
        };
        secret(place);
        Self { run: place.join("run"), ranks: (0..ranks).map(start).collect() }
    }

    /// Has one more process join, which a step of another job has started.
    fn join(&mut self) {
        let place = self.run.parent().expect("a folder");
        let mut program = phalanx(place, "join run");
        program.envs(STEP).env("PHALANX_SECRET_FILE", place.join("secret"));
        self.ranks.push(program.spawn().expect("phalanx runs"));
    }

    fn step(&self) -> u64 {
        read_metrics(&self.run.join("metrics.jsonl")).unwrap_or_default().last().map_or(0, Line::step)
    }

    /// Ranks that train, as the run says itself.
    fn size(&self) -> usize {
        RunState::read(&self.run.join("state.json")).map_or(0, |state| state.world_size)
    }

    fn wait_for(&self, what: &str, holds: impl Fn(&Self) -> bool) {
        let begun = Instant::now();
        while !holds(self) {
            assert!(begun.elapsed() < Duration::from_secs(100), "no {what}\n{}", self.logs());
            std::thread::sleep(Duration::from_millis(3));
        }
    }

    fn logs(&self) -> String {
        let log = |rank: usize| std::fs::read_to_string(self.run.join(format!("logs/rank-{rank}.log")));
        (0..8).filter_map(|rank| Some(format!("--- rank {rank}\n{}\n", log(rank).ok()?))).collect()
    }

    /// Returns the outputs of its ranks, and the run's summary.
    fn end(self) -> (Vec<Output>, Summary) {
        let logs = self.run.clone();
        let ended = self.ranks.into_iter().map(|rank| rank.wait_with_output().expect("it ends")).collect();
        let summary = Summary::read(&logs.join("summary.json"));
        (ended, summary.expect("a summary"))
    }
}

/// A file with a secret for all ranks.
fn secret(place: &Path) {
    let path = place.join("secret");
    std::fs::write(&path, "a secret of some length").expect("writes");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(&path, mode).expect("ours");
}

fn terminate(process: &Child) {
    let id = process.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &id]).status().expect("kill runs").success());
}

fn hash(place: &Path) -> String {
    let output = phalanx(place, "hash run").stdout(Stdio::piped()).output().expect("phalanx runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Delays `ranks` ranks in each step.
fn held_up(ranks: usize) -> String {
    let delays: Vec<String> = (0..ranks).map(|rank| format!("rank={rank},ms=12")).collect();
    format!("--set chaos.delay={}", delays.join(";"))
}

#[test]
fn ranks_of_a_launcher_outlive_one_of_them_and_take_in_those_of_another_job() {
    let whole = tempfile::tempdir().expect("a folder");
    let steps = "--set train.steps=170";
    let output = phalanx(whole.path(), &format!("train tiny {MODEL} {steps} --ranks 1 --out run")).output();
    assert!(output.expect("phalanx runs").status.success());

    let place = tempfile::tempdir().expect("a folder");
    let mut job = Job::start(place.path(), 3, &format!("{steps} --elastic 2:4 {}", held_up(4)));
    job.wait_for("step 6", |job| job.step() >= 6);
    job.ranks[0].kill().expect("it runs");
    job.wait_for("two ranks", |job| job.size() == 2);
    job.join();
    job.wait_for("three ranks", |job| job.size() == 3);
    let before = job.step();
    job.wait_for("steps of three", |job| job.step() >= before + 5);
    // The job that it came with is taken away.
    terminate(&job.ranks[3]);
    job.wait_for("two ranks once more", |job| job.size() == 2);
    let logs = job.logs();
    let (ended, told) = job.end();
    let well: Vec<bool> = ended.iter().map(|ended| ended.status.success()).collect();
    assert_eq!(well, [false, true, true, true], "{ended:?}\n{logs}");
    let changes: Vec<_> =
        told.changes.iter().map(|change| (change.left.clone(), change.came.clone())).collect();
    // Three ranks were started, and the configuration has four: newcomers count from there.
    assert_eq!(changes, [(vec![0], vec![]), (vec![], vec![4]), (vec![4], vec![])]);
    assert_eq!((told.status.as_str(), told.step), ("finished", 170));
    assert_eq!(hash(place.path()), hash(whole.path()));
}

#[test]
fn a_job_that_is_told_to_end_saves_one_step_and_no_rank_leaves() {
    let place = tempfile::tempdir().expect("a folder");
    let job = Job::start(place.path(), 3, &format!("--set train.steps=5000 --elastic 1:4 {}", held_up(3)));
    job.wait_for("step 5", |job| job.step() >= 5);
    job.ranks.iter().for_each(terminate);
    let logs = job.logs();
    let (ended, told) = job.end();
    assert!(ended.iter().all(|ended| ended.status.success()), "{ended:?}\n{logs}");
    assert_eq!((told.status.as_str(), told.changes.len(), told.dead.len()), ("interrupted", 0, 0));
    assert_eq!(told.world_size, 3);
}

#[test]
fn ranks_that_a_user_has_leave_do_so_one_after_the_other() {
    let place = tempfile::tempdir().expect("a folder");
    let job = Job::start(place.path(), 3, &format!("--set train.steps=130 --elastic 1:4 {}", held_up(3)));
    let members = |job: &Job| RunState::read(&job.run.join("state.json")).map(|state| state.members);
    job.wait_for("who takes part", |job| members(job).is_ok_and(|members| members.len() == 3));
    let host = members(&job).expect("there")[&1].clone();
    for (line, problem) in [
        ("leave run --rank 7", "0, 1, 2 do"),
        ("leave run --host nowhere", "no rank is on nowhere"),
        (&format!("leave run --host {host}"), "elastic.min = 1"),
    ] {
        let output = phalanx(place.path(), line).output().expect("phalanx runs");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(2) && said.contains(problem), "{line}: {said}");
    }
    let output = phalanx(place.path(), "leave run --rank 0,2").output().expect("phalanx runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let logs = job.run.clone();
    let (ended, told) = job.end();
    assert!(ended.iter().all(|ended| ended.status.success()), "{ended:?} {}", logs.display());
    let changes: Vec<_> = told.changes.iter().map(|change| change.left.clone()).collect();
    // The rank that takes requests leaves last.
    assert_eq!(changes, [[2], [0]]);
    assert_eq!((told.status.as_str(), told.step, told.world_size), ("finished", 130, 1));
}

#[test]
fn launchers_that_end_all_ranks_are_refused_by_name() {
    let place = tempfile::tempdir().expect("a folder");
    let rank = [("RANK", "0"), ("WORLD_SIZE", "5"), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "1")];
    for (variables, problem) in [
        (&[("WORLD_SIZE", "2"), ("TORCHELASTIC_RUN_ID", "none")][..], "torchrun has started this rank"),
        (&[], "started 5 ranks, and there may be 1 (elastic.min) to 4"),
    ] {
        let mut program = phalanx(place.path(), "train tiny --elastic 1:4");
        let output = program.envs(rank).envs(variables.iter().copied()).output().expect("phalanx runs");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(problem), "{said}");
    }
}
