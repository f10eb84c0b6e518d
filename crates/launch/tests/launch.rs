//! The supervisor against real processes: this test program started again as its own ranks.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use phalanx_launch::{ABORTED, LaunchError, ParentPipe, Replacements, Supervisor, SupervisorOutcome};
use phalanx_run::{FailureReport, StopFlag};

/// The variable that makes this program one of its ranks and says how it behaves.
const ROLE: &str = "PHALANX_TEST_ROLE";

fn main() {
    // Without the test harness, as the ranks must be able to own the process.
    match std::env::var(ROLE) {
        Ok(role) => rank(&role),
        Err(_) => run_tests(),
    }
}

/// Acts as a rank in each role.
fn rank(role: &str) {
    let number: usize = std::env::var("RANK").unwrap().parse().unwrap();
    let logs = PathBuf::from(std::env::args().nth(1).unwrap());
    let stop = StopFlag::default();
    let pipe = ParentPipe::follow(&stop).unwrap().expect("a supervisor");
    assert!(role == "parent" || pipe.secret.is_some());
    FailureReport::on_panic(&logs, number, |message, _| eprintln!("{message}"));
    std::fs::write(logs.join(format!("{number}.pid")), std::process::id().to_string()).unwrap();
    let forever = || loop {
        std::thread::sleep(Duration::from_secs(1));
    };
    let until_stopped = || {
        while !stop.is_raised() {
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    let fail = |message: &str, consequence: bool| {
        FailureReport::now(number, message, consequence).write(&logs).unwrap();
        std::process::exit(1);
    };
    match (role, number) {
        ("finish", _) => {}
        ("panic", 1) => panic!("the batch is {}", "gone"),
        ("panic-in-thread", 1) => {
            std::thread::spawn(|| panic!("a helper fell"));
            forever();
        }
        // Rank 0 notices first that a rank is missing; rank 1 reports the cause later.
        ("consequence", 0) => fail("rank 1 is gone", true),
        ("consequence", 1) => {
            std::thread::sleep(Duration::from_millis(300));
            fail("no such image: cat.png", false);
        }
        ("only-consequence", 0) => fail("another machine is gone", true),
        ("killed", 1) => {
            let kill = Command::new("kill").args(["-9", &std::process::id().to_string()]).status();
            panic!("outlived {kill:?}");
        }
        ("exit", 2) => {
            eprintln!("bad things");
            std::process::exit(7);
        }
        ("unwritable", 1) => {
            // The other rank has written its file before the folder is removed.
            while !logs.join("0.pid").exists() {
                std::thread::sleep(Duration::from_millis(5));
            }
            std::fs::remove_dir_all(&logs).unwrap();
            std::process::exit(7);
        }
        ("deaf", 0) => {
            // Stopped processes do not obey; they have to be killed.
            Command::new("kill").args(["-STOP", &std::process::id().to_string()]).status().unwrap();
        }
        ("deaf", 1) => {
            std::thread::sleep(Duration::from_millis(200));
            fail("own fault", false);
        }
        ("until-stopped", _) => {
            until_stopped();
            std::fs::write(logs.join(format!("{number}.stopped")), "").unwrap();
        }
        // One leaves before it has met the other, who finds it gone.
        ("until-met", 0) => {
            until_stopped();
            std::process::exit(ABORTED.into());
        }
        ("until-met", 1) => {
            until_stopped();
            fail("rank 0 is gone", true);
        }
        ("fails-when-stopped", 0) => {
            until_stopped();
            std::process::exit(ABORTED.into());
        }
        ("fails-when-stopped", 1) => {
            until_stopped();
            fail("no such image: dog.png", false);
        }
        // The other rank goes on without it, and ends.
        ("left-behind", 1) => {
            Command::new("kill").args(["-STOP", &std::process::id().to_string()]).status().unwrap();
        }
        ("left-behind", 0) => std::thread::sleep(Duration::from_millis(200)),
        // A supervisor of its own, to be killed by the test.
        ("parent", _) => {
            let inner = logs.join("inner");
            std::fs::create_dir_all(&inner).unwrap();
            let _ = supervise("wait", 2, &inner, || 0);
        }
        _ => forever(),
    }
}

/// Runs this program as `ranks` ranks of one role.
fn supervise(
    role: &str,
    ranks: usize,
    logs: &Path,
    interrupts: impl Fn() -> usize,
) -> Result<SupervisorOutcome, LaunchError> {
    let arguments = vec![
        format!("{ROLE}={role}"),
        std::env::current_exe().unwrap().display().to_string(),
        logs.display().to_string(),
    ];
    let (program, logs) = ("env".into(), logs.to_owned());
    let (replacements, secret_file, place) = (Replacements::default(), None, None);
    Supervisor {
        program,
        arguments,
        ranks,
        logs,
        least: (role == "left-behind").then_some(1),
        replacements,
        secret_file,
        quiet: false,
        place,
        interrupted_code: None,
    }
    .run(interrupts)
}

fn alive(pid: &str) -> bool {
    // A zombie has ended; only its exit code has not been collected yet.
    std::fs::read_to_string(format!("/proc/{}/stat", pid.trim()))
        .is_ok_and(|stat| !stat.rsplit(')').next().unwrap_or_default().trim_start().starts_with('Z'))
}

/// Waits until `holds`, at most `seconds`.
fn eventually(what: &str, seconds: u64, holds: impl Fn() -> bool) {
    let since = Instant::now();
    while !holds() {
        assert!(since.elapsed() < Duration::from_secs(seconds), "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn no_rank_left(logs: &Path, ranks: usize) {
    for rank in 0..ranks {
        if let Ok(pid) = std::fs::read_to_string(logs.join(format!("{rank}.pid"))) {
            eventually(&format!("rank {rank} is still there"), 3, || !alive(&pid));
        }
    }
}

/// A stopped rank does not keep the supervisor once the others have ended without it.
fn a_stopped_rank_that_was_left_behind_is_killed() {
    let place = tempfile::tempdir().unwrap();
    assert_eq!(supervise("left-behind", 2, place.path(), || 0).unwrap(), SupervisorOutcome::Finished);
    let report = FailureReport::read(place.path(), 1).expect("it is named");
    assert!(report.died && report.message.contains("SIGSTOP"), "{}", report.message);
    no_rank_left(place.path(), 2);
}

/// The first own failure is told, with its rank and log, soon, and nothing stays behind.
fn failures_are_told() {
    let cases: &[(&str, usize, usize, &str)] = &[
        ("panic", 3, 1, "the batch is gone"),
        ("panic-in-thread", 2, 1, "a helper fell"),
        ("consequence", 3, 1, "no such image: cat.png"),
        ("only-consequence", 2, 0, "another machine is gone"),
        ("killed", 3, 1, "was killed by signal 9"),
        ("exit", 3, 2, "ended with code 7 and gave no reason\n    bad things"),
        ("unwritable", 2, 1, "ended with code 7, and no reason can be written in"),
        ("deaf", 2, 1, "own fault"),
    ];
    for (role, ranks, culprit, words) in cases {
        let logs = tempfile::tempdir().unwrap();
        let since = Instant::now();
        let error = supervise(role, *ranks, logs.path(), || 0).unwrap_err();
        let LaunchError::Rank(failure) = &error else { panic!("{role}: {error}") };
        assert_eq!(failure.rank, *culprit, "{role}: {error}");
        assert!(failure.message.contains(words), "{role}: {error}");
        assert!(error.to_string().contains(&format!("rank-{culprit}.log")), "{role}: {error}");
        assert!(since.elapsed() < Duration::from_secs(10), "{role} took {:?}", since.elapsed());
        no_rank_left(logs.path(), *ranks);
    }
}

fn ranks_that_finish_are_no_failure() {
    let logs = tempfile::tempdir().unwrap();
    assert_eq!(supervise("finish", 3, logs.path(), || 0).unwrap(), SupervisorOutcome::Finished);
}

fn one_interrupt_stops_and_two_abort() {
    let logs = tempfile::tempdir().unwrap();
    let ready = |logs: &Path| (0..2).all(|rank| logs.join(format!("{rank}.pid")).exists());
    let once = || usize::from(ready(logs.path()));
    assert_eq!(supervise("until-stopped", 2, logs.path(), once).unwrap(), SupervisorOutcome::Finished);
    assert!((0..2).all(|rank| logs.path().join(format!("{rank}.stopped")).exists()));

    let logs = tempfile::tempdir().unwrap();
    let twice = || 2 * usize::from(ready(logs.path()));
    assert_eq!(supervise("wait", 2, logs.path(), twice).unwrap(), SupervisorOutcome::Aborted);
    no_rank_left(logs.path(), 2);
}

fn ranks_that_leave_before_they_have_met_are_no_failure() {
    let ready = |logs: &Path| (0..2).all(|rank| logs.join(format!("{rank}.pid")).exists());
    let logs = tempfile::tempdir().unwrap();
    let once = || usize::from(ready(logs.path()));
    let since = Instant::now();
    assert_eq!(supervise("until-met", 2, logs.path(), once).unwrap(), SupervisorOutcome::BeforeMeeting);
    assert!(since.elapsed() < Duration::from_secs(3), "took {:?}", since.elapsed());
    // A failure of a rank's own is told all the same.
    let logs = tempfile::tempdir().unwrap();
    let once = || usize::from(ready(logs.path()));
    let error = supervise("fails-when-stopped", 2, logs.path(), once).unwrap_err().to_string();
    assert!(error.contains("rank 1 failed: no such image: dog.png"), "{error}");
}

fn a_killed_parent_leaves_no_ranks() {
    let logs = tempfile::tempdir().unwrap();
    let mut parent = Command::new(std::env::current_exe().unwrap())
        .arg(logs.path())
        .env(ROLE, "parent")
        .env("RANK", "9")
        .env("PHALANX_SUPERVISED", "1")
        .stdin(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    parent.stdin.as_mut().unwrap().write_all(b"secret\n").unwrap();
    let inner = logs.path().join("inner");
    eventually("the ranks have not started", 10, || {
        (0..2).all(|rank| inner.join(format!("{rank}.pid")).exists())
    });
    // `Child::kill` is SIGKILL: the parent has no chance to tidy up.
    parent.kill().unwrap();
    parent.wait().unwrap();
    no_rank_left(&inner, 2);
}

fn run_tests() {
    let tests: &[(&str, fn())] = &[
        ("failures_are_told", failures_are_told),
        ("ranks_that_finish_are_no_failure", ranks_that_finish_are_no_failure),
        ("one_interrupt_stops_and_two_abort", one_interrupt_stops_and_two_abort),
        (
            "ranks_that_leave_before_they_have_met_are_no_failure",
            ranks_that_leave_before_they_have_met_are_no_failure,
        ),
        ("a_stopped_rank_that_was_left_behind_is_killed", a_stopped_rank_that_was_left_behind_is_killed),
        ("a_killed_parent_leaves_no_ranks", a_killed_parent_leaves_no_ranks),
    ];
    if cfg!(not(target_os = "linux")) {
        println!("skipped: these tests look at /proc");
        return;
    }
    for (name, test) in tests {
        println!("test {name} ...");
        test();
        println!("test {name} ... ok");
    }
}
