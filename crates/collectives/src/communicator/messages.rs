//! Messages that belong to no operation: for parameter servers, gossip, and ranks that are out of step.

use std::sync::PoisonError;

use super::Communicator;
use crate::error::{CommError, Result};
use crate::mailbox::{Mailbox, Message, Timing};

impl Communicator {
    fn mailbox(&self, operation: &'static str) -> Result<Mailbox> {
        let mailbox = self.inner.mailbox.lock().unwrap_or_else(PoisonError::into_inner).clone();
        mailbox.ok_or(CommError::Closed)?.map_err(|by| CommError::NotOffered { operation, by })
    }

    /// Sends bytes to a rank, which may be this one, on a channel of the program's choice. Returns before they have arrived. The
    /// receiver takes them by [`Communicator::recv_any`] or [`Communicator::try_recv`] on a communicator of the same ranks.
    ///
    /// These messages are independent of the communicator's operations: ranks need no common order, neither waits for the other,
    /// and any thread may send and receive. Messages of one rank on one channel arrive in order. Messages that the receiver does
    /// not take stay in its memory. Up to 64 MiB may be on their way to another process; then the sender waits.
    ///
    /// # Errors
    /// [`CommError::Argument`] if there is no such rank or the message is longer than 4 GiB; [`CommError::NoRoom`] if the
    /// receiver's process has not taken earlier messages within the timeout of operations; [`CommError::PeerLost`] if the rank has
    /// left, or any rank is lost; [`CommError::Aborted`] if a rank gave up; [`CommError::NotOffered`] by communicators of NCCL, and
    /// of MPI without `MPI_THREAD_MULTIPLE`.
    pub fn send_to(&self, to: usize, channel: u32, bytes: &[u8]) -> Result<()> {
        self.send_timed(to, channel, Timing::Wall, bytes)
    }

    /// As [`Communicator::send_to`], of a message that takes time by simulated clocks, too ([`Clock::Cpu`](crate::Clock::Cpu)). The thread that a
    /// rank computes with sends it, and that of the receiver takes it by [`Communicator::recv_next`].
    ///
    /// # Errors
    /// As [`Communicator::send_to`].
    pub fn send_next(&self, to: usize, channel: u32, bytes: &[u8]) -> Result<()> {
        self.send_timed(to, channel, Timing::Simulated, bytes)
    }

    fn send_timed(&self, to: usize, channel: u32, timing: Timing, bytes: &[u8]) -> Result<()> {
        const NAME: &str = "send to a channel";
        self.check_root(NAME, to)?;
        let length = bytes.len() as u64;
        let sending = tracing::trace_span!(
            target: "phalanx_trace::communication", "send a message", to = to as u64, channel, bytes = length
        );
        let mailbox = self.mailbox(NAME)?;
        sending.in_scope(|| mailbox.send(to, channel, timing, bytes))
    }

    /// Receives the next message on a channel from any rank; returns the rank and the bytes. Waits up to the timeout of operations.
    ///
    /// ```
    /// use phalanx_collectives::threads;
    ///
    /// # fn main() -> Result<(), phalanx_collectives::CommError> {
    /// const GRADIENTS: u32 = 1;
    /// let [server, worker]: [_; 2] = threads(2)?.try_into().expect("two");
    /// let working = std::thread::spawn(move || worker.send_to(0, GRADIENTS, &[1, 2, 3]));
    /// assert_eq!(server.recv_any(GRADIENTS)?, (1, vec![1, 2, 3]));
    /// assert_eq!(server.try_recv(GRADIENTS)?, None);
    /// working.join().expect("no panic")?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`CommError::NoMessage`] if none came, which leaves the world intact; [`CommError::PeerLost`] or [`CommError::Aborted`] if
    /// the world is broken or breaks during the wait; [`CommError::NotOffered`] by communicators of NCCL, and of MPI without
    /// `MPI_THREAD_MULTIPLE`.
    pub fn recv_any(&self, channel: u32) -> Result<(usize, Vec<u8>)> {
        let Message { from, bytes, .. } = self.receive(channel)?;
        Ok((from, bytes))
    }

    /// Receives the next message of the one rank that sends on a channel, by [`Communicator::send_next`]: a simulated clock is set to its
    /// arrival. Else as [`Communicator::recv_any`].
    ///
    /// # Errors
    /// As [`Communicator::recv_any`].
    pub fn recv_next(&self, channel: u32) -> Result<Vec<u8>> {
        let clock = self.clock();
        let Message { bytes, due, .. } = clock.paused(|| self.receive(channel))?;
        clock.catch_up(due);
        Ok(bytes)
    }

    fn receive(&self, channel: u32) -> Result<Message> {
        let waiting = tracing::trace_span!(target: "phalanx_trace::waiting", "wait for a message", channel);
        let mailbox = self.mailbox("receive from any rank")?;
        waiting.in_scope(|| mailbox.receive(channel))
    }

    /// Takes the next message on a channel from any rank, if one has arrived. Does not wait.
    ///
    /// # Errors
    /// [`CommError::PeerLost`] or [`CommError::Aborted`] if the world is broken; [`CommError::NotOffered`] by communicators of
    /// NCCL, and of MPI without `MPI_THREAD_MULTIPLE`.
    pub fn try_recv(&self, channel: u32) -> Result<Option<(usize, Vec<u8>)>> {
        let message = self.mailbox("receive from any rank")?.try_receive(channel)?;
        Ok(message.map(|Message { from, bytes, .. }| (from, bytes)))
    }
}
