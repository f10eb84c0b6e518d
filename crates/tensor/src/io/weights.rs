//! Reads and writes files of named tensors.

use std::collections::BTreeSet;
use std::path::Path;

use candle_core::Tensor;

use super::atomic::atomic_write;
use super::listing::listed;
use super::ranges::TensorFile;
use super::weight_file::{StateDict, WeightFile};
use super::write::{TensorHeader, sort_for_safetensors, write_elements, write_header};
use crate::Result;
use crate::store::{LoadReport, ParamStore};

/// Saves named tensors with string metadata atomically.
///
/// # Errors
/// [`Io`](crate::TensorError::Io) naming the file.
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
/// [`Io`](crate::TensorError::Io) if it cannot be read, [`Weights`](crate::TensorError::Weights) if it is truncated or
/// not of this format, or has a tensor of an element type that is not read.
pub fn load_safetensors(path: &Path) -> Result<Vec<(String, Tensor)>> {
    let file = TensorFile::open(path)?;
    let mut names: Vec<&str> = file.names().collect();
    names.sort_unstable();
    let read = |name: &str| -> Result<(String, Tensor)> {
        let shape = file.get(name).map(|header| header.shape.clone()).unwrap_or_default();
        Ok((name.to_owned(), file.read(name, 0..shape.iter().product())?.reshape(shape)?))
    };
    names.into_iter().map(read).collect()
}

/// Loads a file into a store; [`WeightFile`] says which files. Tensors that are no weights and that the store lacks
/// (counters, masks, positions) are left out. With `strict`, other names without a counterpart are an error, except a
/// missing `num_batches_tracked`, which old files lack.
///
/// # Errors
/// Errors of [`WeightFile`], and [`Weights`](crate::TensorError::Weights) naming the names and shapes that do not fit.
pub fn load_into(store: &ParamStore, path: &Path, strict: bool) -> Result<LoadReport> {
    load_network(store, "", path, strict)
}

/// Loads a file into the parameters and buffers whose names begin with `prefix`, as [`load_into`]. The names in the
/// file are without the prefix, and so are those of the report.
///
/// # Errors
/// Errors of [`load_into`].
pub fn load_network(store: &ParamStore, prefix: &str, path: &Path, strict: bool) -> Result<LoadReport> {
    let file = WeightFile::open(path)?;
    let wanted: BTreeSet<&str> = store.names().filter_map(|name| name.strip_prefix(prefix)).collect();
    let found = file.state_dict(|name| wanted.contains(name))?;
    let missing = wanted.iter().filter(|name| !found.contains(name)).map(|name| (*name).to_owned()).collect();
    let is_elsewhere = |name: &str| store.is_elsewhere(&format!("{prefix}{name}"));
    let unexpected =
        found.names().filter(|name| !wanted.contains(name) && found.is_weight(name) && !is_elsewhere(name));
    let report = LoadReport { missing, unexpected: unexpected.map(str::to_owned).collect() };
    if strict {
        refuse_differences(&report, &found)?;
    }
    let tensors = found.read_all(|name| wanted.contains(name))?;
    let named: Vec<(String, Tensor)> =
        tensors.into_iter().map(|(name, tensor)| (format!("{prefix}{name}"), tensor)).collect();
    store
        .load_state_dict(named.iter().map(|(name, tensor)| (name.as_str(), tensor)))
        .map_err(|error| found.error(error.to_string()))?;
    Ok(report)
}

fn refuse_differences(report: &LoadReport, found: &StateDict<'_>) -> Result<()> {
    let missing = report.missing.iter().filter(|name| !name.ends_with("num_batches_tracked"));
    let missing: Vec<&str> = missing.map(String::as_str).collect();
    if missing.is_empty() && report.unexpected.is_empty() {
        return Ok(());
    }
    let mut problem = String::from("does not fit this model:");
    if !missing.is_empty() {
        problem += &format!(" it lacks {}", listed(missing.iter().copied()));
    }
    if !report.unexpected.is_empty() {
        let and = if missing.is_empty() { "" } else { " and" };
        let unexpected = listed(report.unexpected.iter().map(String::as_str));
        problem += &format!("{and} has {unexpected} which the model does not");
    }
    Err(found.error(format!("{problem}; it holds {}", found.content())))
}
