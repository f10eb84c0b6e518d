//! Worlds whose ranks are threads of this process.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::algorithms::gathered;
use crate::communicator::Communicator;
use crate::config::DEFAULT_OP_TIMEOUT;
use crate::control::{ControlPlane, RankState};
use crate::engine::{self, Backend, Connector, ExitActions, HostMemory, Members, Shared};
use crate::error::{CommError, Result};
use crate::failure::Failure;
use crate::mailbox::LocalMail;
use crate::operation::Algorithm;
use crate::simulated::{Port, SimulatedLink};
use crate::transport::{Links, local};

/// One rank's links of a new communicator between threads, and its memory shared with the others.
type ThreadLinks = (Links, Option<HostMemory>);

/// Connects threads of one process for new communicators.
struct ThreadConnector {
    failures: Vec<Arc<Failure>>,
    timeout: Duration,
    /// Links that rank 0 has made and the others fetch, by communicator and rank in it.
    new: Mutex<BTreeMap<(u32, usize), ThreadLinks>>,
}

impl ThreadConnector {
    fn new_ends(&self) -> MutexGuard<'_, BTreeMap<(u32, usize), ThreadLinks>> {
        self.new.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Connector for ThreadConnector {
    fn connect(&self, backend: &mut Backend, members: Members) -> Result<Backend> {
        let Members { of_world, own, id, .. } = members;
        if own == 0 {
            let failures: Vec<_> = of_world.iter().map(|rank| self.failures[*rank].clone()).collect();
            let links = local::world(&failures, self.timeout);
            let memories = engine::of_threads(of_world.len());
            for (place, both) in links.into_iter().zip(memories).enumerate() {
                self.new_ends().insert((id, place), both);
            }
        }
        // After this the links of all ranks exist.
        let all = backend.all_ranks();
        gathered::all_gather(backend, &all, &[])?;
        let Some((links, memory)) = self.new_ends().remove(&(id, own)) else {
            return Err(CommError::Closed);
        };
        let mut part = Backend::new(own, id, of_world, links, backend.shared.clone());
        part.hosts.fill(0);
        part.host_memory = memory;
        Ok(part)
    }
}

/// Returns the communicators of a world of threads in this process, by rank. Each may be moved to its own thread.
///
/// # Errors
/// If the system refuses threads.
pub fn threads(world_size: usize) -> Result<Vec<Communicator>> {
    world(world_size, None)
}

/// Returns the communicators of a world of threads as [`threads`] does. Messages take as long as over the simulated link, of which
/// each rank has one.
///
/// # Errors
/// If the system refuses threads; [`CommError::Argument`] on other systems than Linux.
pub fn threads_over(world_size: usize, link: SimulatedLink) -> Result<Vec<Communicator>> {
    if !cfg!(target_os = "linux") {
        let problem = "a simulated link needs Linux".to_owned();
        return Err(CommError::Argument { operation: "threads", problem });
    }
    world(world_size, Some(link))
}

fn world(world_size: usize, link: Option<SimulatedLink>) -> Result<Vec<Communicator>> {
    let watched: Vec<RankState> = (0..world_size).map(|_| RankState::default()).collect();
    let failures: Vec<_> = watched.iter().map(|rank| rank.failure.clone()).collect();
    let links = local::world(&failures, DEFAULT_OP_TIMEOUT);
    over(links.into_iter().zip(engine::of_threads(world_size)).collect(), watched, link)
}

/// Returns the communicators of a world of threads with these links and shared memory.
pub(super) fn over(
    ends: Vec<ThreadLinks>,
    watched: Vec<RankState>,
    link: Option<SimulatedLink>,
) -> Result<Vec<Communicator>> {
    let world_size = ends.len();
    let ports: Vec<_> = (0..world_size).map(|_| link.map(|link| Arc::new(Port::new(link)))).collect();
    let failures: Vec<_> = watched.iter().map(|rank| rank.failure.clone()).collect();
    let timeout = DEFAULT_OP_TIMEOUT;
    let control = Arc::new(ControlPlane::local(watched.clone()));
    let mail = LocalMail::world(&failures, &ports);
    let connector = Arc::new(ThreadConnector { failures, timeout, new: Mutex::default() });
    ends.into_iter()
        .zip(watched)
        .zip(mail.into_iter().zip(ports))
        .enumerate()
        .map(|(rank, (((links, memory), RankState { failure, recorder, .. }), (mail, port)))| {
            let (control, connector) = (control.clone(), connector.clone());
            let shared = Shared {
                failure,
                control,
                recorder,
                timeout,
                port,
                inside: None,
                mail,
                connector,
                flight: None,
            };
            let ending = ExitActions::of_world(&shared, rank);
            let mut backend = Backend::new(rank, 0, (0..world_size).collect(), links, shared);
            backend.hosts.fill(0);
            backend.host_memory = memory;
            Communicator::start(Box::new(backend.over_simulated_link()), rank, Algorithm::Auto, ending)
                .map_err(|error| CommError::Buffer(format!("cannot start a thread: {error}")))
        })
        .collect()
}
