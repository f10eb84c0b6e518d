//! Hashes of samples: those with the same hash have the same values of an array.

use candle_core::Tensor;

use crate::error::BatchError;

/// 128 bits of the BLAKE3 hash of a sample's values of an array, or of the bytes that they are prepared from and how: samples with the
/// same hash have the same values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SampleHash([u8; 16]);

impl SampleHash {
    /// Returns the hash of bytes, given in parts.
    pub(crate) fn of<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> Self {
        let mut hasher = blake3::Hasher::new();
        for part in parts {
            hasher.update(part);
        }
        let mut first = [0; 16];
        hasher.finalize_xof().fill(&mut first);
        Self(first)
    }
}

/// Returns the hash of each sample of an array of f32, [N, …].
pub(crate) fn of_rows(values: &Tensor) -> Result<Vec<SampleHash>, BatchError> {
    let rows = values.flatten_from(1)?.to_vec2::<f32>()?;
    let bytes = |row: &Vec<f32>| row.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>();
    Ok(rows.iter().map(|row| SampleHash::of([bytes(row).as_slice()])).collect())
}
