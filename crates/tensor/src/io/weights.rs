//! Reads and writes files of named tensors.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use candle_core::pickle::PthTensors;
use candle_core::{Device, Tensor};

use super::atomic::atomic_write;
use super::pickle;
use super::write::{TensorHeader, sort_for_safetensors, write_elements, write_header};
use crate::store::{LoadReport, ParamStore};
use crate::{Result, TensorError};

fn wrong(path: &Path, problem: impl Into<String>) -> TensorError {
    TensorError::Weights { path: path.to_owned(), problem: problem.into() }
}

/// Saves named tensors with string metadata atomically.
///
/// # Errors
/// [`TensorError::Io`] naming the file.
pub fn save_safetensors(
    path: &Path,
    tensors: &[(String, Tensor)],
    metadata: &[(&str, String)],
) -> Result<()> {
    let mut order: Vec<&(String, Tensor)> = tensors.iter().collect();
    sort_for_safetensors(&mut order, |(name, tensor)| (name, tensor.dtype()));
    let header = |(name, tensor): &&(String, Tensor)| TensorHeader {
        name: name.clone(),
        dtype: tensor.dtype(),
        shape: tensor.dims().to_vec(),
    };
    let headers: Vec<_> = order.iter().map(header).collect();
    atomic_write(path, |out| {
        write_header(out, &headers, metadata)?;
        order.iter().try_for_each(|(_, tensor)| write_elements(out, tensor))
    })
}

/// Loads all tensors of a safetensors file, sorted by name.
///
/// # Errors
/// [`TensorError::Io`] if it cannot be read, [`TensorError::Weights`] if it is truncated or not of this format.
pub fn load_safetensors(path: &Path) -> Result<Vec<(String, Tensor)>> {
    let bytes = std::fs::read(path).map_err(|source| TensorError::Io {
        action: "read",
        path: path.to_owned(),
        source,
    })?;
    let tensors = candle_core::safetensors::load_buffer(&bytes, &Device::Cpu).map_err(|error| {
        wrong(path, format!("not a whole safetensors file of {} bytes: {error}", bytes.len()))
    })?;
    // candle returns an unordered map.
    Ok(tensors.into_iter().collect::<BTreeMap<_, _>>().into_iter().collect())
}

/// Loads weights by file type: `.safetensors`, or PyTorch's `.pth`, `.pt` or `.bin` as far as candle reads them (a
/// plain state dict, or one under the key `state_dict`). Sorted by name.
///
/// # Errors
/// [`TensorError::Weights`] if the type is unknown or the file cannot be read.
pub fn load_weights(path: &Path) -> Result<Vec<(String, Tensor)>> {
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("safetensors") => load_safetensors(path),
        Some("pth" | "pt" | "bin") => {
            if let Err(source) = std::fs::metadata(path) {
                return Err(TensorError::Io { action: "read", path: path.to_owned(), source });
            }
            pickle::check(path)
                .map_err(|problem| wrong(path, format!("this PyTorch file is rejected: {problem}")))?;
            let found = match read_pickle(path, None) {
                Ok(tensors) if !tensors.is_empty() => tensors,
                first => match read_pickle(path, Some("state_dict")) {
                    Ok(tensors) => tensors,
                    Err(nested) => {
                        let problem = first.err().unwrap_or(nested);
                        return Err(wrong(path, format!("candle cannot read this PyTorch file: {problem}")));
                    }
                },
            };
            if found.is_empty() {
                return Err(wrong(path, "no tensors in this PyTorch file"));
            }
            Ok(found.into_iter().collect::<BTreeMap<_, _>>().into_iter().collect())
        }
        _ => Err(wrong(path, "unknown kind of file; expected .safetensors, .pth, .pt or .bin")),
    }
}

/// Largest ratio of the tensors' size to the size of a PyTorch file. Tied tensors share stored elements.
const TIED: u64 = 8;

/// Reads the tensors of a PyTorch file, or those under a key of it.
fn read_pickle(path: &Path, key: Option<&str>) -> Result<Vec<(String, Tensor)>, String> {
    let read = || -> candle_core::Result<Vec<(String, Tensor)>> {
        let file = PthTensors::new(path, key)?;
        let there = std::fs::metadata(path)?.len();
        let mut tensors = Vec::new();
        let mut all = 0_u64;
        for (name, info) in file.tensor_infos() {
            // PyTorch does not compress, so no tensor is larger than the file. All tensors together may be larger:
            // tied weights are stored once and read into separate memory.
            let size = info.dtype.size_in_bytes() as u64;
            let bytes = info.layout.dims().iter().try_fold(size, |bytes, dim| bytes.checked_mul(*dim as u64));
            if bytes.is_none_or(|bytes| bytes > there) {
                candle_core::bail!("`{name}` has shape {:?}, more than the file holds", info.layout.dims());
            }
            all = all.saturating_add(bytes.unwrap_or(u64::MAX));
            if all > TIED * there {
                candle_core::bail!("its tensors have more than {TIED} times the bytes of the file");
            }
            tensors.extend(file.get(name)?.map(|tensor| (name.clone(), tensor)));
        }
        Ok(tensors)
    };
    // candle panics at some damaged files, which are reported as errors here.
    match catch_unwind(AssertUnwindSafe(read)) {
        Ok(read) => read.map_err(|error| error.to_string()),
        Err(_) => Err("it is damaged".to_owned()),
    }
}

/// Loads a file into a store. With `strict`, names without a counterpart are an error, except a missing
/// `num_batches_tracked`, which old files lack.
///
/// # Errors
/// Errors of [`load_weights`], and [`TensorError::Weights`] naming the names that do not fit.
pub fn load_into(store: &ParamStore, path: &Path, strict: bool) -> Result<LoadReport> {
    let tensors = load_weights(path)?;
    let report = store
        .load_state_dict(tensors.iter().map(|(name, tensor)| (name.as_str(), tensor)))
        .map_err(|error| wrong(path, error.to_string()))?;
    let missing: Vec<_> =
        report.missing.iter().filter(|name| !name.ends_with("num_batches_tracked")).collect();
    if strict && (!missing.is_empty() || !report.unexpected.is_empty()) {
        let list = |names: &[&String]| {
            let shown = names.iter().take(3).map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
            if names.len() > 3 { format!("{shown} and {} more", names.len() - 3) } else { shown }
        };
        let mut problem = String::from("does not fit this model:");
        if !missing.is_empty() {
            problem += &format!(" it lacks {}", list(&missing));
        }
        if !report.unexpected.is_empty() {
            let and = if missing.is_empty() { "" } else { " and" };
            problem += &format!(
                "{and} has {} which the model does not",
                list(&report.unexpected.iter().collect::<Vec<_>>())
            );
        }
        return Err(wrong(path, problem));
    }
    Ok(report)
}
