//! Sources of weights: files of other programs, folders of Hugging Face's libraries, runs and checkpoints.

use std::ops::Range;
use std::path::{Path, PathBuf};

use candle_core::{DType, Device, Tensor};
use phalanx_checkpoint::{Checkpoint, EMA, MODEL, Reader, newest_checkpoint};
use phalanx_run::RunFolder;
use phalanx_tensor::TensorError;
use phalanx_tensor::io::{StateDict, WeightFile};

use crate::error::WeightError;

/// Opened weights.
#[derive(Debug)]
pub(crate) struct WeightSource {
    path: PathBuf,
    kind: SourceKind,
}

#[derive(Debug)]
enum SourceKind {
    File(WeightFile),
    /// A checkpoint of a run, with its step.
    Checkpoint(Reader, u64),
}

/// The tensors of weights.
#[derive(Debug)]
pub(crate) enum WeightTensors<'a> {
    File(StateDict<'a>),
    Checkpoint(&'a Path, &'a Reader),
}

impl WeightSource {
    /// Opens a file; or a folder that is a checkpoint, a run, or one of Hugging Face's libraries.
    ///
    /// # Errors
    /// If it is none of these, or damaged.
    pub(crate) fn open(path: &Path) -> Result<Self, WeightError> {
        let checkpoint = if path.join("checkpoint.json").is_file() {
            Some(Checkpoint::open(path)?)
        } else if path.join("config.toml").is_file() {
            Some(newest_checkpoint(&RunFolder::open(path)?)?)
        } else {
            None
        };
        let kind = match checkpoint {
            Some(checkpoint) => SourceKind::Checkpoint(checkpoint.reader(), checkpoint.step()),
            None => SourceKind::File(WeightFile::open(path)?),
        };
        Ok(Self { path: path.to_owned(), kind })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The step of a checkpoint.
    pub(crate) fn step(&self) -> Option<u64> {
        match &self.kind {
            SourceKind::File(_) => None,
            SourceKind::Checkpoint(_, step) => Some(*step),
        }
    }

    /// True if parameters are the averages of a run.
    pub(crate) fn has_averages(&self) -> bool {
        match &self.kind {
            SourceKind::File(_) => false,
            SourceKind::Checkpoint(reader, _) => reader.tensors(EMA).next().is_some(),
        }
    }

    /// Chooses the state dict of a file with the most names that `is_wanted` accepts.
    ///
    /// # Errors
    /// If there is none.
    pub(crate) fn tensors(&self, is_wanted: impl Fn(&str) -> bool) -> Result<WeightTensors<'_>, WeightError> {
        Ok(match &self.kind {
            SourceKind::File(file) => WeightTensors::File(file.state_dict(is_wanted)?),
            SourceKind::Checkpoint(reader, _) => WeightTensors::Checkpoint(&self.path, reader),
        })
    }
}

impl WeightTensors<'_> {
    /// The names, sorted.
    pub(crate) fn names(&self) -> Vec<&str> {
        match self {
            Self::File(dict) => dict.names().collect(),
            Self::Checkpoint(_, reader) => reader.tensors(MODEL).map(|(name, _)| name).collect(),
        }
    }

    /// Returns the shape of a tensor.
    ///
    /// # Errors
    /// If it cannot be read.
    pub(crate) fn shape(&self, name: &str) -> Result<Vec<usize>, WeightError> {
        match self {
            Self::File(dict) => Ok(dict.shape(name)?.to_vec()),
            Self::Checkpoint(_, reader) => {
                let shape = reader.pieces(MODEL, name).first().map(|piece| piece.shape.clone());
                shape.ok_or_else(|| self.error(&format!("it has no tensor `{name}`")))
            }
        }
    }

    /// True if a tensor has numbers as weights have; others are counters, masks and positions.
    pub(crate) fn is_weight(&self, name: &str) -> bool {
        match self {
            Self::File(dict) => dict.is_weight(name),
            Self::Checkpoint(_, reader) => reader.dtype(MODEL, name).is_some_and(|dtype| dtype.is_float()),
        }
    }

    /// Reads elements of a tensor, a flat tensor; of a run its averages, if it has any.
    ///
    /// # Errors
    /// If they cannot be read, or some are not finite.
    pub(crate) fn read(&self, name: &str, range: Range<usize>) -> Result<Tensor, WeightError> {
        let values = match self {
            Self::File(dict) => dict.read_part(name, range)?,
            Self::Checkpoint(_, reader) => {
                let kind = if reader.pieces(EMA, name).is_empty() { MODEL } else { EMA };
                match reader.dtype(kind, name) {
                    Some(dtype) if dtype.is_float() => {
                        let values =
                            Tensor::zeros(range.len(), dtype, &Device::Cpu).map_err(TensorError::from)?;
                        reader.read_into(kind, name, &range.into(), &values)?;
                        values
                    }
                    // Counters are small.
                    _ => {
                        let whole = reader.read(kind, name)?.flatten_all();
                        whole
                            .and_then(|whole| whole.narrow(0, range.start, range.len()))
                            .map_err(TensorError::from)?
                    }
                }
            }
        };
        if !is_finite(&values).map_err(TensorError::from)? {
            return Err(self.error(&format!("`{name}` has numbers that are not finite")));
        }
        Ok(values)
    }

    /// Describes the tensors.
    pub(crate) fn content(&self) -> String {
        match self {
            Self::File(dict) => dict.content(),
            Self::Checkpoint(..) => {
                let names = self.names();
                let shown: Vec<String> = names.iter().take(3).map(|name| format!("`{name}`")).collect();
                let others = names.len() - shown.len();
                let others = if others > 0 { format!(" and {others} more") } else { String::new() };
                format!("{} tensors: {}{others}", names.len(), shown.join(", "))
            }
        }
    }

    /// The error of a problem with these weights.
    pub(crate) fn error(&self, problem: &str) -> WeightError {
        match self {
            Self::File(dict) => dict.error(problem).into(),
            Self::Checkpoint(path, _) => {
                TensorError::Weights { path: path.to_path_buf(), problem: problem.to_owned() }.into()
            }
        }
    }
}

/// True if all numbers are finite. Whole numbers are.
fn is_finite(values: &Tensor) -> candle_core::Result<bool> {
    match values.dtype() {
        DType::F64 => Ok(values.to_vec1::<f64>()?.iter().all(|value| value.is_finite())),
        DType::F16 | DType::BF16 | DType::F32 => {
            Ok(values.to_dtype(DType::F32)?.to_vec1::<f32>()?.iter().all(|value| value.is_finite()))
        }
        _ => Ok(true),
    }
}
