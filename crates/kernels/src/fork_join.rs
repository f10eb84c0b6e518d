//! A thread pool that runs one parallel loop at a time and stays awake between loops.
//!
//! A training step is hundreds of loops of some microseconds with serial code between them. A general pool puts idle
//! threads to sleep within microseconds and wakes them by a system call: 55 to 85 µs a loop instead of 1 to 3
//! (`docs/performance.md`). Here the caller works too, a helper polls for the next loop for a while before it sleeps, and
//! the caller does not wait for a helper that wakes up too late.
//!
//! The module has `unsafe` for two things: a borrowed loop body that other threads run, and the pieces of a slice that
//! they write.

#![allow(unsafe_code)]

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The time that an idle helper polls before it sleeps.
const AWAKE: Duration = Duration::from_micros(300);

/// Polls between two readings of the clock.
const LOOKS: u32 = 64;

/// The bit of [`Shared::gate`] that lets helpers join the loop.
const OPEN: u64 = 1 << 31;

/// The bits of [`Shared::gate`] that count joined helpers. The upper half counts loops.
const JOINED: u64 = OPEN - 1;

type Body<'a> = dyn Fn(usize) + Sync + 'a;

/// The state that helpers and callers share.
struct Shared {
    /// The number of the loop, whether it is open, and how many helpers have joined it.
    gate: AtomicU64,
    /// The body of the loop and its number of tasks, while the loop runs.
    job: Mutex<Option<(&'static Body<'static>, usize)>>,
    /// The next task.
    next: AtomicUsize,
    /// Helpers that have joined and finished.
    left: AtomicUsize,
    /// The panic of a task on a helper.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    stop: AtomicBool,
    asleep: Vec<AtomicBool>,
    /// The CPU that the caller was on when it opened the gate.
    caller: AtomicUsize,
}

