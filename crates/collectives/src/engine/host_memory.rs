//! Set-up of shared memory between ranks of a host.

use std::os::fd::OwnedFd;

use super::backend::Backend;
use super::hosts::number_hosts;
use super::memory::HostMemory;
use super::traits::Lifetime;
use crate::algorithms::{Group, gathered};
use crate::dtype::DType;
use crate::error::{CommError, Result};
use crate::operation::{Kind, Scope, Tag};
use crate::shared::{CrossMemory, Region, Ring, SharedMemory, SlotExchange, expose, looks};
use crate::transport::pipe::Pipe;

/// Returns the shared memory of each rank in a world of threads; `None` if it is not available, and then ranks send messages.
pub(crate) fn of_threads(world: usize) -> Vec<Option<HostMemory>> {
    let memory = if world > 1 { SharedMemory::create(SlotExchange::size(world)).ok() } else { None };
    let of = |rank| {
        let (memory, _) = memory.as_ref()?;
        let slots = SlotExchange::new(memory.clone(), rank, world)
            .with_cross_memory(Some(CrossMemory::threads(world)));
        Some(HostMemory { group: Group::world(world, rank), slots })
    };
    (0..world).map(of).collect()
}

/// Makes memory of `bytes` bytes that the ranks of `group` map: its first rank creates it and the others open it. Every rank of the
/// world takes part, each with its own group. Either all ranks of a group get it, or none.
fn share(backend: &mut Backend, group: &Group, bytes: usize) -> Result<Option<SharedMemory>> {
    let all = backend.all_ranks();
    let made = if group.own() == 0 && bytes > 0 {
        SharedMemory::create(bytes)
    } else {
        Err(std::io::ErrorKind::Other.into())
    };
    let made: Option<(SharedMemory, OwnedFd)> = made.ok();
    let path = made.as_ref().map_or_else(String::new, |(_, file)| SharedMemory::path_of(file));
    let paths = gathered::all_gather(backend, &all, path.as_bytes())?;
    let path = String::from_utf8_lossy(&paths[group.at(0)]).into_owned();
    // The creator keeps the descriptor until every rank has tried to open it.
    let (memory, _file) = match made {
        Some((memory, file)) => (Some(memory), Some(file)),
        None if path.is_empty() => (None, None),
        None => match SharedMemory::open(&path, bytes) {
            Ok(memory) => (Some(memory), None),
            Err(error) => {
                tracing::info!(%error, "this rank cannot open the memory of its host; it sends messages");
                (None, None)
            }
        },
    };
    let have = gathered::all_gather(backend, &all, &[u8::from(memory.is_some())])?;
    let all_have = group.ranks().iter().all(|rank| have[*rank] == [1]);
    Ok(memory.filter(|_| all_have))
}

/// Tests whether the ranks of `group` can read each other's memory: each tries to read a random number of the others. Every rank of
/// the world takes part, each with its own group. Either all ranks of a group can, or none does.
fn try_cross_memory(backend: &mut Backend, group: &Group) -> Result<Option<CrossMemory>> {
    const LEN: usize = 16;
    let all = backend.all_ranks();
    let mut probe = [0_u8; LEN];
    let drawn = getrandom::fill(&mut probe).is_ok();
    let address = expose(&mut probe) as u64;
    let facts = [&std::process::id().to_le_bytes()[..], &address.to_le_bytes(), &probe].concat();
    let facts = gathered::all_gather(backend, &all, &facts)?;
    let of_group: Option<Vec<(u32, u64, &[u8])>> = group
        .ranks()
        .iter()
        .map(|rank| {
            let (process, rest) = facts[*rank].split_first_chunk::<4>()?;
            let (address, probe) = rest.split_first_chunk::<8>()?;
            Some((u32::from_le_bytes(*process), u64::from_le_bytes(*address), probe))
        })
        .collect();
    let of_group = of_group.unwrap_or_default();
    let cross_memory =
        CrossMemory::processes(&of_group.iter().map(|(process, ..)| *process).collect::<Vec<_>>());
    let own = group.own();
    let reads = |place: usize| {
        let (_, address, probe) = of_group[place];
        let mut found = [0; LEN];
        // A rank of this process is a thread, and needs no test. For another process the system decides.
        cross_memory.is_here(place)
            || (cross_memory.read(place, address as usize, &mut found) && found == probe)
    };
    let can =
        drawn && of_group.len() == group.len() && (0..group.len()).all(|place| place == own || reads(place));
    // After this all ranks have read.
    let have = gathered::all_gather(backend, &all, &[u8::from(can)])?;
    let all_have = group.ranks().iter().all(|rank| have[*rank] == [1]);
    if !all_have && group.len() > 1 {
        tracing::debug!(
            "ranks of this host may not read each other's memory; large buffers go through slots"
        );
    }
    Ok(all_have.then_some(cross_memory))
}

/// Determines the ranks of each host, and sets up shared memory between them if they may share it. Every rank takes part; all ranks
/// of a host come to the same decision.
pub(crate) fn agree(backend: &mut Backend, host: &str, may_share: bool) -> Result<()> {
    let group = number_hosts(backend, host)?;
    let size = group.len();
    let wanted = may_share && size > 1;
    let bytes = if wanted { SlotExchange::size(size) + size * size * Ring::SIZE } else { 0 };
    let memory = share(backend, &group, bytes)?;
    let cross_memory = try_cross_memory(backend, &group)?;
    let Some(memory) = memory else { return Ok(()) };
    let looks = looks(size);
    let own = group.own();
    for (place, rank) in group.ranks().iter().enumerate().filter(|(place, _)| *place != own) {
        let ring = |from: usize, to: usize| {
            let at = SlotExchange::size(size) + (from * size + to) * Ring::SIZE;
            Ring::new(memory.clone(), at, looks)
        };
        let pipe = Pipe::new(ring(own, place), ring(place, own), backend.limits.clone());
        backend.links.0[*rank] = Some(Box::new(pipe));
    }
    let slots = SlotExchange::new(memory, own, size).with_cross_memory(cross_memory);
    backend.host_memory = Some(HostMemory { group, slots });
    Ok(())
}

impl Backend {
    /// Returns memory for `bytes` bytes of each rank that all ranks map, if they share memory.
    pub(super) fn alloc_region(&mut self, bytes: usize) -> Result<Option<Region>> {
        if !self.is_direct() {
            return Ok(None);
        }
        let (group, rank) = (self.all_ranks(), self.rank);
        let size = Region::size(bytes, group.len()).ok_or_else(|| CommError::Argument {
            operation: "alloc",
            problem: format!("{bytes} bytes for each of {} ranks are too many", group.len()),
        })?;
        let tag = Tag::new(Kind::Setup, DType::U8, bytes);
        self.enter(Scope::World, tag)?;
        let result = share(self, &group, size);
        self.end(result.as_ref().err());
        Ok(result?.map(|memory| Region::new(memory, rank, bytes)))
    }
}
