//! The index of a checkpoint: its files, and the location of each tensor's elements.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use phalanx_run::Links;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::CheckpointError;
use super::file_entry::FileEntry;
use super::hashes::Hashes;
use super::piece::Piece;
use super::step_of;

/// The version of the layout.
pub(super) const FORMAT: u32 = 4;
/// The index's file.
pub(super) const INDEX: &str = "checkpoint.json";

/// The start of the last field of an index: the BLAKE3 hash of everything before it.
const SEAL: &str = ",\n  \"blake3\": \"";

/// The contents of a checkpoint.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Index {
    /// The version of the layout.
    pub format: u32,
    /// Steps done.
    pub step: u64,
    /// Counters that the run needs to continue.
    pub state: Map<String, Value>,
    /// The files.
    pub files: Vec<FileEntry>,
    /// The hash of each kind of tensor: see [`super::Checkpoint::hashes`].
    pub hashes: Hashes,
    /// The place of every tensor's elements.
    pub tensors: Vec<Piece>,
}

impl Index {
    /// Reads the index in `folder`.
    pub(super) fn read(folder: &Path) -> Result<Self, CheckpointError> {
        let path = folder.join(INDEX);
        let damaged = |problem: String| CheckpointError::damaged(&path, problem);
        let bytes = Links::Refuse.read(&path).map_err(|error| damaged(error.to_string()))?;
        let index: Self = serde_json::from_slice(&bytes).map_err(|error| damaged(error.to_string()))?;
        if index.format != FORMAT {
            return Err(damaged(format!("has format {}; this program reads format {FORMAT}", index.format)));
        }
        check_seal(&bytes).map_err(|problem| damaged(problem.to_owned()))?;
        if let Some(step) = step_of(folder).filter(|step| *step != index.step) {
            return Err(damaged(format!(
                "is of step {}, and its folder is named as step {step}",
                index.step
            )));
        }
        let is_plain = |name: &str| Path::new(name).file_name().is_some_and(|plain| plain == name);
        if let Some(file) = index.files.iter().find(|file| !is_plain(&file.name)) {
            return Err(damaged(format!("names the file {:?}, which is not one of its folder", file.name)));
        }
        if let Some(piece) = index.tensors.iter().find(|piece| !piece.is_sound(&index.files)) {
            return Err(damaged(format!(
                "says that {} of {} `{}` of shape {:?} are in {}, which cannot be",
                piece.region, piece.kind, piece.name, piece.shape, piece.file
            )));
        }
        let mut known: BTreeMap<(&str, &str), &Piece> = BTreeMap::new();
        for piece in &index.tensors {
            let first = known.entry((&piece.kind, &piece.name)).or_insert(piece);
            if (&first.shape, &first.dtype) != (&piece.shape, &piece.dtype) {
                return Err(damaged(format!(
                    "says that {} `{}` has shape {:?} of {}, and that it has shape {:?} of {}",
                    piece.kind, piece.name, first.shape, first.dtype, piece.shape, piece.dtype
                )));
            }
        }
        index.check_once().map_err(damaged)?;
        Ok(index)
    }

    /// Rejects overlapping pieces, so loading never needs more memory than the size of the files.
    fn check_once(&self) -> Result<(), String> {
        let mut stored = BTreeSet::new();
        let mut there: BTreeMap<(&str, &str), usize> = BTreeMap::new();
        for piece in &self.tensors {
            let Piece { kind, name, shape, file, key, .. } = piece;
            if !stored.insert((file, key)) {
                return Err(format!(
                    "says of two pieces that they are `{key}` of {file}, of {kind} `{name}` for one"
                ));
            }
            let all = shape.iter().product::<usize>();
            let sum = there.entry((kind, name)).or_default();
            *sum = sum.saturating_add(piece.region.len());
            if *sum > all {
                return Err(format!("names elements of {kind} `{name}` twice: {sum} of {all}"));
            }
        }
        Ok(())
    }

    /// Returns the text of the index, with a line for every file and every piece.
    pub(super) fn to_json(&self) -> serde_json::Result<String> {
        fn lines<T: Serialize>(items: &[T]) -> serde_json::Result<String> {
            let lines = items.iter().map(serde_json::to_string).collect::<serde_json::Result<Vec<_>>>()?;
            Ok(lines.iter().map(|line| format!("\n    {line}")).collect::<Vec<_>>().join(","))
        }
        let (state, hashes) = (serde_json::to_string(&self.state)?, serde_json::to_string(&self.hashes)?);
        let (files, tensors) = (lines(&self.files)?, lines(&self.tensors)?);
        Ok(seal(&format!(
            "{{\n  \"format\": {},\n  \"step\": {},\n  \"state\": {state},\n  \"hashes\": {hashes},\n  \"files\": [{files}\n  ],\n  \"tensors\": [{tensors}\n  ]",
            self.format, self.step
        )))
    }
}

/// Completes the text of an index, which ends before the closing brace, with the hash of the text.
fn seal(text: &str) -> String {
    format!("{text}{SEAL}{}\"\n}}\n", blake3::hash(text.as_bytes()).to_hex())
}

/// Checks that an index ends with the hash of the text before it.
fn check_seal(bytes: &[u8]) -> Result<(), &'static str> {
    let text = std::str::from_utf8(bytes).map_err(|_| "is not UTF-8")?;
    let end = text.rfind(SEAL).ok_or("has no checksum of itself")?;
    if seal(&text[..end]) != text {
        return Err("its checksum differs");
    }
    Ok(())
}

/// Replaces a part of an index's text and seals it again.
#[cfg(test)]
pub(super) fn seal_after(text: &str, (from, to): (&str, &str)) -> String {
    let end = text.rfind(SEAL).expect("a sealed index");
    seal(&text[..end].replace(from, to))
}
