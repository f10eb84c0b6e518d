//! Reading and writing files of named tensors.

use std::collections::BTreeMap;
use std::path::Path;

use candle_core::{DType, Device, Tensor};

use super::atomic::atomic_write;
use crate::store::{LoadReport, ParamStore};
use crate::{Result, TensorError};

fn wrong(path: &Path, problem: impl Into<String>) -> TensorError {
    TensorError::Weights { path: path.to_owned(), problem: problem.into() }
}

/// A tensor's elements as safetensors wants them.
struct Bytes {
    dtype: safetensors::Dtype,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

impl safetensors::View for &Bytes {
    fn dtype(&self) -> safetensors::Dtype {
        self.dtype
    }
    fn shape(&self) -> &[usize] {
        &self.shape
    }
    fn data(&self) -> std::borrow::Cow<'_, [u8]> {
        (&self.bytes).into()
    }
    fn data_len(&self) -> usize {
        self.bytes.len()
    }
}

fn to_bytes(path: &Path, name: &str, tensor: &Tensor) -> Result<Bytes> {
    let flat = tensor.to_device(&Device::Cpu)?.flatten_all()?;
    macro_rules! bytes {
        ($type:ty) => {
            flat.to_vec1::<$type>()?.into_iter().flat_map(<$type>::to_le_bytes).collect()
        };
    }
    let (dtype, bytes) = match tensor.dtype() {
        DType::F32 => (safetensors::Dtype::F32, bytes!(f32)),
        DType::F64 => (safetensors::Dtype::F64, bytes!(f64)),
        DType::I64 => (safetensors::Dtype::I64, bytes!(i64)),
        DType::U32 => (safetensors::Dtype::U32, bytes!(u32)),
        DType::U8 => (safetensors::Dtype::U8, flat.to_vec1::<u8>()?),
        other => {
            return Err(wrong(
                path,
                format!("`{name}` has element type {}, which is not saved", other.as_str()),
            ));
        }
    };
    Ok(Bytes { dtype, shape: tensor.dims().to_vec(), bytes })
}

/// Saves named tensors with string metadata, so that the file is complete or the old one stays.
///
/// # Errors
/// [`TensorError::Io`] or [`TensorError::Weights`], naming the file.
pub fn save_safetensors(
    path: &Path,
    tensors: &[(String, Tensor)],
    metadata: &[(&str, String)],
) -> Result<()> {
    let mut all = Vec::with_capacity(tensors.len());
    for (name, tensor) in tensors {
        all.push((name.as_str(), to_bytes(path, name, tensor)?));
    }
    let metadata: std::collections::HashMap<String, String> =
        metadata.iter().map(|(key, value)| ((*key).to_owned(), value.clone())).collect();
    let views = all.iter().map(|(name, bytes)| (*name, bytes));
    let metadata = (!metadata.is_empty()).then_some(metadata);
    let file = safetensors::serialize(views, metadata).map_err(|error| wrong(path, error.to_string()))?;
    atomic_write(path, |out| out.write_all(&file))
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
    // candle gives a map without order; sorting makes one.
    Ok(tensors.into_iter().collect::<BTreeMap<_, _>>().into_iter().collect())
}

/// Loads weights by the file's kind: `.safetensors`, or PyTorch's `.pth`, `.pt` or `.bin` as far as candle reads
/// them (a plain state dict, or one under the key `state_dict`). Sorted by name.
///
/// # Errors
/// [`TensorError::Weights`] if the kind is unknown or the file cannot be read.
pub fn load_weights(path: &Path) -> Result<Vec<(String, Tensor)>> {
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("safetensors") => load_safetensors(path),
        Some("pth" | "pt" | "bin") => {
            if let Err(source) = std::fs::metadata(path) {
                return Err(TensorError::Io { action: "read", path: path.to_owned(), source });
            }
            let plain = candle_core::pickle::read_all(path);
            let found = match plain {
                Ok(tensors) if !tensors.is_empty() => tensors,
                first => match candle_core::pickle::read_all_with_key(path, Some("state_dict")) {
                    Ok(tensors) => tensors,
                    Err(nested) => {
                        let error = first.err().unwrap_or(nested);
                        return Err(wrong(path, format!("candle cannot read this PyTorch file: {error}")));
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

/// Loads a file into a store. With `strict`, names that only one side has are an error (a missing
/// `num_batches_tracked` is not: old files lack it).
///
/// # Errors
/// Those of [`load_weights`], and [`TensorError::Weights`] naming what does not fit.
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
