//! Moving bytes between two ranks. What the bytes mean is the algorithms' business.

pub(crate) mod local;
pub(crate) mod tcp;

/// Why bytes did not arrive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LinkError {
    /// The connection to the rank is gone.
    Closed(usize),
    /// Nothing came from the rank in the allowed time.
    Timeout(usize),
}

/// Ordered, reliable bytes between this rank and each other.
pub(crate) trait Transport: Send {
    /// Queues bytes for a rank, without waiting for it to receive.
    fn send(&mut self, to: usize, parts: [&[u8]; 2]) -> Result<(), LinkError>;

    /// Waits for as many bytes from a rank as `into` holds.
    fn receive(&mut self, from: usize, into: &mut [u8]) -> Result<(), LinkError>;
}
