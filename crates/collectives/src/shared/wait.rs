//! Waiting for a word in shared memory to change, and waking waiting ranks.
//!
//! A rank polls for a while and then sleeps on the word (a futex). With more ranks than cores it sleeps almost at once, because
//! polling would take CPU time from the rank that it waits for. The same holds after a wait that was longer than polling, until a
//! shorter one: where ranks are far apart, or other programs have the cores, polling only takes CPU time.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::thread::{futex, sched_getaffinity, sched_getcpu, sched_setaffinity};

/// The longest sleep of a waiting rank between checks for a broken world.
const NAP: Duration = Duration::from_millis(20);

/// The longest sleep after which the next wait polls again: about the time of all polls.
pub(super) const WORTH_POLLING: Duration = Duration::from_micros(200);

/// The number of polls before sleeping if others need the CPU.
pub(super) const FEW: u32 = 50;

/// Returns the number of polls before sleeping, for a number of ranks on this host.
pub(crate) fn looks(ranks: usize) -> u32 {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    if ranks <= cores { 20_000 } else { FEW }
}

/// Returns the number of this CPU plus one; 0 if unknown.
pub(super) fn current_cpu() -> u32 {
    sched_getcpu() as u32 + 1
}

/// Stores a value and wakes ranks that sleep on the word.
pub(super) fn publish(word: &AtomicU32, value: u32, sleepers: &AtomicU32) {
    // Sequentially consistent with the sleepers' count: either they see the value or this rank sees them.
    word.store(value, Ordering::SeqCst);
    if sleepers.load(Ordering::SeqCst) > 0 {
        wake(word);
    }
}

/// Wakes all ranks that sleep on the word.
pub(super) fn wake(word: &AtomicU32) {
    // Waking fails only for an address that is not mapped.
    let _ = futex::wake(word, futex::Flags::empty(), u32::MAX >> 1);
}

/// Polls a word until `there` is true of it, at most `looks` times; returns the last result. `cpu` is the CPU number of the rank
/// that changes the word.
pub(super) fn look(word: &AtomicU32, there: impl Fn(u32) -> bool, looks: u32, cpu: &AtomicU32) -> bool {
    for look in 1..=looks {
        if there(word.load(Ordering::Acquire)) {
            return true;
        }
        std::hint::spin_loop();
        if look.is_multiple_of(1 << 10) {
            make_way(cpu);
        }
    }
    false
}

/// Sleeps until the word changes, for a limited time; returns the value of `there` then.
pub(super) fn nap(word: &AtomicU32, there: impl Fn(u32) -> bool, sleepers: &AtomicU32) -> bool {
    let timeout = rustix::time::Timespec { tv_sec: 0, tv_nsec: NAP.as_nanos() as i64 };
    sleepers.fetch_add(1, Ordering::SeqCst);
    let found = word.load(Ordering::SeqCst);
    if !there(found) {
        // Returns at once if the word has changed by now.
        let _ = futex::wait(word, futex::Flags::empty(), found, Some(&timeout));
    }
    sleepers.fetch_sub(1, Ordering::SeqCst);
    there(word.load(Ordering::Acquire))
}

/// Moves to another CPU if this rank polls on the one that the awaited rank needs. A scheduler may leave both there for seconds
/// while another CPU is idle.
fn make_way(theirs: &AtomicU32) {
    let own = sched_getcpu();
    if theirs.load(Ordering::Relaxed) != own as u32 + 1 {
        return;
    }
    let Ok(allowed) = sched_getaffinity(None) else { return };
    let mut others = allowed;
    others.unset(own);
    if others.count() > 0 && sched_setaffinity(None, &others).is_ok() {
        // The set was just read, so it can be restored; if not, the thread stays where it is allowed.
        let _ = sched_setaffinity(None, &allowed);
    }
}
