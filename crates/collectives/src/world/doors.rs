//! The doors of ranks: where each listens as long as it is in the world, for messages, and for ranks that have lost the hub.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use tokio::net::TcpStream;

use super::connect::Table;
use super::encryption::Credentials;
use super::handshake;
use super::hello::{Hello, Plane};
use crate::control::{self, Calling, Connection};

/// What calls at a door need.
#[derive(Clone)]
pub(super) struct Key {
    /// Who calls.
    pub(super) own: usize,
    pub(super) world_size: usize,
    /// What connections of this world show.
    pub(super) token: u64,
    pub(super) credentials: Credentials,
}

impl Key {
    /// Opens a connection to the rank that listens at an address, to bring messages or to find out who takes over.
    pub(super) async fn open(
        &self,
        rank: usize,
        address: SocketAddr,
        plane: Plane,
    ) -> Result<Connection, String> {
        let lost = |error: std::io::Error| format!("the connection broke: {error}");
        let stream = TcpStream::connect(address).await.map_err(lost)?;
        stream.set_nodelay(true).map_err(lost)?;
        let hello = Hello {
            plane,
            has_secret: false,
            sealed: false,
            lane: 0,
            token: self.token,
            caller: self.own as u64,
            callee: rank as u64,
            world_size: self.world_size as u64,
        };
        handshake::call_async(stream, &self.credentials, hello).await
    }

    /// Who calls this rank at its door, and what for; or why it is refused.
    pub(super) async fn answer(&self, stream: TcpStream) -> Result<(usize, Plane, Connection), String> {
        let (own, ranks) = (self.own as u64, self.world_size as u64);
        let is_meant = |hello: &Hello| {
            let Hello { plane, token, caller, callee, world_size, .. } = *hello;
            if !matches!(plane, Plane::Mail | Plane::Succession) {
                return Err("it came to the wrong port".to_owned());
            }
            if (token, world_size) != (self.token, ranks) {
                return Err("it means another world".to_owned());
            }
            if caller >= ranks || caller == own || callee != own {
                return Err(format!("it says that it is rank {caller} and means rank {callee}"));
            }
            Ok(())
        };
        let (hello, connection) = handshake::answer_async(stream, &self.credentials, is_meant).await?;
        Ok((hello.caller as usize, hello.plane, connection))
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
        Box::pin(async move { key.open(rank, address, Plane::Succession).await })
    }

    fn has_ended(&self, rank: usize) -> bool {
        self.table.processes[rank].has_ended(self.table.processes[self.key.own].host())
    }

    fn address(&self, rank: usize) -> IpAddr {
        self.table.data[rank].ip()
    }
}
