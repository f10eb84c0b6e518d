//! One file of weights: safetensors, or a file of PyTorch's `torch.save`.

use std::io::Read as _;
use std::ops::Range;
use std::path::{Path, PathBuf};

use candle_core::{DType, Tensor};

use super::listing::{listed, wrong};
use super::ranges::TensorFile;
use super::regular::open_regular;
use super::torch::{TorchFile, is_torch};
use crate::{Result, TensorError};

/// The number of bytes that tell kinds of files apart.
const START: u64 = 64;

/// One of the files of a [`super::WeightFile`].
#[derive(Debug)]
pub(super) struct Part {
    path: PathBuf,
    content: Content,
}

#[derive(Debug)]
enum Content {
    Safetensors(TensorFile),
    Torch(TorchFile),
}

impl Part {
    /// Opens a file and reads its names.
    pub(super) fn open(path: &Path) -> Result<Self> {
        let failed = |source| TensorError::Io { action: "read", path: path.to_owned(), source };
        let mut start = Vec::new();
        open_regular(path).and_then(|file| file.take(START).read_to_end(&mut start)).map_err(failed)?;
        let is_safetensors = path.extension().is_some_and(|extension| extension == "safetensors");
        let content = if is_torch(&start) {
            let torch = TorchFile::open(path, &start);
            Content::Torch(
                torch.map_err(|problem| wrong(path, format!("cannot read this PyTorch file: {problem}")))?,
            )
        } else if is_safetensors || start.get(8) == Some(&b'{') {
            Content::Safetensors(TensorFile::open(path)?)
        } else {
            return Err(wrong(path, unknown(&start)));
        };
        Ok(Self { path: path.to_owned(), content })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Names of tensors by key.
    pub(super) fn groups(&self) -> Vec<(&str, Vec<&str>)> {
        match &self.content {
            Content::Safetensors(file) => match file.names().collect::<Vec<_>>() {
                names if names.is_empty() => Vec::new(),
                names => vec![("", names)],
            },
            Content::Torch(file) => file.names(),
        }
    }

    /// True if the state dict `key` has the tensor `name`.
    pub(super) fn has(&self, key: &str, name: &str) -> bool {
        match &self.content {
            Content::Safetensors(file) => file.get(name).is_some() || !file.unread_type(name).is_empty(),
            Content::Torch(file) => file.has(key, name),
        }
    }

    /// Describes the file's entries.
    pub(super) fn content(&self) -> String {
        match &self.content {
            Content::Safetensors(file) => match file.names().count() {
                0 => "nothing".to_owned(),
                _ => listed(file.names()),
            },
            Content::Torch(file) => file.content().to_owned(),
        }
    }

    /// The element type and the shape of a tensor. The error is why it cannot be read.
    pub(super) fn header(&self, key: &str, name: &str) -> Result<(DType, &[usize]), String> {
        match &self.content {
            Content::Safetensors(file) => file
                .get(name)
                .map(|header| (header.dtype, header.shape.as_slice()))
                .ok_or_else(|| format!("has element type {}, which is not read", file.unread_type(name))),
            Content::Torch(file) => file.header(key, name),
        }
    }

    /// Reads elements `range` of a tensor.
    pub(super) fn read(&self, key: &str, name: &str, range: Range<usize>) -> Result<Tensor> {
        match &self.content {
            Content::Safetensors(file) => file.read(name, range),
            Content::Torch(file) => {
                let failed = |problem| wrong(&self.path, format!("`{name}` {problem}"));
                let all = file.read(key, name).map_err(failed)?.flatten_all()?;
                Ok(all.narrow(0, range.start, range.len())?)
            }
        }
    }
}

/// Names a kind of file that is not read.
fn unknown(start: &[u8]) -> String {
    let kind = match start {
        [] => "the file is empty",
        start if start.starts_with(b"version https://git-lfs") => {
            "this is a pointer of Git LFS, not the file; fetch it with `git lfs pull`"
        }
        [b'<', ..] => "this is a page, not a file of weights; the download failed",
        [0x80, ..] => "this is a pickle that torch.save did not write",
        _ => "unknown kind of file",
    };
    format!("{kind}; expected safetensors, or a file of torch.save")
}
