//! MPI's communicators and messages behind safe functions: slices in, errors out. `unsafe` for that.
//!
//! The crate `mpi` has safe functions too, but they ignore MPI's return codes.

#![allow(unsafe_code)]

use std::ffi::{c_char, c_int, c_void};
use std::sync::Arc;

use ::mpi::ffi;

use super::universe::Universe;
use crate::error::{CommError, Result};

/// MPI's tag of messages' bytes.
pub(super) const DATA: c_int = 0;
/// MPI's tag of the message that names an operation.
pub(super) const HEADER: c_int = 1;

/// The address of empty slices for MPI. The address of an empty slice is arbitrary; for bytes it is 1, which OpenMPI takes for
/// `MPI_IN_PLACE`.
static NOTHING_SENT: u64 = 0;
static NOTHING_RECEIVED: u64 = 0;

pub(super) fn read_from<T>(values: &[T]) -> *const c_void {
    if values.is_empty() { (&raw const NOTHING_SENT).cast() } else { values.as_ptr().cast() }
}

/// The address of a constant for an empty slice, to which MPI writes no elements.
pub(super) fn write_to<T>(values: &mut [T]) -> *mut c_void {
    if values.is_empty() {
        (&raw const NOTHING_RECEIVED).cast_mut().cast()
    } else {
        values.as_mut_ptr().cast()
    }
}

/// Converts a number to MPI's int.
pub(super) fn int(number: usize) -> Result<c_int> {
    c_int::try_from(number).map_err(|_| CommError::Mpi {
        operation: "counting",
        problem: format!("{number} does not fit into MPI's int"),
    })
}

/// Returns the error of a function of MPI, if it has failed.
pub(super) fn checked(operation: &'static str, code: c_int) -> Result<()> {
    if code == ffi::MPI_SUCCESS as c_int {
        return Ok(());
    }
    let mut text = [0 as c_char; ffi::MPI_MAX_ERROR_STRING as usize];
    let mut length = 0;
    // SAFETY: the buffer has the size that MPI asks for.
    let told = unsafe { ffi::MPI_Error_string(code, text.as_mut_ptr(), &raw mut length) };
    let text: Vec<u8> = text.iter().take(length.max(0) as usize).map(|c| *c as u8).collect();
    let known = told == ffi::MPI_SUCCESS as c_int && !text.is_empty();
    let text = if known { String::from_utf8_lossy(&text).into_owned() } else { "no text".to_owned() };
    Err(CommError::Mpi { operation, problem: format!("{text} (code {code})") })
}

/// Ends all processes of the world. May be called only while MPI runs, which a [`Universe`] proves.
pub(super) fn abort(_: &Universe) {
    // SAFETY: MPI runs. Where it takes calls of one thread at a time, another thread may be in it all the same; there is no
    // other way to reach a process that hangs, and nothing of it is used after this.
    unsafe { ffi::MPI_Abort(ffi::RSMPI_COMM_WORLD, 1) };
}

/// A communicator of MPI, this engine's own.
pub(super) struct Comm {
    pub(super) raw: ffi::MPI_Comm,
    /// This process's number in it.
    pub(super) rank: usize,
    /// The number of processes.
    pub(super) size: usize,
    universe: Arc<Universe>,
}

// SAFETY: a communicator of MPI may be used from any thread. If MPI does not take calls of several threads at a time, there
// is only one engine (`Universe::enter`), and it is used by one thread at a time.
unsafe impl Send for Comm {}

impl Comm {
    /// A communicator of all processes of the world, for this library's messages alone.
    pub(super) fn world(universe: Arc<Universe>) -> Result<Self> {
        // SAFETY: a constant of MPI, which never changes.
        Self::made_by("MPI_Comm_dup", universe, |raw| unsafe {
            ffi::MPI_Comm_dup(ffi::RSMPI_COMM_WORLD, raw)
        })
    }

    /// A communicator of the processes with the same colour, in the order of their keys.
    pub(super) fn split(&self, colour: usize, key: usize) -> Result<Self> {
        let (colour, key) = (int(colour)?, int(key)?);
        // SAFETY: the communicator is alive.
        Self::made_by("MPI_Comm_split", self.universe.clone(), |raw| unsafe {
            ffi::MPI_Comm_split(self.raw, colour, key, raw)
        })
    }