/// A pool of the caller and some helpers.
pub(crate) struct ForkJoin {
    shared: Arc<Shared>,
    helpers: Vec<JoinHandle<()>>,
    /// True while a loop runs. Another loop, nested or from another thread, runs on its caller alone.
    busy: AtomicBool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ForkJoin {
    /// Starts at most `helpers` threads, fewer if the system refuses some.
    pub(crate) fn new(helpers: usize) -> Self {
        let shared = Arc::new(Shared {
            gate: AtomicU64::new(0),
            job: Mutex::new(None),
            next: AtomicUsize::new(0),
            left: AtomicUsize::new(0),
            panic: Mutex::new(None),
            stop: AtomicBool::new(false),
            asleep: (0..helpers).map(|_| AtomicBool::new(false)).collect(),
            caller: AtomicUsize::new(usize::MAX),
        });
        let start = |index: usize| {
            let shared = shared.clone();
            std::thread::Builder::new().name(format!("kernel-{index}")).spawn(move || shared.help(index)).ok()
        };
        let helpers = (0..helpers).map_while(start).collect();
        Self { shared, helpers, busy: AtomicBool::new(false) }
    }

    /// The number of threads of a loop, the caller among them.
    pub(crate) fn threads(&self) -> usize {
        self.helpers.len() + 1
    }

    /// Runs `body(index)` once for every index below `tasks` and returns when all are done. Resumes a task's panic when
    /// the others have ended.
    pub(crate) fn run(&self, tasks: usize, body: &Body<'_>) {
        if tasks <= 1 || self.helpers.is_empty() || self.busy.swap(true, Ordering::Acquire) {
            (0..tasks).for_each(body);
            return;
        }
        let shared = &*self.shared;
        // SAFETY: only the lifetime changes. Helpers call the body only between joining the loop through the open gate
        // and counting themselves in `left`. Below, the gate is closed and every helper that has joined is waited for
        // before this function returns or unwinds, so that no call outlives the borrow. Between here and there nothing
        // panics: tasks are run inside `catch_unwind`.
        let lasting: &'static Body<'static> = unsafe { std::mem::transmute::<&Body<'_>, _>(body) };
        *lock(&shared.job) = Some((lasting, tasks));
        shared.next.store(0, Ordering::Relaxed);
        shared.left.store(0, Ordering::Relaxed);
        shared.caller.store(cpu::current(), Ordering::Relaxed);
        let number = (shared.gate.load(Ordering::Relaxed) >> 32).wrapping_add(1);
        // The order of this store and the loads of `asleep` is the opposite of that in `help`: one of both sides sees
        // the other, so that no helper sleeps through a loop.
        shared.gate.store(number << 32 | OPEN, Ordering::SeqCst);
        for (helper, asleep) in self.helpers.iter().zip(&shared.asleep).take(tasks - 1) {
            if asleep.load(Ordering::SeqCst) {
                helper.thread().unpark();
            }
        }
        let own = catch_unwind(AssertUnwindSafe(|| shared.tasks(body, tasks)));
        let joined = (shared.gate.fetch_and(!OPEN, Ordering::SeqCst) & JOINED) as usize;
        let mut looks = 0_u32;
        while shared.left.load(Ordering::Acquire) < joined {
            looks = looks.wrapping_add(1);
            // With more threads than cores the helper may need this thread's core.
            if looks.is_multiple_of(1 << 10) { std::thread::yield_now() } else { std::hint::spin_loop() }
        }
        *lock(&shared.job) = None;
        let helper = lock(&shared.panic).take();
        self.busy.store(false, Ordering::Release);
        if let Some(panic) = own.err().or(helper) {
            resume_unwind(panic);
        }
    }

    /// Splits `data` into pieces of `len` elements and runs `body(index, piece)` for each.
    pub(crate) fn run_chunks<T: Send>(
        &self,
        data: &mut [T],
        len: usize,
        body: impl Fn(usize, &mut [T]) + Sync,
    ) {
        struct Start<T>(*mut T);
        // SAFETY: the pointer is only used to give every task elements of its own, which `T: Send` allows.
        unsafe impl<T: Send> Sync for Start<T> {}
        let (total, start) = (data.len(), Start(data.as_mut_ptr()));
        let start = &start;
        self.run(total.div_ceil(len), &|index| {
            let first = index * len;
            // SAFETY: `first` is below `total`, as `index` is below the number of pieces, and the piece ends at `total`
            // at the latest; so it lies in `data`, which is exclusively borrowed until `run` returns. `run` gives every
            // index to one call, so no two pieces that exist at a time overlap.
            let piece = unsafe { std::slice::from_raw_parts_mut(start.0.add(first), len.min(total - first)) };
            body(index, piece);
        });
    }
}

impl Shared {
    /// Runs tasks until none is left.
    fn tasks(&self, body: &Body<'_>, tasks: usize) {
        loop {
            let index = self.next.fetch_add(1, Ordering::Relaxed);
            if index >= tasks {
                return;
            }
            body(index);
        }
    }

    /// The loop of a helper thread.
    fn help(&self, own: usize) {
        let mut seen = 0;
        while let Some(gate) = self.wait(own, seen) {
            if self.gate.compare_exchange(gate, gate + 1, Ordering::SeqCst, Ordering::Relaxed).is_err() {
                continue;
            }
            seen = gate >> 32;
            let job = *lock(&self.job);
            if let Some((body, tasks)) = job
                && let Err(panic) = catch_unwind(AssertUnwindSafe(|| self.tasks(body, tasks)))
            {
                *lock(&self.panic) = Some(panic);
            }
            self.left.fetch_add(1, Ordering::Release);
        }
    }

    /// Waits until the gate is open for another loop than `seen`, and returns it; `None` at the end.
    fn wait(&self, own: usize, seen: u64) -> Option<u64> {
        let ready = || {
            let gate = self.gate.load(Ordering::SeqCst);
            (gate & OPEN != 0 && gate >> 32 != seen).then_some(gate)
        };
        let mut start = Instant::now();
        loop {
            for _ in 0..LOOKS {
                if let Some(gate) = ready() {
                    return Some(gate);
                }
                std::hint::spin_loop();
            }
            if self.stop.load(Ordering::SeqCst) {
                return None;
            }
            let own_cpu = cpu::current();
            if own_cpu == self.caller.load(Ordering::Relaxed) {
                // This helper occupies the caller's CPU.
                cpu::leave(own_cpu);
                self.caller.store(usize::MAX, Ordering::Relaxed);
            }
            if start.elapsed() > AWAKE {
                self.asleep[own].store(true, Ordering::SeqCst);
                if ready().is_none() && !self.stop.load(Ordering::SeqCst) {
                    std::thread::park();
                }
                self.asleep[own].store(false, Ordering::SeqCst);
                start = Instant::now();
            }
        }
    }
}

impl Drop for ForkJoin {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        for helper in self.helpers.drain(..) {
            helper.thread().unpark();
            // Panics of tasks are caught, so a helper does not fail.
            let _ = helper.join();
        }
    }
}

/// The CPUs of threads. A scheduler may wake a helper on its caller's CPU and leave both there for seconds while another
/// CPU is idle: as the two run in turn, neither seems to wait. A helper that finds itself there moves.
#[cfg(target_os = "linux")]
mod cpu {
    use rustix::thread::{sched_getaffinity, sched_getcpu, sched_setaffinity};

