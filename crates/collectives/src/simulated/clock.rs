//! Clocks of ranks: wall time or simulated time.

use std::cell::Cell;
use std::time::Duration;

use crate::error::CommError;

thread_local! {
    /// The lead of the thread's simulated clock over its CPU time, in nanoseconds.
    static AHEAD: Cell<i64> = const { Cell::new(0) };
    /// The CPU time that the thread spent waiting, in nanoseconds.
    static WAITED: Cell<i64> = const { Cell::new(0) };
}

/// The clock that a rank measures by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Clock {
    /// The machine's clock.
    #[default]
    Wall,
    /// A simulated clock of each thread. It advances by the thread's CPU time, is set to a message's arrival when it is received,
    /// and to the end of an operation when the thread has waited for it. Waiting on shared cores takes no simulated time, so ranks
    /// may outnumber cores. Linux only.
    Cpu,
}

impl Clock {
    /// All choices.
    pub const ALL: &'static [Self] = &[Self::Wall, Self::Cpu];

    /// Returns the time since a common start of all ranks.
    pub fn now(self) -> Duration {
        Duration::from_nanos(self.nanos())
    }

    /// Returns the nanoseconds since a common start of all ranks.
    pub(crate) fn nanos(self) -> u64 {
        match self {
            Self::Wall => system::wall(),
            Self::Cpu => system::cpu().saturating_add_signed(AHEAD.get()),
        }
    }

    /// Sleeps for `time`, or advances the simulated clock by it.
    pub fn sleep(self, time: Duration) {
        match self {
            Self::Wall => std::thread::sleep(time),
            Self::Cpu => AHEAD.set(AHEAD.get().saturating_add(time.as_nanos() as i64)),
        }
    }

    /// Advances this thread's simulated clock to `due`, if that is later. Wall time needs no change.
    pub(crate) fn catch_up(self, due: u64) {
        let late = due.saturating_sub(if self == Self::Cpu { self.nanos() } else { due });
        if late > 0 {
            // A damaged message may contain any time.
            AHEAD.set(AHEAD.get().saturating_add_unsigned(late));
        }
    }

    /// Waits until `due`, or until `ended` returns the reason to stop.
    pub(crate) fn wait_until<E>(self, due: u64, ended: impl Fn() -> Option<E>) -> Result<(), E> {
        /// The longest sleep at a time.
        const LONGEST: u64 = 50_000_000;
        /// The largest delay of the system's wake-ups, in nanoseconds. The rest of a wait is spent awake.
        const LATE: u64 = 15_000;
        if self == Self::Cpu {
            self.catch_up(due);
            return Ok(());
        }
        loop {
            let left = due.saturating_sub(self.nanos());
            if left == 0 {
                return Ok(());
            }
            if left <= LATE {
                std::thread::yield_now();
                continue;
            }
            system::wake_in_time();
            std::thread::sleep(Duration::from_nanos((left - LATE).min(LONGEST)));
            if let Some(why) = ended().filter(|_| left > LONGEST) {
                return Err(why);
            }
        }
    }

    /// Runs a function that waits, whose polling does not count as computing.
    pub(crate) fn paused<R>(self, run: impl FnOnce() -> R) -> R {
        if self == Self::Wall {
            return run();
        }
        let before = system::cpu();
        let result = run();
        let waited = (system::cpu() - before) as i64;
        AHEAD.set(AHEAD.get() - waited);
        WAITED.set(WAITED.get() + waited);
        result
    }

    /// Returns the nanoseconds that this thread has computed; 0 for the wall clock, which does not know.
    pub(crate) fn worked(self) -> u64 {
        match self {
            Self::Wall => 0,
            Self::Cpu => system::cpu().saturating_add_signed(-WAITED.get()),
        }
    }
}

impl std::fmt::Display for Clock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Wall => "wall",
            Self::Cpu => "cpu",
        })
    }
}

impl std::str::FromStr for Clock {
    type Err = CommError;

    fn from_str(text: &str) -> Result<Self, CommError> {
        let problem = || format!("the clock `{text}` is unknown; there are wall and cpu");
        let unknown = || CommError::Argument { operation: "simulate a link", problem: problem() };
        Self::ALL.iter().find(|clock| clock.to_string() == text).copied().ok_or_else(unknown)
    }
}

/// The system's clocks in nanoseconds.
#[cfg(target_os = "linux")]
mod system {
    use std::cell::Cell;
    use std::num::NonZeroU64;

    use rustix::time::{ClockId, clock_gettime};

    thread_local! {
        /// True if the system knows that this thread needs timely wake-ups.
        static AWAKE: Cell<bool> = const { Cell::new(false) };
    }

    fn of(clock: ClockId) -> u64 {
        let time = clock_gettime(clock);
        time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
    }

    /// The time since the machine started, equal for all of its processes.
    pub(super) fn wall() -> u64 {
        of(ClockId::Monotonic)
    }

    pub(super) fn cpu() -> u64 {
        of(ClockId::ThreadCPUTime)
    }

    /// Asks the system not to delay this thread's wake-ups by 50 µs to save energy.
    pub(super) fn wake_in_time() {
        if !AWAKE.replace(true) {
            // Without it, messages come slightly later.
            let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
        }
    }
}

/// On other systems worlds over simulated links are refused; only the time since the first call is known.
#[cfg(not(target_os = "linux"))]
mod system {
    use std::sync::OnceLock;
    use std::time::Instant;

    pub(super) fn wall() -> u64 {
        static BEGINNING: OnceLock<Instant> = OnceLock::new();
        BEGINNING.get_or_init(Instant::now).elapsed().as_nanos() as u64
    }

    pub(super) fn cpu() -> u64 {
        wall()
    }

    pub(super) fn wake_in_time() {}
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn only_computing_and_what_is_waited_for_moves_a_simulated_clock() {
        let clock = Clock::Cpu;
        let before = clock.nanos();
        std::thread::sleep(Duration::from_millis(50));
        let slept = clock.nanos() - before;
        assert!(slept < 20_000_000, "{slept} ns of sleep were counted");
        let due = clock.nanos() + 3_600_000_000_000;
        clock.wait_until(due, || None::<()>).expect("nothing ends it");
        assert!(clock.nanos() >= due && clock.nanos() < due + 1_000_000_000, "an hour has passed at once");
        let (now, worked) = (clock.nanos(), clock.worked());
        // CPU time of a thread that waits does not count.
        clock.paused(|| {
            let since = system::cpu();
            while system::cpu() - since < 30_000_000 {}
        });
        assert!(clock.nanos() - now < 20_000_000 && clock.worked() - worked < 20_000_000);
        clock.catch_up(due);
        assert!(clock.nanos() > due, "a clock is never set back");
        // Another thread has another clock.
        std::thread::spawn(move || assert!(clock.nanos() < due)).join().expect("no panic");
    }

    #[test]
    fn waiting_by_the_machines_clock_is_real_and_not_short() {
        let clock = Clock::Wall;
        let (since, due) = (std::time::Instant::now(), clock.nanos() + 20_000_000);
        clock.wait_until(due, || None::<()>).expect("nothing ends it");
        assert!(since.elapsed() >= Duration::from_millis(20));
        assert_eq!(clock.wait_until(clock.nanos() + 10_000_000_000, || Some("broken")), Err("broken"));
    }
}
