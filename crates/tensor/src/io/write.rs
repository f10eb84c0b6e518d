//! Writes safetensors as a stream: the header, then the tensors one by one, in pieces.

use std::collections::BTreeMap;
use std::io::{self, Write};

use candle_core::{DType, Device, Tensor};
use safetensors::Dtype;
use safetensors::tensor::{Metadata, TensorInfo};

use crate::TensorError;

/// The number of bytes converted at a time.
const PIECE: usize = 1 << 20;

/// The header entry of a tensor in a safetensors file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorHeader {
    /// The name.
    pub name: String,
    /// The element type.
    pub dtype: DType,
    /// The shape.
    pub shape: Vec<usize>,
}

/// Converts an element type to safetensors; `None` for types that are not saved.
pub(super) fn saved_as(dtype: DType) -> Option<Dtype> {
    Some(match dtype {
        DType::F32 => Dtype::F32,
        DType::F64 => Dtype::F64,
        DType::BF16 => Dtype::BF16,
        DType::F16 => Dtype::F16,
        DType::I64 => Dtype::I64,
        DType::U32 => Dtype::U32,
        DType::U8 => Dtype::U8,
        _ => return None,
    })
}

/// Converts an element type from safetensors, the inverse of [`saved_as`].
pub(super) fn read_as(dtype: Dtype) -> Option<DType> {
    const SAVED: [DType; 7] =
        [DType::F32, DType::F64, DType::BF16, DType::F16, DType::I64, DType::U32, DType::U8];
    SAVED.into_iter().find(|known| saved_as(*known) == Some(dtype))
}

/// Sorts tensors in the order of the safetensors library, by descending size of the element type and then by name. So
/// equal contents give equal files.
pub fn sort_for_safetensors<T>(tensors: &mut [T], header: impl Fn(&T) -> (&str, DType)) {
    tensors.sort_by(|a, b| {
        let ((a_name, a_type), (b_name, b_type)) = (header(a), header(b));
        saved_as(b_type).cmp(&saved_as(a_type)).then_with(|| a_name.cmp(b_name))
    });
}

/// Writes the header of a safetensors file. The elements of all tensors must follow, in the same order and without
/// gaps.
///
/// # Errors
/// If a tensor's element type is not saved (kind [`io::ErrorKind::InvalidInput`], naming it), or writing fails.
pub fn write_header(
    out: &mut dyn Write,
    tensors: &[TensorHeader],
    metadata: &[(&str, String)],
) -> io::Result<()> {
    let invalid = |problem: String| io::Error::new(io::ErrorKind::InvalidInput, problem);
    let mut at = 0;
    let mut infos = Vec::with_capacity(tensors.len());
    for TensorHeader { name, dtype, shape } in tensors {
        let saved = saved_as(*dtype).ok_or_else(|| {
            invalid(format!("`{name}` has element type {}, which is not saved", dtype.as_str()))
        })?;
        let bytes = shape.iter().product::<usize>() * dtype.size_in_bytes();
        let info = TensorInfo { dtype: saved, shape: shape.clone(), data_offsets: (at, at + bytes) };
        at += bytes;
        infos.push((name.clone(), info));
    }
    let header = Metadata::new(None, infos).map_err(|error| invalid(error.to_string()))?;
    let mut header = with_metadata(&serde_json::to_string(&header)?, metadata)?.into_bytes();
    // Readers that map the file into memory need elements at a multiple of eight bytes.
    header.resize(header.len().next_multiple_of(8), b' ');
    out.write_all(&(header.len() as u64).to_le_bytes())?;
    out.write_all(&header)
}

/// Adds metadata to the header of tensors, in the order of its keys. The library keeps metadata in a hash map, whose order differs
/// from file to file.
fn with_metadata(tensors: &str, metadata: &[(&str, String)]) -> io::Result<String> {
    if metadata.is_empty() {
        return Ok(tensors.to_owned());
    }
    let strings: BTreeMap<&str, &str> = metadata.iter().map(|(key, value)| (*key, value.as_str())).collect();
    let rest = tensors.strip_prefix('{').unwrap_or(tensors);
    let comma = if rest == "}" { "" } else { "," };
    Ok(format!("{{\"__metadata__\":{}{comma}{rest}", serde_json::to_string(&strings)?))
}

/// Writes a tensor's elements in little-endian order, with no more than a piece of them copied at a time.
///
/// # Errors
/// If the element type is not saved, or writing fails.
pub fn write_elements(out: &mut dyn Write, tensor: &Tensor) -> io::Result<()> {
    let other = |error: candle_core::Error| io::Error::other(TensorError::from(error));
    if saved_as(tensor.dtype()).is_none() {
        let problem = format!("element type {} is not saved", tensor.dtype().as_str());
        return Err(io::Error::new(io::ErrorKind::InvalidInput, problem));
    }
    let flat = tensor.flatten_all().map_err(other)?;
    let piece = PIECE / tensor.dtype().size_in_bytes();
    let mut bytes = Vec::with_capacity(PIECE);
    for start in (0..flat.elem_count()).step_by(piece) {
        let part = flat.narrow(0, start, piece.min(flat.elem_count() - start));
        let part = part.and_then(|part| part.to_device(&Device::Cpu)).map_err(other)?;
        bytes.clear();
        macro_rules! extend {
            ($type:ty) => {
                bytes.extend(
                    part.to_vec1::<$type>().map_err(other)?.into_iter().flat_map(<$type>::to_le_bytes),
                )
            };
        }
        match part.dtype() {
            DType::F32 => extend!(f32),
            DType::F64 => extend!(f64),
            DType::BF16 => extend!(half::bf16),
            DType::F16 => extend!(half::f16),
            DType::I64 => extend!(i64),
            DType::U32 => extend!(u32),
            DType::U8 => extend!(u8),
            // Those that are not saved were refused above.
            _ => {}
        }
        out.write_all(&bytes)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_metadata_gives_equal_headers() {
        let header = TensorHeader { name: "w".to_owned(), dtype: DType::F32, shape: vec![2] };
        let metadata: Vec<(&str, String)> =
            ["format", "a", "b", "c", "d"].map(|key| (key, format!("\"{key}\""))).to_vec();
        let written = |tensors: &[TensorHeader]| {
            let mut bytes = Vec::new();
            write_header(&mut bytes, tensors, &metadata).expect("writes");
            bytes
        };
        let bytes = written(std::slice::from_ref(&header));
        assert!((0..20).all(|_| written(std::slice::from_ref(&header)) == bytes));
        let (_, found) =
            safetensors::SafeTensors::read_metadata(&[&bytes[..], &[0; 8]].concat()).expect("a header");
        let strings = found.metadata().as_ref().expect("metadata");
        assert_eq!((strings.len(), strings["format"].as_str()), (5, "\"format\""));
        assert_eq!(found.tensors().len(), 1);
        assert!(safetensors::SafeTensors::read_metadata(&written(&[])).is_ok(), "without tensors");
    }
}
