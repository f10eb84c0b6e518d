//! Launching: several ranks as processes of one program, and what happens when one of them fails.
//!
//! The [`Supervisor`] starts the ranks with torchrun's environment variables on the loopback interface, so that
//! a rank cannot tell whether it was started here, by torchrun or by a cluster's scheduler. Each rank's standard input is a
//! pipe from the supervisor, its [`ParentPipe`]. The first line is a secret that only these ranks know; it keeps out other
//! users of the machine. A line `stop` asks the ranks to finish the current step. A line `abort` ends them at once. So does
//! the end of the pipe, which the operating system provides even if the parent is killed: no rank is ever left running.
//!
//! On several hosts a [`RemoteSupervisor`] has an ssh connection to each. At its other end a [`Supervisor`] carries out an
//! [`Order`]; the connection is the pipe from its parent.
//!
//! A rank that fails writes its [`phalanx_run::FailureReport`] next to its log. The report says whether the failure is
//! its own or the consequence of another rank's. The supervisor reports the first failure that was a rank's own, and
//! ends the others.

#![forbid(unsafe_code)]

pub mod cluster;

mod exit_status;
mod hosts;
mod parent_pipe;
mod port;
mod supervisor;

mod agent;
mod remote;

pub mod checkup;

pub use agent::{AgentError, Order};
pub use hosts::{Hosts, HostsError};
pub use parent_pipe::{ParentPipe, SECRET_FILE, remove_stale_secret};
pub use port::MeetingPort;
pub use remote::{RemoteError, RemoteSupervisor};
pub use supervisor::{HostPlacement, LaunchError, RankFailure, Replacements, Supervisor, SupervisorOutcome};

/// The variable that tells a rank that its standard output is its supervisor's, for the time when it takes over from rank 0.
pub const KEEPS_OUTPUT: &str = "PHALANX_KEEPS_OUTPUT";

/// The exit code of a rank that was told to end at once, or to stop before it had met the others.
pub const ABORTED: u8 = 3;

/// The examples of this crate's README, as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
