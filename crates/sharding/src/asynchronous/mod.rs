//! Strategies whose ranks do not take every step together: parameter servers, gossip and local SGD.
//!
//! [`synchrony`] holds their clocks, options and topologies, without threads and tensors. [`replica`] is the copy of the model that a
//! rank trains, and [`message`] the format of the messages between ranks.

pub(crate) mod gossip;
pub(crate) mod local_sgd;
pub(crate) mod message;
pub(crate) mod parameter_server;
pub(crate) mod replica;
pub mod synchrony;
