//! Ranks on several hosts, started over ssh: one connection to each host, whose end is the end of the ranks there.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use super::ABORTED;
use super::agent::Order;
use super::hosts::Hosts;
use super::supervisor::{RankFailure, SupervisorOutcome};
use phalanx_run::FailureReport;

/// The interval at which connections are polled.
const POLL: Duration = Duration::from_millis(20);
/// The time for other hosts to report the cause, once a host's ranks have ended.
const CAUSE: Duration = Duration::from_secs(4);
/// The time for the rest to end once the cause is known.
const SETTLE: Duration = Duration::from_millis(1500);
/// The time for hosts to end their ranks before the connections are cut.
const GRACE: Duration = Duration::from_secs(5);
/// The exit code of ssh when it fails itself.
const SSH_FAILED: i32 = 255;

/// Why the ranks of several hosts could not be run to their end.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RemoteError {
    /// The ssh program cannot be started.
    #[error("cannot start `{command}` for {host}: {source}; --ssh chooses another program")]
    Spawn {
        /// The program.
        command: String,
        /// The host.
        host: String,
        /// Why not.
        source: std::io::Error,
    },
    /// A connection cannot be waited for.
    #[error("cannot wait for the connection to {host}: {source}")]
    Wait {
        /// The host.
        host: String,
        /// Why not.
        source: std::io::Error,
    },
    /// The run's folder cannot be written.
    #[error("cannot write {}: {source}", path.display())]
    Folder {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// A connection has ended, and with it the ranks of its host.
    #[error(
        "the connection to {host} ({ranks}) has ended {how}, and its ranks with it; the others were ended"
    )]
    Connection {
        /// The host.
        host: String,
        /// Its ranks.
        ranks: String,
        /// The manner.
        how: String,
    },
    /// A rank failed, and the others were ended.
    #[error(transparent)]
    Rank(RankFailure),
}

/// The supervisor of ranks on several hosts.
#[derive(Debug, Clone)]
pub struct RemoteSupervisor {
    /// The program, at the same place on all hosts.
    pub program: PathBuf,
    /// The arguments of the program that make it start the ranks of a host.
    pub agent: Vec<String>,
    /// The arguments of ranks.
    pub arguments: Vec<String>,
    /// The hosts.
    pub hosts: Hosts,
    /// The ssh program and its options.
    pub ssh: Vec<String>,
    /// The run's folder, which all hosts see.
    pub folder: PathBuf,
    /// Variables that ranks get.
    pub environment: BTreeMap<String, String>,
    /// The secret that connections between ranks must prove.
    pub secret: String,
    /// True if ranks, and whole hosts, may be lost while the others continue.
    pub survives: bool,
}

/// A connection to a host.
struct Connection {
    host: String,
    first: usize,
    ranks: usize,
    child: Child,
    ended: Option<ExitStatus>,
}

/// Cuts the remaining connections when the supervisor leaves early; their hosts then end their ranks.
struct Connections(Vec<Connection>);

impl Drop for Connections {
    fn drop(&mut self) {
        for one in self.0.iter_mut().filter(|one| one.ended.is_none()) {
            let _ = one.child.kill();
            let _ = one.child.wait();
        }
    }
}

/// A file by which the ranks of other hosts check that they see the same folder. Dropping it removes the file.
struct SharedFolderProbe(PathBuf);

impl Drop for SharedFolderProbe {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// A word as a shell takes it literally.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', "'\\''"))
}

impl Connection {
    /// Its ranks in words.
    fn ranks(&self) -> String {
        match self.ranks {
            1 => format!("rank {}", self.first),
            more => format!("ranks {} to {}", self.first, self.first + more - 1),
        }
    }

    fn poll(&mut self) -> Result<(), RemoteError> {
        if self.ended.is_none() {
            let wrong = |source| RemoteError::Wait { host: self.host.clone(), source };
            self.ended = self.child.try_wait().map_err(wrong)?;
        }
        Ok(())
    }