    /// Splits off the processes of this host, which can share memory.
    pub(super) fn of_host(&self) -> Result<Self> {
        // SAFETY: the communicator is alive, and the rest are constants of MPI.
        Self::made_by("MPI_Comm_split_type", self.universe.clone(), |raw| unsafe {
            let (kind, info) = (ffi::RSMPI_COMM_TYPE_SHARED, ffi::RSMPI_INFO_NULL);
            ffi::MPI_Comm_split_type(self.raw, kind, 0, info, raw)
        })
    }

    fn made_by(
        operation: &'static str,
        universe: Arc<Universe>,
        make: impl FnOnce(*mut ffi::MPI_Comm) -> c_int,
    ) -> Result<Self> {
        // SAFETY: a constant of MPI, which never changes.
        let mut raw = unsafe { ffi::RSMPI_COMM_NULL };
        checked(operation, make(&raw mut raw))?;
        let mut comm = Self { raw, rank: 0, size: 0, universe };
        // SAFETY: the communicator was just made, and the handler is a constant of MPI. From here on functions return
        // their errors in place of ending the process.
        let code = unsafe { ffi::MPI_Comm_set_errhandler(comm.raw, ffi::RSMPI_ERRORS_RETURN) };
        checked("MPI_Comm_set_errhandler", code)?;
        let (mut rank, mut size): (c_int, c_int) = (0, 0);
        // SAFETY: the communicator is alive, and the numbers go to variables.
        checked("MPI_Comm_rank", unsafe { ffi::MPI_Comm_rank(comm.raw, &raw mut rank) })?;
        // SAFETY: as above.
        checked("MPI_Comm_size", unsafe { ffi::MPI_Comm_size(comm.raw, &raw mut size) })?;
        (comm.rank, comm.size) = (rank as usize, size as usize);
        Ok(comm)
    }

    /// Starts to send bytes, at most as many as an int counts. They make progress while this process is in MPI.
    pub(super) fn send(&self, bytes: Vec<u8>, to: usize, tag: c_int) -> Result<SendRequest> {
        let (count, to) = (int(bytes.len())?, int(to)?);
        // SAFETY: constants of MPI, which never change.
        let (mut request, dtype) = unsafe { (ffi::RSMPI_REQUEST_NULL, ffi::RSMPI_UINT8_T) };
        // SAFETY: the bytes stay where they are until MPI is done with them: `SendRequest` sees to that.
        let code =
            unsafe { ffi::MPI_Isend(read_from(&bytes), count, dtype, to, tag, self.raw, &raw mut request) };
        checked("MPI_Isend", code)?;
        Ok(SendRequest { request, bytes, universe: self.universe.clone() })
    }

    /// Returns a rank from which a message with this tag has arrived, if there is one.
    pub(super) fn probe(&self, tag: c_int) -> Result<Option<usize>> {
        let (mut there, mut status): (c_int, _) = (0, Status::zeroed());
        // SAFETY: the communicator is alive, and both results go to variables.
        let code = unsafe {
            let any = ffi::RSMPI_ANY_SOURCE;
            ffi::MPI_Iprobe(any, tag, self.raw, &raw mut there, status.as_mut_ptr())
        };
        checked("MPI_Iprobe", code)?;
        // SAFETY: the status was all zero, which is a valid one of numbers, and then filled in if there is a message.
        let status = unsafe { status.assume_init() };
        Ok((there != 0).then_some(status.MPI_SOURCE as usize))
    }

    /// Starts a barrier of all processes.
    pub(super) fn begin_barrier(&self) -> Result<SendRequest> {
        // SAFETY: a constant of MPI, which never changes.
        let mut request = unsafe { ffi::RSMPI_REQUEST_NULL };
        // SAFETY: the communicator is alive, and the request goes to a variable.
        checked("MPI_Ibarrier", unsafe { ffi::MPI_Ibarrier(self.raw, &raw mut request) })?;
        Ok(SendRequest { request, bytes: Vec::new(), universe: self.universe.clone() })
    }

