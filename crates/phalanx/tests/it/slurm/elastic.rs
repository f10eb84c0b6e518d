//! Worlds that change in jobs: ranks and nodes that are lost, jobs that join and leave, and a job that is cancelled.

use std::fs;
use std::path::Path;

use super::cluster::{Cluster, summary};
use super::{SLOW, state, submit};
use crate::harness::processes::kill;
use crate::harness::results::step;

/// After every change, all end in the weights of a run whose world never changed.
const STEADY: &str = "--set train.logical_ranks=4 --set eval.enabled=false";

/// Loses a rank, then a node, has another job join it and be cancelled, and ends well, in the bits of an undisturbed run.
pub(crate) fn a_job_goes_on_while_its_ranks_change(cluster: &Cluster) {
    let steps = "--set train.steps=240";
    let undelayed = SLOW.replace("ms=50", "ms=0.1");
    cluster.succeed(&format!("train tiny --ranks 1 {steps} {STEADY} {undelayed} --out steady"));
    let id = submit(cluster, &format!("{steps} {STEADY} --elastic 1:4 --time 10"), "elastic");
    let run = cluster.path("elastic");
    cluster.wait("some steps", || step(&run) >= 20);
    kill_rank(&run, 1);
    cluster.wait("three ranks", || size(&run) == 3);
    let said = cluster.succeed("submit --join elastic --nodes 1 --ranks-per-node 2 --time 5");
    assert!(said.contains("joins elastic"), "{said}");
    // There is room for one of its two ranks; the other waits.
    cluster.wait("a rank of the other job", || size(&run) == 4);
    let before = step(&run);
    cluster.wait("steps of both", || step(&run) >= before + 10);
    assert!(cluster.succeed("status elastic").contains("(joins)"));
    cluster.succeed("cancel --joined elastic");
    cluster.wait("three ranks again", || size(&run) == 3);
    let before = step(&run);
    cluster.wait("steps of three", || step(&run) >= before + 10);
    cluster.ask("scontrol", &["update", "nodename=n2", "state=down", "reason=test"]).expect("is down");
    cluster.wait("the node's ranks to be missed", || size(&run) == 1);
    assert_eq!(summary(&run, "status"), serde_json::Value::Null, "it has not ended in that time");
    cluster.wait("the end", || summary(&run, "status") == "finished");
    cluster.wait("the job to be over", || !matches!(&*state(cluster, &id), "RUNNING" | "COMPLETING"));
    let told = cluster.ask("scontrol", &["show", "job", &id]).expect("is remembered");
    assert!(told.contains("JobState=COMPLETED") && told.contains("ExitCode=0:0"), "{told}");
    let _ = cluster.ask("scontrol", &["update", "nodename=n2", "state=resume"]);
    cluster.wait("the node", || cluster.are_idle());
    let hash = |run: &str| cluster.succeed(&format!("hash {run}"));
    assert_eq!(hash("elastic"), hash("steady"));
    assert!(!run.join("secret").exists());
}

/// All ranks of a job that is cancelled save the same step, and none of them leaves the others. A step of the same job that has joined
/// it ends with it.
pub(crate) fn a_cancelled_job_ends_in_one_step(cluster: &Cluster) {
    let set = "--set train.steps=4000 --set train.global_batch=10 --set eval.enabled=false";
    let id = submit(cluster, &format!("{set} --elastic 1:5 --time 10"), "called");
    let run = cluster.path("called");
    cluster.wait("some steps", || step(&run) >= 5);
    let mut overlapping = cluster.command("srun");
    overlapping.args(["--jobid", &id, "--overlap", "--nodes=1", "--ntasks=1", env!("CARGO_BIN_EXE_phalanx")]);
    let mut overlapping = overlapping.args(["join", "called"]).spawn().expect("srun starts");
    cluster.wait("a rank of the same job", || size(&run) == 5);
    cluster.succeed("cancel called");
    cluster.wait("the job to be over", || state(cluster, &id).is_empty());
    let _ = overlapping.wait().expect("it has ended");
    assert_eq!(summary(&run, "status"), "interrupted");
    assert_eq!(summary(&run, "step"), step(&run), "the last step is saved");
    let changes = summary(&run, "changes");
    let left = changes.as_array().into_iter().flatten().flat_map(|change| change["left"].as_array().cloned());
    assert!(left.flatten().all(|number| number == 4), "none of those who began left: {changes}");
    cluster.wait("both nodes", || cluster.are_idle());
}

/// Ranks that train, as the run says itself.
fn size(run: &Path) -> u64 {
    let text = fs::read_to_string(run.join("state.json")).unwrap_or_default();
    let state = serde_json::from_str::<serde_json::Value>(&text).unwrap_or_default();
    state["world_size"].as_u64().unwrap_or(0)
}

/// Kills the process that is a rank of the run's job.
fn kill_rank(run: &Path, rank: usize) {
    let of_run = run.display().to_string();
    let is_it = |process: &Path| {
        let words = |file: &str| -> Vec<String> {
            let text = fs::read(process.join(file)).unwrap_or_default();
            String::from_utf8_lossy(&text).split('\0').map(str::to_owned).collect()
        };
        let command = words("cmdline");
        command.first().is_some_and(|program| program.ends_with("phalanx"))
            && command.contains(&of_run)
            && words("environ").contains(&format!("SLURM_PROCID={rank}"))
    };
    let processes = fs::read_dir("/proc").expect("reads").flatten().map(|entry| entry.path());
    let found: Vec<_> = processes.filter(|process| is_it(process)).collect();
    assert_eq!(found.len(), 1, "{found:?}");
    let id = found[0].file_name().and_then(std::ffi::OsStr::to_str).expect("a number");
    kill(id.parse().expect("a number"));
}
