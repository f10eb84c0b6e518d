//! The addresses where ranks listen as long as they are in the world: for messages, and for ranks that have lost the coordinator.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use tokio::net::TcpStream;

use super::table::RankTable;
use crate::config::WorldConfig;
use crate::control::{Connection, Dialing, PeerDirectory};
use crate::security::{self, Credentials, Hello, Purpose};

/// The properties by which ranks of a world recognise each other on the control thread's connections.
#[derive(Clone)]
pub(crate) struct WorldIdentity {
    /// This rank.
    pub(crate) own: usize,
    pub(crate) world_size: usize,
    /// The token that connections of this world show.
    pub(crate) token: u64,
    pub(crate) credentials: Credentials,
}

/// An accepted connection of another rank.
pub(crate) struct AcceptedPeer {
    pub(crate) rank: usize,
    pub(crate) purpose: Purpose,
    pub(crate) connection: Connection,
}

impl WorldIdentity {
    /// The identity of this rank in the world with a token.
    pub(crate) fn new(config: &WorldConfig, token: u64) -> Self {
        let WorldConfig { rank, world_size, .. } = *config;
        Self { own: rank, world_size, token, credentials: config.credentials.clone() }
    }

    /// Opens a connection to the rank that listens at an address, for messages or to find a coordinator.
    pub(crate) async fn connect(
        &self,
        rank: usize,
        address: SocketAddr,
        purpose: Purpose,
    ) -> Result<Connection, String> {
        let lost = |error: std::io::Error| format!("the connection broke: {error}");
        let stream = TcpStream::connect(address).await.map_err(lost)?;
        stream.set_nodelay(true).map_err(lost)?;
        let hello = Hello { token: self.token, ..Hello::between(purpose, self.own, rank, self.world_size) };
        security::call_async(stream, &self.credentials, hello).await
    }

    /// Accepts a connection of another rank.
    ///
    /// # Errors
    /// The reason why the caller is refused.
    pub(crate) async fn accept(&self, stream: TcpStream) -> Result<AcceptedPeer, String> {
        let check = |hello: &Hello| self.check(hello);
        let (hello, connection) = security::answer_async(stream, &self.credentials, check).await?;
        Ok(AcceptedPeer { rank: hello.caller as usize, purpose: hello.purpose, connection })
    }

    /// Checks that a caller is another rank of this world and calls this rank.
    fn check(&self, hello: &Hello) -> Result<(), String> {
        let (own, ranks) = (self.own as u64, self.world_size as u64);
        let Hello { purpose, token, caller, callee, world_size, .. } = *hello;
        if !matches!(purpose, Purpose::Mail | Purpose::Succession) {
            return Err("it called the wrong port".to_owned());
        }
        if (token, world_size) != (self.token, ranks) {
            return Err("it belongs to another world".to_owned());
        }
        if caller >= ranks || caller == own || callee != own {
            return Err(format!("it claims to be rank {caller} and calls rank {callee}"));
        }
        Ok(())
    }
}

/// The addresses and processes of all ranks of a world, for the control plane.
pub(crate) struct PeerAddresses {
    pub(crate) table: Arc<RankTable>,
    pub(crate) identity: WorldIdentity,
}

impl PeerDirectory for PeerAddresses {
    fn call(&self, rank: usize) -> Dialing {
        let (identity, address) = (self.identity.clone(), self.table.data[rank]);
        Box::pin(async move { identity.connect(rank, address, Purpose::Succession).await })
    }

    fn has_ended(&self, rank: usize) -> bool {
        let own = &self.table.processes[self.identity.own];
        self.table.processes[rank].has_ended(own.host())
    }

    fn address(&self, rank: usize) -> IpAddr {
        self.table.data[rank].ip()
    }
}
