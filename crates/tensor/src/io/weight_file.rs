//! Files of weights of any program: the choice of a state dict, the names in it, and its tensors one by one.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use candle_core::{DType, Tensor};

use super::ranges::TensorFile;
use super::regular::open_regular;
use super::torch::{TorchFile, is_torch};
use super::wrappers::{prefixes, without_prefix};
use crate::{Result, TensorError};

/// Keys of a model's state dict in a file with several entries, the first that exists first.
const KEYS: [&str; 5] = ["", "model", "model_state_dict", "state_dict", "module"];

/// The number of names that a message lists.
const LISTED: usize = 3;

/// Largest ratio of the tensors' size to the size of a file. Tied tensors share stored elements.
const TIED: u64 = 8;

/// The number of bytes that tell kinds of files apart.
const START: u64 = 64;

/// A file of weights whose names have been read: safetensors, or a file of PyTorch's `torch.save`.
#[derive(Debug)]
pub struct WeightFile {
    path: PathBuf,
    content: Content,
}

#[derive(Debug)]
enum Content {
    Safetensors(TensorFile),
    Torch(TorchFile),
}

/// A state dict of a [`WeightFile`], under the names of a model.
#[derive(Debug)]
pub struct StateDict<'a> {
    file: &'a WeightFile,
    key: &'a str,
    /// Names in the file by names of the model.
    names: BTreeMap<String, &'a str>,
}

fn wrong(path: &Path, problem: impl Into<String>) -> TensorError {
    TensorError::Weights { path: path.to_owned(), problem: problem.into() }
}

/// Lists the first names, and the number of the others.
pub(super) fn listed<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let all: Vec<&str> = names.collect();
    let shown: Vec<String> = all.iter().take(LISTED).map(|name| format!("`{name}`")).collect();
    let others = all.len() - shown.len();
    if others > 0 { format!("{} and {others} more", shown.join(", ")) } else { shown.join(", ") }
}

