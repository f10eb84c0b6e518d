//! Errors of communication.

use phalanx_environment::EnvironmentError;

/// The result type of this crate.
pub type Result<T, E = CommError> = std::result::Result<T, E>;

/// Any error of a buffer that a caller supplied.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// An error of communication.
///
/// After [`CommError::PeerLost`], [`CommError::Aborted`], [`CommError::Mismatch`] of messages, [`CommError::Altered`],
/// [`CommError::Timeout`], [`CommError::Nccl`] or [`CommError::Buffer`] the world is broken: all ranks are told, and every later
/// operation returns [`CommError::PeerLost`] or [`CommError::Aborted`]. The same holds after [`CommError::Mpi`], but MPI cannot
/// tell other ranks. The other errors leave the world intact. Ranks have their numbers in the world, even for communicators of some
/// of them.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum CommError {
    /// A rank died or cannot be reached any more.
    #[error("rank {rank} was lost during {operation} (operation {sequence})")]
    PeerLost {
        /// The lost rank.
        rank: usize,
        /// The operation of this rank.
        operation: String,
        /// The number of the operation on this communicator.
        sequence: u64,
    },
    /// A rank gave up and gave a reason.
    #[error("rank {rank} gave up: {reason}")]
    Aborted {
        /// The rank that gave up.
        rank: usize,
        /// Its reason.
        reason: String,
    },
    /// Two ranks called different operations at the same place.
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
    #[error("{}; {}", who_hung(operation, *seconds, *waiting_for, [.arrived, .missing]), what_each_does(.last))]
    Timeout {
        /// The operation, with its number, type and size.
        operation: String,
        /// The wait in seconds.
        seconds: f64,
        /// The rank that this one waited for.
        waiting_for: usize,
        /// The ranks that have begun the operation.
        arrived: Vec<usize>,
        /// The ranks that have not, or do not answer.
        missing: Vec<usize>,
        /// The last operation of each rank.
        last: Box<[(usize, String)]>,
    },
    /// Bytes of an encrypted connection were altered in transit.
    #[error("data from rank {rank} was altered on its way, during {operation} (operation {sequence})")]
    Altered {
        /// The rank at the other end.
        rank: usize,
        /// The operation of this rank.
        operation: String,
        /// The number of the operation on this communicator.
        sequence: u64,
    },
    /// Ranks did not register in time.
    #[error("rendezvous at {address}: after {seconds} s ranks {missing:?} of {world_size} are missing")]
    Missing {
        /// The address of the rendezvous.
        address: String,
        /// The wait in seconds.
        seconds: u64,
        /// The missing ranks.
        missing: Vec<usize>,
        /// The number of ranks in the world.
        world_size: usize,
    },
    /// Rank 0 cannot listen, cannot be reached, or refused this rank.
    #[error("rendezvous at {address}: {problem}")]
    Rendezvous {
        /// The address of the rendezvous.
        address: String,
        /// The problem.
        problem: String,
    },
    /// A surviving rank did not ask for the rejoin in time ([`crate::rejoin`]). It sends heartbeats but nothing else.
    #[error("a surviving rank did not rejoin within {seconds:.0} s; its log shows its last operation")]
    Unmet {
        /// The wait in seconds.
        seconds: f64,
    },
    /// Too few ranks survive for a rejoin ([`crate::rejoin`]): the other ranks may go on without them.
    #[error(
        "ranks {left:?} of {world_size} cannot reach ranks {lost:?}, which may go on without them: only the larger side goes on, or of \
             two equal sides the one with the lowest rank"
    )]
    Minority {
        /// The ranks that can reach each other.
        left: Vec<usize>,
        /// The ranks that cannot be reached, and whose processes are not known to have ended.
        lost: Vec<usize>,
        /// The number of ranks in the world.
        world_size: usize,
    },
    /// The other ranks count this one as lost and go on without it ([`crate::rejoin`]).
    #[error("rank {rank} is left out by rank {by}: {reason}")]
    LeftOut {
        /// This rank.
        rank: usize,
        /// The rank that refused it.
        by: usize,
        /// The reason.
        reason: String,
    },
    /// The caller of [`crate::connect_unless`] cancelled.
    #[error("rendezvous at {address}: told to end {during}")]
    Cancelled {
        /// The address of the rendezvous.
        address: String,
        /// The phase of the rendezvous.
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
        /// The wait in seconds.
        seconds: f64,
    },
    /// A rank did not receive messages as fast as they were sent, for longer than allowed.
    #[error("rank {rank} has not taken the messages that wait for it within {seconds} s")]
    NoRoom {
        /// The receiver.
        rank: usize,
        /// The wait in seconds.
        seconds: f64,
    },
    /// The library behind a communicator does not have an operation.
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
        /// The problem.
        problem: String,
    },
    /// The launcher's environment is incomplete or malformed.
    #[error(transparent)]
    Environment(#[from] EnvironmentError),
    /// MPI reported an error; only with the feature `mpi`.
    #[error("{operation}: {problem}")]
    Mpi {
        /// The function of MPI.
        operation: &'static str,
        /// The problem, in MPI's words if it has any.
        problem: String,
    },
    /// NCCL or the GPU driver failed, or work on the GPU did not end in time.
    #[error("{operation} by NCCL: {problem}")]
    Nccl {
        /// The operation.
        operation: &'static str,
        /// The problem, if it is known.
        problem: String,
    },
    /// A caller's buffer could not be read or written.
    #[error("buffer: {0}")]
    Buffer(String),
    /// The communicator was shut down.
    #[error("the communicator was shut down")]
    Closed,
}

