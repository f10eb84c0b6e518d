//! Simulated networks: messages between ranks of one machine take as long as over a described link.
//!
//! Every rank has a [`Port`]: one wire for bytes that it sends and one for bytes that it receives, both with the link's bandwidth.
//! A message of `n` bytes occupies the sender's wire for `n / bandwidth` seconds as soon as that is free, and the receiver's for as
//! long, a latency later. So ranks that send to one at the same time share its wire, as on a switch without limits of its own. The
//! receiver waits until the last byte would be there; the sender does not wait.
//!
//! Waiting is real by the machine's clock ([`Clock::Wall`]). With CPU-time clocks ([`Clock::Cpu`]) no rank waits: a clock is set to
//! the time at which the message would arrive.

mod clock;
mod link;
mod wire;

mod port;

pub use clock::Clock;
pub use link::SimulatedLink;
pub(crate) use port::Port;
pub(crate) use wire::Wire;
