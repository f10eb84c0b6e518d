//! Connections between processes of a world for communicators of some of them.

use std::net::{IpAddr, SocketAddr, TcpListener};
use std::sync::Arc;

use crate::algorithms::gathered;
use crate::config::WorldConfig;
use crate::engine::{Backend, Connector, Members};
use crate::error::Result;
use crate::rendezvous::{DataConnections, RankTable, host_name};
use crate::transport::tcp::Tcp;
use crate::transport::{Link, Links, Wire};
use crate::waiting::WaitLimits;

/// Connects processes for new communicators.
pub(super) struct ProcessConnector {
    pub(super) config: WorldConfig,
    /// The addresses by which this rank reaches the others, by rank of the world.
    pub(super) addresses: Vec<IpAddr>,
    /// The token of the world.
    pub(super) token: u64,
}

impl Connector for ProcessConnector {
    fn connect(&self, backend: &mut Backend, members: Members) -> Result<Backend> {
        let (config, id) = (&self.config, members.id);
        let io = |error: std::io::Error| config.rendezvous_error(format!("for a part of the world: {error}"));
        let listener = TcpListener::bind(SocketAddr::new(config.meeting.bind_addr, 0)).map_err(io)?;
        let port = listener.local_addr().map_err(io)?.port();
        let all = backend.all_ranks();
        let ports = gathered::all_gather(backend, &all, port.to_string().as_bytes())?;
        let address_of = |(place, rank): (&usize, &usize)| {
            let text = String::from_utf8_lossy(&ports[*place]);
            let address = self.addresses.get(*rank).zip(text.parse().ok());
            let address = address.map(|(address, port)| SocketAddr::new(*address, port));
            address.ok_or_else(|| config.rendezvous_error(format!("rank {rank} listens at port `{text}`")))
        };
        let data = members.places.iter().zip(&members.of_world).map(address_of).collect::<Result<_>>()?;
        let token = self.token ^ u64::from(id) << 32 ^ u64::from(id);
        let table = RankTable { data, processes: Vec::new(), token };
        let links = connect(config, members.own, table, &listener, backend)?;
        let mut part = Backend::new(members.own, id, members.of_world, links, backend.shared.clone());
        crate::engine::agree(&mut part, &host_name(config), config.transport.shared_memory)?;
        Ok(part)
    }
}

fn connect(
    config: &WorldConfig,
    rank: usize,
    table: RankTable,
    listener: &TcpListener,
    backend: &Backend,
) -> Result<Links> {
    let connections = DataConnections {
        rank,
        table: Arc::new(table),
        lanes: config.transport.streams,
        credentials: &config.credentials,
        timeout: config.timeouts.connect,
    };
    links(config, connections.connect(listener, &backend.shared.failure)?, &backend.limits)
}

/// Returns links over established connections, by rank.
pub(super) fn links(config: &WorldConfig, wires: Vec<Vec<Wire>>, limits: &WaitLimits) -> Result<Links> {
    let link = |lanes: Vec<_>| -> Result<Option<Box<dyn Link>>> {
        if lanes.is_empty() {
            return Ok(None);
        }
        let tcp =
            Tcp::new(lanes, limits.clone()).map_err(|error| config.rendezvous_error(error.to_string()))?;
        Ok(Some(Box::new(tcp)))
    };
    Ok(Links(wires.into_iter().map(link).collect::<Result<_>>()?))
}
