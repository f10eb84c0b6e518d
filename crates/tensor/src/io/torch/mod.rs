//! Files of PyTorch's `torch.save`.
//!
//! Both containers are read. Their pickle is executed on a machine of its own ([`machine`]): it calls nothing, and its
//! memory is bounded by a small amount for each byte of the pickle. Sizes of tensors are compared with the file before
//! memory is allocated.

mod container;
mod groups;
mod machine;
mod objects;
mod rebuild;

use std::path::Path;
use std::sync::{Mutex, PoisonError};

use candle_core::{DType, Device, Tensor};

use container::{Container, is_sequence, open_archive, open_sequence};
use groups::Groups;
use rebuild::TorchTensor;

use super::regular::open_regular;

/// The number of entries of a file that a message lists.
const LISTED: usize = 8;

/// A file of `torch.save` whose pickle has been read.
#[derive(Debug)]
pub(super) struct TorchFile {
    container: Mutex<Container>,
    /// The file's length in bytes.
    bytes: u64,
    groups: Groups,
    content: String,
}

/// True if a file begins as one of `torch.save`. `start` has its first bytes.
pub(super) fn is_torch(start: &[u8]) -> bool {
    start.starts_with(b"PK\x03\x04") || is_sequence(start)
}

impl TorchFile {
    /// Opens a file that [`is_torch`] accepts. The error is a message.
    pub(super) fn open(path: &Path, start: &[u8]) -> Result<Self, String> {
        let file = open_regular(path).map_err(|error| error.to_string())?;
        let bytes = file.metadata().map_err(|error| error.to_string())?.len();
        let (container, pickle) =
            if is_sequence(start) { open_sequence(file, bytes) } else { open_archive(file, bytes) }?;
        let (objects, root) = (&pickle.objects, pickle.root);
        let mut entries: Vec<String> = objects
            .entries(root)
            .unwrap_or_default()
            .iter()
            .filter_map(|(key, value)| {
                let value = match rebuild::tensor(objects, *value) {
                    Some(_) => "a tensor".to_owned(),
                    None => objects.describe(*value),
                };
                Some(format!("`{}` ({value})", objects.text(*key)?.chars().take(64).collect::<String>()))
            })
            .take(LISTED + 1)
            .collect();
        if entries.len() > LISTED {
            entries[LISTED] = "…".to_owned();
        }
        let content = match entries.is_empty() {
            true => objects.describe(root),
            false => entries.join(", "),
        };
        Ok(Self { container: Mutex::new(container), bytes, groups: groups::groups(objects, root)?, content })
    }

    /// The names of the tensors of each state dict, with its key.
    pub(super) fn names(&self) -> Vec<(&str, Vec<&str>)> {
        let groups = self.groups.iter();
        groups.map(|(key, group)| (key.as_str(), group.keys().map(String::as_str).collect())).collect()
    }

    /// Describes the entries of the file.
    pub(super) fn content(&self) -> &str {
        &self.content
    }

    fn tensor(&self, key: &str, name: &str) -> Result<(&TorchTensor, DType), String> {
        let tensor = self.groups.get(key).and_then(|group| group.get(name)).ok_or("is not in the file")?;
        let tensor = tensor.as_ref().map_err(Clone::clone)?;
        match tensor.element.read_as {
            Some(dtype) => Ok((tensor, dtype)),
            None => Err(format!("has element type {}, which is not read", tensor.element.name)),
        }
    }

    /// True if the state dict `key` has the tensor `name`.
    pub(super) fn has(&self, key: &str, name: &str) -> bool {
        self.groups.get(key).is_some_and(|group| group.contains_key(name))
    }

    /// The element type and the shape of the tensor `name` of the state dict `key`. The error is why it cannot be read.
    pub(super) fn header(&self, key: &str, name: &str) -> Result<(DType, &[usize]), String> {
        self.tensor(key, name).map(|(tensor, dtype)| (dtype, tensor.shape.as_slice()))
    }

    /// Reads the tensor `name` of the state dict `key`. The error is a message.
    pub(super) fn read(&self, key: &str, name: &str) -> Result<Tensor, String> {
        let (tensor, dtype) = self.tensor(key, name)?;
        let size = tensor.element.bytes;
        let (elements, span) = self.extent(tensor)?;
        let text = |error: candle_core::Error| error.to_string();
        if elements == 0 {
            return Tensor::zeros(tensor.shape.as_slice(), dtype, &Device::Cpu).map_err(text);
        }
        let storage = &tensor.storage;
        let start = storage.start.saturating_add(tensor.offset).saturating_mul(size as u64);
        let mut container = self.container.lock().unwrap_or_else(PoisonError::into_inner);
        let found = container.read(&storage.key, start, (span * size) as u64)?;
        drop(container);
        let values = if is_contiguous(tensor) { found } else { gather(&found, tensor, elements, size) };
        Tensor::from_raw_buffer(&values, dtype, &tensor.shape, &Device::Cpu).map_err(text)
    }

    /// The number of elements of a tensor, and of the part of its storage that they are in.
    fn extent(&self, tensor: &TorchTensor) -> Result<(usize, usize), String> {
        let size = tensor.element.bytes as u64;
        let elements = tensor.shape.iter().try_fold(1_usize, |all, dim| all.checked_mul(*dim));
        let claimed = elements.and_then(|elements| (elements as u64).checked_mul(size));
        let Some(elements) = elements.filter(|_| claimed.is_some_and(|bytes| bytes <= self.bytes)) else {
            return Err(format!(
                "has shape {:?}, more than the file holds; save a copy of it (`.clone()`) if it is expanded",
                tensor.shape
            ));
        };
        if elements == 0 {
            return Ok((0, 0));
        }
        let steps = tensor.shape.iter().zip(&tensor.strides);
        let mut last = steps.map(|(dim, stride)| (dim - 1).checked_mul(*stride));
        let last = last.try_fold(0_usize, |all, step| step.and_then(|step| all.checked_add(step)));
        let storage = &tensor.storage;
        let whole = storage.elements.saturating_mul(storage.element.bytes as u64);
        let end = last.and_then(|last| {
            let first = storage.start.checked_add(tensor.offset)?;
            first.checked_add(last as u64)?.checked_add(1)?.checked_mul(size)
        });
        match (last, end) {
            (Some(last), Some(end)) if end <= self.bytes && end <= whole => Ok((elements, last + 1)),
            _ => Err(format!(
                "has shape {:?} and strides {:?}, more than its storage of {} elements",
                tensor.shape, tensor.strides, storage.elements
            )),
        }
    }
}

fn is_contiguous(tensor: &TorchTensor) -> bool {
    let mut expected = 1;
    tensor.shape.iter().zip(&tensor.strides).rev().all(|(dim, stride)| {
        let fits = *dim == 1 || *stride == expected;
        expected *= dim;
        fits
    })
}

/// Copies the elements of a tensor in row-major order from the part of its storage that they are in.
fn gather(found: &[u8], tensor: &TorchTensor, elements: usize, size: usize) -> Vec<u8> {
    let mut values = Vec::with_capacity(elements * size);
    let mut index = vec![0; tensor.shape.len()];
    let mut at = 0;
    for _ in 0..elements {
        values.extend_from_slice(&found[at * size..(at + 1) * size]);
        for dim in (0..index.len()).rev() {
            index[dim] += 1;
            at += tensor.strides[dim];
            if index[dim] < tensor.shape[dim] {
                break;
            }
            at -= tensor.strides[dim] * tensor.shape[dim];
            index[dim] = 0;
        }
    }
    values
}
