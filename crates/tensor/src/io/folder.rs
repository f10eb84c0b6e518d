//! Folders of weights as Hugging Face's libraries write them: one file, or several with an index.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::listing::wrong;
use super::regular::open_regular;
use crate::{Result, TensorError};

/// Files of weights, and the indices of several files, in the order in which they are looked for.
const WHOLE: [&str; 2] = ["model.safetensors", "pytorch_model.bin"];
const INDICES: [&str; 2] = ["model.safetensors.index.json", "pytorch_model.bin.index.json"];

/// The largest index in bytes.
const INDEX_BYTES: u64 = 64 << 20;

/// The number of entries of a folder that a message lists.
const LISTED: usize = 8;

/// The files of a folder's weights.
#[derive(Debug, Default)]
pub(super) struct FolderFiles {
    pub(super) files: Vec<PathBuf>,
    /// By tensor, its file's position, if there is an index.
    pub(super) index: BTreeMap<String, usize>,
}

/// Finds the weights in a folder.
///
/// # Errors
/// [`TensorError::Weights`] if there are none, telling the folder's contents, or the index is damaged; [`TensorError::Io`].
pub(super) fn find_weights(folder: &Path) -> Result<FolderFiles> {
    for (whole, index) in WHOLE.into_iter().zip(INDICES) {
        if folder.join(whole).is_file() {
            return Ok(FolderFiles { files: vec![folder.join(whole)], ..FolderFiles::default() });
        }
        if folder.join(index).is_file() {
            return read_index(folder, &folder.join(index));
        }
    }
    let entries = std::fs::read_dir(folder);
    let entries =
        entries.map_err(|source| TensorError::Io { action: "read", path: folder.to_owned(), source })?;
    let mut names: Vec<String> =
        entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort_unstable();
    let shown = names.iter().take(LISTED).cloned().collect::<Vec<_>>().join(", ");
    let holds = match names.len() {
        0 => "nothing".to_owned(),
        count if count > LISTED => format!("{shown} and {} more", count - LISTED),
        _ => shown,
    };
    let wanted = [WHOLE[0], INDICES[0], WHOLE[1], INDICES[1]].join(", ");
    Err(wrong(folder, format!("the folder has no weights: none of {wanted}; it holds {holds}")))
}

/// Reads `weight_map` of an index: the file of each tensor.
fn read_index(folder: &Path, index: &Path) -> Result<FolderFiles> {
    let failed = |source| TensorError::Io { action: "read", path: index.to_owned(), source };
    let mut text = Vec::new();
    open_regular(index).and_then(|file| file.take(INDEX_BYTES).read_to_end(&mut text)).map_err(failed)?;
    let damaged = |problem: String| wrong(index, format!("not an index of weights: {problem}"));
    let json: Value = serde_json::from_slice(&text).map_err(|error| damaged(error.to_string()))?;
    let map = json.get("weight_map").and_then(Value::as_object);
    let map = map.ok_or_else(|| damaged("it has no `weight_map`".to_owned()))?;
    let mut found = FolderFiles::default();
    let mut known: BTreeMap<&str, usize> = BTreeMap::new();
    for (tensor, file) in map {
        let plain = |name: &&str| Path::new(name).file_name().is_some_and(|plain| plain == *name);
        let Some(file) = file.as_str().filter(plain) else {
            return Err(damaged(format!("the file of `{tensor}` is {file}, which is not one of the folder")));
        };
        let at = *known.entry(file).or_insert_with(|| {
            found.files.push(folder.join(file));
            found.files.len() - 1
        });
        found.index.insert(tensor.clone(), at);
    }
    match found.files.iter().find(|file| !file.is_file()) {
        Some(missing) => Err(wrong(index, format!("it names {}, which is missing", missing.display()))),
        None => Ok(found),
    }
}
