//! MPI's life in this process: begun once, ended once, and by the same thread.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::JoinHandle;

use ::mpi::Threading;

use crate::error::{CommError, Result};

/// MPI while it runs. The last reference ends it, if it was begun here.
pub(super) struct Universe {
    /// Whether several threads may call MPI at a time.
    multiple: bool,
    /// Engines of this process.
    engines: AtomicUsize,
    /// Whether an operation failed on this rank while others may still wait for it.
    stranded: AtomicBool,
    /// The thread that has begun MPI and waits for its end; `None` if somebody else has begun it.
    keeper: Option<Keeper>,
}

/// An engine's place in MPI.
pub(super) struct Seat(Arc<Universe>);

impl Seat {
    pub(super) fn universe(&self) -> &Arc<Universe> {
        &self.0
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.0.engines.fetch_sub(1, Ordering::Relaxed);
    }
}

/// MPI wants to be ended by the thread that has begun it, while a communicator may be dropped on any; so a thread is kept
/// for that.
struct Keeper {
    end: Sender<()>,
    thread: JoinHandle<()>,
}

/// MPI as this process knows it.
#[derive(Default)]
struct Known {
    /// Where it runs, if it does.
    universe: Weak<Universe>,
    /// Whether it was ever begun here.
    begun: bool,
}

static KNOWN: Mutex<Option<Known>> = Mutex::new(None);

fn problem(problem: impl Into<String>) -> CommError {
    CommError::Mpi { operation: "MPI_Init_thread", problem: problem.into() }
}

impl Universe {
    /// MPI, begun now if nobody has begun it yet.
    pub(super) fn get() -> Result<Arc<Self>> {
        let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        let known = known.get_or_insert_default();
        if let Some(universe) = known.universe.upgrade() {
            return Ok(universe);
        }
        if known.begun || ::mpi::is_finalized() {
            return Err(problem("MPI has ended in this process, and cannot begin a second time"));
        }
        let (level, keeper) = if ::mpi::is_initialized() {
            (::mpi::environment::threading_support(), None)
        } else {
            let (level, keeper) = begin()?;
            known.begun = true;
            (level, Some(keeper))
        };
        let (engines, stranded) = (AtomicUsize::new(0), AtomicBool::new(false));
        let multiple = level == Threading::Multiple;
        let universe = Arc::new(Self { multiple, engines, stranded, keeper });
        if level < Threading::Serialized {
            // Dropping it ends what was begun.
            return Err(problem(format!(
                "operations run on threads of their own, and MPI offers {level:?} in place of Multiple or Serialized"
            )));
        }
        known.universe = Arc::downgrade(&universe);
        Ok(universe)
    }

    /// A place for a new engine; an error if there may not be another.
    pub(super) fn enter(self: &Arc<Self>) -> Result<Seat> {
        let seat = Seat(self.clone());
        if self.engines.fetch_add(1, Ordering::Relaxed) == 0 || self.multiple {
            return Ok(seat);
        }
        Err(problem(
            "MPI takes calls of one thread at a time here (Serialized), and communicators have threads of their own, so \
             there can be only one",
        ))
    }

    /// Whether several threads may call MPI at a time.
    pub(super) fn is_multiple(&self) -> bool {
        self.multiple
    }

    /// Notes that others may wait for this rank in an operation that it will not finish.
    pub(super) fn strand(&self) {
        self.stranded.store(true, Ordering::Relaxed);
    }

    /// Whether MPI can be left in good order: it runs, and nobody waits for this rank in vain. Otherwise MPI is not ended,
    /// as that would wait for the others, who wait for this rank; the launcher ends them when this process has gone without.
    pub(super) fn ends_well(&self) -> bool {
        let well = !self.stranded.load(Ordering::Relaxed) && !std::thread::panicking();
        well && !::mpi::is_finalized()
    }
}

impl Drop for Universe {
    fn drop(&mut self) {
        let well = self.ends_well();
        let Some(Keeper { end, thread }) = self.keeper.take() else { return };
        if well && end.send(()).is_ok() {
            let _ = thread.join();
        } else {
            tracing::error!("MPI is not ended in good order, as other ranks may wait for this one");
        }
    }
}

/// Begins MPI on a thread that will end it.
fn begin() -> Result<(Threading, Keeper)> {
    let (tell, told) = channel();
    let (end, ends) = channel::<()>();
    let thread = std::thread::Builder::new()
        .name("phalanx-mpi".into())
        .spawn(move || {
            let Some((universe, level)) = ::mpi::initialize_with_threading(Threading::Multiple) else {
                return;
            };
            let _ = tell.send(level);
            match ends.recv() {
                Ok(()) => drop(universe),
                Err(_) => std::mem::forget(universe),
            }
        })
        .map_err(|error| problem(format!("cannot start a thread: {error}")))?;
    let level = told.recv().map_err(|_| problem("another thread has begun it at the same time"))?;
    Ok((level, Keeper { end, thread }))
}
