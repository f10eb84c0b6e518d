//! Reads tensors by name and region, independent of the pieces in which ranks wrote them.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;

use candle_core::{DType, Device, Shape, Tensor};
use phalanx_run::Links;
use phalanx_tensor::host::copy_host;
use phalanx_tensor::io::TensorFile;
use phalanx_tensor::{BucketEntry, ParamBucket, ParamStore, TensorError};

use super::index::INDEX;
use super::piece::{MODEL, Piece};
use super::region::{Interval, Overlap, Region, find};
use super::{Checkpoint, CheckpointError};

/// Bytes that are read at a time.
const WINDOW: usize = 1 << 20;

/// Bytes between two ranges of a file up to which reading on is faster than reading twice.
const GAP: usize = 4 << 10;

/// A checkpoint that is open for reading. A file is opened at the first read of one of its tensors. Of a file only the header and the
/// requested elements are read.
#[derive(Debug)]
pub struct Reader {
    folder: PathBuf,
    /// The pieces of each tensor, by kind and then by name.
    pieces: BTreeMap<String, BTreeMap<String, Vec<Piece>>>,
    files: RefCell<BTreeMap<String, Rc<TensorFile>>>,
    /// The elements of each piece of a tensor in memory, by kind and name. A tensor that is not listed is in files.
    in_memory: BTreeMap<(String, String), Vec<Arc<Vec<u8>>>>,
}

impl Reader {
    pub(super) fn new(checkpoint: &Checkpoint) -> Self {
        let mut pieces: BTreeMap<String, BTreeMap<String, Vec<Piece>>> = BTreeMap::new();
        for piece in &checkpoint.index.tensors {
            let of_kind = pieces.entry(piece.kind.clone()).or_default();
            of_kind.entry(piece.name.clone()).or_default().push(piece.clone());
        }
        Self {
            folder: checkpoint.folder.clone(),
            pieces,
            files: RefCell::default(),
            in_memory: BTreeMap::new(),
        }
    }

    /// Returns a reader of pieces in memory.
    pub(super) fn of_memory(all: impl IntoIterator<Item = (Piece, Arc<Vec<u8>>)>) -> Self {
        let mut this = Self {
            folder: "memory".into(),
            pieces: BTreeMap::new(),
            files: RefCell::default(),
            in_memory: BTreeMap::new(),
        };
        for (piece, bytes) in all {
            let name = (piece.kind.clone(), piece.name.clone());
            this.in_memory.entry(name.clone()).or_default().push(bytes);
            this.pieces.entry(name.0).or_default().entry(name.1).or_default().push(piece);
        }
        this
    }

    /// Returns the kinds of saved tensors, such as [`MODEL`].
    pub fn kinds(&self) -> impl Iterator<Item = &str> {
        self.pieces.keys().map(String::as_str)
    }

    /// Returns the names of a kind's tensors, each with the whole tensor's shape.
    pub fn tensors(&self, kind: &str) -> impl Iterator<Item = (&str, &[usize])> {
        let named = self.pieces.get(kind).into_iter().flatten();
        named.filter_map(|(name, pieces)| Some((name.as_str(), pieces.first()?.shape.as_slice())))
    }

    /// Returns the pieces of a tensor; none if there is no such tensor.
    pub fn pieces(&self, kind: &str, name: &str) -> &[Piece] {
        self.pieces.get(kind).and_then(|named| named.get(name)).map_or(&[], Vec::as_slice)
    }

    /// Returns the bytes read so far, headers included.
    pub fn bytes_read(&self) -> u64 {
        self.files.borrow().values().map(|file| file.bytes_read()).sum()
    }

