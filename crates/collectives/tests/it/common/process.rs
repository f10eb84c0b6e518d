//! Ranks as processes, and cases that wait at the same time.

use std::process::{Command, Stdio};

/// Returns the command that starts this program again as a rank. `test` is the name of the test that plays it, and `role` the
/// environment variable with its place.
pub(crate) fn rank_process(test: &str, role: &str, place: &str) -> Command {
    let mut program = Command::new(std::env::current_exe().expect("this program"));
    program
        .args(["--exact", test, "--nocapture"])
        .env(role, place)
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    program
}

/// Runs `check` on all cases, `at_once` at a time: for cases that mostly wait.
pub(crate) fn side_by_side<T: Sync>(cases: &[T], at_once: usize, check: impl Fn(&T) + Sync) {
    for some in cases.chunks(at_once) {
        std::thread::scope(|scope| {
            for case in some {
                scope.spawn(|| check(case));
            }
        });
    }
}
