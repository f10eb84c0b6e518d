//! Trainings whose gradients and parameters go over MPI, under its launcher: `cargo test -p phalanx --features mpi --test it mpi::`.
//! Where there is no `mpirun` they say so and pass.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::harness::place::free_port;
use crate::harness::processes::signal;
use crate::harness::results::{hashes, lines};
use crate::harness::{PROGRAM, Place, both};

/// The time limit for work of a second.
const PATIENCE: Duration = Duration::from_secs(120);

/// Bits that do not depend on what messages go over.
const BITS: &str = "--set train.logical_ranks=3 --set train.global_batch=12 --set train.steps=6 --set data.images=36 --set \
    data.test_images=6 --set train.threads=1 --set train.clip_norm=0.5 --set train.ema=0.9 --set eval.enabled=false";

fn is_there() -> bool {
    let there = Command::new("mpirun").arg("--version").output().is_ok();
    if !there {
        println!("skipped: there is no mpirun");
    }
    there
}

/// `phalanx train tiny` by `ranks` ranks that `mpirun` starts.
fn mpirun(place: &Place, ranks: usize, line: &str) -> Command {
    let mut command = Command::new("mpirun");
    command.args(["-n", &ranks.to_string(), PROGRAM, "train", "tiny"]).args(line.split_whitespace());
    let port = free_port();
    command.envs([
        // What OpenMPI asks for where there are fewer cores than ranks, and where root calls it.
        ("OMPI_MCA_rmaps_base_oversubscribe", "1"),
        ("OMPI_ALLOW_RUN_AS_ROOT", "1"),
        ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"),
        // MPICH's launcher is not asked for them then, as MPI has to begin after.
        ("MASTER_ADDR", "127.0.0.1"),
        ("MASTER_PORT", &port.to_string()),
    ]);
    command.current_dir(place.folder()).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

#[test]
fn what_goes_over_mpi_ends_in_the_same_bits() {
    if !is_there() {
        return;
    }
    let place = Place::new();
    let train = |name: &str, ranks: usize, line: &str| {
        let line = format!("{BITS} --set train.ranks={ranks} {line} --out {name}");
        let output = mpirun(&place, ranks, &line).output().expect("mpirun starts");
        assert!(output.status.success(), "{line}: {}", both(&output));
        hashes(&place.path(name))
    };
    let own = train("own", 3, "");
    for (name, ranks, strategy) in
        [("ddp", 3, "ddp"), ("two", 2, "ddp"), ("zero1", 3, "zero1"), ("fsdp", 2, "fsdp")]
    {
        let line = format!("--set comm.transport=mpi --strategy {strategy}");
        assert_eq!(train(name, ranks, &line), own, "{line}");
    }
}

/// Ranks that others wait for within MPI, which tells them nothing.
#[test]
fn who_fails_or_dies_ends_the_others() {
    if !is_there() {
        return;
    }
    for (dies, words) in [(true, "signal"), (false, "checkpoints")] {
        let place = Place::new();
        let line = "--set comm.transport=mpi --set train.ranks=2 --set train.steps=100000 --set eval.enabled=false --set \
            log.every=1 --set checkpoint.every=40 --set sample.every=0 --set train.threads=1 --out run";
        let mut launcher = mpirun(&place, 2, line).spawn().expect("mpirun starts");
        let run = place.path("run");
        let begun = Instant::now();
        while lines(&run).len() < 60 {
            let ended = launcher.try_wait().expect("a child");
            if ended.is_some() || begun.elapsed() > PATIENCE {
                let _ = launcher.kill();
                panic!("{}", both(&launcher.wait_with_output().expect("a child")));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        if dies {
            // Ranks are children of the launcher, or of its daemon.
            let own = "train tiny --set comm.transport=mpi.*--out run";
            let found = Command::new("pgrep").args(["-P", &launcher.id().to_string(), "-f", own]).output();
            let found = String::from_utf8(found.expect("pgrep runs").stdout).expect("numbers");
            let last = found.lines().last().expect("a rank");
            signal("-KILL", last.parse().expect("a number"));
        } else {
            // Rank 0 cannot save, while the other goes on to the next step.
            let checkpoints = run.join("checkpoints");
            std::fs::rename(&checkpoints, run.join("before")).expect("renames");
            std::fs::write(&checkpoints, "no folder").expect("writes");
        }
        let begun = Instant::now();
        while launcher.try_wait().expect("a child").is_none() {
            assert!(begun.elapsed() < PATIENCE, "the ranks have not ended");
            std::thread::sleep(Duration::from_millis(10));
        }
        let output = launcher.wait_with_output().expect("a child");
        assert!(!output.status.success() && both(&output).contains(words), "{}", both(&output));
    }
}

#[test]
fn ranks_that_mpi_has_not_started_are_told_so() {
    let place = Place::new();
    let line = "train tiny --ranks 2 --set comm.transport=mpi --set train.steps=2 --out run";
    let words = place.fail(line);
    assert!(words.contains("start the ranks by mpirun or mpiexec"), "{words}");
}
