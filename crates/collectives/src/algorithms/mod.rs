//! The collective operations, each as the messages that one rank sends and receives.
//!
//! One file an algorithm, each among the ranks of a [`Group`], so that hierarchies and grids are made of the others.
//! They need nothing but [`Messages`], [`Exchange`] and, across hosts, [`Hosts`], and know nothing of what is between the
//! ranks; the operations that need no messages are in `shared`. [`Algorithm`](crate::Algorithm) names them, and [`cost`]
//! predicts what each takes.

pub(crate) mod cost;
mod exchange;
pub(crate) mod gathered;
pub(crate) mod grid;
mod group;
pub(crate) mod halving;
pub(crate) mod hierarchical;
pub(crate) mod push_pull;
pub(crate) mod ring;
pub(crate) mod single;
pub(crate) mod tree;

pub(crate) use exchange::{Exchange, Messages, Take};
pub(crate) use group::Group;
pub(crate) use hierarchical::Hosts;

/// The largest message that a rank accepts without having agreed on its size.
const MAX_MESSAGE: usize = 1 << 32;
