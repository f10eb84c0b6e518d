//! How processes of a world reach each other for communicators of some of them.

use std::net::{IpAddr, SocketAddr, TcpListener};
use std::sync::Arc;

use super::config::WorldConfig;
use super::connect::{Connections, Table};
use super::host;
use crate::algorithms::gathered;
use crate::engine::{Backend, Connector, Members};
use crate::error::Result;
use crate::patience::Patience;
use crate::transport::tcp::Tcp;
use crate::transport::{Link, Links, Wire};

/// What a process needs to be reached.
pub(super) struct Process {
    pub(super) config: WorldConfig,
    /// By rank of the world, where this rank reaches it. A rank that listens everywhere cannot say it of itself.
    pub(super) addresses: Vec<IpAddr>,
    /// What connections of this world show.
    pub(super) token: u64,
}

impl Connector for Process {
    fn connect(&self, backend: &mut Backend, members: Members) -> Result<Backend> {
        let (config, id) = (&self.config, members.id);
        let io = |error: std::io::Error| config.rendezvous(format!("for a part of the world: {error}"));
        let listener = TcpListener::bind(SocketAddr::new(config.bind_addr, 0)).map_err(io)?;
        let port = listener.local_addr().map_err(io)?.port();
        let all = backend.everybody();
        let ports = gathered::all_gather(backend, &all, port.to_string().as_bytes())?;
        let address_of = |(place, rank): (&usize, &usize)| {
            let text = String::from_utf8_lossy(&ports[*place]);
            let address = self.addresses.get(*rank).zip(text.parse().ok());
            let address = address.map(|(address, port)| SocketAddr::new(*address, port));
            address.ok_or_else(|| config.rendezvous(format!("rank {rank} listens at port `{text}`")))
        };
        let data = members.places.iter().zip(&members.of_world).map(address_of).collect::<Result<_>>()?;
        let token = self.token ^ u64::from(id) << 32 ^ u64::from(id);
        let links =
            connect(config, members.own, Table { data, processes: Vec::new(), token }, &listener, backend)?;
        let mut part = Backend::new(members.own, id, members.of_world, links, backend.shared.clone());
        crate::engine::agree(&mut part, &host::name(config), config.shared_memory)?;
        Ok(part)
    }
}

fn connect(
    config: &WorldConfig,
    rank: usize,
    table: Table,
    listener: &TcpListener,
    backend: &Backend,
) -> Result<Links> {
    let credentials = config.credentials();
    let connections = Connections {
        rank,
        table: Arc::new(table),
        lanes: config.streams,
        credentials: &credentials,
        timeout: config.connect_timeout,
    };
    links(config, connections.connect(listener, &backend.shared.failure)?, &backend.patience)
}

/// Links over established connections.
pub(super) fn links(config: &WorldConfig, streams: Vec<Vec<Wire>>, patience: &Patience) -> Result<Links> {
    let link = |lanes: Vec<_>| -> Result<Option<Box<dyn Link>>> {
        if lanes.is_empty() {
            return Ok(None);
        }
        let tcp = Tcp::new(lanes, patience.clone()).map_err(|error| config.rendezvous(error.to_string()))?;
        Ok(Some(Box::new(tcp)))
    };
    Ok(Links(streams.into_iter().map(link).collect::<Result<_>>()?))
}