    fn send(&mut self, line: &str) {
        if let (None, Some(input)) = (&self.ended, self.child.stdin.as_mut()) {
            // A host that is gone does not listen any more, which is noticed by its end.
            let _ = input.write_all(line.as_bytes()).and_then(|()| input.flush());
        }
    }

    fn has_failed(&self) -> bool {
        self.ended.is_some_and(|status| !status.success() && status.code() != Some(ABORTED.into()))
    }
}

impl RemoteSupervisor {
    /// Runs the ranks of all hosts to their end; `interrupts` is as [`super::Supervisor::run`] has it. Rank 0's output is this process's;
    /// what other ranks print comes to its standard error, with the rank and the host before each line.
    ///
    /// # Errors
    /// The failure that ended the job: the first that was a rank's own, or else the end of a connection.
    pub fn run(&self, interrupts: impl Fn() -> usize) -> Result<SupervisorOutcome, RemoteError> {
        let probe = SharedFolderProbe(self.folder.join(format!(".hosts-{}", std::process::id())));
        let folder = |source| RemoteError::Folder { path: probe.0.clone(), source };
        std::fs::write(&probe.0, b"").map_err(folder)?;
        let logs = self.folder.join("logs");
        for rank in 0..self.hosts.ranks() {
            // Reports of an earlier attempt in the same folder must not be taken for this one's.
            let _ = std::fs::remove_file(FailureReport::path(&logs, rank));
        }
        let mut all = self.connect(&probe.0)?;
        let (mut asked, mut failing) = (false, None::<Instant>);
        loop {
            for one in &mut all.0 {
                one.poll()?;
            }
            let ended = all.0.iter().all(|one| one.ended.is_some());
            let goes_on = self.survives && self.goes_on(&logs, &all.0);
            if !goes_on && all.0.iter().any(Connection::has_failed) {
                let since = *failing.get_or_insert_with(Instant::now);
                let known = self.reports(&logs).iter().any(|report| !report.consequence);
                if ended || since.elapsed() > if known { SETTLE } else { CAUSE } {
                    // What has failed by now has done so by itself; what follows was ended.
                    let failed = all.0.iter().filter(|one| one.has_failed());
                    let cut = failed.filter(|one| !self.has_reported(&logs, one)).map(described).next();
                    end(&mut all.0)?;
                    return Err(self.failure(&logs, cut));
                }
            } else if ended {
                let obeyed =
                    |one: &Connection| one.ended.is_some_and(|status| status.code() == Some(ABORTED.into()));
                let before = all.0.iter().any(obeyed);
                return Ok(if before {
                    SupervisorOutcome::BeforeMeeting
                } else {
                    SupervisorOutcome::Finished
                });
            }
            match interrupts() {
                0 => {}
                1 if asked => {}
                1 => {
                    asked = true;
                    all.0.iter_mut().for_each(|one| one.send("stop\n"));
                }
                _ => {
                    end(&mut all.0)?;
                    return Ok(SupervisorOutcome::Aborted);
                }
            }
            std::thread::sleep(POLL);
        }
    }

