//! Jobs on a real SLURM of two nodes, which the test starts: `cargo xtask test --slurm`. Minutes, as SLURM counts in seconds and
//! minutes.

mod cluster;
mod elastic;

use std::fs;
use std::path::Path;
use std::time::Duration;

use cluster::{Cluster, KILL_WAIT, summary};

use crate::harness::results::{checkpoint, losses, step};

/// Steps of 50 ms, so that there is time to interrupt them.
const SLOW: &str =
    "--set log.every=1 --set checkpoint.every=10 --set sample.every=0 --set chaos.delay=\"rank=0,ms=50\"";

#[test]
#[ignore = "minutes, with SLURM installed: cargo xtask test --slurm"]
fn jobs_of_a_real_slurm() {
    let Some(cluster) = Cluster::start() else { return };
    steps_have_their_places(&cluster);
    what_cannot_be_a_job_is_refused(&cluster);
    a_job_that_is_queued_again_goes_on_to_the_bit(&cluster);
    a_node_that_fails_costs_steps_and_no_run(&cluster);
    a_cancelled_job_saves_and_stays_away(&cluster);
    a_job_stops_before_its_time_is_up(&cluster);
    tasks_of_an_array_have_seeds_of_their_own(&cluster);
    elastic::a_job_goes_on_while_its_ranks_change(&cluster);
    elastic::a_cancelled_job_ends_in_one_step(&cluster);
}

/// A batch script without `srun` is no rank; a step on uneven nodes is a world; a step on a part of the allocation begins there.
fn steps_have_their_places(cluster: &Cluster) {
    let phalanx = env!("CARGO_BIN_EXE_phalanx");
    let wrapped = format!("{phalanx} train tiny --ranks 2 --steps 3 --out alone");
    cluster.ask("sbatch", &["--wait", "-n4", "--output=alone.txt", "--wrap", &wrapped]).expect("trains");
    assert_eq!(summary(&cluster.path("alone"), "world_size"), 2);
    let train = [
        phalanx,
        "train",
        "tiny",
        "--steps",
        "3",
        "--set",
        "train.global_batch=12",
        "--set",
        "comm.secret=none",
        "--out",
    ];
    let uneven: Vec<&str> = ["-N2", "-n3"].into_iter().chain(train).chain(["uneven"]).collect();
    cluster.ask("srun", &uneven).expect("trains");
    assert_eq!(summary(&cluster.path("uneven"), "world_size"), 3);
    // Rank 0 is on the second node of the allocation.
    let words = train.join(" ");
    let part = format!("srun -N1 -n2 -w n2 --exact {words} part");
    cluster
        .ask("sbatch", &["--wait", "-N2", "--ntasks-per-node=2", "--output=part.txt", "--wrap", &part])
        .expect("trains");
    assert_eq!(summary(&cluster.path("part"), "world_size"), 2);
}

fn what_cannot_be_a_job_is_refused(cluster: &Cluster) {
    for (line, words) in [
        ("submit tiny --set optim.lr=fast", "optim.lr"),
        ("submit tiny --strategy dp --ranks-per-node 2", "--strategy ddp"),
        ("submit shapes-diffusion", "shapes-autoencoder"),
        ("submit tiny --ranks 2", "--nodes times --ranks-per-node"),
        ("submit tiny --array 3-1 --out x", "names no tasks"),
        ("submit tiny --partition none --out gone", "sbatch says"),
        ("status gone-too", "was not submitted"),
        ("submit tiny --elastic 2:3 --ranks-per-node 4 --out x", "elastic.max"),
        ("submit --join alone", "world does not change"),
        ("submit --join alone --requeue", "cannot be used with"),
    ] {
        let output = cluster.phalanx(line);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains(words), "{line}: {said}");
    }
    let script = cluster.succeed("submit tiny --nodes 2 --ranks-per-node 2 --time 5 --dry-run --out dry");
    assert!(script.contains("--kill-on-bad-exit=1") && !script.contains("--no-kill"), "{script}");
    assert!(script.contains("#SBATCH --nodes=2") && !cluster.path("dry").exists(), "{script}");
}

/// By the administrator, and by a signal that warns: the job comes back and ends as one that was never interrupted.
fn a_job_that_is_queued_again_goes_on_to_the_bit(cluster: &Cluster) {
    cluster.succeed(&format!(
        "train tiny --ranks 4 --set train.steps=150 {} --out whole",
        SLOW.replace("ms=50", "ms=0.1")
    ));
    let id = submit(cluster, "--set train.steps=150 --requeue --time 10", "again");
    let run = cluster.path("again");
    cluster.wait("some steps", || step(&run) >= 20);
    assert!(cluster.succeed("status again").contains("running"));
    cluster.ask("scontrol", &["requeue", &id]).expect("is queued again");
    comes_back(cluster, &id, &run);
    let before = step(&run);
    cluster.wait("more steps", || step(&run) >= before + 20);
    cluster.ask("scancel", &["--signal=USR1", &id]).expect("is warned");
    comes_back(cluster, &id, &run);
    cluster.wait("the end", || summary(&run, "status") == "finished");
    assert_eq!(losses(&run), losses(&cluster.path("whole")));
    let weights = |run: &Path| fs::read(checkpoint(run, 150).join("model.safetensors")).expect("reads");
    assert_eq!(weights(&run), weights(&cluster.path("whole")));
    let said = cluster.succeed("logs --follow again");
    assert!(said.contains("resumed") || said.contains("step"), "{said}");
}

