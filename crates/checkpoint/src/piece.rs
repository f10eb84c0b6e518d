//! A piece: some elements of one tensor, in one file.

use candle_core::DType;
use serde::{Deserialize, Serialize};

use super::file_entry::FileEntry;
use super::region::Region;

/// The kind of parameters and buffers.
pub const MODEL: &str = "model";
/// The kind of averaged parameters.
pub const EMA: &str = "ema";

/// Some elements of one tensor, in one file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Piece {
    /// The kind: [`MODEL`], [`EMA`], or a kind of optimizer state such as `exp_avg`.
    pub kind: String,
    /// The name of the parameter or buffer in the reference state dict.
    pub name: String,
    /// The element type: `f32`, `f64`, `bf16`, `f16`, `i64`, `u32` or `u8`.
    pub dtype: String,
    /// The shape of the whole tensor.
    pub shape: Vec<usize>,
    /// Which of its elements.
    #[serde(flatten)]
    pub region: Region,
    /// The file.
    pub file: String,
    /// The tensor in that file, which has these elements alone, in their order.
    pub key: String,
}

impl Piece {
    /// The type of its elements; `None` if there is none of that name whose elements take whole bytes.
    pub(super) fn element_type(&self) -> Option<DType> {
        self.dtype.parse().ok().filter(|dtype: &DType| dtype.size_in_bytes() > 0)
    }

    /// Returns true if a file is large enough for its elements, each of which takes at least one byte.
    pub(super) fn is_sound(&self, files: &[FileEntry]) -> bool {
        let holds = |file: &FileEntry| file.name == self.file && self.region.len() as u64 <= file.bytes;
        self.region.fits(&self.shape) && files.iter().any(holds)
    }
}
