//! The readers, each with inputs that it reads and what is known of their form.

mod asked;
mod codecs;
mod control;
mod datasets;
mod elf;
mod files;
mod folders;
mod jobs;
mod lists;
mod network;
mod pictures;
mod resumed;
mod runs;
mod shards;
mod strategies;
mod tensors;

use std::path::Path;

use crate::json;
use crate::kept;
use crate::random::Random;

/// A reader of bytes from outside.
#[derive(Debug)]
pub struct Target {
    /// Its name.
    pub name: &'static str,
    /// What it reads, in a line.
    pub about: &'static str,
    /// Inputs that it reads, made anew each time.
    pub seeds: fn() -> Vec<Vec<u8>>,
    /// Words that mean something to it.
    pub words: &'static [&'static str],
    /// Changes an input by its form; false, with nothing done, if it has lost its form.
    pub change: fn(&mut Vec<u8>, &mut Random) -> bool,
    /// Reads; what it returns for an error is thrown away, as no input may do more than that.
    pub read: fn(&[u8]),
    /// Cases in `cargo test`.
    pub cases: u64,
    /// Bytes that it may take whatever it reads: what buffers and tables have from the start.
    pub memory: usize,
}

impl Target {
    /// The inputs that changed ones are made of: those that the code makes, the files of `corpus/NAME`, which are inputs that have
    /// failed once, and the archive of what guided runs have found.
    ///
    /// # Panics
    /// If that archive is damaged.
    pub fn corpus(&self) -> Vec<Vec<u8>> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(self.name);
        let mut files: Vec<_> =
            std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
        files.sort();
        let known = files.iter().filter_map(|file| std::fs::read(file).ok());
        let found = kept::read(&kept::place(self.name));
        let found = found.unwrap_or_else(|error| panic!("the archive of {}: {error}", self.name));
        known.chain((self.seeds)()).chain(found).collect()
    }
}

/// Bytes without a form that is known.
fn no_form(_: &mut Vec<u8>, _: &mut Random) -> bool {
    false
}

/// All readers.
pub static TARGETS: &[Target] = &[
    network::FRAMES,
    network::REGISTRATIONS,
    network::HANDSHAKES,
    network::RECORDS,
    network::MAIL,
    network::TAGS,
    network::LAUNCHERS,
    network::PMI,
    network::COSTS,
    tensors::SAFETENSORS,
    tensors::TENSOR_RANGES,
    tensors::PICKLE,
    shards::SHARDS,
    shards::SHARD_INDEX,
    shards::PATTERNS,
    datasets::COCO,
    datasets::CUB,
    datasets::CIFAR_BINARY,
    datasets::PARQUET,
    datasets::MERGES,
    datasets::TEXT_LINES,
    pictures::PICTURES,
    runs::CHECKPOINT,
    runs::TRACE,
    runs::CONFIG,
    runs::SWEEP,
    runs::RUN_FOLDER,
    runs::HTTP,
    folders::DIFFUSERS,
    folders::FLIGHT,
    folders::HOSTS,
    codecs::CODECS,
    codecs::PUSHES,
    strategies::STRATEGY_MESSAGES,
    control::CONTROL,
    control::GATHERED,
    control::STAMPS,
    asked::REQUESTS,
    jobs::JOBS,
    resumed::RESUMED,
    lists::LISTS,
    lists::EMBEDDINGS,
];

/// The change of inputs that are JSON.
fn of_json(input: &mut Vec<u8>, random: &mut Random) -> bool {
    json::change(input, random)
}
