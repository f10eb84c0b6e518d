//! Communicators of some of a world's ranks: links of their own, so that their operations need not wait for each other's.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::config::WorldConfig;
use super::host::Host;
use super::mesh::{Mesh, Table};
use crate::algorithms::gathered;
use crate::engine::Native;
use crate::error::{CommError, Result};
use crate::failure::Failure;
use crate::shared::HostMemory;
use crate::transport::tcp::Tcp;
use crate::transport::{Link, Links, local};

/// How this rank reaches others.
#[derive(Clone)]
pub(crate) enum Origin {
    Threads(Arc<Nursery>),
    Processes(Arc<Place>),
}

/// One rank's end of a new communicator between threads.
type End = (Links, Option<HostMemory>);

/// Where threads of one process leave each other the ends of new links: by communicator and place in it.
pub(crate) struct Nursery {
    pub(crate) failures: Vec<Arc<Failure>>,
    pub(crate) timeout: Duration,
    pub(crate) new: Mutex<BTreeMap<(u32, usize), End>>,
}

/// What a process needs to be reached.
pub(crate) struct Place {
    pub(super) config: WorldConfig,
    /// The address under which others reach this rank.
    pub(super) address: std::net::IpAddr,
    pub(super) token: u64,
}

/// A number for a new communicator that all of its ranks find, and others hardly.
fn id_of(native: &Native, members: &[usize], number: u32) -> u32 {
    let mut hash = DefaultHasher::new();
    (native.id, number, members).hash(&mut hash);
    (hash.finish() as u32).max(1)
}

/// A communicator for the one of `groups` that this rank is in.
pub(crate) fn split(native: &mut Native, groups: &[Vec<usize>], number: u32) -> Result<Native> {
    let own = groups.iter().find(|group| group.contains(&native.rank)).cloned().unwrap_or_default();
    let members: Vec<usize> = own.iter().map(|rank| native.members[*rank]).collect();
    let id = id_of(native, &members, number);
    let rank = own.iter().position(|rank| *rank == native.rank).unwrap_or(0);
    let part = match native.shared.origin.clone() {
        Origin::Threads(nursery) => of_threads(native, &nursery, members, rank, id),
        Origin::Processes(place) => of_processes(native, &place, &own, members, rank, id),
    };
    // If the world broke meanwhile, that is why ranks did not meet.
    part.map_err(|error| native.shared.failure.get().map_or(error, |cause| native.error(cause)))
}

fn of_threads(
    native: &mut Native,
    nursery: &Nursery,
    members: Vec<usize>,
    rank: usize,
    id: u32,
) -> Result<Native> {
    let new = || nursery.new.lock().unwrap_or_else(PoisonError::into_inner);
    if rank == 0 {
        let failures: Vec<_> = members.iter().map(|rank| nursery.failures[*rank].clone()).collect();
        let links = local::world(&failures, nursery.timeout);
        let memories = crate::shared::of_threads(members.len());
        for (place, both) in links.into_iter().zip(memories).enumerate() {
            new().insert((id, place), both);
        }
    }
    // After this everybody's ends are there.
    let all = native.everybody();
    gathered::all_gather(native, &all, &[])?;
    let Some((links, memory)) = new().remove(&(id, rank)) else {
        return Err(CommError::Closed);
    };
    let mut part = Native::new(rank, id, members, links, native.shared.clone());
    part.hosts.fill(0);
    part.host_memory = memory;
    Ok(part)
}

fn of_processes(
    native: &mut Native,
    place: &Place,
    own: &[usize],
    members: Vec<usize>,
    rank: usize,
    id: u32,
) -> Result<Native> {
    let config = &place.config;
    let io = |error: std::io::Error| config.rendezvous(format!("for a part of the world: {error}"));
    let listener = TcpListener::bind(SocketAddr::new(config.bind_addr, 0)).map_err(io)?;
    let port = listener.local_addr().map_err(io)?.port();
    let all = native.everybody();
    let address = SocketAddr::new(place.address, port).to_string();
    let addresses = gathered::all_gather(native, &all, address.as_bytes())?;
    let address_of = |rank: &usize| {
        let text = String::from_utf8_lossy(&addresses[*rank]).into_owned();
        text.parse().map_err(|_| config.rendezvous(format!("rank {rank} listens at `{text}`")))
    };
    let data = own.iter().map(address_of).collect::<Result<_>>()?;
    let token = place.token ^ u64::from(id) << 32 ^ u64::from(id);
    let links = connect(config, rank, Table { data, token }, &listener, native)?;
    let mut part = Native::new(rank, id, members, links, native.shared.clone());
    crate::shared::agree(&mut part, &Host::of(config), config.shared_memory)?;
    Ok(part)
}

fn connect(
    config: &WorldConfig,
    rank: usize,
    table: Table,
    listener: &TcpListener,
    native: &Native,
) -> Result<Links> {
    let tls = config.tls_ends()?;
    let mesh = Mesh {
        rank,
        table: Arc::new(table),
        lanes: config.streams,
        secret: config.secret.as_ref(),
        tls: tls.as_ref(),
        timeout: config.connect_timeout,
    };
    links(config, mesh.connect(listener, &native.shared.failure)?, &native.patience)
}

/// Links over established connections.
pub(super) fn links(
    config: &WorldConfig,
    streams: Vec<Vec<crate::transport::Wire>>,
    patience: &crate::transport::Patience,
) -> Result<Links> {
    let link = |lanes: Vec<_>| -> Result<Option<Box<dyn Link>>> {
        if lanes.is_empty() {
            return Ok(None);
        }
        let tcp = Tcp::new(lanes, patience.clone()).map_err(|error| config.rendezvous(error.to_string()))?;
        Ok(Some(Box::new(tcp)))
    };
    Ok(Links(streams.into_iter().map(link).collect::<Result<_>>()?))
}
