//! Messages of the control plane: a length of four bytes and JSON of at most [`MAX_FRAME`] bytes.

use std::io;
use std::net::SocketAddr;

use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::command::RejoinRefusal;
use super::process::Process;
use crate::failure::Cause;
use crate::recorder::RankActivity;

/// The most bytes of a rank in a table: two addresses and the name of a host, in JSON.
const MAX_OF_RANK: usize = 1 << 10;

/// The longest message except the table of a large world. Longer ones are not of this protocol.
const MAX_FRAME: usize = 1 << 20;

/// The version of the protocol. It changes whenever messages or headers do.
pub(crate) const PROTOCOL: u32 = 8;

/// A message of the control plane. The names of variants and fields are part of the protocol.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Message {
    /// A rank registers.
    Register {
        protocol: u32,
        job: String,
        rank: usize,
        world_size: usize,
        data: SocketAddr,
        process: Process,
    },
    /// The coordinator accepts the rank. At the rendezvous the table follows once all ranks have registered.
    Admitted,
    /// The coordinator refuses the rank.
    Refused { reason: String },
    /// The rendezvous belongs to another job.
    Elsewhere { job: String },
    /// All ranks have registered: the address and process of each, and the token of connections between them.
    Table { data: Vec<SocketAddr>, processes: Vec<Process>, token: u64 },
    /// A heartbeat.
    Heartbeat,
    /// A rank is lost.
    Lost { rank: usize },
    /// A rank gave up.
    Aborted { rank: usize, reason: String },
    /// A rank asks for the activity of all on a communicator.
    Ask { communicator: u32 },
    /// The coordinator asks a rank for its activity.
    Tell { question: u64, communicator: u32 },
    /// A rank's activity.
    Doing { question: u64, doing: RankActivity },
    /// The activities for the rank that asked, by rank. `None` for ranks that do not answer.
    All { doing: Vec<Option<RankActivity>> },
    /// A notice from the sender to the coordinator, or from the coordinator to all others.
    Notice { name: String, payload: Vec<u8> },
    /// The sender asks all ranks to stop after the same step, for good or for an interlude.
    RequestStop { reason: String, goes_on: bool },
    /// The coordinator asks a rank for its step and holds it at the next one.
    Hold,
    /// The step of a rank; `None` before the first.
    InStep { step: Option<u64> },
    /// All ranks stop after this step, for good or for an interlude, as rank `rank` asked.
    StopAfter { after: Option<u64>, rank: usize, reason: String, goes_on: bool },
    /// The sender asks for a new world with the surviving ranks of a broken one.
    #[serde(rename = "Regroup")]
    Rejoin,
    /// The members of the new world by their numbers in the broken one, and the port where the coordinator waits for them.
    #[serde(rename = "Regrouped")]
    Rejoined { members: Vec<usize>, port: u16 },
    /// The surviving ranks form no new world.
    Apart(RejoinRefusal),
    /// A rank leaves for good while the others go on. Sent to the coordinator, and by it to all others.
    Departed { rank: usize },
    /// The sender leaves in good order.
    Bye,
}

impl From<Cause> for Message {
    fn from(cause: Cause) -> Self {
        match cause {
            Cause::Lost(rank) => Self::Lost { rank },
            Cause::Aborted(rank, reason) => Self::Aborted { rank, reason: shortened(reason) },
        }
    }
}

/// Shortens a reason so that it fits a frame.
pub(super) fn shortened(mut reason: String) -> String {
    const LONGEST: usize = 64 << 10;
    if reason.len() > LONGEST {
        let end = (0..=LONGEST).rev().find(|end| reason.is_char_boundary(*end)).unwrap_or(0);
        reason.truncate(end);
        reason.push('…');
    }
    reason
}

/// Writes a message and flushes it.
pub(crate) async fn write(to: &mut (impl AsyncWrite + Unpin), message: &Message) -> io::Result<()> {
    let body = serde_json::to_vec(message)?;
    let mut frame = (body.len() as u32).to_be_bytes().to_vec();
    frame.extend(body);
    to.write_all(&frame).await?;
    to.flush().await
}

/// Reads a message of at most [`MAX_FRAME`] bytes.
pub(crate) async fn read(from: &mut (impl AsyncRead + Unpin)) -> io::Result<Message> {
    read_within(from, MAX_FRAME).await
}

/// Reads a message that may be the table of a world of `world_size` ranks.
pub(crate) async fn read_table(
    from: &mut (impl AsyncRead + Unpin),
    world_size: usize,
) -> io::Result<Message> {
    read_within(from, MAX_FRAME.max(world_size.saturating_mul(MAX_OF_RANK))).await
}

async fn read_within(from: &mut (impl AsyncRead + Unpin), longest: usize) -> io::Result<Message> {
    let mut length = [0; 4];
    from.read_exact(&mut length).await?;
    let length = u32::from_be_bytes(length) as usize;
    if length > longest {
        return Err(io::Error::new(io::ErrorKind::InvalidData, format!("a message of {length} bytes")));
    }
    // Memory grows with the bytes that arrive, not with the announced length.
    let mut body = Vec::new();
    if from.take(length as u64).read_to_end(&mut body).await? < length {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(serde_json::from_slice(&body)?)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read_all(mut bytes: &[u8]) -> io::Result<Message> {
        let runtime = tokio::runtime::Builder::new_current_thread().build()?;
        runtime.block_on(read(&mut bytes))
    }

    proptest! {
        #[test]
        fn noise_is_an_error_and_nothing_worse(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            prop_assert!(read_all(&bytes).is_err());
        }

        #[test]
        fn a_damaged_message_is_an_error_or_another_message(at in 0_usize..60, to in any::<u8>()) {
            let message = Message::Aborted { rank: 3, reason: "because".into() };
            let body = serde_json::to_vec(&message).expect("plain");
            let mut frame = (body.len() as u32).to_be_bytes().to_vec();
            frame.extend(body);
            let at = at % frame.len();
            frame[at] = to;
            // Reading ends with a message or an error, and needs no more memory than a frame may have.
            let _ = read_all(&frame);
        }
    }
}