    /// Calls `take` with the stored elements of a region, as little-endian bytes of at most 1 MiB, and the position of their first
    /// element in the region. Returns false if there is no such tensor.
    ///
    /// Of each piece only the part that overlaps the region is read.
    ///
    /// # Errors
    /// [`CheckpointError::Damaged`] if elements are missing, or a file differs from the index or cannot be read; errors
    /// of `take`.
    pub fn read_bytes(
        &self,
        kind: &str,
        name: &str,
        region: &Region,
        mut take: impl FnMut(usize, &[u8]) -> Result<(), CheckpointError>,
    ) -> Result<bool, CheckpointError> {
        let pieces = self.pieces(kind, name);
        let Some(Piece { shape, .. }) = pieces.first() else { return Ok(false) };
        let lists = |missing: &dyn std::fmt::Display| {
            let problem = format!("lists no file with {missing} of {kind} `{name}`");
            CheckpointError::damaged(&self.folder.join(INDEX), problem)
        };
        if !region.fits(shape) {
            return Err(lists(region));
        }
        let size = self.element_size(kind, name)?;
        let in_memory = self.in_memory.get(&(kind.to_owned(), name.to_owned()));
        let there: Vec<(&Piece, Vec<Interval>)> =
            pieces.iter().map(|piece| (piece, piece.region.intervals(shape))).collect();
        for window in windows(region.intervals(shape), WINDOW / size) {
            let (first, count) = (window[0].first, window.iter().map(|interval| interval.len).sum::<usize>());
            let mut bytes = vec![0; count * size];
            let mut missing = window;
            for (at, (piece, intervals)) in there.iter().enumerate() {
                let (shared, left) = find(&missing, intervals);
                if shared.is_empty() {
                    continue;
                }
                match in_memory {
                    Some(in_memory) => {
                        self.copy_from_memory((piece, &in_memory[at]), &shared, (first, size), &mut bytes)?;
                    }
                    None => {
                        let file = self.file(piece)?;
                        let read = fetch(&file, &piece.key, &shared, (first, size), &mut bytes);
                        read.map_err(|error| self.unreadable(piece, &error))?;
                    }
                }
                missing = left;
            }
            if let Some(interval) = missing.first() {
                return Err(lists(&Region::from(interval.start..interval.end())));
            }
            take(first, &bytes)?;
        }
        Ok(true)
    }

    /// Reads a region of a tensor into `target`, a flat tensor of as many elements, and converts them to its type. Returns false, and
    /// reads nothing, if there is no such tensor.
    ///
    /// # Errors
    /// [`CheckpointError::Unfit`] if `target` has another number of elements; otherwise as [`Reader::read_bytes`].
    pub fn read_into(
        &self,
        kind: &str,
        name: &str,
        region: &Region,
        target: &Tensor,
    ) -> Result<bool, CheckpointError> {
        if target.elem_count() != region.len() {
            let found = target.elem_count();
            return Err(self.unfit(format!("{region} of {kind} `{name}` do not go into {found} elements")));
        }
        let Some(dtype) = self.dtype(kind, name) else { return Ok(false) };
        self.read_bytes(kind, name, region, |first, bytes| {
            let count = bytes.len() / dtype.size_in_bytes();
            let read =
                Tensor::from_raw_buffer(bytes, dtype, &[count], &Device::Cpu).map_err(TensorError::from);
            let copied = read.and_then(|read| Ok(copy_host(&target.narrow(0, first, count)?, &read)?));
            copied.map_err(|error| self.unfit(error.to_string()))
        })
    }

    /// Reads a whole tensor in the type in which it was saved.
    ///
    /// # Errors
    /// As [`Reader::read_bytes`], and if there is no such tensor.
    pub fn read(&self, kind: &str, name: &str) -> Result<Tensor, CheckpointError> {
        let absent =
            || CheckpointError::damaged(&self.folder.join(INDEX), format!("lists no {kind} `{name}`"));
        let shape = &self.pieces(kind, name).first().ok_or_else(absent)?.shape;
        let dtype = self.dtype(kind, name).ok_or_else(absent)?;
        let region = Region::whole(shape);
        // A damaged shape may claim more elements than the files have; pieces cannot, as they do not overlap.
        let there: usize = self.pieces(kind, name).iter().map(|piece| piece.region.len()).sum();
        let mut all = Vec::with_capacity(region.len().min(there) * dtype.size_in_bytes());
        self.read_bytes(kind, name, &region, |_, bytes| {
            all.extend_from_slice(bytes);
            Ok(())
        })?;
        Tensor::from_raw_buffer(&all, dtype, shape, &Device::Cpu)
            .map_err(|error| CheckpointError::damaged(&self.folder.join(INDEX), error.to_string()))
    }

    /// Reads the parameters that this rank keeps, and all buffers of a store. Under a strategy that shards parameters, only its shard is
    /// read.
    ///
    /// # Errors
    /// As [`Reader::read_into`], and [`CheckpointError::Unfit`] if a buffer has another shape.
    pub fn read_model(&self, store: &ParamStore) -> Result<(), CheckpointError> {
        for param in store.buckets() {
            self.read_values(MODEL, param)?;
        }
        for buffer in store.buffers() {
            if !self.pieces(MODEL, buffer.name()).is_empty() {
                let value = self.read(MODEL, buffer.name())?;
                buffer.set(&value).map_err(|error| self.unfit(error.to_string()))?;
            }
        }
        Ok(())
    }

