//! Memory: device slices, counted by purpose, and page-locked host memory.

mod accounts;
mod block;
mod reserve;

mod pool;
mod slice;

mod library_slice;
mod pinned;
mod uses;

mod staging;

pub use accounts::{Kind, MemoryUsage, counted_as};
pub use library_slice::LibrarySlice;
pub use pinned::{PendingDownload, PendingUpload, Pinned};
pub use pool::Pool;
pub use slice::Slice;

pub(crate) use reserve::Reserve;
pub(crate) use staging::Staging;
pub(crate) use uses::{issue, issue_repeatable};
