//! The parts that tests of the program share: folders to run it in, trainings in the background, the files that runs leave behind, and
//! trainings within this process.

#![cfg_attr(not(target_os = "linux"), allow(dead_code, reason = "some tests are for Linux only"))]

pub(crate) mod engine;
pub(crate) mod place;
pub(crate) mod processes;
pub(crate) mod results;
pub(crate) mod running;

pub(crate) use place::{MLP, PROGRAM, Place, SMALL, both, delayed, stderr};
pub(crate) use running::Running;

/// Checks cases of a test at the same time, each on a thread. Use it for cases that wait more than they compute.
pub(crate) fn side_by_side<C: Send>(cases: impl IntoIterator<Item = C>, check: impl Fn(C) + Sync) {
    let check = &check;
    std::thread::scope(|scope| {
        for case in cases {
            scope.spawn(move || check(case));
        }
    });
}