    /// Reads this rank's elements of a bucket from tensors of a kind. Elements of tensors that were not saved stay as they are.
    ///
    /// # Errors
    /// As [`Reader::read_into`].
    pub fn read_values(&self, kind: &str, param: &ParamBucket) -> Result<(), CheckpointError> {
        let Some((values, entries)) = param.kept() else { return Ok(()) };
        for entry in entries {
            let target = values.narrow(entry.range.clone()).map_err(|error| self.unfit(error.to_string()))?;
            let unfit = |error: TensorError| self.unfit(error.to_string());
            let staging = target.staging().map_err(unfit)?;
            self.read_entry(kind, &entry, &staging)?;
            target.take_staged(&staging).map_err(unfit)?;
        }
        Ok(())
    }

    /// Reads the elements of an entry into `target`, a flat tensor of as many.
    fn read_entry(&self, kind: &str, entry: &BucketEntry, target: &Tensor) -> Result<(), CheckpointError> {
        let Some(portion) = &entry.portion else {
            return self.read_into(kind, &entry.name, &entry.part.clone().into(), target).map(drop);
        };
        if self.pieces(kind, &entry.name).is_empty() {
            return Ok(());
        }
        let unfit = |error: TensorError| self.unfit(error.to_string());
        for piece in portion.pieces(entry.part.clone()) {
            let region = Region::from(piece.whole);
            let found = Tensor::zeros(region.len(), target.dtype(), &Device::Cpu)
                .map_err(|error| unfit(error.into()))?;
            self.read_into(kind, &entry.name, &region, &found)?;
            let mut at = 0;
            for elements in piece.elements {
                let to = target.narrow(0, elements.start - entry.part.start, elements.len());
                let from = found.narrow(0, at, elements.len());
                let copied = to.and_then(|to| Ok((to, from?))).map_err(TensorError::from);
                copied.and_then(|(to, from)| Ok(copy_host(&to, &from)?)).map_err(unfit)?;
                at += elements.len();
            }
        }
        Ok(())
    }

    /// Reads the elements that this rank owns of a kind's tensors, for optimizers and averages. Names are `{kind}.{parameter}`, shapes those
    /// of [`ParamBucket::owned_entries`].
    ///
    /// # Errors
    /// As [`Reader::read_into`], and if a parameter has another number of elements.
    pub fn state_of(
        &self,
        kind: &str,
        param: &ParamBucket,
    ) -> Result<Vec<(String, Tensor)>, CheckpointError> {
        let mut state = Vec::new();
        for entry in param.owned_entries() {
            if self.pieces(kind, &entry.name).is_empty() {
                continue;
            }
            let unfit = |error: candle_core::Error| self.unfit(error.to_string());
            let part = Tensor::zeros(entry.part.len(), param.dtype(), &Device::Cpu).map_err(unfit)?;
            self.read_entry(kind, &entry, &part)?;
            state.push((format!("{kind}.{}", entry.name), part.reshape(&entry.shape).map_err(unfit)?));
        }
        Ok(state)
    }

