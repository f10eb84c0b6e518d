//! Messages between workers and servers, and between neighbours.

use phalanx_collectives::Communicator;

use crate::{Result, ShardingError};

/// The bytes of the header: kind, number, bucket and rate, 8 bytes each. The body follows.
const HEADER: usize = 32;

/// The kind of a message, sent as its number. The docs of the kinds list the fields in use: number, bucket, rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u64)]
pub(crate) enum Kind {
    /// A worker's gradients of a bucket, for the elements that the server has: attempt, bucket.
    Push = 1,
    /// The worker has pushed all gradients of an attempt: attempt.
    Pushed,
    /// The worker gives up an attempt. The server discards its gradients: attempt.
    Drop,
    /// The worker's step has ended. The server applies its gradients: attempt, 1 if buckets that are trained later are frozen in
    /// this step, learning rate.
    Commit,
    /// The worker requests the values for its next step: the version that it has.
    Pull,
    /// The worker requests the present values, without waiting for other workers: –.
    Read,
    /// The worker requests [`Kind::Done`] after its earlier messages.
    Fence,
    /// The worker leaves.
    Leave,
    /// The process tells its own server that the optimizer is set.
    Ready,
    /// A server's values of a bucket: version, bucket.
    Values,
    /// The worker already has the newest values: version.
    Unchanged,
    /// The server has processed all earlier messages of the worker.
    Done,
    /// A neighbour's part of a step: step, bucket, its weight.
    Mix,
    /// A rank's values of a bucket, for an average: step, bucket.
    Ask,
    /// The difference to subtract: step, bucket.
    Answer,
    /// A worker's encoded gradients of a bucket, for the server's elements: attempt, bucket.
    PushCoded,
    /// A server's encoded values of a bucket: version, bucket.
    ValuesCoded,
}

impl Kind {
    const ALL: [Self; 17] = [
        Self::Push,
        Self::Pushed,
        Self::Drop,
        Self::Commit,
        Self::Pull,
        Self::Read,
        Self::Fence,
        Self::Leave,
        Self::Ready,
        Self::Values,
        Self::Unchanged,
        Self::Done,
        Self::Mix,
        Self::Ask,
        Self::Answer,
        Self::PushCoded,
        Self::ValuesCoded,
    ];

    /// True if the body is encoded; otherwise it consists of f32 values.
    fn is_coded(self) -> bool {
        matches!(self, Self::PushCoded | Self::ValuesCoded)
    }
}

/// A message.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Message {
    pub(crate) kind: Kind,
    /// The attempt, version or step.
    pub(crate) number: u64,
    pub(crate) bucket: usize,
    pub(crate) rate: f64,
    pub(crate) values: Vec<f32>,
    /// The encoded body.
    pub(crate) coded: Vec<u8>,
}

impl Message {
    /// Makes a message without a body.
    pub(crate) fn of(kind: Kind, number: u64) -> Self {
        Self { kind, number, bucket: 0, rate: 0.0, values: Vec::new(), coded: Vec::new() }
    }

    /// Sends values without a copy in a [`Message`]. Returns the bytes sent to other ranks.
    pub(crate) fn send_values(
        mail: &Communicator,
        to: usize,
        channel: u32,
        (kind, number, bucket): (Kind, u64, usize),
        values: &[f32],
    ) -> Result<u64> {
        send(mail, to, channel, (kind, number, bucket, 0.0), bytemuck::cast_slice(values))
    }

    /// Sends encoded values. Returns the bytes sent to other ranks.
    pub(crate) fn send_coded(
        mail: &Communicator,
        to: usize,
        channel: u32,
        (kind, number, bucket): (Kind, u64, usize),
        coded: &[u8],
    ) -> Result<u64> {
        send(mail, to, channel, (kind, number, bucket, 0.0), coded)
    }

    /// Sends the message. Returns the bytes sent to other ranks.
    pub(crate) fn send(&self, mail: &Communicator, to: usize, channel: u32) -> Result<u64> {
        let body = if self.kind.is_coded() { &self.coded } else { bytemuck::cast_slice(&self.values) };
        send(mail, to, channel, (self.kind, self.number, self.bucket, self.rate), body)
    }

    /// Reads a message.
    pub(crate) fn read(bytes: &[u8]) -> Result<Self> {
        let garbled = || ShardingError::state("messages", "one is garbled");
        let (header, rest) = bytes.split_at_checked(HEADER).ok_or_else(garbled)?;
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| header[8 * at + byte]));
        let kind = Kind::ALL.into_iter().find(|kind| *kind as u64 == word(0)).ok_or_else(garbled)?;
        let bucket = usize::try_from(word(2)).map_err(|_| garbled())?;
        let message = Self { bucket, rate: f64::from_bits(word(3)), ..Self::of(kind, word(1)) };
        if kind.is_coded() {
            return Ok(Self { coded: rest.to_vec(), ..message });
        }
        if !rest.len().is_multiple_of(4) {
            return Err(garbled());
        }
        let mut values = vec![0.0_f32; rest.len() / 4];
        bytemuck::cast_slice_mut(&mut values).copy_from_slice(rest);
        Ok(Self { values, ..message })
    }
}

fn send(
    mail: &Communicator,
    to: usize,
    channel: u32,
    (kind, number, bucket, rate): (Kind, u64, usize, f64),
    body: &[u8],
) -> Result<u64> {
    let mut bytes = Vec::with_capacity(HEADER + body.len());
    for word in [kind as u64, number, bucket as u64, rate.to_bits()] {
        bytes.extend_from_slice(&word.to_le_bytes());
    }
    bytes.extend_from_slice(body);
    mail.send_to(to, channel, &bytes)?;
    // A message of a rank to itself stays in memory.
    Ok(if to == mail.rank() { 0 } else { bytes.len() as u64 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_come_as_they_went() {
        let mail = phalanx_collectives::threads(1).expect("a world").remove(0);
        let sent = Message {
            kind: Kind::Values,
            number: u64::MAX,
            bucket: 7,
            rate: 0.1,
            values: vec![1.5, f32::MIN_POSITIVE, -0.0],
            coded: Vec::new(),
        };
        assert_eq!(sent.send(&mail, 0, 2).expect("sent"), 0, "to itself");
        let (from, bytes) = mail.recv_any(2).expect("came");
        assert_eq!((from, Message::read(&bytes).expect("sound")), (0, sent));
        assert!(Message::read(&bytes[..20]).is_err() && Message::read(&bytes[..42]).is_err());
        let sent = Message { coded: vec![1, 2, 3], ..Message::of(Kind::PushCoded, 4) };
        sent.send(&mail, 0, 2).expect("sent");
        let (_, bytes) = mail.recv_any(2).expect("came");
        assert_eq!(Message::read(&bytes).expect("sound"), sent);
    }
}
