//! Names of functions for addresses, from the files that the process had in its memory.

use std::collections::BTreeMap;

use addr2line::{Loader, demangle_auto};
use phalanx_collectives::{MappedFile, Stacks};
use serde::Serialize;

/// Where a thread was.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ThreadFrames {
    /// Its number.
    pub id: u32,
    /// Its name; that of the first thread is the program's.
    pub name: String,
    /// The functions that it was inside of, the innermost first; nothing if it has not answered.
    pub frames: Vec<Frame>,
}

/// A function that a thread was inside of.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Frame {
    /// The function, or the file and the distance from its beginning where its name is not to be found.
    pub function: String,
    /// The source's file and line, if the program was built with them.
    pub source: Option<String>,
}

/// The module of the signal handler, whose frames end the stack walk.
const HANDLER: &str = "::stacks::signal::";

/// Files whose functions were looked up.
#[derive(Default)]
pub(super) struct Symbols {
    files: BTreeMap<String, Option<Loader>>,
}

impl Symbols {
    /// The stacks of a process with names.
    pub(super) fn name(&mut self, stacks: &Stacks) -> Vec<ThreadFrames> {
        let threads = stacks.threads.iter().map(|thread| {
            let mut frames = Vec::new();
            let last = thread.frames.len().saturating_sub(1);
            for (at, (file, distance)) in thread.frames.iter().enumerate() {
                let Some(file) = stacks.files.get(*file) else { continue };
                // A return address may be that of the function behind; but not where a signal came.
                let probe = if at == 0 || at == last { *distance } else { distance.saturating_sub(1) };
                frames.extend(self.look_up(file, probe));
            }
            ThreadFrames { id: thread.id, name: thread.name.clone(), frames: without_handler(frames) }
        });
        threads.collect()
    }

    /// The functions at an address, of which all but the last were inlined.
    fn look_up(&mut self, file: &MappedFile, distance: u64) -> Vec<Frame> {
        let loader = self.files.entry(file.path.clone()).or_insert_with(|| {
            // A record may come from elsewhere, and name what is no file.
            let found = std::fs::metadata(&file.path).ok().filter(std::fs::Metadata::is_file);
            let is_same = found.is_some_and(|found| found.len() == file.bytes);
            is_same.then(|| Loader::new(&file.path).ok()).flatten()
        });
        let mut found = Vec::new();
        if let Some(loader) = loader {
            let symbol = loader.find_symbol(distance).map(|name| plain(&demangle_auto(name.into(), None)));
            if let Ok(mut frames) = loader.find_frames(distance) {
                while let Ok(Some(frame)) = frames.next() {
                    let name = frame.function.as_ref().and_then(|name| name.demangle().ok());
                    let name = name.map(|name| plain(&name)).or(symbol.clone());
                    let Some(function) = name else { continue };
                    let source = frame.location.and_then(|at| Some((at.file?, at.line)));
                    let source = source.map(|(file, line)| match line {
                        Some(line) => format!("{file}:{line}"),
                        None => file.to_owned(),
                    });
                    found.push(Frame { function, source });
                }
            }
            match (found.last_mut(), symbol) {
                // The function around those that were inlined has a symbol, which has its whole path.
                (Some(around), Some(function)) => around.function = function,
                (None, Some(function)) => found.push(Frame { function, source: None }),
                _ => {}
            }
        }
        if found.is_empty() {
            found.push(Frame { function: format!("{}+{distance:#x}", file.path), source: None });
        }
        found
    }
}

/// A function's name without the hash that the compiler adds.
fn plain(name: &str) -> String {
    match name.rsplit_once("::h") {
        Some((plain, hash)) if hash.len() == 16 && hash.bytes().all(|byte| byte.is_ascii_hexdigit()) => {
            plain.to_owned()
        }
        _ => name.to_owned(),
    }
}

/// Leaves out the functions that have walked the stack, and the one by which the system calls a handler.
fn without_handler(mut frames: Vec<Frame>) -> Vec<Frame> {
    if let Some(handler) = frames.iter().rposition(|frame| frame.function.contains(HANDLER)) {
        frames.drain(..=handler);
        let returns = frames
            .first()
            .is_some_and(|first| first.function.contains("restore_rt") || first.function.contains("libc.so"));
        if returns && frames.len() > 1 {
            frames.remove(0);
        }
    }
    frames
}

/// Where a rank was, in short: the innermost function that its first thread was inside of and that is not a library's.
pub(super) fn where_it_was(threads: &[ThreadFrames]) -> Option<String> {
    let first = threads.first()?;
    // What is neither the standard library's nor another crate's is this project's, or a training's of one's own.
    let elsewhere = |source: &str| source.starts_with("/rustc/") || source.contains("/registry/src/");
    let is_own = |frame: &&Frame| match &frame.source {
        Some(source) => !elsewhere(source),
        None => frame.function.trim_start_matches('<').starts_with("phalanx_"),
    };
    let frame = first.frames.iter().find(is_own).or(first.frames.first())?;
    let source = frame.source.as_deref().map_or_else(String::new, |source| format!(" ({source})"));
    Some(format!("{}{source}", frame.function))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_walked_the_stack_is_left_out() {
        let frame = |function: &str| Frame { function: function.to_owned(), source: None };
        let of = |functions: &[&str]| functions.iter().map(|function| frame(function)).collect::<Vec<_>>();
        let whole = of(&[
            "backtrace::trace",
            "phalanx_collectives::flight::stacks::signal::walk",
            "phalanx_collectives::flight::stacks::signal::answer",
            "__restore_rt",
            "clock_nanosleep",
            "phalanx_trainer::sleep",
        ]);
        assert_eq!(without_handler(whole), of(&["clock_nanosleep", "phalanx_trainer::sleep"]));
        assert_eq!(without_handler(of(&["a", "b"])), of(&["a", "b"]));
        assert_eq!(plain("a::b::h0123456789abcdef"), "a::b");
        assert_eq!(plain("a::hollow"), "a::hollow");
    }
}
