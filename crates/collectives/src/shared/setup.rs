//! How ranks come to share memory.

use super::board::Board;
use super::memory::SharedMemory;
use crate::communicator::Communicator;
use crate::error::Result;

/// A name for this host that only its own processes have: another boot is another host, and so is another space of
/// process numbers, in which descriptors cannot be opened.
fn host() -> String {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default().trim().to_owned();
    let space = std::fs::read_link("/proc/self/ns/pid").map(|path| path.display().to_string());
    format!("{} {}", read("/proc/sys/kernel/random/boot_id"), space.unwrap_or_default())
}

/// The boards of a world of threads; none where memory cannot be had, and then messages go as before.
pub(crate) fn of_threads(world: usize) -> Vec<Option<Board>> {
    let memory = if world > 1 { SharedMemory::create(Board::size(world)).ok() } else { None };
    (0..world)
        .map(|rank| memory.as_ref().map(|(memory, _)| Board::new(memory.clone(), rank, world)))
        .collect()
}

/// Makes shared memory for a world of processes if all are on one host and can open it. Every rank takes part; all come
/// to the same decision.
pub(crate) fn agree(comm: &Communicator) -> Result<Option<Board>> {
    let (rank, world) = (comm.rank(), comm.world_size());
    let own = host();
    let hosts = comm.all_gather_bytes(own.as_bytes())?;
    if world == 1 || hosts.iter().any(|other| *other != hosts[0]) {
        return Ok(None);
    }
    let size = Board::size(world);
    let made = if rank == 0 { SharedMemory::create(size).ok() } else { None };
    let path = made.as_ref().map_or_else(String::new, |(_, file)| SharedMemory::path_of(file));
    let path = String::from_utf8_lossy(&comm.all_gather_bytes(path.as_bytes())?[0]).into_owned();
    // Rank 0 keeps the descriptor until every rank has said whether it could open it.
    let (memory, _file) = match made {
        Some((memory, file)) => (Some(memory), Some(file)),
        None if rank == 0 => (None, None),
        None => match SharedMemory::open(&path, size) {
            Ok(memory) => (Some(memory), None),
            Err(error) => {
                tracing::info!(%error, "this rank cannot open the memory of its host; messages go by TCP");
                (None, None)
            }
        },
    };
    let all = comm.all_gather_bytes(&[u8::from(memory.is_some())])?;
    let everybody = all.iter().all(|has| has == &[1]);
    Ok(memory.filter(|_| everybody).map(|memory| Board::new(memory, rank, world)))
}