    fn connect(&self, probe: &Path) -> Result<Connections, RemoteError> {
        let here = std::env::current_dir().unwrap_or_else(|_| PathBuf::from("/"));
        let mut all = Connections(Vec::new());
        for (host, first, ranks) in self.hosts.places() {
            let order = Order {
                version: env!("CARGO_PKG_VERSION").to_owned(),
                host: host.to_owned(),
                directory: here.clone(),
                folder: self.folder.clone(),
                witness: probe.to_owned(),
                arguments: self.arguments.clone(),
                environment: self.environment.clone(),
                ranks: (first, ranks),
                world_size: self.hosts.ranks(),
                master: self.hosts.master().to_owned(),
                secret: self.secret.clone(),
                survives: self.survives,
            };
            let spawn = |source| RemoteError::Spawn {
                command: self.ssh.first().cloned().unwrap_or_default(),
                host: host.to_owned(),
                source,
            };
            let order = serde_json::to_string(&order).map_err(|error| spawn(error.into()))?;
            let words = std::iter::once(self.program.display().to_string()).chain(self.agent.iter().cloned());
            let remote: Vec<String> = words.map(|word| quoted(&word)).collect();
            let (program, options) = self.ssh.split_first().ok_or_else(|| {
                spawn(std::io::Error::new(std::io::ErrorKind::InvalidInput, "no program is named"))
            })?;
            let mut command = Command::new(program);
            command.args(options).arg(host).arg(format!("exec {}", remote.join(" ")));
            command.stdin(Stdio::piped());
            // A terminal sends Ctrl-C to its whole foreground group; hosts are to hear of it from here, once.
            #[cfg(unix)]
            std::os::unix::process::CommandExt::process_group(&mut command, 0);
            let child = command.spawn().map_err(spawn)?;
            let mut one = Connection { host: host.to_owned(), first, ranks, child, ended: None };
            one.send(&format!("{order}\n"));
            all.0.push(one);
        }
        Ok(all)
    }

    /// Returns true if the others continue without the failed hosts: some remain, and no rank has reported a fault of
    /// its own.
    fn goes_on(&self, logs: &Path, all: &[Connection]) -> bool {
        let some_left = all.iter().any(|one| !one.has_failed());
        some_left && !self.reports(logs).iter().any(FailureReport::is_own_fault)
    }

    fn reports(&self, logs: &Path) -> Vec<FailureReport> {
        (0..self.hosts.ranks()).filter_map(|rank| FailureReport::read(logs, rank)).collect()
    }

    /// Returns true if a rank of a host has reported why it failed, or which rank it lost: then the connection has not
    /// ended by itself.
    fn has_reported(&self, logs: &Path, host: &Connection) -> bool {
        let mut ranks = host.first..host.first + host.ranks;
        ranks.any(|rank| FailureReport::read(logs, rank).is_some())
    }

    /// The failure to tell, if a connection was `cut` that one, unless a rank has said what its own fault was.
    fn failure(&self, logs: &Path, cut: Option<RemoteError>) -> RemoteError {
        let first = self.reports(logs).into_iter().min_by_key(|report| (report.consequence, report.time_ms));
        match (first, cut) {
            (Some(report), cut) if !report.consequence || cut.is_none() => {
                let log = FailureReport::log_path(logs, report.rank);
                let FailureReport { rank, message, blamed, .. } = report;
                RemoteError::Rank(RankFailure { rank, message, log, blamed })
            }
            (_, Some(cut)) => cut,
            (_, None) => RemoteError::Connection {
                host: self.hosts.master().to_owned(),
                ranks: "all ranks".to_owned(),
                how: "without a reason".to_owned(),
            },
        }
    }
}

/// The end of a connection, as an error.
fn described(one: &Connection) -> RemoteError {
    let how = match one.ended.and_then(|status| status.code()) {
        Some(SSH_FAILED) => {
            "with code 255, by which ssh says that it could not connect or lost the connection".to_owned()
        }
        Some(code) => format!("with code {code}"),
        None => "by a signal".to_owned(),
    };
    RemoteError::Connection { host: one.host.clone(), ranks: one.ranks(), how }
}

/// Has all hosts end their ranks, and cuts the connections to those that do not.
fn end(all: &mut [Connection]) -> Result<(), RemoteError> {
    for one in all.iter_mut() {
        one.send("abort\n");
        drop(one.child.stdin.take());
    }
    let since = Instant::now();
    while all.iter().any(|one| one.ended.is_none()) {
        let late = since.elapsed() > GRACE;
        for one in all.iter_mut() {
            if late && one.ended.is_none() {
                let _ = one.child.kill();
            }
            one.poll()?;
        }
        std::thread::sleep(POLL);
    }
    Ok(())
}
