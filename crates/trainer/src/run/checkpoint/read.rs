//! Reading a checkpoint by name and range of elements, whoever wrote which part of it.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::PathBuf;
use std::rc::Rc;

use candle_core::{DType, Shape, Tensor};
use phalanx_tensor::io::TensorFile;
use phalanx_tensor::{ParamStore, Unit};

use super::index::{INDEX, MODEL, Piece};
use super::{Checkpoint, CheckpointError};

/// A checkpoint that is open for reading. Files are opened when something in them is asked for first, and of a file nothing is
/// read but its header and what is asked for.
#[derive(Debug)]
pub struct Reader {
    folder: PathBuf,
    /// By kind and then by name, each in the order of its elements.
    pieces: BTreeMap<String, BTreeMap<String, Vec<Piece>>>,
    files: RefCell<BTreeMap<String, Rc<TensorFile>>>,
}

impl Reader {
    pub(super) fn new(checkpoint: &Checkpoint) -> Self {
        let mut pieces: BTreeMap<String, BTreeMap<String, Vec<Piece>>> = BTreeMap::new();
        for piece in &checkpoint.index.tensors {
            let of_kind = pieces.entry(piece.kind.clone()).or_default();
            of_kind.entry(piece.name.clone()).or_default().push(piece.clone());
        }
        for of_name in pieces.values_mut().flat_map(BTreeMap::values_mut) {
            of_name.sort_by_key(|piece| (piece.start, piece.end));
        }
        Self { folder: checkpoint.folder.clone(), pieces, files: RefCell::default() }
    }

    /// The kinds that there are, [`MODEL`] among them.
    pub fn kinds(&self) -> impl Iterator<Item = &str> {
        self.pieces.keys().map(String::as_str)
    }

    /// The names of a kind, each with the whole tensor's shape.
    pub fn tensors(&self, kind: &str) -> impl Iterator<Item = (&str, &[usize])> {
        let named = self.pieces.get(kind).into_iter().flatten();
        named.filter_map(|(name, pieces)| Some((name.as_str(), pieces.first()?.shape.as_slice())))
    }

    /// Where the elements of a tensor lie; nothing if there is no such tensor.
    pub fn pieces(&self, kind: &str, name: &str) -> &[Piece] {
        self.pieces.get(kind).and_then(|named| named.get(name)).map_or(&[], Vec::as_slice)
    }

    /// Bytes that were read so far, headers included.
    pub fn bytes_read(&self) -> u64 {
        self.files.borrow().values().map(|file| file.bytes_read()).sum()
    }

    /// Calls `take` with every piece that has some of elements `range`, in order, and with those elements; all of `range` is
    /// covered, each element once. False if there is no such tensor.
    ///
    /// # Errors
    /// [`CheckpointError::Damaged`] if elements are missing or a file does not hold what the index says; and those of `take`.
    pub fn visit(
        &self,
        kind: &str,
        name: &str,
        range: Range<usize>,
        mut take: impl FnMut(&TensorFile, &Piece, Range<usize>) -> Result<(), CheckpointError>,
    ) -> Result<bool, CheckpointError> {
        let pieces = self.pieces(kind, name);
        if pieces.is_empty() {
            return Ok(false);
        }
        let mut at = range.start;
        for piece in pieces {
            let end = piece.end.min(range.end);
            if piece.start > at || end <= at {
                continue;
            }
            let file = self.file(piece)?;
            take(&file, piece, at..end)?;
            at = end;
        }
        if at < range.end {
            let path = self.folder.join(INDEX);
            let missing = at..range.end;
            return Err(CheckpointError::damaged(
                &path,
                format!("lists no file with elements {missing:?} of {kind} `{name}`"),
            ));
        }
        Ok(true)
    }