    /// Compares the names and shapes of the parameters and buffers of a training's networks with the saved ones.
    ///
    /// # Errors
    /// [`CheckpointError::Unfit`] naming tensors that only the checkpoint or only the networks have, or whose shapes differ (a
    /// missing `num_batches_tracked` is none: old files lack it).
    pub fn check_model<'s>(
        &self,
        stores: impl IntoIterator<Item = &'s ParamStore>,
    ) -> Result<(), CheckpointError> {
        let of_store = |store: &'s ParamStore| {
            let params = store.model_params().map(|param| (param.name(), param.whole_shape().clone()));
            params.chain(store.model_buffers().map(|buffer| (buffer.name(), buffer.whole_shape())))
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

    /// Copies the elements that a piece in memory shares with a window into the window's bytes. `first` is the window's first element.
    fn copy_from_memory(
        &self,
        (piece, in_memory): (&Piece, &[u8]),
        shared: &[Overlap],
        (first, size): (usize, usize),
        window: &mut [u8],
    ) -> Result<(), CheckpointError> {
        if in_memory.len() != piece.region.len() * size {
            let (kind, name) = (&piece.kind, &piece.name);
            return Err(self.unfit(format!(
                "{} bytes are not {} of {kind} `{name}`",
                in_memory.len(),
                piece.region
            )));
        }
        for part in shared {
            let begin = (part.wanted - first) * size;
            let found = &in_memory[part.there * size..(part.there + part.len) * size];
            window[begin..begin + found.len()].copy_from_slice(found);
        }
        Ok(())
    }

    fn file(&self, piece: &Piece) -> Result<Rc<TensorFile>, CheckpointError> {
        let path = self.folder.join(&piece.file);
        let known = self.files.borrow().get(&piece.file).cloned();
        let file = match known {
            Some(file) => file,
            None => {
                let damaged = |problem: String| CheckpointError::damaged(&path, problem);
                drop(Links::Refuse.open(&path).map_err(|error| damaged(error.to_string()))?);
                let open = TensorFile::open(&path);
                let open = Rc::new(open.map_err(|error| damaged(error.to_string()))?);
                self.files.borrow_mut().insert(piece.file.clone(), open.clone());
                open
            }
        };
        let found = file.get(&piece.key);
        let fits = found.is_some_and(|found| {
            found.shape.iter().product::<usize>() == piece.region.len() && found.dtype.as_str() == piece.dtype
        });
        match fits {
            true => Ok(file),
            false => Err(CheckpointError::damaged(
                &path,
                format!(
                    "does not hold `{}` as the index says: {} elements of {}",
                    piece.key,
                    piece.region.len(),
                    piece.dtype
                ),
            )),
        }
    }

    fn unreadable(&self, piece: &Piece, error: &TensorError) -> CheckpointError {
        CheckpointError::damaged(&self.folder.join(&piece.file), error.to_string())
    }

    fn unfit(&self, problem: String) -> CheckpointError {
        CheckpointError::Unfit { path: self.folder.clone(), problem }
    }

    /// Returns the element type in which a tensor was saved; `None` if there is no such tensor or its type is unknown.
    pub fn dtype(&self, kind: &str, name: &str) -> Option<DType> {
        self.pieces(kind, name).first()?.element_type()
    }

    /// Returns the size of an element of a tensor in bytes.
    ///
    /// # Errors
    /// [`CheckpointError::Damaged`] if the index names no known type.
    pub(super) fn element_size(&self, kind: &str, name: &str) -> Result<usize, CheckpointError> {
        let unknown = || {
            let problem = format!("names no known element type for {kind} `{name}`");
            CheckpointError::damaged(&self.folder.join(INDEX), problem)
        };
        self.dtype(kind, name).map(|dtype| dtype.size_in_bytes()).ok_or_else(unknown)
    }
}

/// Splits intervals into windows of at most `most` elements, in order.
fn windows(intervals: Vec<Interval>, most: usize) -> impl Iterator<Item = Vec<Interval>> {
    let mut intervals = intervals.into_iter().peekable();
    std::iter::from_fn(move || {
        let (mut window, mut room) = (Vec::new(), most);
        while let (true, Some(interval)) = (room > 0, intervals.peek_mut()) {
            let len = interval.len.min(room);
            window.push(Interval { len, ..*interval });
            room -= len;
            if len < interval.len {
                *interval = Interval {
                    start: interval.start + len,
                    len: interval.len - len,
                    first: interval.first + len,
                };
            } else {
                intervals.next();
            }
        }
        (!window.is_empty()).then_some(window)
    })
}

/// Reads the elements that a piece shares with a window into the window's bytes. `first` is the window's first element.
fn fetch(
    file: &TensorFile,
    key: &str,
    shared: &[Overlap],
    (first, size): (usize, usize),
    window: &mut [u8],
) -> Result<(), TensorError> {
    let mut rest = shared;
    while let [start, more @ ..] = rest {
        // Ranges that are close together in the file are read together.
        let mut end = start.there + start.len;
        let near = more.iter().take_while(|next| {
            let (gap, all) = (next.there - end, next.there + next.len - start.there);
            let near = gap * size <= GAP && all * size <= WINDOW;
            if near {
                end = next.there + next.len;
            }
            near
        });
        let count = 1 + near.count();
        file.read_bytes(key, start.there..end, |at, bytes| {
            for part in &rest[..count] {
                let (from, to) = (part.there.max(at), (part.there + part.len).min(at + bytes.len() / size));
                if from < to {
                    let begin = (part.wanted + (from - part.there) - first) * size;
                    let found = &bytes[(from - at) * size..(to - at) * size];
                    window[begin..begin + found.len()].copy_from_slice(found);
                }
            }
            Ok(())
        })?;
        rest = &rest[count..];
    }
    Ok(())
}
