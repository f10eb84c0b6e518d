//! Waiting for a word in shared memory to change, and waking who does.
//!
//! A rank that waits looks for a while and then sleeps on the word (a futex); with more ranks than cores it sleeps almost
//! at once, because looking would take the time of whom it waits for.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::thread::{futex, sched_getaffinity, sched_getcpu, sched_setaffinity};

/// How long a waiting rank sleeps before it looks whether the world is broken.
const NAP: Duration = Duration::from_millis(20);

/// How often a rank looks before it sleeps if others need the processor.
pub(super) const FEW: u32 = 50;

/// How often a rank looks before it sleeps, in a world of so many ranks on this host.
pub(crate) fn looks(ranks: usize) -> u32 {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    if ranks <= cores { 20_000 } else { FEW }
}

/// This processor's number plus one, so that zero is none.
pub(super) fn processor() -> u32 {
    sched_getcpu() as u32 + 1
}

/// Stores a value and wakes who sleeps on the word.
pub(super) fn publish(word: &AtomicU32, value: u32, sleepers: &AtomicU32) {
    // Sequentially consistent with the sleepers' count: either they see the value or this rank sees them.
    word.store(value, Ordering::SeqCst);
    if sleepers.load(Ordering::SeqCst) > 0 {
        wake(word);
    }
}

/// Wakes everybody who sleeps on the word.
pub(super) fn wake(word: &AtomicU32) {
    // Waking can only fail for an address that is not mapped.
    let _ = futex::wake(word, futex::Flags::empty(), u32::MAX >> 1);
}

/// Looks at a word, at most so often, until `there` holds of it; whether it came to hold. `processor` is where the rank
/// that changes the word runs.
pub(super) fn look(word: &AtomicU32, there: impl Fn(u32) -> bool, looks: u32, processor: &AtomicU32) -> bool {
    for look in 1..=looks {
        if there(word.load(Ordering::Acquire)) {
            return true;
        }
        std::hint::spin_loop();
        if look.is_multiple_of(1 << 10) {
            make_way(processor);
        }
    }
    false
}

/// Sleeps until the word changes, a while at most; whether `there` holds of it then.
pub(super) fn nap(word: &AtomicU32, there: impl Fn(u32) -> bool, sleepers: &AtomicU32) -> bool {
    let timeout = rustix::time::Timespec { tv_sec: 0, tv_nsec: NAP.as_nanos() as i64 };
    sleepers.fetch_add(1, Ordering::SeqCst);
    let found = word.load(Ordering::SeqCst);
    if !there(found) {
        // Returns at once if the word has changed meanwhile.
        let _ = futex::wait(word, futex::Flags::empty(), found, Some(&timeout));
    }
    sleepers.fetch_sub(1, Ordering::SeqCst);
    there(word.load(Ordering::Acquire))
}

/// Moves to another processor if this rank looks for another on the very one that that one needs. A scheduler may
/// leave both there for seconds while another processor is idle.
fn make_way(theirs: &AtomicU32) {
    let own = sched_getcpu();
    if theirs.load(Ordering::Relaxed) != own as u32 + 1 {
        return;
    }
    let Ok(allowed) = sched_getaffinity(None) else { return };
    let mut others = allowed;
    others.unset(own);
    if others.count() > 0 && sched_setaffinity(None, &others).is_ok() {
        // The set was just read, so it can be had again; if not, the thread stays where it is allowed.
        let _ = sched_setaffinity(None, &allowed);
    }
}
