//! What can go wrong between ranks.

/// What this crate's functions return.
pub type Result<T, E = CommError> = std::result::Result<T, E>;

/// Any error, from a buffer that a caller supplied.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// An error of communication.
///
/// After [`CommError::PeerLost`], [`CommError::Aborted`], [`CommError::Mismatch`] of messages, [`CommError::Altered`],
/// [`CommError::Timeout`], [`CommError::Nccl`] or [`CommError::Buffer`] the world is broken: all ranks are told, and every
/// later operation returns [`CommError::PeerLost`] or [`CommError::Aborted`]. So it is after [`CommError::Mpi`], but MPI
/// cannot tell others. The other errors harm nothing. Ranks are named by their
/// numbers in the world, also by communicators of some of them.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum CommError {
    /// A rank died or cannot be reached any more.
    #[error("rank {rank} was lost during {operation} (operation {sequence})")]
    PeerLost {
        /// The rank that is gone.
        rank: usize,
        /// What this rank was doing.
        operation: String,
        /// The number of the operation on this communicator.
        sequence: u64,
    },
    /// A rank gave up and said why.
    #[error("rank {rank} gave up: {reason}")]
    Aborted {
        /// The rank that gave up.
        rank: usize,
        /// Its reason.
        reason: String,
    },
    /// Two ranks called different operations in the same place.
    #[error("ranks disagree: this rank called {ours}, rank {rank} called {theirs}")]
    Mismatch {
        /// The other rank.
        rank: usize,
        /// This rank's operation with its number, type and size.
        ours: String,
        /// The other rank's.
        theirs: String,
    },
    /// An operation took longer than allowed.
    #[error("{operation} timed out after {seconds} s waiting for rank {waiting_for}; ranks {arrived:?} have come to it, \
             ranks {missing:?} have not; {}", what_each_does(.last))]
    Timeout {
        /// The operation, with its number, type and size.
        operation: String,
        /// How long it was waited for.
        seconds: f64,
        /// The rank that this one waited for.
        waiting_for: usize,
        /// The ranks that have begun the operation.
        arrived: Vec<usize>,
        /// Those that have not, or do not answer.
        missing: Vec<usize>,
        /// What each rank did last.
        last: Box<[(usize, String)]>,
    },
    /// What came from a rank over an encrypted connection is not what it has sent.
    #[error("what came from rank {rank} was altered on its way, during {operation} (operation {sequence})")]
    Altered {
        /// The rank at the other end.
        rank: usize,
        /// What this rank was doing.
        operation: String,
        /// The number of the operation on this communicator.
        sequence: u64,
    },
    /// Ranks never arrived.
    #[error("rendezvous at {address}: after {seconds} s ranks {missing:?} of {world_size} are missing")]
    Missing {
        /// Where ranks meet.
        address: String,
        /// How long was waited.
        seconds: u64,
        /// Who did not come.
        missing: Vec<usize>,
        /// How many there should be.
        world_size: usize,
    },
    /// The meeting place cannot be opened or reached, or refused this rank.
    #[error("rendezvous at {address}: {problem}")]
    Rendezvous {
        /// Where ranks meet.
        address: String,
        /// What happened.
        problem: String,
    },
    /// Those who are left of a world that has lost ranks have not all come to meet again ([`crate::regroup`]): one of them gives signs of
    /// life and does nothing else.
    #[error(
        "those who are left have not met within {seconds:.0} s: one of them lives and does not come; its log says what it did last"
    )]
    Unmet {
        /// How long they were waited for.
        seconds: f64,
    },
    /// Those who are left of a world that has lost ranks do not meet again ([`crate::regroup`]): they cannot tell that the others
    /// have not gone on without them.
    #[error(
        "ranks {left:?} of {world_size} are left and cannot reach ranks {lost:?}, who may go on without them: only one side \
             can, the one with more ranks, or of two alike the one with the lowest"
    )]
    Minority {
        /// Those who can reach each other.
        left: Vec<usize>,
        /// Those who cannot be reached, and whose processes are not known to have ended.
        lost: Vec<usize>,
        /// How many ranks the world had.
        world_size: usize,
    },
    /// The others take this rank for lost and meet without it ([`crate::regroup`]).
    #[error("rank {rank} is left out by rank {by}: {reason}")]
    LeftOut {
        /// This rank.
        rank: usize,
        /// The rank that it came to.
        by: usize,
        /// Why that rank did not let it in.
        reason: String,
    },
    /// The caller of [`crate::connect_unless`] no longer wanted to.
    #[error("rendezvous at {address}: told to end {during}")]
    Cancelled {
        /// Where ranks meet.
        address: String,
        /// What this rank was waiting for.
        during: String,
    },
    /// An operation is not defined for an element type.
    #[error("{operation} is not defined for {dtype}")]
    Unsupported {
        /// The operation.
        operation: &'static str,
        /// The element type.
        dtype: &'static str,
    },
    /// No message came on a channel in the allowed time.
    #[error("no message came on channel {channel} within {seconds} s")]
    NoMessage {
        /// The channel.
        channel: u32,
        /// How long it was waited for.
        seconds: f64,
    },
    /// A rank did not take messages as fast as they were sent, for longer than allowed.
    #[error("rank {rank} has not taken the messages that wait for it within {seconds} s")]
    NoRoom {
        /// The receiver.
        rank: usize,
        /// How long it was waited for.
        seconds: f64,
    },
    /// The library behind a communicator has no such operation.
    #[error("{operation} is not offered by {by}; a communicator of `threads` or `connect` has it")]
    NotOffered {
        /// The operation.
        operation: &'static str,
        /// The library.
        by: &'static str,
    },
    /// An argument is out of range.
    #[error("{operation}: {problem}")]
    Argument {
        /// The operation.
        operation: &'static str,
        /// What is wrong.
        problem: String,
    },
    /// The launcher's environment is incomplete or malformed.
    #[error("environment variable {variable}: {problem}")]
    Environment {
        /// The variable.
        variable: &'static str,
        /// What is wrong with it.
        problem: String,
    },
    /// MPI reported an error; only with the feature `mpi`.
    #[error("{operation}: {problem}")]
    Mpi {
        /// The function of MPI.
        operation: &'static str,
        /// What is wrong, in MPI's words where it has any.
        problem: String,
    },
    /// NCCL or the GPU's driver failed, or what they were asked for did not end in time.
    #[error("{operation} by NCCL: {problem}")]
    Nccl {
        /// The operation.
        operation: &'static str,
        /// What they say, as far as they say anything.
        problem: String,
    },
    /// A caller's buffer could not be read or written.
    #[error("buffer: {0}")]
    Buffer(String),
    /// The communicator was shut down.
    #[error("the communicator was shut down")]
    Closed,
}

fn what_each_does(last: &[(usize, String)]) -> String {
    let each: Vec<_> = last.iter().map(|(rank, what)| format!("rank {rank}: {what}")).collect();
    each.join("; ")
}
