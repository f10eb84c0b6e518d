//! The index of a checkpoint: which files there are, and which elements of which tensor lie where.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use candle_core::DType;
use phalanx_tensor::io::TensorFile;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::CheckpointError;
use super::checksum::Checksum;
use super::hashes::Hashes;
use super::region::Region;

/// The version of the layout that is written. Older ones are read: format 2 knew flat ranges only and another checksum, and
/// format 1 whole tensors only.
pub(super) const FORMAT: u32 = 3;
/// The index's file.
pub(super) const INDEX: &str = "checkpoint.json";

/// The kind of parameters and buffers.
pub const MODEL: &str = "model";
/// The kind of averaged parameters.
pub const EMA: &str = "ema";

/// A file of a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileEntry {
    /// Its name in the checkpoint's folder.
    pub name: String,
    /// Its length.
    pub bytes: u64,
    /// The hash of what is in it.
    #[serde(flatten)]
    pub checksum: Checksum,
}

/// Some elements of one tensor, in one file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Piece {
    /// What it is: [`MODEL`], [`EMA`], or a kind of optimizer state such as `exp_avg`.
    pub kind: String,
    /// The name of the parameter or buffer in the reference state dict.
    pub name: String,
    /// The element type: `f32`, `f64`, `bf16`, `f16`, `i64`, `u32` or `u8`.
    pub dtype: String,
    /// The shape of the whole tensor.
    pub shape: Vec<usize>,
    /// Which of its elements.
    #[serde(flatten)]
    pub region: Region,
    /// The file.
    pub file: String,
    /// The tensor in that file, which has these elements alone, in their order.
    pub key: String,
}

impl Piece {
    /// The type of its elements; `None` if there is none of that name whose elements take whole bytes.
    pub(super) fn element_type(&self) -> Option<DType> {
        self.dtype.parse().ok().filter(|dtype: &DType| dtype.size_in_bytes() > 0)
    }
}

/// What is in a checkpoint.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Index {
    /// The version of the layout.
    pub format: u32,
    /// Steps done.
    pub step: u64,
    /// Whatever else the run needs to go on.
    pub state: Map<String, Value>,
    /// The files.
    pub files: Vec<FileEntry>,
    /// The hash of each kind of thing ([`super::Checkpoint::hashes`]); older ones have none.
    #[serde(default)]
    pub hashes: Hashes,
    /// Where every tensor's elements lie. Format 1 does not say it: its files hold whole tensors.
    #[serde(default)]
    pub tensors: Vec<Piece>,
}

impl Index {
    /// Reads the index in `folder`.
    pub(super) fn read(folder: &Path) -> Result<Self, CheckpointError> {
        let path = folder.join(INDEX);
        let damaged = |problem: String| CheckpointError::damaged(&path, problem);
        let bytes = fs::read(&path).map_err(|error| damaged(error.to_string()))?;
        let index: Self = serde_json::from_slice(&bytes).map_err(|error| damaged(error.to_string()))?;
        if !(1..=FORMAT).contains(&index.format) {
            let found = index.format;
            return Err(damaged(format!("has format {found}; this program reads formats 1 to {FORMAT}")));
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

    /// Checks that nothing is there twice, in a file or of a tensor: what reading takes is then no more than what files have.
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

    /// The text of the index, a line for every file and for every piece.
    pub(super) fn to_json(&self) -> serde_json::Result<String> {
        fn lines<T: Serialize>(items: &[T]) -> serde_json::Result<String> {
            let lines = items.iter().map(serde_json::to_string).collect::<serde_json::Result<Vec<_>>>()?;
            Ok(lines.iter().map(|line| format!("\n    {line}")).collect::<Vec<_>>().join(","))
        }
        let (state, hashes) = (serde_json::to_string(&self.state)?, serde_json::to_string(&self.hashes)?);
        let (files, tensors) = (lines(&self.files)?, lines(&self.tensors)?);
        Ok(format!(
            "{{\n  \"format\": {},\n  \"step\": {},\n  \"state\": {state},\n  \"hashes\": {hashes},\n  \"files\": [{files}\n  ],\n  \"tensors\": [{tensors}\n  ]\n}}\n",
            self.format, self.step
        ))
    }
}

impl Piece {
    /// Whether its elements can be in a file that there is: each takes a byte at least.
    fn is_sound(&self, files: &[FileEntry]) -> bool {
        let holds = |file: &FileEntry| file.name == self.file && self.region.len() as u64 <= file.bytes;
        self.region.fits(&self.shape) && files.iter().any(holds)
    }
}

/// The pieces of a checkpoint of format 1, whose files are named after what they hold and hold whole tensors.
pub(super) fn pieces_of_format_1(folder: &Path, files: &[FileEntry]) -> Result<Vec<Piece>, CheckpointError> {
    let mut pieces = Vec::new();
    for file in files {
        let Some(stem) = file.name.strip_suffix(".safetensors") else { continue };
        let path = folder.join(&file.name);
        let open = TensorFile::open(&path);
        let open = open.map_err(|error| CheckpointError::damaged(&path, error.to_string()))?;
        for tensor in open.tensors() {
            // `exp_avg.conv1.weight` and `ema.conv1.weight`, but `conv1.weight` in the model's file.
            let (kind, name) = match stem {
                MODEL => (MODEL, tensor.name.as_str()),
                _ => tensor.name.split_once('.').unwrap_or((stem, &tensor.name)),
            };
            pieces.push(Piece {
                kind: kind.to_owned(),
                name: name.to_owned(),
                dtype: tensor.dtype.as_str().to_owned(),
                shape: tensor.shape.clone(),
                region: Region::whole(&tensor.shape),
                file: file.name.clone(),
                key: tensor.name.clone(),
            });
        }
    }
    Ok(pieces)
}
