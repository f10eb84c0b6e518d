//! Files of weights of any program: the choice of a state dict, the names in it, and its tensors one by one.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

use candle_core::{DType, Tensor};

use super::folder::find_weights;
use super::listing::{listed, wrong};
use super::weight_part::Part;
use super::wrappers::{prefixes, without_prefix};
use crate::{Result, TensorError};

/// Keys of a model's state dict in a file with several entries, the first that exists first.
const KEYS: [&str; 5] = ["", "model", "model_state_dict", "state_dict", "module"];

/// Largest ratio of the tensors' size to the size of a file. Tied tensors share stored elements.
const TIED: u64 = 8;

/// A file of weights whose names have been read: safetensors, or a file of PyTorch's `torch.save`; or the files of a folder,
/// which hold one state dict together.
#[derive(Debug)]
pub struct WeightFile {
    path: PathBuf,
    parts: Vec<Part>,
}

/// A state dict of a [`WeightFile`], under the names of a model.
#[derive(Debug)]
pub struct StateDict<'a> {
    file: &'a WeightFile,
    key: &'a str,
    /// Names in the file by names of the model.
    names: BTreeMap<String, &'a str>,
}

impl WeightFile {
    /// Opens a file and reads its names. Its first bytes tell its format, not its name. Of a folder it opens
    /// `model.safetensors` or `pytorch_model.bin`, or the files that `model.safetensors.index.json` or
    /// `pytorch_model.bin.index.json` names.
    ///
    /// # Errors
    /// [`TensorError::Io`] if it cannot be read, [`TensorError::Weights`] if it is damaged or of another format, or a folder
    /// has no such file.
    pub fn open(path: &Path) -> Result<Self> {
        if !path.is_dir() {
            return Ok(Self { path: path.to_owned(), parts: vec![Part::open(path)?] });
        }
        let found = find_weights(path)?;
        let parts = found.files.iter().map(|file| Part::open(file)).collect::<Result<Vec<_>>>()?;
        let missing = found.index.iter().find(|(name, part)| !parts[**part].has("", name));
        match missing {
            Some((name, part)) => Err(wrong(
                parts[*part].path(),
                format!("it has no tensor `{name}`, which the index of its folder names"),
            )),
            None => Ok(Self { path: path.to_owned(), parts }),
        }
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

    /// Names of tensors by key; those of several files together.
    fn groups(&self) -> Vec<(&str, Vec<&str>)> {
        match self.parts.as_slice() {
            [part] => part.groups(),
            parts => {
                let outer = parts.iter().flat_map(Part::groups).filter(|(key, _)| key.is_empty());
                let names: Vec<&str> = outer.flat_map(|(_, names)| names).collect();
                if names.is_empty() { Vec::new() } else { vec![("", names)] }
            }
        }
    }

    /// Describes the entries of the file, or of the first of several.
    fn content(&self) -> String {
        self.parts.first().map_or_else(|| "nothing".to_owned(), Part::content)
    }

    /// The size of the files in bytes.
    fn bytes(&self) -> u64 {
        let bytes = |part: &Part| std::fs::metadata(part.path()).map_or(0, |metadata| metadata.len());
        self.parts.iter().map(bytes).sum()
    }

    /// The file with a tensor.
    fn part(&self, key: &str, name: &str) -> Result<&Part> {
        match self.parts.as_slice() {
            [part] => Ok(part),
            parts => parts
                .iter()
                .find(|part| part.has(key, name))
                .ok_or_else(|| wrong(&self.path, format!("it has no tensor `{name}`"))),
        }
    }
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
        let part = self.names.get(name).and_then(|own| Some((self.file.part(self.key, own).ok()?, own)));
        let header = part.and_then(|(part, own)| part.header(self.key, own).ok());
        header.is_some_and(|(dtype, _)| matches!(dtype, DType::F16 | DType::BF16 | DType::F32 | DType::F64))
    }

    /// Returns the shape of a tensor.
    ///
    /// # Errors
    /// [`TensorError::Weights`] naming the tensor and the reason why it cannot be read.
    pub fn shape(&self, name: &str) -> Result<&[usize]> {
        let own = self.names.get(name);
        let own = own.ok_or_else(|| self.error(format!("it has no tensor `{name}`")))?;
        match self.file.part(self.key, own)?.header(self.key, own) {
            Ok((_, shape)) => Ok(shape),
            Err(problem) => {
                let remedy = "convert it to float32 (`tensor.float()`) and save again";
                Err(self.error(format!("`{}` {problem}; {remedy}", self.full(own))))
            }
        }
    }

    /// Reads a tensor.
    ///
    /// # Errors
    /// [`TensorError::Weights`] naming the tensor and the reason why it cannot be read, and [`TensorError::Io`].
    pub fn read(&self, name: &str) -> Result<Tensor> {
        Ok(self.read_part(name, 0..self.count(name)?)?.reshape(self.shape(name)?)?)
    }

    /// The number of elements of a tensor.
    fn count(&self, name: &str) -> Result<usize> {
        let shape = self.shape(name)?;
        let count = shape.iter().try_fold(1_usize, |count, dim| count.checked_mul(*dim));
        count.ok_or_else(|| self.error(format!("`{name}` has shape {shape:?}, more than the file holds")))
    }

    /// Reads elements `range` of a tensor, in row-major order. Of safetensors only these are read.
    ///
    /// # Errors
    /// Errors of [`StateDict::read`], and if the range is not inside.
    pub fn read_part(&self, name: &str, range: Range<usize>) -> Result<Tensor> {
        let count = self.count(name)?;
        let own = self.names.get(name).copied().unwrap_or_default();
        if range.start > range.end || range.end > count {
            return Err(self.error(format!("`{}` has {count} elements; asked for {range:?}", self.full(own))));
        }
        self.file.part(self.key, own)?.read(self.key, own, range)
    }

    /// Reads the tensors whose names `is_wanted` accepts, sorted by name.
    ///
    /// # Errors
    /// Errors of [`StateDict::read`], and [`TensorError::Weights`] if they have far more bytes than the file.
    pub fn read_all(&self, is_wanted: impl Fn(&str) -> bool) -> Result<Vec<(String, Tensor)>> {
        let (path, there) = (&self.file.path, self.file.bytes());
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
