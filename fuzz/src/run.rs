//! Cases one after the other, and what counts as a failure: a panic, much memory for few bytes, a long time.

use std::backtrace::Backtrace;
use std::io::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Once;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use peak_alloc::PeakAlloc;

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
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec as u32)
}

/// The time, where what a thread takes is not known.
#[cfg(not(unix))]
fn clock() -> Duration {
    static START: std::sync::OnceLock<std::time::Instant> = std::sync::OnceLock::new();
    START.get_or_init(std::time::Instant::now).elapsed()
}

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
    /// The most bytes that a case has taken, and the longest that one took.
    pub memory: usize,
    /// The longest that one took.
    pub longest: Duration,
}

/// The input of a case: one of the corpus, changed, or now and then noise.
pub fn input(target: &Target, corpus: &[Vec<u8>], seed: u64, case: u64) -> Vec<u8> {
    let mut random = Random::of_case(seed, target.name, case);
    if corpus.is_empty() || random.once_in(50) {
        return mutate::noise(&mut random);
    }
    let mut input = random.pick(corpus).clone();
    if !random.once_in(3) && (target.change)(&mut input, &mut random) && random.once_in(2) {
        return input;
    }
    let other = random.pick(corpus).clone();
    mutate::bytes(&mut input, &other, target.words, &mut random);
    input
}

/// Where the input lies that is being read, for when a reader ends the process: by too much memory, too deep a recursion, or by
/// never coming back.
fn under_way(target: &Target) -> PathBuf {
    std::env::temp_dir().join(format!("phalanx-fuzz-{}-{}", target.name, std::process::id()))
}

/// Reads one input; what went wrong, if something did, and what it took.
pub fn attempt(target: &Target, input: &[u8]) -> (Option<String>, usize, Duration) {
    // With RUST_BACKTRACE the first error that keeps a backtrace reads this program's own symbols, which is no reader's doing.
    static SYMBOLS: Once = Once::new();
    SYMBOLS.call_once(|| drop(Backtrace::capture().to_string()));
    MEMORY.reset_peak_usage();
    let (before, start) = (MEMORY.current_usage(), clock());
    let read = catch_unwind(AssertUnwindSafe(|| (target.read)(input)));
    let (memory, took) = (MEMORY.peak_usage().saturating_sub(before), clock().saturating_sub(start));
    let problem = match read {
        Err(payload) => {
            let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
            let text = text.or_else(|| payload.downcast_ref::<String>().cloned());
            Some(format!("panicked: {}", text.unwrap_or_default()))
        }
        Ok(()) if memory > target.memory + FACTOR * input.len() => {
            Some(format!("took {memory} bytes of memory for {} of input", input.len()))
        }
        Ok(()) if took > LONGEST => Some(format!("took {took:.1?}")),
        Ok(()) => None,
    };
    (problem, memory, took)
}

/// Tries cases from `first` on until `enough` says so, and at most `most` failures. Everything is fixed by the seed but how many
/// cases there is time for.
pub fn run(
    target: &Target,
    seed: u64,
    first: u64,
    enough: impl Fn(u64) -> bool,
    most: usize,
) -> std::io::Result<Outcome> {
    let corpus = target.corpus();
    let path = under_way(target);
    let (heard, beats) = channel::<()>();
    let stuck = path.clone();
    // A reader that does not come back cannot be stopped, so it ends the process.
    let watch = std::thread::spawn(move || {
        loop {
            match beats.recv_timeout(NEVER) {
                Ok(()) => {}
                Err(RecvTimeoutError::Disconnected) => return,
                Err(RecvTimeoutError::Timeout) => {
                    let text =
                        format!("the reader does not come back; its input is in {}\n", stuck.display());
                    let _ = std::io::stderr().write_all(text.as_bytes());
                    std::process::exit(86);
                }
            }
        }
    });
    let mut outcome = Outcome::default();
    let mut problems: Vec<String> = Vec::new();
    while outcome.failures.len() < most && !enough(outcome.cases) {
        let case = first + outcome.cases;
        // What was found before is read first, as it is.
        let input = match usize::try_from(case).ok().and_then(|case| corpus.get(case)) {
            Some(known) => known.clone(),
            None => input(target, &corpus, seed, case),
        };
        std::fs::write(&path, &input)?;
        let _ = heard.send(());
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
        }
    }
    drop(heard);
    let _ = watch.join();
    std::fs::remove_file(&path)?;
    Ok(outcome)
}
