//! Cases one after the other, and what counts as a failure: a panic, much memory for few bytes, a long time.

use std::backtrace::Backtrace;
use std::fs::File;
use std::io::{Seek as _, Write as _};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};
use std::thread::ThreadId;
use std::time::Duration;

use peak_alloc::PeakAlloc;

use crate::corpus::Corpus;
use crate::coverage;
use crate::mutate;
use crate::random::Random;
use crate::targets::Target;

/// Counts what is allocated, in every program of this crate.
#[global_allocator]
static MEMORY: PeakAlloc = PeakAlloc;

/// Bytes that a reader may take for each byte of its input: a byte of JSON becomes some tens of bytes of values, of a picture
/// or of compressed data some hundreds.
const FACTOR: usize = 4096;

/// How long a case may take of the processor. Most take a millisecond.
pub const LONGEST: Duration = Duration::from_secs(10);

/// After how long a reader is taken not to come back, on a machine that may do much else.
const NEVER: Duration = Duration::from_secs(300);

/// What this thread has taken of the processor.
#[cfg(unix)]
fn clock() -> Duration {
    processor(rustix::time::ClockId::ThreadCPUTime)
}

#[cfg(unix)]
fn processor(clock: rustix::time::ClockId) -> Duration {
    let now = rustix::time::clock_gettime(clock);
    Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec as u32)
}

/// What this process has taken of the processors: readers have threads.
#[cfg(unix)]
fn clock_of_all() -> Duration {
    processor(rustix::time::ClockId::ProcessCPUTime)
}

/// The time, where what a thread takes is not known.
#[cfg(not(unix))]
fn clock() -> Duration {
    static START: std::sync::OnceLock<std::time::Instant> = std::sync::OnceLock::new();
    START.get_or_init(std::time::Instant::now).elapsed()
}

#[cfg(not(unix))]
use clock as clock_of_all;

/// A case that failed.
#[derive(Debug)]
pub struct Failure {
    /// Which one, of the seed's.
    pub case: u64,
    /// What happened.
    pub problem: String,
    /// The input.
    pub input: Vec<u8>,
}

/// What a run of a target came to.
#[derive(Debug, Default)]
pub struct Outcome {
    /// How many cases were tried.
    pub cases: u64,
    /// Those that failed first, one for each problem.
    pub failures: Vec<Failure>,
    /// What they took of the processor together.
    pub processor: Duration,
    /// What they had taken when one last reached what none before it did.
    pub news: Duration,
    /// The most bytes that a case has taken.
    pub memory: usize,
    /// The longest that one took.
    pub longest: Duration,
}

/// The input of a case: one of the corpus, changed, or now and then noise.
fn input(target: &Target, corpus: &Corpus, seed: u64, case: u64) -> Vec<u8> {
    let mut random = Random::of_case(seed, target.name, case);
    if corpus.is_empty() || random.once_in(50) {
        return mutate::noise(&mut random);
    }
    let picked = corpus.pick(&mut random);
    let mut input = picked.to_vec();
    let is_changed = !random.once_in(3) && (target.change)(&mut input, &mut random);
    if is_changed && random.once_in(2) && input.len() <= mutate::LONGEST {
        return input;
    }
    if input.len() > mutate::LONGEST {
        input = picked.to_vec();
    }
    let other = corpus.pick(&mut random);
    mutate::bytes(&mut input, other, target.words, &mut random);
    input
}

/// Where the input lies that is being read, for when a reader ends the process: by too much memory, too deep a recursion, or by
/// never coming back.
fn under_way(target: &Target) -> PathBuf {
    std::env::temp_dir().join(format!("phalanx-fuzz-{}-{}", target.name, std::process::id()))
}

/// Which thread reads, while one does.
static READER: Mutex<Option<ThreadId>> = Mutex::new(None);

/// What a thread of a reader's own panicked with, which nobody may see else: servers go on.
static ELSEWHERE: Mutex<Option<String>> = Mutex::new(None);

fn locked<T>(what: &Mutex<T>) -> MutexGuard<'_, T> {
    what.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Leaves out what is printed of readers' panics, which are reported with their inputs, and keeps those of other threads.
fn hear_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            let reader = *locked(&READER);
            match reader {
                None => usual(panic),
                Some(reader) if reader == std::thread::current().id() => {}
                Some(_) => *locked(&ELSEWHERE) = Some(panic.to_string()),
            }
        }));
    });
}

