//! Memory: slices of the device's, counted by what they are for, and page-locked memory of the host.

mod accounts;
mod block;
mod reserve;

mod pool;
mod slice;

mod lent;
mod pinned;
mod uses;

mod staging;

pub use accounts::{Held, Kind, counted_as};
pub use lent::Lent;
pub use pinned::{Arriving, Leaving, Pinned};
pub use pool::Pool;
pub use slice::Slice;

pub(crate) use reserve::Reserve;
pub(crate) use staging::Staging;
pub(crate) use uses::{issue, issue_repeatable};
