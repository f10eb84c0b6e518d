//! The doors of ranks: where each listens as long as it is in the world, for messages, and for ranks that have lost the hub.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use super::connect::Table;
use super::handshake;
use super::secret::{Purpose, Secret};
use super::tls::TlsConfigs;
use crate::control::{self, Calling, Connection};

/// After the handshake a caller says which world it means, and its rank.
pub(super) const GREETING: usize = 16;

/// Says, beside the rank, that the caller brings no messages: it has lost the hub.
const WITHOUT_HUB: u64 = 1 << 63;

/// What a caller wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Errand {
    /// To bring messages.
    Messages,
    /// To find out who takes over.
    Hub,
}

/// What callers say after the handshake.
pub(super) fn greeting(token: u64, rank: usize, errand: Errand) -> [u8; GREETING] {
    let errand = if errand == Errand::Hub { WITHOUT_HUB } else { 0 };
    let mut greeting = [0; GREETING];
    greeting[..8].copy_from_slice(&token.to_le_bytes());
    greeting[8..].copy_from_slice(&(rank as u64 | errand).to_le_bytes());
    greeting
}

/// The token, the rank and the errand of a caller.
pub(super) fn read_greeting(greeting: [u8; GREETING]) -> (u64, usize, Errand) {
    let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| greeting[at + i]));
    let errand = if word(8) & WITHOUT_HUB > 0 { Errand::Hub } else { Errand::Messages };
    (word(0), (word(8) & !WITHOUT_HUB) as usize, errand)
}

/// What calls at a door need.
#[derive(Clone)]
pub(super) struct Key {
    /// Who calls.
    pub(super) own: usize,
    /// What connections of this world show.
    pub(super) token: u64,
    pub(super) secret: Option<Secret>,
    pub(super) tls: Option<TlsConfigs>,
}

impl Key {
    /// Opens a connection to the rank that listens at an address.
    pub(super) async fn open(&self, address: SocketAddr, errand: Errand) -> Result<Connection, String> {
        let lost = |error: std::io::Error| format!("the connection broke: {error}");
        let stream = TcpStream::connect(address).await.map_err(lost)?;
        stream.set_nodelay(true).map_err(lost)?;
        let mut stream = handshake::control(stream, self.tls.as_ref(), true).await?;
        handshake::call_async(&mut stream, self.secret.as_ref(), Purpose::Mail).await?;
        stream.write_all(&greeting(self.token, self.own, errand)).await.map_err(lost)?;
        stream.flush().await.map_err(lost)?;
        Ok(stream)
    }
}

/// The doors of all ranks of a world, as one of them knows them.
pub(super) struct Doors {
    pub(super) table: Arc<Table>,
    pub(super) key: Key,
}

impl control::Doors for Doors {
    fn call(&self, rank: usize) -> Calling {
        let (key, address) = (self.key.clone(), self.table.data[rank]);
        Box::pin(async move { key.open(address, Errand::Hub).await })
    }

    fn has_ended(&self, rank: usize) -> bool {
        self.table.processes[rank].has_ended(self.table.processes[self.key.own].host())
    }

    fn address(&self, rank: usize) -> IpAddr {
        self.table.data[rank].ip()
    }
}
