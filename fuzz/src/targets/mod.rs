//! The readers, each with inputs that it reads and changes that keep the form of its inputs.
//!
//! Readers that are private to their crate are here in guided runs alone; their crate's unit tests read their kept inputs.
use phalanx_fuzz_harness::{Random, Reader, json};

mod asked;
mod codecs;
#[cfg(fuzzing)]
mod control;
mod datasets;
mod elf;
#[cfg(fuzzing)]
mod embeddings;
mod folders;
mod lists;
#[cfg(fuzzing)]
mod network;
mod pictures;
#[cfg(fuzzing)]
mod pushes;
#[cfg(fuzzing)]
mod resumed;
mod runs;
mod sealed;
mod shards;
#[cfg(fuzzing)]
mod strategies;
mod tensors;

/// A reader of bytes from outside.
#[derive(Debug)]
pub struct Target {
    /// Its name.
    pub name: &'static str,
    /// Its inputs, in a line.
    pub about: &'static str,
    /// Makes inputs that it reads.
    pub seeds: fn() -> Vec<Vec<u8>>,
    /// Words of its format.
    pub words: &'static [&'static str],
    /// Changes an input so that it keeps its form. Returns false and leaves the input as it is if that has lost its form.
    pub change: fn(&mut Vec<u8>, &mut Random) -> bool,
    /// Reads. An error is thrown away: a reader may refuse any input.
    pub read: fn(&[u8]),
    /// The number of damaged inputs in `cargo test`.
    pub cases: usize,
    /// Bytes of memory that it may take for an empty input: its buffers and tables.
    pub memory: usize,
}

impl Target {
    /// The reader with its limits.
    pub fn reader(&self) -> Reader {
        Reader { name: self.name, read: self.read, memory: self.memory }
    }
}

/// Changes nothing: for inputs without a known form.
fn no_form(_: &mut Vec<u8>, _: &mut Random) -> bool {
    false
}

/// Changes inputs that are JSON.
fn of_json(input: &mut Vec<u8>, random: &mut Random) -> bool {
    json::change(input, random)
}

/// The readers that other crates can call.
pub static PUBLIC: &[Target] = &[
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
    asked::REQUESTS,
    lists::LISTS,
];

/// The readers that are private to their crate.
#[cfg(fuzzing)]
pub static PRIVATE: &[Target] = &[
    network::FRAMES,
    network::REGISTRATIONS,
    network::HANDSHAKES,
    network::RECORDS,
    network::MAIL,
    network::TAGS,
    network::LAUNCHERS,
    network::PMI,
    control::CONTROL,
    control::GATHERED,
    control::STAMPS,
    pushes::PUSHES,
    strategies::STRATEGY_MESSAGES,
    resumed::RESUMED,
    embeddings::EMBEDDINGS,
];
