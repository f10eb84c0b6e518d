//! Operations that are MPI's own, behind the same communicator.
//!
//! MPI chooses algorithms, finds the other processes and moves the bytes; this module gives it the buffers in a form that it
//! takes. To be read in this order: `universe` begins and ends MPI, `raw` and `collective` call it, `engine` is what a
//! communicator asks, with `reductions`, `movement` and `messages` for its operations, `mail` for messages from any
//! rank, and `check` for finding ranks that disagree.
//!
//! # What differs from this crate's own engine
//!
//! - A rank that dies or hangs is MPI's affair: its launcher ends the others, and nothing times out.
//! - Sums come in MPI's order. Its standard advises libraries to give the same bits on every rank, but does not oblige them;
//!   the tests look whether the one at hand does, for one length and up to four ranks.
//! - MPI has no 16-bit floats. They are reduced as f32 and rounded once, at the end.
//! - Where ranks call different operations, MPI decides what happens, unless `PHALANX_MPI_CHECK` is set to 1.

mod check;
mod collective;
mod engine;
mod mail;
mod messages;
mod movement;
mod raw;
mod reductions;
mod settings;
mod universe;

use std::sync::Arc;

use crate::communicator::Communicator;
use crate::engine::Engine;
use crate::error::{CommError, Result};
use crate::operation::Algorithm;
use engine::{Mpi, World};
use mail::MpiMail;
use raw::Comm;
use settings::Settings;
use universe::Universe;

/// Joins the world of processes that MPI's launcher (`mpirun`, `mpiexec`, `srun`) has started. Its operations are MPI's own.
/// Every process calls this at the same place. A process without a launcher is a world of one.
///
/// MPI is begun with `MPI_THREAD_MULTIPLE` if it does not run yet. One that does run must offer that, or
/// `MPI_THREAD_SERIALIZED`: then there can be one communicator and no parts of it. MPI that was begun here ends with the
/// last communicator, which waits for all processes; it cannot begin again. If a panic drops that, or an operation has
/// failed on this rank alone, MPI is not ended: the process ends without, so that the launcher ends the others, who may wait
/// for it.
///
/// [`Communicator::abort`] ends all processes of the world through `MPI_Abort`, this one too. A rank that leaves early
/// because of an error of its own must call it, or the others wait for it.
///
/// [`Communicator::send`] hands MPI a copy of the buffer and comes back; a long message goes on its way while its sender is
/// in some operation, or waits for the receiver when the sender leaves. 64 messages may be under way, with
/// `PHALANX_MPI_CHECK` half as many.
/// [`Communicator::recv_any`] and its kin find messages by probing, and need `MPI_THREAD_MULTIPLE`; such a message, too,
/// goes on its way while its sender is in some call of this crate.
/// [`Communicator::stats`] counts the bytes of buffers that other ranks have or want; what MPI sends for them it does not
/// say.
///
/// Two environment variables, the same on every rank:
/// - `PHALANX_MPI_CHECK=1`: ranks first tell each other which operation they call, and get [`CommError::Mismatch`] if they
///   disagree. Without it MPI decides what a disagreement does: an error, a wrong result or a hang. The names of barriers
///   are always compared.
/// - `PHALANX_MPI_PIECE`: the most elements that one call of MPI gets, for libraries that have trouble with large ones.
///   Never more than an int counts; larger buffers go in pieces.
///
/// # Errors
/// [`CommError::Mpi`] if MPI offers less, has ended, or reports an error; [`CommError::Environment`] if a variable is
/// malformed or differs between ranks.
pub fn connect_mpi() -> Result<Communicator> {
    let own = Settings::from_env();
    let seat = Universe::get()?.enter()?;
    let comm = Comm::world(seat.universe().clone())?;
    let settings = Settings::agree(own, &comm)?;
    let hosts = hosts(&comm)?;
    let world = Arc::new(World::new(settings, seat.universe()));
    // Every rank makes it, though where MPI takes calls of one thread at a time nobody can use it beside operations.
    let for_mail = Comm::world(seat.universe().clone())?;
    let mail = seat.universe().is_multiple().then(|| Arc::new(MpiMail::new(world.clone(), for_mail)));
    let engine = Mpi::new(world, mail, seat, comm, 0, (0..hosts.len()).collect(), hosts);
    let hosts = engine.hosts();
    let local = hosts[..engine.rank()].iter().filter(|host| **host == hosts[engine.rank()]).count();
    let ending = engine.ending();
    Communicator::start(Box::new(engine), local, Algorithm::Auto, ending)
        .map_err(|error| CommError::Buffer(format!("cannot start a thread: {error}")))
}

/// The host of each rank, numbered in the order of appearance. Processes that could share memory are on one host.
fn hosts(comm: &Comm) -> Result<Vec<usize>> {
    let mut first = [comm.rank as i64];
    let host = comm.of_host()?;
    host.broadcast(&mut first, 0)?;
    let mut firsts = vec![0; comm.size];
    comm.all_gather(&first, &mut firsts)?;
    Ok(numbered(&firsts))
}

/// Equal things as equal numbers, counted from 0 in the order of appearance.
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