    /// Reads elements `range` of a tensor into `target`, a flat tensor of as many elements, in whose type they are stored.
    /// False, with nothing read, if there is no such tensor.
    ///
    /// # Errors
    /// As [`Reader::visit`], and if a file cannot be read.
    pub fn read_into(
        &self,
        kind: &str,
        name: &str,
        range: Range<usize>,
        target: &Tensor,
    ) -> Result<bool, CheckpointError> {
        let first = range.start;
        self.visit(kind, name, range, |file, piece, part| {
            let to =
                target.narrow(0, part.start - first, part.len()).map_err(phalanx_tensor::TensorError::from);
            let read = to.and_then(|to| {
                file.read_into(&piece.key, part.start - piece.start..part.end - piece.start, &to)
            });
            read.map_err(|error| self.unreadable(piece, &error))
        })
    }

    /// A whole tensor in the type in which it was saved.
    ///
    /// # Errors
    /// As [`Reader::read_into`], and if there is no such tensor.
    pub fn read(&self, kind: &str, name: &str) -> Result<Tensor, CheckpointError> {
        let absent =
            || CheckpointError::damaged(&self.folder.join(INDEX), format!("lists no {kind} `{name}`"));
        let shape = self.pieces(kind, name).first().ok_or_else(absent)?.shape.clone();
        let mut parts = Vec::new();
        self.visit(kind, name, 0..shape.iter().product(), |file, piece, part| {
            let read = file.read(&piece.key, part.start - piece.start..part.end - piece.start);
            parts.push(read.map_err(|error| self.unreadable(piece, &error))?);
            Ok(())
        })?;
        let whole = Tensor::cat(&parts, 0).and_then(|whole| whole.reshape(shape));
        whole.map_err(|error| CheckpointError::damaged(&self.folder.join(INDEX), error.to_string()))
    }

    /// Reads what `units` hold of a store's parameters, and all its buffers. Under a strategy that shards parameters `units`
    /// are a rank's parts, and nothing else is read.
    ///
    /// # Errors
    /// As [`Reader::read_into`], and [`CheckpointError::Unfit`] if a buffer has another shape.
    pub fn read_model(&self, store: &ParamStore, units: &[Unit]) -> Result<(), CheckpointError> {
        for unit in units {
            self.read_unit(MODEL, unit)?;
        }
        for buffer in store.buffers() {
            if !self.pieces(MODEL, buffer.name()).is_empty() {
                let value = self.read(MODEL, buffer.name())?;
                buffer.set(&value).map_err(|error| self.unfit(error.to_string()))?;
            }
        }
        Ok(())
    }

    /// Reads what a unit holds of tensors of a kind into the unit's values; those that there are not stay as they are.
    ///
    /// # Errors
    /// As [`Reader::read_into`].
    pub fn read_unit(&self, kind: &str, unit: &Unit) -> Result<(), CheckpointError> {
        let Some(values) = unit.values() else { return Ok(()) };
        for entry in unit.entries() {
            let target = values.narrow(0, entry.range.start, entry.range.len());
            let target = target.map_err(|error| self.unfit(error.to_string()))?;
            self.read_into(kind, &entry.name, entry.part.clone(), &target)?;
        }
        Ok(())
    }

    /// What a unit holds of tensors of a kind, as `{kind}.{parameter}` with the shapes of the unit's entries: what optimizers
    /// and averages take over.
    ///
    /// # Errors
    /// As [`Reader::read_into`], and if a parameter has another number of elements.
    pub fn state_of(&self, kind: &str, unit: &Unit) -> Result<Vec<(String, Tensor)>, CheckpointError> {
        let mut state = Vec::new();
        for entry in unit.entries() {
            if self.pieces(kind, &entry.name).is_empty() {
                continue;
            }
            let unfit = |error: candle_core::Error| self.unfit(error.to_string());
            let part = Tensor::zeros(entry.part.len(), unit.dtype(), unit.device()).map_err(unfit)?;
            self.read_into(kind, &entry.name, entry.part.clone(), &part)?;
            state.push((format!("{kind}.{}", entry.name), part.reshape(&entry.shape).map_err(unfit)?));
        }
        Ok(state)
    }

