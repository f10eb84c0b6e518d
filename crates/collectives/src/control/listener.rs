//! Reads the messages of one connection of the control plane.

use std::time::Duration;

use tokio::io::ReadHalf;
use tokio::sync::mpsc::UnboundedSender;
use tokio::time::timeout;

use super::frame::{self, Message};
use super::state::Connection;
use crate::encrypted::is_altered;

/// An event of a connection: a message from a rank, or the end of the connection.
pub(super) struct ConnectionEvent {
    pub(super) rank: usize,
    /// The number of the rank's connection. A rank that reconnects gets the next one.
    pub(super) connection: u64,
    /// `None` if the connection broke.
    pub(super) message: Option<Message>,
}

/// The connection that is read, and the ranks at its ends.
pub(super) struct Listener {
    /// This rank.
    pub(super) own: usize,
    /// The rank at the other end.
    pub(super) rank: usize,
    pub(super) connection: u64,
    /// The longest silence of the other end.
    pub(super) timeout: Duration,
}

impl Listener {
    /// Passes on messages until the connection breaks, is silent for too long, or says goodbye. If a message was
    /// altered in transit, this rank aborts.
    pub(super) async fn run(self, mut from: ReadHalf<Connection>, to: UnboundedSender<ConnectionEvent>) {
        let Self { own, rank, connection, timeout: limit } = self;
        let received = |message| ConnectionEvent { rank, connection, message };
        loop {
            match timeout(limit, frame::read(&mut from)).await {
                Ok(Ok(message)) => {
                    let is_last = matches!(message, Message::Bye);
                    if to.send(received(Some(message))).is_err() || is_last {
                        return;
                    }
                }
                Ok(Err(error)) => {
                    if is_altered(&error) {
                        let reason = format!("a control message from rank {rank} was altered on its way");
                        let _ = to.send(received(Some(Message::Aborted { rank: own, reason })));
                    }
                    let _ = to.send(received(None));
                    return;
                }
                Err(_) => {
                    let _ = to.send(received(None));
                    return;
                }
            }
        }
    }
}
