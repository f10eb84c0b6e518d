//! The agent that starts the ranks of one host for a launcher on another. It reads its order from standard input, whose
//! end it obeys as ranks do.

use std::collections::BTreeMap;
use std::io::BufRead;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde::{Deserialize, Serialize};

use super::supervisor::{HostPlacement, LaunchError, Replacements, Supervisor, SupervisorOutcome};

/// The order of a launcher to a host, in one line. Secrets are not in command lines, which all users of a host can
/// read.
#[derive(Clone, Serialize, Deserialize)]
pub struct Order {
    /// The launcher's version.
    pub version: String,
    /// The host, as the launcher knows it.
    pub host: String,
    /// The folder in which the launcher was started.
    pub directory: PathBuf,
    /// The run's folder.
    pub folder: PathBuf,
    /// A file in it that the launcher has just made, by which a host knows that the folder is the same.
    pub witness: PathBuf,
    /// The arguments of ranks, after the program.
    pub arguments: Vec<String>,
    /// Variables of their environment.
    pub environment: BTreeMap<String, String>,
    /// The first rank of this host, and how many it has.
    pub ranks: (usize, usize),
    /// The number of ranks on all hosts.
    pub world_size: usize,
    /// Where rank 0 is.
    pub master: String,
    /// The secret that connections between ranks must prove.
    pub secret: String,
    /// True if the remaining ranks continue when others die; the ranks know how many must remain.
    pub survives: bool,
}

impl std::fmt::Debug for Order {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Order").field("host", &self.host).field("ranks", &self.ranks).finish_non_exhaustive()
    }
}

/// Why a host cannot do what it is told.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AgentError {
    /// The line is no order.
    #[error("expected an order of `phalanx train --hosts` on standard input: {0}")]
    Order(String),
    /// The launcher is another version.
    #[error("{host} has version {own} of this program, the launcher {theirs}; install the same on all hosts")]
    Version {
        /// The host.
        host: String,
        /// The version of this host.
        own: String,
        /// The version of the launcher.
        theirs: String,
    },
    /// The folder is not the launcher's.
    #[error(
        "{host} does not see the run's folder {} of the launcher; --hosts needs a folder that all hosts share, such as one on NFS: choose it by --out", folder.display()
    )]
    NotShared {
        /// The host.
        host: String,
        /// The folder.
        folder: PathBuf,
    },
    /// The folder in which the launcher was started is not there.
    #[error("{host} has no folder {}, in which the launcher was started: {source}", directory.display())]
    Directory {
        /// The host.
        host: String,
        /// The folder.
        directory: PathBuf,
        /// Why it cannot be entered.
        source: std::io::Error,
    },
    /// Ranks cannot be started, or have failed.
    #[error(transparent)]
    Launch(#[from] LaunchError),
}

impl Order {
    /// Reads the order that comes first on standard input.
    ///
    /// # Errors
    /// [`AgentError::Order`].
    pub fn read() -> Result<Self, AgentError> {
        let mut line = String::new();
        let read = std::io::stdin().lock().read_line(&mut line);
        read.map_err(|error| AgentError::Order(error.to_string()))?;
        serde_json::from_str(&line).map_err(|error| AgentError::Order(error.to_string()))
    }

    /// Starts this host's ranks and watches them to their end, or to that of the launcher.
    ///
    /// # Errors
    /// [`AgentError`].
    pub fn carry_out(self, program: PathBuf) -> Result<SupervisorOutcome, AgentError> {
        let own = env!("CARGO_PKG_VERSION");
        if self.version != own {
            let (host, own, theirs) = (self.host, own.to_owned(), self.version);
            return Err(AgentError::Version { host, own, theirs });
        }
        if !self.witness.is_file() {
            return Err(AgentError::NotShared { host: self.host, folder: self.folder });
        }
        std::env::set_current_dir(&self.directory).map_err(|source| AgentError::Directory {
            host: self.host.clone(),
            directory: self.directory.clone(),
            source,
        })?;
        let (first, ranks) = self.ranks;
        let supervisor = Supervisor {
            program,
            arguments: self.arguments,
            ranks,
            logs: self.folder.join("logs"),
            least: self.survives.then_some(0),
            replacements: Replacements::default(),
            secret_file: None,
            quiet: false,
            place: Some(HostPlacement {
                first,
                world_size: self.world_size,
                master: self.master,
                host: self.host,
                environment: self.environment,
                secret: Some(self.secret),
            }),
            interrupted_code: None,
        };
        let asked = Arc::new(AtomicUsize::new(0));
        let heard = asked.clone();
        // Never joined: it listens for as long as there is a process.
        std::thread::spawn(move || {
            for line in std::io::stdin().lock().lines() {
                match line.as_deref() {
                    Ok("stop") => drop(heard.fetch_max(1, Ordering::Relaxed)),
                    Ok("abort") | Err(_) => break,
                    Ok(_) => {}
                }
            }
            heard.store(2, Ordering::Relaxed);
        });
        Ok(supervisor.run(|| asked.load(Ordering::Relaxed))?)
    }
}
