//! The readers, each with valid inputs and a mutator that keeps their form.
//!
//! Readers that are private to their crate are included only in guided runs. Their crate's unit tests read their kept
//! inputs.
use phalanx_fuzz_harness::{Random, Reader, json};

mod asked;
mod codecs;
#[cfg(fuzzing)]
mod control;
mod corpora;
mod datasets;
mod descriptions;
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

/// A reader of external bytes.
#[derive(Debug)]
pub struct Target {
    /// The name.
    pub name: &'static str,
    /// A description of the inputs, in one line.
    pub about: &'static str,
    /// Makes valid inputs.
    pub seeds: fn() -> Vec<Vec<u8>>,
    /// Words of the format, for the dictionary.
    pub words: &'static [&'static str],
    /// Changes an input and keeps its form. Returns false, without a change, if the input has no valid form.
    pub change: fn(&mut Vec<u8>, &mut Random) -> bool,
    /// Reads an input. Errors are ignored: a reader may reject any input.
    pub read: fn(&[u8]),
    /// The number of damaged inputs in `cargo test`.
    pub cases: usize,
    /// Allowed bytes of memory for an empty input: buffers and tables.
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
    corpora::CORPORA,
    descriptions::DESCRIPTIONS,
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
