//! Worlds that change whose ranks a launcher has started, as far as this machine can play its part: by the variables of one that has
//! nothing to do with ranks that die.

use crate::harness::place::free_port;
use crate::harness::processes::{signal, wait_until};
use crate::harness::results::{logs, summary};
use crate::harness::{MLP, Place, Running, delayed, stderr};

/// Options beyond those of the small model.
const FURTHER: &str = "--set optim.kind=adamw --set optim.lr=0.01 --set eval.enabled=false --set log.usage_seconds=0 --set \
    train.logical_ranks=4";

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

/// A folder with a secret for all ranks.
fn place() -> Place {
    let place = Place::new();
    let secret = place.secret(0o600);
    place.with("PHALANX_SECRET_FILE", secret)
}

/// Starts ranks by the variables of a launcher that waits for all of them.
fn start(place: &Place, ranks: usize, line: &str) -> Running {
    let port = free_port().to_string();
    let rank = |rank: usize| {
        let mut program = place.command(&format!("train tiny {MLP} {FURTHER} {line} --out run"));
        let (rank, ranks) = (rank.to_string(), ranks.to_string());
        program.envs([("RANK", &rank), ("WORLD_SIZE", &ranks), ("LOCAL_RANK", &rank)]);
        program.env("LOCAL_WORLD_SIZE", &ranks).envs([("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", &port)]);
        program
    };
    let mut running = Running::spawn(place.path("run"), rank(0));
    (1..ranks).for_each(|number| running.add(rank(number)));
    running
}

/// Starts one more process, which joins the run. A step of another job has started it.
fn join(place: &Place, running: &mut Running) {
    let mut program = place.command("join run");
    program.envs(STEP);
    running.add(program);
}

#[test]
fn ranks_of_a_launcher_outlive_one_of_them_and_take_in_those_of_another_job() {
    let whole = Place::new();
    let steps = "--set train.steps=170";
    whole.succeed(&format!("train tiny {MLP} {FURTHER} {steps} --ranks 1 --out run"));

    let place = place();
    let mut job = start(&place, 3, &format!("{steps} --elastic 2:4 {}", delayed(4, 12)));
    job.wait_for_step(6);
    let run = job.run.clone();
    job.process(0).kill().expect("it runs");
    wait_for_size(&job, 2);
    join(&place, &mut job);
    wait_for_size(&job, 3);
    let before = job.step();
    wait_until("steps of three", || logs(&run), || job.step() >= before + 5);
    // The job that it came with is taken away.
    signal("-TERM", job.process(3).id());
    wait_for_size(&job, 2);
    let ended = job.end_all();
    let well: Vec<bool> = ended.iter().map(|end| end.code == Some(0)).collect();
    assert_eq!(well, [false, true, true, true], "{ended:?}\n{}", logs(&run));
    let told = summary(&run);
    let changes: Vec<_> =
        told.changes.iter().map(|change| (change.left.clone(), change.came.clone())).collect();
    // Three ranks were started, and the configuration has four: newcomers count from there.
    assert_eq!(changes, [(vec![0], vec![]), (vec![], vec![4]), (vec![4], vec![])]);
    assert_eq!((told.status.as_str(), told.step), ("finished", 170));
    assert_eq!(place.succeed("hash run"), whole.succeed("hash run"));
}

#[test]
fn a_job_that_is_told_to_end_saves_one_step_and_no_rank_leaves() {
    let place = place();
    let mut job = start(&place, 3, &format!("--set train.steps=5000 --elastic 1:4 {}", delayed(3, 12)));
    job.wait_for_step(5);
    let run = job.run.clone();
    (0..3).for_each(|rank| signal("-TERM", job.process(rank).id()));
    succeed(job);
    let told = summary(&run);
    assert_eq!((told.status.as_str(), told.changes.len(), told.dead.len()), ("interrupted", 0, 0));
    assert_eq!(told.world_size, 3);
}

#[test]
fn ranks_that_a_user_has_leave_do_so_one_after_the_other() {
    let place = place();
    let mut job = start(&place, 3, &format!("--set train.steps=130 --elastic 1:4 {}", delayed(3, 12)));
    job.wait_for("three members", |job| job.state().is_some_and(|state| state.members.len() == 3));
    let run = job.run.clone();
    let host = job.state().expect("there").members[&1].clone();
    for (line, problem) in [
        ("leave run --rank 7", "0, 1, 2 do"),
        ("leave run --host nowhere", "no rank is on nowhere"),
        (&format!("leave run --host {host}"), "elastic.min = 1"),
    ] {
        let said = place.fail_with(2, line);
        assert!(said.contains(problem), "{line}: {said}");
    }
    place.succeed("leave run --rank 0,2");
    succeed(job);
    let told = summary(&run);
    let changes: Vec<_> = told.changes.iter().map(|change| change.left.clone()).collect();
    // The rank that takes requests leaves last.
    assert_eq!(changes, [[2], [0]]);
    assert_eq!((told.status.as_str(), told.step, told.world_size), ("finished", 130, 1));
}

/// Waits until as many ranks train. The first process may have ended.
fn wait_for_size(job: &Running, size: usize) {
    wait_until(&format!("{size} ranks"), || logs(&job.run), || job.size() == size);
}

/// Waits for the end of all processes, which must be successes.
fn succeed(job: Running) {
    let run = job.run.clone();
    let ended = job.end_all();
    assert!(ended.iter().all(|end| end.code == Some(0)), "{ended:?}\n{}", logs(&run));
}

#[test]
fn launchers_that_end_all_ranks_are_refused_by_name() {
    let place = Place::new();
    let rank = [("RANK", "0"), ("WORLD_SIZE", "5"), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "1")];
    for (variables, problem) in [
        (&[("WORLD_SIZE", "2"), ("TORCHELASTIC_RUN_ID", "none")][..], "torchrun has started this rank"),
        (&[], "started 5 ranks, and there may be 1 (elastic.min) to 4"),
    ] {
        let mut program = place.command("train tiny --elastic 1:4");
        let output = program.envs(rank).envs(variables.iter().copied()).output().expect("phalanx runs");
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(problem), "{said}");
    }
}
