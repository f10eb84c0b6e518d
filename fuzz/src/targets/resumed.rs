//! Checkpoints that a training resumes from, with damage behind their checksums.

use phalanx_checkpoint::Checkpoint;
use phalanx_fuzz_harness::files::{self, folder};
use phalanx_trainer::fuzzing;

use super::Target;
use super::sealed::{self, INDEX};

/// Returns the files of a checkpoint, the index first, as an input.
fn input_of(checkpoint: &Checkpoint) -> Option<Vec<u8>> {
    let names = checkpoint.index().files.iter().map(|file| file.name.as_str());
    let read = |name: &str| Some((name.to_owned(), std::fs::read(checkpoint.folder().join(name)).ok()?));
    let all: Vec<(String, Vec<u8>)> = std::iter::once(INDEX).chain(names).map(read).collect::<Option<_>>()?;
    Some(files::join(all.iter().map(|(name, contents)| (name.as_str(), contents.as_slice()))))
}

/// Checkpoints as trainings write them.
fn resumed() -> Vec<Vec<u8>> {
    let place = folder();
    let written = fuzzing::write_checkpoints(place.path());
    let opened = written.iter().filter_map(|folder| Checkpoint::open(folder).ok());
    opened.filter_map(|checkpoint| input_of(&checkpoint)).collect()
}

/// Resumes from a checkpoint.
fn resume(bytes: &[u8]) {
    let place = folder();
    let step = place.path().join("step-00000003");
    files::write(bytes, &step);
    fuzzing::resume(&step);
}

pub(super) const RESUMED: Target = Target {
    name: "resumed",
    about: "checkpoints that a training resumes from",
    seeds: resumed,
    words: &[
        "\"optimizer_steps\":",
        "\"loss_scale\":",
        "exp_avg",
        "codec-00000-of-00001",
        "18446744073709551615",
    ],
    change: sealed::change,
    read: resume,
    cases: 150,
    memory: 48 << 20,
};
