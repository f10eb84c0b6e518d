//! Runs a reader on its inputs, and checks its limits for each.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use crate::damage;
use crate::kept::kept;
use crate::random::Random;

/// Allowed bytes of memory for each byte of input. A byte of JSON becomes some tens of bytes of values, a byte of a
/// picture or of compressed data some hundreds.
const FACTOR: usize = 4096;

/// The time limit of one input in a test, also on a busy machine. Most take a millisecond.
const LONGEST: Duration = Duration::from_secs(300);

/// A reader of external bytes.
#[derive(Debug, Clone, Copy)]
pub struct Reader {
    /// The name of the reader and of its kept inputs.
    pub name: &'static str,
    /// Reads an input. Errors are ignored: a reader may reject any input.
    pub read: fn(&[u8]),
    /// Allowed bytes of memory for an empty input: buffers and tables.
    pub memory: usize,
}

thread_local! {
    /// The message of the last panic, while this thread reads an input.
    static MESSAGE: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Keeps the message of a panic while an input is read, instead of printing a backtrace: resolving function names takes
/// a hundred megabytes. Readers may catch the panics of a library.
fn keep_messages() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let print = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            let kept = MESSAGE
                .with_borrow_mut(|message| message.as_mut().map(|message| *message = panic.to_string()));
            if kept.is_none() {
                print(panic);
            }
        }));
    });
}

/// Reads one input.
///
/// # Panics
/// If the reader panics, or its thread exceeds the memory limit.
pub fn within_limits(reader: &Reader, input: &[u8]) {
    keep_messages();
    MESSAGE.set(Some(String::new()));
    let mut read = Ok(());
    let taken = allocation_counter::measure(|| {
        read = catch_unwind(AssertUnwindSafe(|| (reader.read)(input)));
    });
    let message = MESSAGE.take().unwrap_or_default();
    if read.is_err() {
        panic!("{}: {message}", reader.name);
    }
    let (taken, most) = (taken.bytes_max as usize, reader.memory + FACTOR * input.len());
    assert!(taken <= most, "{}: {taken} bytes of memory for {} of input", reader.name, input.len());
}

/// Runs a reader on its kept inputs, on `seeds`, and on `damaged` inputs made of both. `change` damages an input and
/// keeps its form. If it returns false, [`damage::bytes`] does.
///
/// # Panics
/// If the reader breaks a limit. The message has the input.
pub fn check(
    reader: Reader,
    seeds: Vec<Vec<u8>>,
    damaged: usize,
    change: fn(&mut Vec<u8>, &mut Random) -> bool,
) {
    let mut inputs = kept(reader.name);
    inputs.extend(seeds);
    assert!(!inputs.is_empty(), "{}: no inputs are kept", reader.name);
    let mut random = Random::new(1);
    for _ in 0..damaged {
        let mut input = random.pick(&inputs).clone();
        if random.once_in(2) || !change(&mut input, &mut random) {
            damage::bytes(&mut input, random.pick::<Vec<u8>>(&inputs).clone().as_slice(), &mut random);
        }
        inputs.push(input);
    }
    let (begins, begun) = channel();
    let reading = std::thread::spawn(move || {
        for input in inputs {
            if begins.send(input.clone()).is_err() {
                return;
            }
            within_limits(&reader, &input);
        }
    });
    let mut last = Vec::new();
    loop {
        match begun.recv_timeout(LONGEST) {
            Ok(input) => last = input,
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) => {
                panic!("{}: no end after {LONGEST:?}: {}", reader.name, last.escape_ascii())
            }
        }
    }
    if reading.join().is_err() {
        panic!("{}: the input is {}", reader.name, last.escape_ascii());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A reader that fails, and a part of its message.
    type FailingReader = (fn(&[u8]), &'static str);

    #[test]
    fn failures_of_readers_are_found() {
        let bad: [FailingReader; 3] = [
            (|_| panic!("at once"), "at once"),
            (
                |_| std::thread::scope(|scope| drop(scope.spawn(|| panic!("in a part")))),
                "a scoped thread panicked",
            ),
            (
                |input| drop(std::hint::black_box(vec![1_u8; (64 << 20) + 5000 * input.len()])),
                "bytes of memory for",
            ),
        ];
        for (read, words) in bad {
            let reader = Reader { name: "bad", read, memory: 48 << 20 };
            let panic = catch_unwind(|| within_limits(&reader, b"input")).expect_err(words);
            let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
            let text = text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
            assert!(text.contains(words), "{text}");
            let failed = catch_unwind(|| check(reader, vec![b"seed".to_vec()], 2, |_, _| false));
            let text = failed.expect_err(words).downcast_ref::<String>().cloned().unwrap_or_default();
            assert_eq!(text, "bad: the input is seed");
        }
    }
}
