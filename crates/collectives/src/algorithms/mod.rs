//! Collective algorithms, as the messages that one rank sends and receives.
//!
//! Each file has one algorithm among the ranks of a [`Group`], so hierarchies and grids are composed of the others. They need only
//! [`Messages`], [`Exchange`] and, across hosts, [`Hosts`]; they do not depend on the transport. Operations without messages are in
//! `shared`. [`Algorithm`](crate::Algorithm) names the algorithms, and [`cost`] predicts their duration.

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

pub(crate) use exchange::{Exchange, Messages, ReceiveMode};
pub(crate) use group::Group;
pub(crate) use hierarchical::Hosts;

/// The largest message that a rank accepts without an agreed size.
const MAX_MESSAGE: usize = 1 << 32;
