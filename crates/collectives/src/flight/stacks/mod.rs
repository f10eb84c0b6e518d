//! Stacks of all threads of this process as addresses. Readers find the names in the files of code.

#[cfg(target_os = "linux")]
mod signal;

use serde::{Deserialize, Serialize};

/// The stacks of a process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stacks {
    /// The program and its libraries.
    pub files: Vec<MappedFile>,
    /// Its threads; the first is the main thread.
    pub threads: Vec<ThreadStack>,
}

/// A file of code in a process's memory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MappedFile {
    /// The file.
    pub path: String,
    /// Its length, which tells it from another file of the same name.
    pub bytes: u64,
}

/// The stack of a thread.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ThreadStack {
    /// Its number.
    pub id: u32,
    /// Its name.
    pub name: String,
    /// The addresses of its functions, the innermost first: the index in [`Stacks::files`] and the distance from the start of the
    /// file in memory. Empty if the thread did not answer.
    pub frames: Vec<(usize, u64)>,
}

/// Returns the stacks of all threads except the calling one; `None` if they are not available.
#[cfg(not(target_os = "linux"))]
pub(super) fn collect() -> Option<Stacks> {
    None
}

/// Returns the stacks of all threads except the calling one; `None` if they are not available.
#[cfg(target_os = "linux")]
pub(super) fn collect() -> Option<Stacks> {
    use std::collections::BTreeMap;

    let mut sampler = signal::StackSampler::new()?;
    let mut stacks = Stacks { files: Vec::new(), threads: Vec::new() };
    let mut known: BTreeMap<String, usize> = BTreeMap::new();
    let mut threads: Vec<u32> = std::fs::read_dir("/proc/self/task")
        .ok()?
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect();
    threads.sort_unstable();
    let mut taken = Vec::new();
    for id in threads {
        let name = std::fs::read_to_string(format!("/proc/self/task/{id}/comm")).unwrap_or_default();
        if id != signal::own() {
            taken.push((id, name.trim().to_owned(), sampler.take(id)));
        }
    }
    let mapped = mapped(&std::fs::read_to_string("/proc/self/maps").ok()?);
    for (id, name, addresses) in taken {
        let frame = |address: u64| {
            let (_, (begin, path)) = mapped
                .range(..=address)
                .next_back()
                .filter(|(_, (end, ..))| address < end.0)
                .map(|(start, (end, path))| (start, (end.1, path)))?;
            let file = *known.entry(path.clone()).or_insert_with(|| {
                let bytes = std::fs::metadata(path).map_or(0, |found| found.len());
                stacks.files.push(MappedFile { path: path.clone(), bytes });
                stacks.files.len() - 1
            });
            Some((file, address - begin))
        };
        let frames = addresses.into_iter().filter_map(frame).collect();
        stacks.threads.push(ThreadStack { id, name, frames });
    }
    Some(stacks)
}

/// Ranges of memory by their start: the end, the start of the file in memory, and the file (proc_pid_maps(5)).
#[cfg(target_os = "linux")]
fn mapped(maps: &str) -> std::collections::BTreeMap<u64, ((u64, u64), String)> {
    let mut begins: std::collections::BTreeMap<String, u64> = std::collections::BTreeMap::new();
    let mut found = std::collections::BTreeMap::new();
    for line in maps.lines() {
        let mut fields = line.split_whitespace();
        let (Some(range), Some(path)) = (fields.next(), fields.nth(4)) else { continue };
        let Some((start, end)) = range.split_once('-') else { continue };
        let [Ok(start), Ok(end)] = [start, end].map(|text| u64::from_str_radix(text, 16)) else { continue };
        if path.starts_with('/') {
            // Lines are in the order of addresses, so the first line of a file is its start.
            let begin = *begins.entry(path.to_owned()).or_insert(start);
            found.insert(start, ((end, begin), path.to_owned()));
        }
    }
    found
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_told_from_where_their_file_begins() {
        let maps = "1000-2000 r--p 00000000 08:01 42 /bin/a\n2000-3000 r-xp 00001000 08:01 42 /bin/a\n\
                    5000-6000 rw-p 00000000 00:00 0 [heap]\n7000-8000 r-xp 00000000 00:00 0\n";
        let found = mapped(maps);
        assert_eq!(found.len(), 2);
        assert_eq!(found[&0x2000], ((0x3000, 0x1000), "/bin/a".to_owned()));
    }

    #[test]
    fn threads_that_wait_and_that_compute_have_stacks() {
        use std::sync::atomic::{AtomicBool, Ordering};
        static ENOUGH: AtomicBool = AtomicBool::new(false);
        let (stop, stopped) = std::sync::mpsc::channel::<()>();
        // A thread names itself.
        let named = std::sync::Arc::new(std::sync::Barrier::new(3));
        let (first, second) = (named.clone(), named.clone());
        let waits = std::thread::Builder::new().name("waits".into()).spawn(move || {
            first.wait();
            stopped.recv()
        });
        let computes = std::thread::Builder::new().name("computes".into()).spawn(move || {
            second.wait();
            while !ENOUGH.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        });
        named.wait();
        let found = collect().expect("Linux");
        let of = |name: &str| found.threads.iter().find(|thread| thread.name == name).expect("it is there");
        for name in ["waits", "computes"] {
            assert!(of(name).frames.len() > 3, "{:?}", of(name));
            assert!(of(name).frames.iter().any(|(file, _)| {
                let program = std::env::current_exe().expect("Linux");
                std::path::Path::new(&found.files[*file].path) == program
            }));
        }
        // The threads are unharmed.
        ENOUGH.store(true, Ordering::Relaxed);
        drop(stop);
        computes.expect("starts").join().expect("no panic");
        assert!(waits.expect("starts").join().expect("no panic").is_err());
    }
}