/// Reads one input; what went wrong, if something did, and what it took.
pub fn attempt(target: &Target, input: &[u8]) -> (Option<String>, usize, Duration) {
    // With RUST_BACKTRACE the first error that keeps a backtrace reads this program's own symbols, which is no reader's doing.
    static SYMBOLS: Once = Once::new();
    SYMBOLS.call_once(|| drop(Backtrace::capture().to_string()));
    MEMORY.reset_peak_usage();
    let (before, start) = (MEMORY.current_usage(), clock());
    *locked(&READER) = Some(std::thread::current().id());
    let read = catch_unwind(AssertUnwindSafe(|| (target.read)(input)));
    *locked(&READER) = None;
    let (memory, took) = (MEMORY.peak_usage().saturating_sub(before), clock().saturating_sub(start));
    let problem = match read {
        Err(payload) => {
            let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
            let text = text.or_else(|| payload.downcast_ref::<String>().cloned());
            // What a thread that was waited for has said is said of it in general else.
            Some(format!("panicked: {}", locked(&ELSEWHERE).take().or(text).unwrap_or_default()))
        }
        Ok(()) if memory > target.memory + FACTOR * input.len() => {
            Some(format!("took {memory} bytes of memory for {} of input", input.len()))
        }
        Ok(()) if took > LONGEST => Some(format!("took {took:.1?}")),
        // Of a thread that was not waited for it may be the case before.
        Ok(()) => locked(&ELSEWHERE).take().map(|panic| format!("a thread of the reader's: {panic}")),
    };
    (problem, memory, took)
}

/// Ends the process if no case begins for long: a reader that does not come back cannot be stopped.
fn watch(ended: &Receiver<()>, cases: &AtomicU64, input: &Path) {
    let mut before = 0;
    while let Err(RecvTimeoutError::Timeout) = ended.recv_timeout(NEVER) {
        let now = cases.load(Ordering::Relaxed);
        if now == before {
            let text = format!("the reader does not come back; its input is in {}\n", input.display());
            let _ = std::io::stderr().write_all(text.as_bytes());
            std::process::exit(86);
        }
        before = now;
    }
}

/// Tries cases until `enough` says so of how many there were, and at most `most` failures. Without counters of edges everything is
/// fixed by the seed but how many cases there is time for; with them readers' threads have a part in what counts as new.
///
/// # Errors
/// If inputs cannot be written.
pub fn run(
    target: &Target,
    corpus: &mut Corpus,
    seed: u64,
    enough: impl Fn(u64) -> bool,
    most: usize,
) -> std::io::Result<Outcome> {
    hear_panics();
    let path = under_way(target);
    let mut file = File::create(&path)?;
    let (end, ended) = channel::<()>();
    let (cases, of_watch) = (Arc::new(AtomicU64::new(0)), path.clone());
    let begun = Arc::clone(&cases);
    let watching = std::thread::spawn(move || watch(&ended, &cases, &of_watch));
    let mut outcome = Outcome::default();
    let mut problems: Vec<String> = Vec::new();
    let start = clock_of_all();
    while outcome.failures.len() < most && !enough(outcome.cases) {
        let case = outcome.cases;
        // What was found before is read first, as it is.
        let known = usize::try_from(case).ok().and_then(|case| corpus.known().get(case)).cloned();
        let is_known = known.is_some();
        let input = known.unwrap_or_else(|| input(target, corpus, seed, case));
        file.rewind()?;
        file.write_all(&input)?;
        file.set_len(input.len() as u64)?;
        begun.fetch_add(1, Ordering::Relaxed);
        coverage::clear();
        let (problem, memory, took) = attempt(target, &input);
        outcome.cases += 1;
        outcome.memory = outcome.memory.max(memory);
        outcome.longest = outcome.longest.max(took);
        if let Some(problem) = problem {
            // Numbers differ where the problem is the same.
            let kind: String = problem.chars().filter(|letter| !letter.is_ascii_digit()).take(60).collect();
            if !problems.contains(&kind) {
                problems.push(kind);
                outcome.failures.push(Failure { case, problem, input });
            }
        } else if corpus.learn(&input, is_known)? {
            outcome.news = clock_of_all().saturating_sub(start);
        }
    }
    outcome.processor = clock_of_all().saturating_sub(start);
    drop(end);
    let _ = watching.join();
    std::fs::remove_file(&path)?;
    Ok(outcome)
}
