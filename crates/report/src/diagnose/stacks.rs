//! Resolves addresses to function names, from the files mapped into the process.

use std::collections::BTreeMap;

use addr2line::{Loader, demangle_auto};
use phalanx_collectives::{MappedFile, Stacks};
use serde::Serialize;

/// The stack of a thread.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ThreadFrames {
    /// The thread id.
    pub id: u32,
    /// The thread name; for the main thread the program name.
    pub name: String,
    /// The stack frames, the innermost first; empty if the thread did not respond.
    pub frames: Vec<Frame>,
}

/// A stack frame.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Frame {
    /// The function name, or file and offset if the name is unknown.
    pub function: String,
    /// The source file and line, if the program has debug information.
    pub source: Option<String>,
}

/// The module of the signal handler, whose frames end the stack walk.
const HANDLER: &str = "::stacks::signal::";

/// A cache of symbol tables by file.
#[derive(Default)]
pub(super) struct Symbols {
    files: BTreeMap<String, Option<Loader>>,
}

impl Symbols {
    /// Resolves the stacks of a process.
    pub(super) fn name(&mut self, stacks: &Stacks) -> Vec<ThreadFrames> {
        let threads = stacks.threads.iter().map(|thread| {
            let mut frames = Vec::new();
            let last = thread.frames.len().saturating_sub(1);
            for (at, (file, distance)) in thread.frames.iter().enumerate() {
                let Some(file) = stacks.files.get(*file) else { continue };
                // A return address may belong to the next function. The innermost and outermost frames are no return
                // addresses.
                let probe = if at == 0 || at == last { *distance } else { distance.saturating_sub(1) };
                frames.extend(self.look_up(file, probe));
            }
            ThreadFrames { id: thread.id, name: thread.name.clone(), frames: without_handler(frames) }
        });
        threads.collect()
    }

    /// Returns the functions at an address. All but the last are inlined.
    fn look_up(&mut self, file: &MappedFile, distance: u64) -> Vec<Frame> {
        let loader = self.files.entry(file.path.clone()).or_insert_with(|| {
            // A record may come from another machine, where the path may be no file here.
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
                // The outermost function has a symbol with its full path.
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

/// Removes the hash that the compiler appends to a function name.
fn plain(name: &str) -> String {
    match name.rsplit_once("::h") {
        Some((plain, hash)) if hash.len() == 16 && hash.bytes().all(|byte| byte.is_ascii_hexdigit()) => {
            plain.to_owned()
        }
        _ => name.to_owned(),
    }
}

/// Removes the frames of the signal handler and of the trampoline by which the system calls it.
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

/// Returns the innermost frame of the main thread that belongs to no library.
pub(super) fn where_it_was(threads: &[ThreadFrames]) -> Option<String> {
    let first = threads.first()?;
    // Sources outside of the standard library and the registry belong to this project or the user.
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
