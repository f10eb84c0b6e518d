//! Upper limits of the memory that a file may take once it is decoded.

/// The largest decoded sizes of a file.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// The bytes of each column, and of all images together.
    pub(super) bytes: u64,
    /// The rows of all row groups together.
    pub(super) rows: u64,
}

impl Limits {
    /// Returns the limits of a file of `file_bytes` bytes. They are generous: compressed images hardly compress further,
    /// and few of them are in a file more than once.
    pub(super) fn of(file_bytes: u64) -> Self {
        Self {
            bytes: file_bytes.saturating_mul(256).saturating_add(8 << 20),
            rows: file_bytes.saturating_mul(16).saturating_add(1 << 15),
        }
    }
}
