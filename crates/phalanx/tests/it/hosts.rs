//! Ranks on several hosts by `phalanx train --hosts`, with a script in the place of ssh.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use phalanx_checkpoint::Checkpoint;
use phalanx_run::{Summary, read_metrics};

/// A model whose steps take milliseconds.
const SMALL: &str = "--set model.kind=mlp --set model.mlp_width=16 --set model.mlp_depth=1 --set model.image_size=8 \
    --set train.global_batch=12 --set train.threads=1 --set log.every=1 --set data.images=60 --set data.test_images=12 \
    --set sample.rows=1 --set sample.columns=1 --set eval.enabled=false --set checkpoint.every=1000000";

/// A stand-in for ssh on this machine: runs the command by a shell, and notes its arguments and its number.
fn ssh(place: &Path, before: &str) -> PathBuf {
    let path = place.join("ssh");
    let note = format!("echo \"$$ $*\" >> {}", place.join("calls").display());
    std::fs::write(&path, format!("#!/bin/sh\n{note}\nhost=$1\nshift\n{before}\nexec sh -c \"$*\"\n"))
        .expect("writes");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("its own file");
    path
}

fn start(place: &Path, ssh: &Path, line: &str) -> Child {
    let mut program = Command::new(env!("CARGO_BIN_EXE_phalanx"));
    let line = format!("train tiny {SMALL} --ssh {} {line} --out run", ssh.display());
    program.args(line.split_whitespace()).current_dir(place);
    let secret = place.join("secret-of-all");
    std::fs::write(&secret, "between these walls alone").expect("writes");
    std::fs::set_permissions(&secret, std::fs::Permissions::from_mode(0o600)).expect("its own file");
    program.env("PHALANX_SECRET_FILE", secret).stdout(Stdio::piped()).stderr(Stdio::piped());
    program.spawn().expect("phalanx runs")
}

/// Returns true if it ended well, its output, and its errors.
fn end(launcher: Child) -> (bool, String, String) {
    let output = launcher.wait_with_output().expect("phalanx ends");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.success(), text(&output.stdout), text(&output.stderr))
}