    /// Compares the names and shapes of the parameters and buffers of a training's networks with what is saved.
    ///
    /// # Errors
    /// [`CheckpointError::Unfit`] naming tensors that only the checkpoint or only the networks have, or whose shapes differ (a
    /// missing `num_batches_tracked` is none: old files lack it).
    pub fn check_model<'s>(
        &self,
        stores: impl IntoIterator<Item = &'s ParamStore>,
    ) -> Result<(), CheckpointError> {
        let of_store = |store: &'s ParamStore| {
            let params = store.params().iter().map(|param| (param.name(), param.shape().clone()));
            params.chain(store.buffers().iter().map(|buffer| (buffer.name(), buffer.shape())))
        };
        let expected: BTreeMap<&str, Shape> = stores.into_iter().flat_map(of_store).collect();
        let found: BTreeMap<&str, &[usize]> = self.tensors(MODEL).collect();
        for (name, shape) in &expected {
            if let Some(found) = found.get(name).filter(|found| **found != shape.dims()) {
                let expected = shape.dims();
                return Err(self.unfit(format!("`{name}` has shape {found:?}; the model's is {expected:?}")));
            }
        }
        let lacks = |name: &&str| !found.contains_key(*name) && !name.ends_with("num_batches_tracked");
        let missing: Vec<&str> = expected.keys().copied().filter(lacks).collect();
        let strange: Vec<&str> = found.keys().copied().filter(|name| !expected.contains_key(name)).collect();
        let list = |names: &[&str]| {
            let shown = names.iter().take(3).map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
            if names.len() > 3 { format!("{shown} and {} more", names.len() - 3) } else { shown }
        };
        match (missing.is_empty(), strange.is_empty()) {
            (true, true) => Ok(()),
            (false, true) => Err(self.unfit(format!("it lacks {}", list(&missing)))),
            (true, false) => Err(self.unfit(format!("it has {}, which the model has not", list(&strange)))),
            (false, false) => Err(self.unfit(format!(
                "it lacks {} and has {}, which the model has not",
                list(&missing),
                list(&strange)
            ))),
        }
    }

    fn file(&self, piece: &Piece) -> Result<Rc<TensorFile>, CheckpointError> {
        let path = self.folder.join(&piece.file);
        let known = self.files.borrow().get(&piece.file).cloned();
        let file = match known {
            Some(file) => file,
            None => {
                let open = TensorFile::open(&path);
                let open = Rc::new(open.map_err(|error| CheckpointError::damaged(&path, error.to_string()))?);
                self.files.borrow_mut().insert(piece.file.clone(), open.clone());
                open
            }
        };
        let found = file.get(&piece.key);
        let fits = found.is_some_and(|found| {
            found.shape.iter().product::<usize>() == piece.range().len()
                && found.dtype.as_str() == piece.dtype
        });
        match fits {
            true => Ok(file),
            false => Err(CheckpointError::damaged(
                &path,
                format!(
                    "does not hold `{}` as the index says: {} elements of {}",
                    piece.key,
                    piece.range().len(),
                    piece.dtype
                ),
            )),
        }
    }

    fn unreadable(&self, piece: &Piece, error: &phalanx_tensor::TensorError) -> CheckpointError {
        CheckpointError::damaged(&self.folder.join(&piece.file), error.to_string())
    }

    fn unfit(&self, problem: String) -> CheckpointError {
        CheckpointError::Unfit { path: self.folder.clone(), problem }
    }

    /// The element type in which a tensor was saved; `None` if there is no such tensor or the index names no known type.
    pub fn dtype(&self, kind: &str, name: &str) -> Option<DType> {
        self.pieces(kind, name).first()?.dtype.parse().ok()
    }
}
