//! The names by which a process knows that it is a supervised rank.

/// The environment variable that tells a rank that its standard input is a pipe from its supervisor.
pub const SUPERVISED: &str = "PHALANX_SUPERVISED";

/// The prefix of the names of threads that are ranks; the rank's number follows. The thread that starts such a thread turns its
/// panic into an error.
pub const REPLICA_THREAD: &str = "phalanx-replica-";
