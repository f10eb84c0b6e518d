//! Ranks on several hosts by `phalanx train --hosts`, with a script in the place of ssh.

use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::harness::processes::wait_until;
use crate::harness::results::{hashes, saved, summary};
use crate::harness::{MLP, Place, Running, delayed};

const SECRET: &str = "between these walls alone";

/// A folder with a secret, and with a stand-in for ssh that runs the command on this machine by a shell. It notes its arguments and its
/// number, and runs `before`.
fn place_with_ssh(before: &str) -> Place {
    let place = Place::new();
    let note = format!("echo \"$$ $*\" >> {}", place.path("calls").display());
    let script = format!("#!/bin/sh\n{note}\nhost=$1\nshift\n{before}\nexec sh -c \"$*\"\n");
    for (name, contents, mode) in [("ssh", script.as_str(), 0o755), ("secret-of-all", SECRET, 0o600)] {
        let path = place.write(name, contents);
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("its own file");
    }
    let secret = place.path("secret-of-all");
    place.with("PHALANX_SECRET_FILE", secret)
}

/// The command that trains on several hosts.
fn train(place: &Place, line: &str) -> String {
    let ssh = place.path("ssh");
    let further = "--set eval.enabled=false --set checkpoint.every=1000000";
    format!("train tiny {MLP} {further} --ssh {} {line} --out run", ssh.display())
}

/// Starts a training and waits until it has done three steps.
fn begin(place: &Place, line: &str) -> Running {
    let mut running = Running::start(place, &train(place, line));
    running.wait_for_step(3);
    running
}

/// Cuts the connection to a host, and ends what stands for ssh there.
fn cut(place: &Place, host: &str) {
    let calls = std::fs::read_to_string(place.path("calls")).expect("it was called");
    let call = calls.lines().find(|call| call.contains(host)).expect("it was called");
    let number = call.split_whitespace().next().expect("its number");
    // By the system call: the program `kill` of some systems takes the number of a group for all processes that there are.
    let group =
        number.parse().ok().and_then(rustix::process::Pid::from_raw).expect("the number of a process");
    assert!(group.as_raw_nonzero().get() > 1);
    rustix::process::kill_process_group(group, rustix::process::Signal::KILL).expect("it is there");
}

/// Returns true if a process has these words in its command line.
fn is_there(words: &str) -> bool {
    Command::new("pgrep").args(["-f", words]).output().expect("pgrep runs").status.success()
}

#[test]
fn ranks_of_two_hosts_train_together_and_the_secret_is_in_no_command_line() {
    let place = place_with_ssh("");
    let file = place.write("nodes", "127.0.0.1 slots=1\nlocalhost slots=2 # the larger one\n");
    let line = format!("--hosts {} --set train.steps=6 --set train.logical_ranks=3", file.display());
    let running = Running::start(&place, &train(&place, &line));
    let run = running.run.clone();
    let end = running.end();
    assert_eq!(end.code, Some(0), "{end:?}");
    assert!(end.stdout.contains("step"), "rank 0 speaks: {end:?}");
    let told = summary(&run);
    assert_eq!((told.status.as_str(), told.step, told.world_size), ("finished", 6, 3));
    let calls = std::fs::read_to_string(place.path("calls")).expect("it was called");
    assert_eq!(calls.lines().count(), 2, "{calls}");
    assert!(calls.contains("host-ranks") && !calls.contains(SECRET), "{calls}");
    let left = std::fs::read_dir(&run).expect("there").filter_map(Result::ok);
    let names: Vec<_> = left.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    assert!(!names.iter().any(|name| name.starts_with(".hosts")), "{names:?}");
    // It is the training that one host's ranks do.
    place.succeed(&format!(
        "train tiny {MLP} --set eval.enabled=false --ranks 2 --set train.steps=6 --set train.logical_ranks=3 --out other"
    ));
    assert_eq!(hashes(&run), hashes(&place.path("other")));
}

#[test]
fn an_interrupt_has_all_hosts_save_and_stop() {
    let place = place_with_ssh("");
    let line = "--hosts 127.0.0.1:1,localhost:1 --set train.steps=100000";
    let running = begin(&place, line);
    running.signal("-INT");
    let told = running.succeed();
    assert_eq!(told.status, "interrupted");
    assert_eq!(saved(&place.path("run")).len(), 1);
}

#[test]
fn a_connection_that_breaks_ends_the_run_by_its_host() {
    // Like ssh, it stays next to the command, whose standard input ends with it.
    let place = place_with_ssh("if [ $host = localhost ]; then cat | sh -c \"$*\"; exit 255; fi");
    let line = "--hosts 127.0.0.1:1,localhost:1 --set train.steps=100000";
    let running = begin(&place, line);
    cut(&place, "localhost");
    let begun = Instant::now();
    let said = running.fail();
    assert!(begun.elapsed() < Duration::from_secs(30));
    assert!(said.contains("the connection to localhost (rank 1) has ended"), "{said}");
    let run = place.path("run").display().to_string();
    wait_until("end of all ranks", String::new, || !is_there(&run));
}

#[test]
fn runs_that_outlive_ranks_outlive_a_host() {
    let place = place_with_ssh("if [ $host = localhost ]; then cat | sh -c \"$*\"; exit 255; fi");
    let line =
        "--hosts 127.0.0.1:2,localhost:2 --strategy d-psgd --set sync.min_workers=1 --set train.steps=150";
    let running = begin(&place, &format!("{line} {}", delayed(4, 10)));
    cut(&place, "localhost");
    let told = running.succeed();
    let mut dead: Vec<usize> = told.dead.iter().map(|dead| dead.rank).collect();
    dead.sort_unstable();
    assert_eq!((told.status.as_str(), told.step, dead), ("finished", 150, vec![2, 3]));
}

#[test]
fn a_rank_that_fails_is_named_and_a_folder_that_is_not_shared_refused() {
    let place = place_with_ssh("");
    let line = "--hosts 127.0.0.1:1,localhost:2 --set train.steps=20 --set train.check_replicas=2 --set \
                chaos.flip=rank=2,step=4";
    let said = place.fail(&train(&place, line));
    assert!(said.contains("rank 2 failed: after step 4: rank 2 of"), "{said}");

    let place = place_with_ssh("[ $host = localhost ] && rm -f run/.hosts-*; sleep 0.2");
    let said = place.fail(&train(&place, "--hosts 127.0.0.1:1,localhost:1 --set train.steps=5"));
    assert!(said.contains("does not see the run's folder"), "{said}");
}

#[test]
fn what_cannot_be_on_several_hosts_is_refused() {
    let place = place_with_ssh("");
    for (line, told) in [
        ("--hosts a:1,a:2", "names a twice"),
        ("--hosts a:1,b:1 --ranks 3", "it has 2 ranks, but the run has 3"),
        ("--hosts a:1,b:1 --strategy dp", "threads of one process"),
    ] {
        let said = place.fail(&train(&place, line));
        assert!(said.contains(told), "{line}: {said}");
        assert!(!place.path("calls").exists(), "no host was called");
    }
}
