//! A slower network than the machine has: messages between ranks of one machine take as long as over a link that is described.
//!
//! Every rank has a [`Port`]: a wire on which its bytes leave and one on which they come in, both of the link's bandwidth. A
//! message of `n` bytes occupies `n / bandwidth` seconds of the sender's wire, as soon as that is free, and as much of the
//! receiver's, a latency later. So ranks that send to one at the same time share its wire, as on a switch without limits of
//! its own. Who receives waits until the last byte would be there; who sends does not wait.
//!
//! Waiting is real by the machine's clock ([`Clock::Wall`]). With clocks that only computing moves on ([`Clock::Cpu`]) nobody
//! waits: a clock is set to the time at which the message would be there.

mod clock;
mod link;
mod wire;

mod port;

pub use clock::Clock;
pub use link::SimulatedLink;
pub(crate) use port::Port;
pub(crate) use wire::Wire;