fn wait_for_steps(place: &Path, launcher: &mut Child, steps: usize) {
    let begun = Instant::now();
    while read_metrics(&place.join("run/metrics.jsonl")).unwrap_or_default().len() < steps {
        assert!(launcher.try_wait().expect("it is there").is_none(), "it ended before step {steps}");
        assert!(begun.elapsed() < Duration::from_secs(60), "no step {steps} within a minute");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Cuts the connection to a host, and ends what stands for ssh there.
fn cut(place: &Path, host: &str) {
    let calls = std::fs::read_to_string(place.join("calls")).expect("it was called");
    let call = calls.lines().find(|call| call.contains(host)).expect("it was called");
    let number = call.split_whitespace().next().expect("its number");
    // By the system call: the program `kill` of some systems takes the number of a group for all processes that there are.
    let group =
        number.parse().ok().and_then(rustix::process::Pid::from_raw).expect("the number of a process");
    assert!(group.as_raw_nonzero().get() > 1);
    rustix::process::kill_process_group(group, rustix::process::Signal::KILL).expect("it is there");
}

/// Returns true if a process with these words in its command line exists.
fn is_there(words: &str) -> bool {
    Command::new("pgrep").args(["-f", words]).output().expect("pgrep runs").status.success()
}

#[test]
fn ranks_of_two_hosts_train_together_and_the_secret_is_in_no_command_line() {
    let place = tempfile::tempdir().expect("a folder");
    let script = ssh(place.path(), "");
    let file = place.path().join("nodes");
    std::fs::write(&file, "127.0.0.1 slots=1\nlocalhost slots=2 # the larger one\n").expect("writes");
    let line = format!("--hosts {} --set train.steps=6 --set train.logical_ranks=3", file.display());
    let (ended_well, printed, said) = end(start(place.path(), &script, &line));
    assert!(ended_well, "{said}");
    assert!(printed.contains("step"), "rank 0 speaks: {printed}");
    let told = Summary::read(&place.path().join("run/summary.json")).expect("a summary");
    assert_eq!((told.status.as_str(), told.step, told.world_size), ("finished", 6, 3));
    let calls = std::fs::read_to_string(place.path().join("calls")).expect("it was called");
    assert_eq!(calls.lines().count(), 2, "{calls}");
    assert!(calls.contains("host-ranks") && !calls.contains("between these walls"), "{calls}");
    let left = std::fs::read_dir(place.path().join("run")).expect("there").filter_map(Result::ok);
    let names: Vec<_> = left.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    assert!(!names.iter().any(|name| name.starts_with(".hosts")), "{names:?}");
    // It is the training that one host's ranks do.
    let of = |folder: &str| {
        let (newest, _) = Checkpoint::newest(&place.path().join(folder).join("checkpoints"));
        newest.expect("a checkpoint").hashes().expect("in the index")
    };
    let line =
        format!("train tiny {SMALL} --ranks 2 --set train.steps=6 --set train.logical_ranks=3 --out other");
    let mut other = Command::new(env!("CARGO_BIN_EXE_phalanx"));
    other.args(line.split_whitespace()).current_dir(place.path()).stdout(Stdio::null());
    assert!(other.status().expect("phalanx runs").success());
    assert_eq!(of("run"), of("other"));
}

#[test]
fn an_interrupt_has_all_hosts_save_and_stop() {
    let place = tempfile::tempdir().expect("a folder");
    let script = ssh(place.path(), "");
    let line = "--hosts 127.0.0.1:1,localhost:1 --set train.steps=100000";
    let mut launcher = start(place.path(), &script, line);
    wait_for_steps(place.path(), &mut launcher, 3);
    let interrupt = Command::new("kill").args(["-INT", &launcher.id().to_string()]).status();
    assert!(interrupt.expect("kill runs").success());
    let (ended_well, _, said) = end(launcher);
    assert!(ended_well, "{said}");
    let told = Summary::read(&place.path().join("run/summary.json")).expect("a summary");
    assert_eq!(told.status, "interrupted");
    assert_eq!(Checkpoint::list(&place.path().join("run/checkpoints")).len(), 1);
}

#[test]
fn a_connection_that_breaks_ends_the_run_by_its_host() {
    let place = tempfile::tempdir().expect("a folder");
    // Like ssh, it stays next to the command, whose standard input ends with it.
    let script = ssh(place.path(), "if [ $host = localhost ]; then cat | sh -c \"$*\"; exit 255; fi");
    let line = "--hosts 127.0.0.1:1,localhost:1 --set train.steps=100000";
    let mut launcher = start(place.path(), &script, line);
    wait_for_steps(place.path(), &mut launcher, 3);
    cut(place.path(), "localhost");
    let begun = Instant::now();
    let (ended_well, _, said) = end(launcher);
    assert!(!ended_well && begun.elapsed() < Duration::from_secs(30));
    assert!(said.contains("the connection to localhost (rank 1) has ended"), "{said}");
    std::thread::sleep(Duration::from_millis(300));
    assert!(!is_there(&place.path().join("run").display().to_string()), "a rank is left");
}

#[test]
fn runs_that_outlive_ranks_outlive_a_host() {
    let place = tempfile::tempdir().expect("a folder");
    let script = ssh(place.path(), "if [ $host = localhost ]; then cat | sh -c \"$*\"; exit 255; fi");
    let line = "--hosts 127.0.0.1:2,localhost:2 --strategy d-psgd --set sync.min_workers=1 --set train.steps=150 --set \
                chaos.delay=rank=0,ms=10;rank=1,ms=10;rank=2,ms=10;rank=3,ms=10";
    let mut launcher = start(place.path(), &script, line);
    wait_for_steps(place.path(), &mut launcher, 3);
    cut(place.path(), "localhost");
    let (ended_well, _, said) = end(launcher);
    assert!(ended_well, "{said}");
    let told = Summary::read(&place.path().join("run/summary.json")).expect("a summary");
    let mut dead: Vec<usize> = told.dead.iter().map(|dead| dead.rank).collect();
    dead.sort_unstable();
    assert_eq!((told.status.as_str(), told.step, dead), ("finished", 150, vec![2, 3]));
}

#[test]
fn a_rank_that_fails_is_named_and_a_folder_that_is_not_shared_refused() {
    let place = tempfile::tempdir().expect("a folder");
    let script = ssh(place.path(), "");
    let line = "--hosts 127.0.0.1:1,localhost:2 --set train.steps=20 --set train.check_replicas=2 --set \
                chaos.flip=rank=2,step=4";
    let (ended_well, _, said) = end(start(place.path(), &script, line));
    assert!(!ended_well && said.contains("rank 2 failed: after step 4: rank 2 of"), "{said}");

    let place = tempfile::tempdir().expect("a folder");
    let script = ssh(place.path(), "[ $host = localhost ] && rm -f run/.hosts-*; sleep 0.2");
    let (ended_well, _, said) =
        end(start(place.path(), &script, "--hosts 127.0.0.1:1,localhost:1 --set train.steps=5"));
    assert!(!ended_well && said.contains("does not see the run's folder"), "{said}");
}

#[test]
fn what_cannot_be_on_several_hosts_is_refused() {
    let place = tempfile::tempdir().expect("a folder");
    let script = ssh(place.path(), "");
    for (line, told) in [
        ("--hosts a:1,a:2", "names a twice"),
        ("--hosts a:1,b:1 --ranks 3", "it has 2 ranks, but the run has 3"),
        ("--hosts a:1,b:1 --strategy dp", "threads of one process"),
    ] {
        let (ended_well, _, said) = end(start(place.path(), &script, line));
        assert!(!ended_well && said.contains(told), "{line}: {said}");
        assert!(!place.path().join("calls").exists(), "no host was called");
    }
}
