//! Names that mark supervised processes and threads of ranks.

/// The environment variable that is set if standard input is a pipe from the supervisor.
pub const SUPERVISED: &str = "PHALANX_SUPERVISED";

/// The prefix of the names of threads that run a rank; the rank number follows. The parent thread turns a panic of such
/// a thread into an error.
pub const REPLICA_THREAD: &str = "phalanx-replica-";