    pub(super) fn current() -> usize {
        sched_getcpu()
    }

    /// Moves the calling thread to any other CPU that it may use; it may return later.
    pub(super) fn leave(cpu: usize) {
        let Ok(allowed) = sched_getaffinity(None) else { return };
        let mut others = allowed;
        others.unset(cpu);
        if others.count() > 0 && sched_setaffinity(None, &others).is_ok() {
            // Restoring the set just read should succeed; if not, the thread stays on the other CPUs.
            let _ = sched_setaffinity(None, &allowed);
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod cpu {
    pub(super) fn current() -> usize {
        0
    }

    pub(super) fn leave(_: usize) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_task_runs_once_in_many_loops() {
        let pool = ForkJoin::new(3);
        assert_eq!(pool.threads(), 4);
        let mut counts = vec![0_u32; 1001];
        for round in 0..3000_u32 {
            if round % 500 == 0 {
                // Long enough for the helpers to fall asleep.
                std::thread::sleep(2 * AWAKE);
            }
            let len = 1 + round as usize % 400;
            pool.run_chunks(&mut counts, len, |index, piece| {
                assert!(index * len + piece.len() <= 1001);
                piece.iter_mut().for_each(|count| *count += 1);
            });
        }
        assert!(counts.iter().all(|count| *count == 3000));
        pool.run_chunks(&mut Vec::<u8>::new(), 4, |_, _| panic!("there is no piece"));
    }

    #[test]
    fn loops_inside_loops_and_from_several_threads_run_too() {
        let pool = ForkJoin::new(2);
        let total = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        pool.run(5, &|_| {
                            pool.run(3, &|index| {
                                total.fetch_add(index, Ordering::Relaxed);
                            });
                        });
                    }
                });
            }
        });
        assert_eq!(total.into_inner(), 3 * 200 * 5 * 3);
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_goes_on() {
        let pool = ForkJoin::new(2);
        for bad in 0..20 {
            let run = || pool.run(20, &|index| assert!(index != bad, "task {bad} fails"));
            let panic = catch_unwind(AssertUnwindSafe(run)).expect_err("a task panics");
            let text = panic.downcast_ref::<String>().expect("a message");
            assert_eq!(text, &format!("task {bad} fails"));
            let count = AtomicUsize::new(0);
            pool.run(50, &|_| {
                count.fetch_add(1, Ordering::Relaxed);
            });
            assert_eq!(count.into_inner(), 50);
        }
    }
}