    /// True if MPI can be left in good order.
    pub(super) fn ends_well(&self) -> bool {
        self.universe.ends_well()
    }

    /// Receives a message that fits the buffer; returns its bytes.
    pub(super) fn receive(&self, into: &mut [u8], from: usize, tag: c_int) -> Result<usize> {
        let (count, from) = (int(into.len())?, int(from)?);
        let mut status = Status::zeroed();
        // SAFETY: MPI writes at most `count` bytes, and an error if there are more.
        let code = unsafe {
            let (into, dtype) = (write_to(into), ffi::RSMPI_UINT8_T);
            ffi::MPI_Recv(into, count, dtype, from, tag, self.raw, status.as_mut_ptr())
        };
        checked("MPI_Recv", code)?;
        received(&status)
    }

    /// Sends bytes to one rank while it receives a message that fits the buffer from one; returns its bytes.
    pub(super) fn exchange(&self, send: &[u8], to: usize, receive: &mut [u8], from: usize) -> Result<usize> {
        let (to, from, out, back) = (int(to)?, int(from)?, int(send.len())?, int(receive.len())?);
        let mut status = Status::zeroed();
        // SAFETY: both slices are as long as said, and the compiler keeps them apart.
        let code = unsafe {
            let (send, receive, of) = (read_from(send), write_to(receive), ffi::RSMPI_UINT8_T);
            let (comm, status) = (self.raw, status.as_mut_ptr());
            ffi::MPI_Sendrecv(send, out, of, to, DATA, receive, back, of, from, DATA, comm, status)
        };
        checked("MPI_Sendrecv", code)?;
        received(&status)
    }
}

type Status = std::mem::MaybeUninit<ffi::MPI_Status>;

/// Returns the number of received bytes, by a status that MPI has filled in.
fn received(status: &Status) -> Result<usize> {
    let mut got: c_int = 0;
    // SAFETY: the status was all zero, which is a valid one of numbers, and then filled in.
    let code = unsafe { ffi::MPI_Get_count(status.as_ptr(), ffi::RSMPI_UINT8_T, &raw mut got) };
    checked("MPI_Get_count", code)?;
    Ok(got.max(0) as usize)
}

impl Drop for Comm {
    fn drop(&mut self) {
        if self.universe.ends_well() {
            // SAFETY: the communicator is this engine's, and is not used after this. MPI keeps the memory of messages under way. An
            // error would leave nothing to do.
            let _ = unsafe { ffi::MPI_Comm_free(&raw mut self.raw) };
        }
    }
}

/// A message that is being sent, with its bytes.
pub(super) struct SendRequest {
    request: ffi::MPI_Request,
    bytes: Vec<u8>,
    universe: Arc<Universe>,
}

// SAFETY: as for `Comm`.
unsafe impl Send for SendRequest {}

impl SendRequest {
    /// True if MPI is done with the bytes.
    pub(super) fn is_done(&mut self) -> Result<bool> {
        let mut done: c_int = 0;
        // SAFETY: the request is alive or null, which MPI sets it to once it is done.
        let code = unsafe { ffi::MPI_Test(&raw mut self.request, &raw mut done, ffi::RSMPI_STATUS_IGNORE) };
        checked("MPI_Test", code)?;
        Ok(done != 0)
    }

    /// Waits until MPI is done with the bytes.
    pub(super) fn wait(mut self) -> Result<()> {
        self.finish()
    }

    fn finish(&mut self) -> Result<()> {
        // SAFETY: as above.
        let code = unsafe { ffi::MPI_Wait(&raw mut self.request, ffi::RSMPI_STATUS_IGNORE) };
        checked("MPI_Wait", code)
    }
}

impl Drop for SendRequest {
    fn drop(&mut self) {
        // If the receiver may never come, MPI keeps the bytes for the rest of the process's life.
        if !self.universe.ends_well() || self.finish().is_err() {
            std::mem::forget(std::mem::take(&mut self.bytes));
        }
    }
}