impl WeightFile {
    /// Opens a file and reads its names. Its first bytes tell its format, not its name.
    ///
    /// # Errors
    /// [`TensorError::Io`] if it cannot be read, [`TensorError::Weights`] if it is damaged or of another format.
    pub fn open(path: &Path) -> Result<Self> {
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

    /// Chooses the state dict and the wrappers' prefix (`module.`, `_orig_mod.`, `model.`) with the most names that
    /// `is_wanted` accepts. Among equals come the outermost dict, `model`, `model_state_dict`, `state_dict` and
    /// `module` first.
    ///
    /// # Errors
    /// [`TensorError::Weights`] listing the file's entries if it has no tensors with names, or none of these names, or equal
    /// state dicts under other keys.
    pub fn state_dict(&self, is_wanted: impl Fn(&str) -> bool) -> Result<StateDict<'_>> {
        let mut best: Option<(usize, usize, StateDict<'_>)> = None;
        let mut equal = None;
        for (key, all) in self.groups() {
            let rank = KEYS.iter().position(|known| *known == key).unwrap_or(KEYS.len());
            for prefix in prefixes(all.iter().copied()) {
                let names = without_prefix(&all, prefix);
                let count = names.keys().filter(|name| is_wanted(name)).count();
                let better = match &best {
                    None => true,
                    Some((most, first, _)) => count > *most || (count == *most && rank < *first),
                };
                if better {
                    best = Some((count, rank, StateDict { file: self, key, names }));
                    equal = None;
                } else if let Some((most, first, chosen)) = &best
                    && (count, rank) == (*most, *first)
                    && key != chosen.key
                {
                    equal = Some(key);
                }
            }
        }
        match (best, equal) {
            (None, _) => {
                Err(wrong(&self.path, format!("it has no tensors with names; it holds {}", self.content())))
            }
            (Some((0, _, chosen)), _) => {
                let problem = format!("it has no tensor of this model; it holds {}", chosen.content());
                Err(wrong(&self.path, problem))
            }
            (Some((.., chosen)), Some(other)) => {
                let problem = "each fits this model; save the one to load in a file of its own";
                Err(wrong(&self.path, format!("its entries `{}` and `{other}` {problem}", chosen.key)))
            }
            (Some((.., chosen)), None) => Ok(chosen),
        }
    }

    /// Names of tensors by key.
    fn groups(&self) -> Vec<(&str, Vec<&str>)> {
        match &self.content {
            Content::Safetensors(file) => match file.names().collect::<Vec<_>>() {
                names if names.is_empty() => Vec::new(),
                names => vec![("", names)],
            },
            Content::Torch(file) => file.names(),
        }
    }

    /// Describes the file's entries.
    fn content(&self) -> String {
        match &self.content {
            Content::Safetensors(file) => match file.names().count() {
                0 => "nothing".to_owned(),
                _ => listed(file.names()),
            },
            Content::Torch(file) => file.content().to_owned(),
        }
    }

    /// The element type of a tensor. The error is why it cannot be read.
    fn dtype(&self, key: &str, name: &str) -> Result<DType, String> {
        match &self.content {
            Content::Safetensors(file) => file
                .get(name)
                .map(|header| header.dtype)
                .ok_or_else(|| format!("has element type {}, which is not read", file.unread_type(name))),
            Content::Torch(file) => file.dtype(key, name),
        }
    }

    fn read(&self, key: &str, name: &str) -> Result<Tensor> {
        match &self.content {
            Content::Safetensors(file) => {
                let shape = file.get(name).map(|header| header.shape.as_slice()).unwrap_or_default();
                Ok(file.read(name, 0..shape.iter().product())?.reshape(shape)?)
            }
            Content::Torch(file) => {
                file.read(key, name).map_err(|problem| wrong(&self.path, format!("`{name}` {problem}")))
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

impl StateDict<'_> {
    /// The names, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.names.keys().map(String::as_str)
    }

    /// True if there is a tensor of this name.
    pub fn contains(&self, name: &str) -> bool {
        self.names.contains_key(name)
    }

    /// True if a tensor has numbers of 16, 32 or 64 bits, as weights have. Others are counters, masks and positions.
    pub fn is_weight(&self, name: &str) -> bool {
        let dtype = self.names.get(name).and_then(|own| self.file.dtype(self.key, own).ok());
        dtype.is_some_and(|dtype| matches!(dtype, DType::F16 | DType::BF16 | DType::F32 | DType::F64))
    }

    /// Reads a tensor.
    ///
    /// # Errors
    /// [`TensorError::Weights`] naming the tensor and the reason why it cannot be read, and [`TensorError::Io`].
    pub fn read(&self, name: &str) -> Result<Tensor> {
        let own = self.names.get(name);
        let own = own.ok_or_else(|| self.error(format!("it has no tensor `{name}`")))?;
        if let Err(problem) = self.file.dtype(self.key, own) {
            let remedy = "convert it to float32 (`tensor.float()`) and save again";
            return Err(self.error(format!("`{}` {problem}; {remedy}", self.full(own))));
        }
        self.file.read(self.key, own)
    }

    /// Reads the tensors whose names `is_wanted` accepts, sorted by name.
    ///
    /// # Errors
    /// Errors of [`StateDict::read`], and [`TensorError::Weights`] if they have far more bytes than the file.
    pub fn read_all(&self, is_wanted: impl Fn(&str) -> bool) -> Result<Vec<(String, Tensor)>> {
        let path = &self.file.path;
        let there = std::fs::metadata(path).map_or(0, |metadata| metadata.len());
        let mut all = 0_u64;
        let mut tensors = Vec::new();
        for name in self.names().filter(|name| is_wanted(name)) {
            let tensor = self.read(name)?;
            all += (tensor.elem_count() * tensor.dtype().size_in_bytes()) as u64;
            if all > TIED * there {
                return Err(wrong(
                    path,
                    format!("its tensors have more than {TIED} times the bytes of the file"),
                ));
            }
            tensors.push((name.to_owned(), tensor));
        }
        Ok(tensors)
    }

    /// Describes the file's entries and this state dict.
    pub fn content(&self) -> String {
        let count = self.names.len();
        let tensors = if count == 1 { "1 tensor" } else { &format!("{count} tensors") };
        let own = format!("{tensors}: {}", listed(self.names.values().copied()));
        match self.key {
            "" => own,
            key => format!("{}; under `{key}` {own}", self.file.content()),
        }
    }

    /// An error about this state dict.
    pub fn error(&self, problem: impl Into<String>) -> TensorError {
        wrong(&self.file.path, problem)
    }

    /// The name of a tensor with the key of its dict.
    fn full(&self, own: &str) -> String {
        if self.key.is_empty() { own.to_owned() } else { format!("{}.{own}", self.key) }
    }
}
