//! The lifetime of MPI in this process: initialised once and finalised once, on the same thread.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::JoinHandle;

use ::mpi::Threading;

use crate::error::{CommError, Result};

/// MPI while it runs. The last reference finalises it, if it was initialised here.
pub(super) struct Universe {
    /// True if several threads may call MPI at a time.
    multiple: bool,
    /// The number of engines of this process.
    engines: AtomicUsize,
    /// True if an operation failed on this rank while others may still wait for it.
    stranded: AtomicBool,
    /// The thread that initialised MPI and waits for its end; `None` if the program initialised it.
    mpi_thread: Option<MpiThread>,
}

/// A guard that counts an engine of this process.
pub(super) struct EngineGuard(Arc<Universe>);

impl EngineGuard {
    pub(super) fn universe(&self) -> &Arc<Universe> {
        &self.0
    }
}

impl Drop for EngineGuard {
    fn drop(&mut self) {
        self.0.engines.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The thread that initialises and finalises MPI. Both must happen on one thread, but a communicator may be dropped on
/// any.
struct MpiThread {
    end: Sender<()>,
    thread: JoinHandle<()>,
}

/// The state of MPI in this process.
#[derive(Default)]
struct ProcessState {
    /// MPI, if it runs.
    universe: Weak<Universe>,
    /// True if it was ever initialised here.
    begun: bool,
}

static STATE: Mutex<Option<ProcessState>> = Mutex::new(None);

fn problem(problem: impl Into<String>) -> CommError {
    CommError::Mpi { operation: "MPI_Init_thread", problem: problem.into() }
}

impl Universe {
    /// Returns MPI, initialised now if it was not before.
    pub(super) fn get() -> Result<Arc<Self>> {
        let mut known = STATE.lock().unwrap_or_else(PoisonError::into_inner);
        let known = known.get_or_insert_default();
        if let Some(universe) = known.universe.upgrade() {
            return Ok(universe);
        }
        if known.begun || ::mpi::is_finalized() {
            return Err(problem("MPI has ended in this process, and cannot begin a second time"));
        }
        let (level, mpi_thread) = if ::mpi::is_initialized() {
            (::mpi::environment::threading_support(), None)
        } else {
            let (level, mpi_thread) = begin()?;
            known.begun = true;
            (level, Some(mpi_thread))
        };
        let (engines, stranded) = (AtomicUsize::new(0), AtomicBool::new(false));
        let multiple = level == Threading::Multiple;
        let universe = Arc::new(Self { multiple, engines, stranded, mpi_thread });
        if level < Threading::Serialized {
            // Dropping it finalises MPI.
            return Err(problem(format!(
                "operations run on threads of their own, and MPI offers {level:?} in place of Multiple or Serialized"
            )));
        }
        known.universe = Arc::downgrade(&universe);
        Ok(universe)
    }

    /// Registers a new engine; an error if another one is not possible.
    pub(super) fn enter(self: &Arc<Self>) -> Result<EngineGuard> {
        let guard = EngineGuard(self.clone());
        if self.engines.fetch_add(1, Ordering::Relaxed) == 0 || self.multiple {
            return Ok(guard);
        }
        Err(problem(
            "MPI takes calls of one thread at a time here (Serialized), and communicators have threads of their own, so \
             there can be only one",
        ))
    }

    /// True if several threads may call MPI at a time.
    pub(super) fn is_multiple(&self) -> bool {
        self.multiple
    }

    /// Records that others may wait for this rank in an operation that it will not finish.
    pub(super) fn strand(&self) {
        self.stranded.store(true, Ordering::Relaxed);
    }

    /// True if MPI can be left in good order: it runs, and no rank waits for this one in vain. Otherwise MPI is not finalised, as
    /// that would wait for the others, which wait for this rank. The launcher ends them when this process exits.
    pub(super) fn ends_well(&self) -> bool {
        let well = !self.stranded.load(Ordering::Relaxed) && !std::thread::panicking();
        well && !::mpi::is_finalized()
    }
}

impl Drop for Universe {
    fn drop(&mut self) {
        let well = self.ends_well();
        let Some(MpiThread { end, thread }) = self.mpi_thread.take() else { return };
        if well && end.send(()).is_ok() {
            let _ = thread.join();
        } else {
            tracing::error!("MPI is not ended in good order, as other ranks may wait for this one");
        }
    }
}

/// Initialises MPI on a thread that will finalise it.
fn begin() -> Result<(Threading, MpiThread)> {
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
    Ok((level, MpiThread { end, thread }))
}
