//! Interrupts a thread of this process and makes it walk its own stack.
//!
//! A thread gets a signal (`SIGURG`, which is ignored by default), and its handler writes the addresses of its functions to static
//! memory. Names are looked up elsewhere and later: a handler must not allocate or take locks.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, TryLockError};
use std::time::{Duration, Instant};

/// The most functions of a stack.
const DEEPEST: usize = 192;

/// The longest wait for a thread to answer. A thread that is stopped or waits for a disk does not.
const PATIENCE: Duration = Duration::from_millis(100);

/// The longest wait for a thread that has begun to answer.
const WALKING: Duration = Duration::from_secs(1);

/// The thread that is asked; 0 if there is none, and negative once it answers.
static ASKED: AtomicI32 = AtomicI32::new(0);
/// The number of addresses written, plus 1; 0 until they are.
static TOLD: AtomicUsize = AtomicUsize::new(0);
static FRAMES: [AtomicUsize; DEEPEST] = [const { AtomicUsize::new(0) }; DEEPEST];
/// Held by the thread that asks.
static ASKING: Mutex<()> = Mutex::new(());

/// Returns the calling thread's number.
pub(super) fn own() -> u32 {
    rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned()
}

/// Samples the stacks of threads, one after the other.
pub(super) struct StackSampler {
    /// True if a thread has begun to answer and not finished, so that it may write at any time.
    is_spoilt: bool,
    _asking: MutexGuard<'static, ()>,
}

impl StackSampler {
    /// Returns `None` if another thread of this process takes stacks now, or the system refuses.
    pub(super) fn new() -> Option<Self> {
        let asking = match ASKING.try_lock() {
            Ok(asking) => asking,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        install().then_some(Self { is_spoilt: false, _asking: asking })
    }

    /// Returns the addresses of a thread's functions, the innermost first, with those of the handler; `None` if it does not answer.
    pub(super) fn take(&mut self, thread: u32) -> Vec<u64> {
        let id = thread.cast_signed();
        if self.is_spoilt {
            return Vec::new();
        }
        TOLD.store(0, Ordering::Relaxed);
        ASKED.store(id, Ordering::Release);
        if !interrupt(id) {
            ASKED.store(0, Ordering::Release);
            return Vec::new();
        }
        let begun = Instant::now();
        loop {
            let told = TOLD.load(Ordering::Acquire);
            if told > 0 {
                let frames = FRAMES[..told - 1].iter();
                return frames.map(|frame| frame.load(Ordering::Relaxed) as u64).collect();
            }
            let answers = ASKED.load(Ordering::Acquire) != id;
            if begun.elapsed() > PATIENCE && !answers {
                let withdrawn = ASKED.compare_exchange(id, 0, Ordering::AcqRel, Ordering::Acquire);
                if withdrawn.is_ok() {
                    return Vec::new();
                }
            }
            if begun.elapsed() > WALKING {
                self.is_spoilt = true;
                return Vec::new();
            }
            std::thread::sleep(Duration::from_micros(50));
        }
    }
}

/// Installs the handler for good; the signal does nothing by default.
fn install() -> bool {
    // SAFETY: the structure is plain data for which zeros are valid, and is filled before the call. The handler is a function of
    // the signature that SA_SIGINFO asks for, lives as long as the program, and does only what a handler may: it reads and writes
    // atomics, asks for the thread's number, and walks the stack.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) = answer;
        action.sa_sigaction = handler as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART | libc::SA_ONSTACK;
        libc::sigemptyset(&raw mut action.sa_mask);
        libc::sigaction(libc::SIGURG, &raw const action, std::ptr::null_mut()) == 0
    }
}

/// Sends the signal to a thread of this process; false if there is no such thread.
fn interrupt(thread: i32) -> bool {
    let process = std::process::id().cast_signed();
    // SAFETY: the call takes three numbers and touches no memory of this process.
    unsafe { libc::syscall(libc::SYS_tgkill, process, thread, libc::SIGURG) == 0 }
}

/// The handler: writes the stack if this thread is asked.
extern "C" fn answer(_: c_int, _: *mut libc::siginfo_t, _: *mut c_void) {
    let error = errno();
    let own = own().cast_signed();
    if ASKED.compare_exchange(own, -own, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
        TOLD.store(walk() + 1, Ordering::Release);
    }
    set_errno(error);
}

/// Writes the addresses of this thread's functions; returns their number.
fn walk() -> usize {
    let mut count = 0;
    // SAFETY: the function must not run twice at a time on platforms whose unwinder shares state. On Linux it is the unwinder of
    // libgcc or LLVM, which keeps its state on the stack and finds tables by the loader's list of objects, whose lock, where the
    // C library still has one, is recursive, so that a thread that was interrupted while it held it gets it again. Only one thread at
    // a time comes here, the one that ASKED names. The closure neither allocates nor panics: its index is below the length.
    unsafe {
        backtrace::trace_unsynchronized(|frame| {
            if count == DEEPEST {
                return false;
            }
            FRAMES[count].store(frame.ip() as usize, Ordering::Relaxed);
            count += 1;
            true
        });
    }
    count
}

/// Returns the error number of the interrupted thread, which the handler must restore.
fn errno() -> c_int {
    // SAFETY: the C library gives each thread a valid address of its own.
    unsafe { *libc::__errno_location() }
}

fn set_errno(error: c_int) {
    // SAFETY: as in `errno`; no other thread writes to this thread's number.
    unsafe { *libc::__errno_location() = error }
}