impl CommError {
    /// Returns the ranks that this error is about, other than the rank that noticed: those that did not reach an operation in time, or
    /// the one that was lost. Empty for other errors.
    pub fn blamed(&self) -> &[usize] {
        match self {
            Self::Timeout { missing, .. } => missing,
            Self::PeerLost { rank, .. } => std::slice::from_ref(rank),
            _ => &[],
        }
    }

    /// Returns the error with another number for each rank, such as its number in a run whose world has changed.
    #[must_use]
    pub fn renumbered(self, number: impl Fn(usize) -> usize) -> Self {
        match self {
            Self::PeerLost { rank, operation, sequence } => {
                Self::PeerLost { rank: number(rank), operation, sequence }
            }
            Self::Timeout { operation, seconds, waiting_for, mut arrived, mut missing, mut last } => {
                arrived.iter_mut().chain(&mut missing).for_each(|rank| *rank = number(*rank));
                last.iter_mut().for_each(|(rank, _)| *rank = number(*rank));
                Self::Timeout { operation, seconds, waiting_for: number(waiting_for), arrived, missing, last }
            }
            other => other,
        }
    }
}

/// Returns `rank 1`, or `ranks 0, 1 and 2`.
pub(crate) fn rank_list(ranks: &[usize]) -> String {
    match ranks {
        [] => "no rank".to_owned(),
        [one] => format!("rank {one}"),
        [before @ .., last] => {
            let before: Vec<String> = before.iter().map(usize::to_string).collect();
            format!("ranks {} and {last}", before.join(", "))
        }
    }
}

/// Names the ranks that an operation waited for, and those that waited.
fn who_hung(
    operation: &str,
    seconds: f64,
    waiting_for: usize,
    [arrived, missing]: [&Vec<usize>; 2],
) -> String {
    if missing.is_empty() {
        return format!(
            "{operation} did not end within {seconds} s, although all ranks have come to it; rank {waiting_for} sent nothing"
        );
    }
    let them = if missing.len() == 1 { "it" } else { "them" };
    let (missing, arrived) = (rank_list(missing), rank_list(arrived));
    format!("{missing} hung: {arrived} waited {seconds} s for {them} in {operation}")
}

fn what_each_does(last: &[(usize, String)]) -> String {
    let each: Vec<_> = last.iter().map(|(rank, what)| format!("rank {rank}: {what}")).collect();
    each.join("; ")
}
