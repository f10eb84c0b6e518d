//! Operations that are MPI's own, behind the same communicator.
//!
//! MPI chooses algorithms, finds the other processes and moves the bytes; this module converts buffers for it. Reading order:
//! `universe` begins and ends MPI, `raw` and `collective` call it, `engine` implements the communicator's engine with `reductions`,
//! `movement` and `messages`. `mail` has messages from any rank, and `check` finds ranks that disagree.
//!
//! # Differences from this crate's own engine
//!
//! - MPI handles ranks that die or hang: its launcher ends the others, and nothing times out.
//! - Sums have MPI's order. Its standard recommends the same bits on every rank but does not require them. The tests check the
//!   installed library for one length and up to four ranks.
//! - MPI has no 16-bit floats. They are reduced as f32 and rounded once, at the end.
//! - If ranks call different operations, MPI decides what happens, unless `PHALANX_MPI_CHECK` is 1.

mod check;
mod collective;
mod engine;
mod mail;
mod messages;
mod movement;
mod partition;
mod raw;
mod reductions;
mod scratch;
mod settings;
mod universe;
mod world;

use std::sync::Arc;

use crate::communicator::Communicator;
use crate::engine::{Description as _, Lifetime as _};
use crate::error::{CommError, Result};
use crate::operation::Algorithm;
use engine::Mpi;
use mail::MpiMail;
use raw::Comm;
use settings::Settings;
use universe::Universe;
use world::World;

/// Joins the world of processes that MPI's launcher (`mpirun`, `mpiexec`, `srun`) started. Its operations are MPI's own. Every
/// process calls this at the same place. A process without a launcher is a world of one rank.
///
/// MPI is initialised with `MPI_THREAD_MULTIPLE` if it does not run yet. If it runs, it must offer that, or
/// `MPI_THREAD_SERIALIZED`: then one communicator is possible, without parts. MPI that was initialised here is finalised with the
/// last communicator, which waits for all processes; it cannot start again. After a panic, or an operation that failed on this
/// rank alone, MPI is not finalised. The process then exits without it, so that the launcher ends the other ranks.
///
/// [`Communicator::abort`] ends all processes of the world through `MPI_Abort`, this one too. A rank that leaves early
/// because of an error of its own must call it, or the others wait for it.
///
/// [`Communicator::send`] gives MPI a copy of the buffer and returns. A long message makes progress while its sender is in some
/// operation, and when the sender leaves. 64 messages may be under way; with `PHALANX_MPI_CHECK` 32.
/// [`Communicator::recv_any`] and related functions find messages by probing, and need `MPI_THREAD_MULTIPLE`. Such a message also
/// makes progress only while its sender is in some call of this crate. [`Communicator::stats`] counts bytes of buffers; MPI does
/// not tell what it sends.
///
/// Two environment variables, equal on every rank:
/// - `PHALANX_MPI_CHECK=1`: ranks compare their operations first, and return [`CommError::Mismatch`] if they disagree. Without it
///   MPI decides: an error, a wrong result or a hang. Names of barriers are always compared.
/// - `PHALANX_MPI_PIECE`: the most elements of one call of MPI, for libraries that have trouble with large ones. An int limits it;
///   larger buffers go in pieces.
///
/// # Errors
/// [`CommError::Mpi`] if MPI offers less, has ended, or reports an error; [`CommError::Environment`] if a variable is
/// malformed or differs between ranks.
pub fn connect_mpi() -> Result<Communicator> {
    let own = Settings::from_env();
    let guard = Universe::get()?.enter()?;
    let comm = Comm::world(guard.universe().clone())?;
    let settings = Settings::agree(own, &comm)?;
    let hosts = hosts(&comm)?;
    let world = Arc::new(World::new(settings, guard.universe()));
    // Every rank makes it. Without MPI_THREAD_MULTIPLE it cannot be used next to operations.
    let for_mail = Comm::world(guard.universe().clone())?;
    let mail = guard.universe().is_multiple().then(|| Arc::new(MpiMail::new(world.clone(), for_mail)));
    let engine = Mpi::new(world, mail, guard, comm, 0, (0..hosts.len()).collect(), hosts);
    let hosts = engine.hosts();
    let local = hosts[..engine.rank()].iter().filter(|host| **host == hosts[engine.rank()]).count();
    let ending = engine.ending();
    Communicator::start(Box::new(engine), local, Algorithm::Auto, ending)
        .map_err(|error| CommError::Buffer(format!("cannot start a thread: {error}")))
}

/// Returns the host of each rank, numbered in the order of appearance. Processes that could share memory are on one host.
fn hosts(comm: &Comm) -> Result<Vec<usize>> {
    let mut first = [comm.rank as i64];
    let host = comm.of_host()?;
    host.broadcast(&mut first, 0)?;
    let mut firsts = vec![0; comm.size];
    comm.all_gather(&first, &mut firsts)?;
    Ok(numbered(&firsts))
}

/// Numbers equal things equally, from 0 in the order of appearance.
fn numbered<T: PartialEq>(things: &[T]) -> Vec<usize> {
    let mut known: Vec<&T> = Vec::new();
    let number = |thing| {
        let number = known.iter().position(|other| *other == thing).unwrap_or(known.len());
        if number == known.len() {
            known.push(thing);
        }
        number
    };
    things.iter().map(number).collect()
}
