//! Reads ranges of elements from safetensors files, without reading the rest.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use candle_core::{DType, Device, Tensor};
use safetensors::Dtype;
use safetensors::tensor::Metadata;

use super::regular::open_regular;
use super::write::{TensorHeader, read_as};
use crate::host::copy_host;
use crate::{Result, TensorError};

/// The number of bytes read at a time.
const PIECE: usize = 1 << 20;

/// A safetensors file whose header has been read.
#[derive(Debug)]
pub struct TensorFile {
    path: PathBuf,
    file: File,
    tensors: BTreeMap<String, Place>,
    /// Tensors of element types that are not read.
    unread: BTreeMap<String, Dtype>,
    metadata: BTreeMap<String, String>,
    read: AtomicU64,
}

/// The location of a tensor.
#[derive(Debug)]
struct Place {
    header: TensorHeader,
    /// Its first byte in the file.
    start: u64,
}

impl TensorFile {
    /// Opens a file and reads its header. Tensors of element types that are not read are an error only when asked for.
    ///
    /// # Errors
    /// [`TensorError::Io`] if it cannot be read, [`TensorError::Weights`] if it is truncated or not of this format.
    pub fn open(path: &Path) -> Result<Self> {
        let wrong = |problem: String| TensorError::Weights { path: path.to_owned(), problem };
        let failed = |source: io::Error| TensorError::Io { action: "read", path: path.to_owned(), source };
        let mut file = open_regular(path).map_err(failed)?;
        let bytes = file.metadata().map_err(failed)?.len();
        let mut length = [0; 8];
        let too_short =
            || wrong(format!("not a whole safetensors file of {bytes} bytes: its header is cut off"));
        if bytes < 8 {
            return Err(too_short());
        }
        file.read_exact(&mut length).map_err(failed)?;
        let length = u64::from_le_bytes(length);
        // Checked before allocating memory of that size.
        if length > bytes - 8 {
            return Err(too_short());
        }
        let mut header = vec![0; usize::try_from(length).map_err(|_| too_short())?];
        file.read_exact(&mut header).map_err(failed)?;
        let header: Metadata = serde_json::from_slice(&header)
            .map_err(|error| wrong(format!("not a safetensors file: {error}")))?;
        let start = 8 + length;
        let expected = start + header.data_len() as u64;
        if expected != bytes {
            return Err(wrong(format!("not a whole safetensors file: {bytes} bytes instead of {expected}")));
        }
        let metadata =
            header.metadata().iter().flatten().map(|(key, text)| (key.clone(), text.clone())).collect();
        let (mut tensors, mut unread) = (BTreeMap::new(), BTreeMap::new());
        for (name, info) in header.tensors() {
            let Some(dtype) = read_as(info.dtype) else {
                unread.insert(name, info.dtype);
                continue;
            };
            let header = TensorHeader { name: name.clone(), dtype, shape: info.shape.clone() };
            tensors.insert(name, Place { header, start: start + info.data_offsets.0 as u64 });
        }
        Ok(Self { path: path.to_owned(), file, tensors, unread, metadata, read: AtomicU64::new(start) })
    }

    /// Names of all tensors, sorted: first the tensors that can be read.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().chain(self.unread.keys()).map(String::as_str)
    }

    /// The element type of a tensor that cannot be read, as `BOOL`; empty if there is no such tensor.
    pub fn unread_type(&self, name: &str) -> String {
        self.unread.get(name).map(|dtype| format!("{dtype:?}")).unwrap_or_default()
    }

    /// Its tensors that can be read, sorted by name.
    pub fn tensors(&self) -> impl Iterator<Item = &TensorHeader> {
        self.tensors.values().map(|place| &place.header)
    }

    /// The metadata of its header: strings by key.
    pub fn metadata(&self) -> &BTreeMap<String, String> {
        &self.metadata
    }

    /// The tensor called `name`, if there is one.
    pub fn get(&self, name: &str) -> Option<&TensorHeader> {
        self.tensors.get(name).map(|place| &place.header)
    }

    /// Bytes read so far, including the header.
    pub fn bytes_read(&self) -> u64 {
        self.read.load(Ordering::Relaxed)
    }

    /// Calls `take` with elements `range` of a tensor (in storage order) as little-endian bytes, in pieces of at most
    /// a mebibyte, each with the position of its first element.
    ///
    /// # Errors
    /// [`TensorError::Weights`] if there is no such tensor or it has fewer elements, [`TensorError::Io`] if the file
    /// cannot be read, and those of `take`.
    pub fn read_bytes(
        &self,
        name: &str,
        range: Range<usize>,
        mut take: impl FnMut(usize, &[u8]) -> Result<()>,
    ) -> Result<()> {
        let wrong = |problem: String| TensorError::Weights { path: self.path.clone(), problem };
        let place = self.tensors.get(name).ok_or_else(|| match self.unread.get(name) {
            Some(dtype) => wrong(format!("`{name}` has element type {dtype:?}, which is not read")),
            None => wrong(format!("it has no tensor `{name}`")),
        })?;
        let count: usize = place.header.shape.iter().product();
        if range.start > range.end || range.end > count {
            return Err(wrong(format!("`{name}` has {count} elements; asked for {range:?}")));
        }
        let failed = |source| TensorError::Io { action: "read", path: self.path.clone(), source };
        let size = place.header.dtype.size_in_bytes();
        let piece = PIECE / size;
        let mut file = &self.file;
        file.seek(SeekFrom::Start(place.start + (range.start * size) as u64)).map_err(failed)?;
        let mut buffer = vec![0; piece.min(range.len()) * size];
        for start in range.clone().step_by(piece) {
            let bytes = &mut buffer[..piece.min(range.end - start) * size];
            file.read_exact(bytes).map_err(failed)?;
            self.read.fetch_add(bytes.len() as u64, Ordering::Relaxed);
            take(start, bytes)?;
        }
        Ok(())
    }

    /// Reads elements `range` of a tensor into `target`, a flat tensor of as many elements, and converts them to its
    /// type.
    ///
    /// # Errors
    /// As [`TensorFile::read_bytes`]; and if the target has another number of elements.
    pub fn read_into(&self, name: &str, range: Range<usize>, target: &Tensor) -> Result<()> {
        if target.elem_count() != range.len() {
            let found = candle_core::Shape::from(range.len());
            return Err(TensorError::unequal("read a range", target.shape(), &found));
        }
        let dtype = self.get(name).map_or(DType::F32, |header| header.dtype);
        self.read_bytes(name, range.clone(), |start, bytes| {
            let count = bytes.len() / dtype.size_in_bytes();
            let piece = Tensor::from_raw_buffer(bytes, dtype, &[count], &Device::Cpu)?;
            Ok(copy_host(&target.narrow(0, start - range.start, count)?, &piece)?)
        })
    }

    /// Reads elements `range` of a tensor as a flat tensor of the type in the file.
    ///
    /// # Errors
    /// As [`TensorFile::read_bytes`].
    pub fn read(&self, name: &str, range: Range<usize>) -> Result<Tensor> {
        let dtype = self.get(name).map_or(DType::F32, |header| header.dtype);
        let mut all = Vec::with_capacity(range.len() * dtype.size_in_bytes());
        self.read_bytes(name, range.clone(), |_, bytes| {
            all.extend_from_slice(bytes);
            Ok(())
        })?;
        Ok(Tensor::from_raw_buffer(&all, dtype, &[range.len()], &Device::Cpu)?)
    }
}
