//! Messages of the control plane: a length of four bytes and JSON, at most [`MAX_FRAME`] bytes.

use std::io;
use std::net::SocketAddr;

use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::Unmet;
use super::process::Process;
use crate::recorder::Doing;

/// How many bytes of a table a rank may take: two addresses and the name of a host, in JSON.
const MAX_OF_RANK: usize = 1 << 10;

/// The longest message but for the table of a large world; whoever announces a longer one is not of this protocol.
const MAX_FRAME: usize = 1 << 20;

/// Changes whenever messages or headers do.
pub(crate) const PROTOCOL: u32 = 8;

/// What ranks and the meeting place tell each other.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Message {
    /// A rank introduces itself.
    Register {
        protocol: u32,
        job: String,
        rank: usize,
        world_size: usize,
        data: SocketAddr,
        process: Process,
    },
    /// The hub has let the rank in; when ranks meet, the table follows once all are here.
    Admitted,
    /// A registration is refused, or a rank that has lost the hub is not let in.
    Refused { reason: String },
    /// The meeting is that of another job.
    Elsewhere { job: String },
    /// Everybody is here: where each rank listens, its process, and the token that connections between ranks must show.
    Table { data: Vec<SocketAddr>, processes: Vec<Process>, token: u64 },
    /// A sign of life.
    Heartbeat,
    /// A rank is gone.
    Lost { rank: usize },
    /// A rank gave up.
    Aborted { rank: usize, reason: String },
    /// A rank wants to know what all are doing on a communicator.
    Ask { communicator: u32 },
    /// The hub passes the question on.
    Tell { question: u64, communicator: u32 },
    /// A rank's answer.
    Doing { question: u64, doing: Doing },
    /// All answers, by rank, for the rank that asked; nothing from those that do not answer.
    All { doing: Vec<Option<Doing>> },
    /// A notice: to the hub from the sender, or from the hub to all others.
    Notice { name: String, payload: Vec<u8> },
    /// The sender wants all ranks to stop after the same step, for good or for an interlude.
    RequestStop { reason: String, goes_on: bool },
    /// The hub asks which step a rank is in, and holds it at its next.
    Hold,
    /// The answer; none before the first step.
    InStep { step: Option<u64> },
    /// All stop after this step, as a rank wanted for a reason; for good, or steps go on after an interlude.
    StopAfter { after: Option<u64>, rank: usize, reason: String, goes_on: bool },
    /// The sender wants to meet those again that are left of a broken world.
    Regroup,
    /// Who is left, by their numbers in the world that broke, and the port at which the hub waits for them.
    Regrouped { members: Vec<usize>, port: u16 },
    /// Those who are left do not meet.
    Apart(Unmet),
    /// A rank leaves those who go on without it, and goes on nowhere else: to the hub from the sender, or from the hub to all others.
    Departed { rank: usize },
    /// The sender leaves in good order.
    Bye,
}

pub(crate) async fn write(to: &mut (impl AsyncWrite + Unpin), message: &Message) -> io::Result<()> {
    let body = serde_json::to_vec(message)?;
    let mut frame = (body.len() as u32).to_be_bytes().to_vec();
    frame.extend(body);
    to.write_all(&frame).await?;
    to.flush().await
}

pub(crate) async fn read(from: &mut (impl AsyncRead + Unpin)) -> io::Result<Message> {
    read_within(from, MAX_FRAME).await
}

/// Reads a message where the table of a world of so many ranks is awaited, which grows with these.
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
    // Memory grows with what comes: whoever announces much has to send it.
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
            // It ends, with something or an error, and asks for no more memory than a frame may have.
            let _ = read_all(&frame);
        }
    }
}
