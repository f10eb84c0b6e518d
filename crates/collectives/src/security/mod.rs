//! Authentication and encryption of connections between ranks.
//!
//! `secret` is the key that all ranks share, `encryption` the choice of encrypted connections, `hello` the first bytes of a
//! connection, `noise` the handshake without I/O, and `handshake` the handshake over sockets.

mod secret;

mod hello;

mod encryption;

mod noise;

mod handshake;

pub use encryption::{Credentials, Encryption};
pub use secret::Secret;

pub(crate) use handshake::{answer, answer_async, call, call_async};
#[cfg(any(test, fuzzing))]
pub(crate) use hello::HELLO;
pub(crate) use hello::{Hello, Purpose};
#[cfg(any(test, fuzzing))]
pub(crate) use noise::{Initiator, Responder};