/// A node that is lost: the job is queued again and goes on from its newest checkpoint.
fn a_node_that_fails_costs_steps_and_no_run(cluster: &Cluster) {
    let id = submit(cluster, "--set train.steps=150 --requeue --time 10", "lost");
    let run = cluster.path("lost");
    cluster.wait("some steps", || step(&run) >= 25);
    cluster.ask("scontrol", &["update", "nodename=n2", "state=down", "reason=test"]).expect("is down");
    cluster.wait("the job to be queued again", || state(cluster, &id) == "PENDING");
    // The daemon may have registered in between.
    let _ = cluster.ask("scontrol", &["update", "nodename=n2", "state=resume"]);
    cluster.wait("the node", || cluster.are_idle());
    comes_back(cluster, &id, &run);
    cluster.wait("the end", || summary(&run, "status") == "finished");
    assert_eq!(losses(&run), losses(&cluster.path("whole")));
}

fn a_cancelled_job_saves_and_stays_away(cluster: &Cluster) {
    let id = submit(cluster, "--set train.steps=2000 --requeue --time 10", "ended");
    let run = cluster.path("ended");
    cluster.wait("some steps", || step(&run) >= 5);
    cluster.succeed("cancel ended");
    cluster.wait("the job to be over", || state(cluster, &id).is_empty());
    assert_eq!(summary(&run, "status"), "interrupted");
    assert_eq!(summary(&run, "step"), step(&run), "the last step is saved");
    assert!(cluster.succeed("status ended").contains("interrupted"));
    // Submitted anew, it goes on.
    let before = step(&run);
    cluster.succeed("submit --resume --out ended --nodes 2 --ranks-per-node 2");
    cluster.wait("more steps", || step(&run) > before);
    cluster.succeed("cancel ended");
    cluster.wait("the end", || {
        cluster.ask("squeue", &["--noheader"]).is_some_and(|queue| queue.trim().is_empty())
    });
}

/// Without any signal: rank 0 knows how long the job still has.
fn a_job_stops_before_its_time_is_up(cluster: &Cluster) {
    let id = submit(
        cluster,
        "--set train.steps=20000 --set checkpoint.limit_margin=30 --time 1 --warning 0",
        "limited",
    );
    let run = cluster.path("limited");
    cluster.wait("the job to be over", || state(cluster, &id).is_empty());
    assert_eq!(summary(&run, "status"), "interrupted");
    let log = fs::read_to_string(run.join(format!("logs/slurm-{id}.out"))).expect("reads");
    assert!(log.contains("time is up soon") && !log.contains("TIME LIMIT"), "{log}");
}

fn tasks_of_an_array_have_seeds_of_their_own(cluster: &Cluster) {
    cluster.succeed(
        "submit tiny --array 0-1 --set train.steps=5 --set train.ranks=1 --set log.every=1 --out seeds",
    );
    let runs = [cluster.path("seeds/task-0"), cluster.path("seeds/task-1")];
    cluster.wait("both", || runs.iter().all(|run| summary(run, "status") == "finished"));
    assert_ne!(losses(&runs[0]), losses(&runs[1]));
    assert!(cluster.succeed("status seeds").contains("task-1"));
}

/// Submits the preset `tiny` for two nodes with two ranks each; the job's number.
fn submit(cluster: &Cluster, options: &str, out: &str) -> String {
    let said =
        cluster.succeed(&format!("submit tiny --nodes 2 --ranks-per-node 2 {options} {SLOW} --out {out}"));
    let words: Vec<&str> = said.split_whitespace().collect();
    assert_eq!(words[0], "job", "{said}");
    words[1].to_owned()
}

/// The state of a job in the queue; empty if it is over.
fn state(cluster: &Cluster, id: &str) -> String {
    cluster.ask("squeue", &["--noheader", "--format=%T", "--jobs", id]).unwrap_or_default().trim().to_owned()
}

/// Waits until a job that was queued again has gone on. SLURM would have it wait for two minutes.
fn comes_back(cluster: &Cluster, id: &str, run: &Path) {
    cluster.wait("the job to be queued again", || state(cluster, id) == "PENDING");
    // The signals that end the job's first life would end a second one that began too early.
    std::thread::sleep(Duration::from_secs(KILL_WAIT + 3));
    let before = step(run);
    cluster.wait("the job to run again", || {
        if state(cluster, id) == "PENDING" {
            let _ = cluster.ask("scontrol", &["update", &format!("jobid={id}"), "StartTime=now"]);
        }
        step(run) > before
    });
}
