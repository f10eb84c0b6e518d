//! Starts ranks, watches them, and ends them together.

use std::collections::BTreeMap;
use std::io::{self, BufRead as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use phalanx_collectives::FlightRecord;

use super::exit_status::{describe_end, signal};
use super::parent_pipe::{DRAWN_SECRET, SECRET_FILE, first_line, line_of};
use super::port::MeetingPort;
use super::{ABORTED, KEEPS_OUTPUT};
use phalanx_run::{FailureReport, SUPERVISED, open_to_append};

/// The interval at which ranks are polled.
const POLL: Duration = Duration::from_millis(10);
/// The time for further reports after a rank's own failure, so that the earlier of two is reported.
const SETTLE: Duration = Duration::from_millis(100);
/// The time for running ranks to write their records once one has: a stopped rank cannot.
const RECORDING: Duration = Duration::from_secs(1);
/// The time for the cause of a rank's consequential failure.
const CAUSE: Duration = Duration::from_secs(4);
/// The time for a rank to obey `abort` before it is killed.
const GRACE: Duration = Duration::from_secs(2);

/// Why the ranks could not be run to their end.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LaunchError {
    /// No port was free on the loopback interface.
    #[error("no free port on 127.0.0.1 for the ranks to meet at: {0}")]
    Port(io::Error),
    /// A log cannot be written.
    #[error("cannot open the log {}: {source}", path.display())]
    Log {
        /// The log.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// A rank cannot be started.
    #[error("cannot start rank {rank}: {source}")]
    Spawn {
        /// The rank.
        rank: usize,
        /// Why not.
        source: io::Error,
    },
    /// No rank can be started in place of one that has died.
    #[error("cannot start a rank in place of rank {dead}: {problem}")]
    Replace {
        /// The rank that has died.
        dead: usize,
        /// Why not.
        problem: String,
    },
    /// A rank cannot be waited for.
    #[error("cannot wait for rank {rank}: {source}")]
    Wait {
        /// The rank.
        rank: usize,
        /// Why not.
        source: io::Error,
    },
    /// A rank failed, and the others were ended.
    #[error(transparent)]
    Rank(RankFailure),
}

/// The failure that ended a job.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}{message}\n  log: {}", subject(*rank, blamed), log.display())]
pub struct RankFailure {
    /// The rank that failed first by its own fault, or that noticed that others hung or were lost.
    pub rank: usize,
    /// The error. It names the ranks if some are `blamed`.
    pub message: String,
    /// The log of the rank.
    pub log: PathBuf,
    /// The ranks that hung or were lost, if the rank only noticed that.
    pub blamed: Vec<usize>,
}

/// The beginning of a failure's message, unless the message names the ranks itself.
fn subject(rank: usize, blamed: &[usize]) -> String {
    if blamed.is_empty() { format!("rank {rank} failed: ") } else { String::new() }
}

/// The outcome of supervised ranks that did not fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SupervisorOutcome {
    /// All ranks ended normally, possibly after a request to stop.
    Finished,
    /// The ranks were stopped before the rendezvous, so nothing was trained.
    BeforeMeeting,
    /// The ranks were killed on request.
    Aborted,
    /// The ranks were stopped and saved a checkpoint. They exit with [`Supervisor::interrupted_code`].
    Interrupted,
}

/// The supervisor of ranks on this host.
#[derive(Debug, Clone)]
pub struct Supervisor {
    /// The program.
    pub program: PathBuf,
    /// Its arguments, the same for all ranks.
    pub arguments: Vec<String>,
    /// The number of ranks.
    pub ranks: usize,
    /// The folder of logs and failure reports, which exists.
    pub logs: PathBuf,
    /// The number of ranks that must remain for the run to continue when others die without a report; all, if `None`.
    pub least: Option<usize>,
    /// The replacements of dead ranks.
    pub replacements: Replacements,
    /// The file that holds the secret of the ranks while they run, for joining processes; `None` to keep it private.
    pub secret_file: Option<PathBuf>,
    /// True if the output of rank 0 goes only to its log, not to the output of this process.
    pub quiet: bool,
    /// The position of these ranks among the ranks of several hosts; `None` for a single host.
    pub place: Option<HostPlacement>,
    /// The exit code, besides 0, of ranks that were asked to stop and have saved.
    pub interrupted_code: Option<u8>,
}

/// The ranks of one host among those of several.
#[derive(Clone)]
pub struct HostPlacement {
    /// The first rank here.
    pub first: usize,
    /// The number of ranks on all hosts.
    pub world_size: usize,
    /// The address of rank 0.
    pub master: String,
    /// The name of this host.
    pub host: String,
    /// Additional environment variables of the ranks.
    pub environment: BTreeMap<String, String>,
    /// The secret that connections between ranks must prove, sent to ranks over their standard input; `None` if they
    /// find it elsewhere or have none.
    pub secret: Option<String>,
}

impl std::fmt::Debug for HostPlacement {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { first, world_size, host, .. } = self;
        write!(f, "ranks from {first} of {world_size} on {host}")
    }
}

/// Returns a replacement's number, which no rank of the run has had, or the reason why there is none.
type Claim = Arc<dyn Fn() -> Result<usize, String> + Send + Sync>;

/// The replacements of dead ranks. They join the remaining ranks.
#[derive(Clone, Default)]
pub struct Replacements {
    /// The largest number of replacements.
    most: usize,
    claim: Option<Claim>,
}

impl Replacements {
    /// Allows up to `most` replacements. Each gets its number from `claim`.
    pub fn new(most: usize, claim: impl Fn() -> Result<usize, String> + Send + Sync + 'static) -> Self {
        Self { most, claim: Some(Arc::new(claim)) }
    }
}

impl std::fmt::Debug for Replacements {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Replacements").field("most", &self.most).finish_non_exhaustive()
    }
}

#[derive(Debug)]
struct Rank {
    rank: usize,
    child: Child,
    ended: Option<(Instant, ExitStatus)>,
    /// True if the others continue without it.
    missed: bool,
    /// True if another was started in its place, where one may be.
    replaced: bool,
    /// Its exit code after an interruption and a save.
    interrupted_code: Option<u8>,
}

/// The file with the ranks' secret, if there is one. Dropping it removes the file.
struct SecretFile<'a>(Option<&'a Path>);

impl Drop for SecretFile<'_> {
    fn drop(&mut self) {
        if let Some(file) = self.0 {
            let _ = std::fs::remove_file(file);
        }
    }
}

/// Kills the running ranks when the supervisor leaves early.
#[derive(Debug)]
struct Ranks(Vec<Rank>);

impl Drop for Ranks {
    fn drop(&mut self) {
        for rank in &mut self.0 {
            if rank.ended.is_none() {
                let _ = rank.child.kill();
                let _ = rank.child.wait();
            }
        }
    }
}

impl Supervisor {
    /// Runs the ranks to their end.
    ///
    /// `interrupts` is asked again and again how often the user has interrupted: once asks the ranks to finish
    /// their step and leave, or to leave at once if they have not met yet; twice ends them at once. The outputs of rank 0 are this
    /// process's own unless [`Supervisor::quiet`]; those of the others go to their logs. Where those who are left go on, the
    /// others have this process's standard output too, for the one that takes over when rank 0 dies: each has to keep it for that
    /// and send what it prints to its log ([`KEEPS_OUTPUT`]).
    ///
    /// # Errors
    /// The failure that ended the job: the first that was a rank's own.
    pub fn run(&self, interrupts: impl Fn() -> usize) -> Result<SupervisorOutcome, LaunchError> {
        let file = SecretFile(self.secret_file.as_deref());
        let secret = match &self.place {
            Some(place) => line_of(place.secret.as_deref().unwrap_or_default()),
            None => first_line(file.0).map_err(|source| LaunchError::Spawn { rank: 0, source })?,
        };
        let port = MeetingPort::draw().map_err(LaunchError::Port)?;
        let mut ranks = self.start(&secret, port.number())?;
        let mut asked_to_stop = false;
        let mut first_failure = None;
        // Since when all running ranks are stopped by a signal.
        let mut only_stopped = None;
        loop {
            for rank in &mut ranks.0 {
                rank.poll()?;
            }
            self.note_deaths(&mut ranks.0);
            self.end_stopped(&mut ranks.0, &mut only_stopped);
            if !asked_to_stop {
                self.replace(&mut ranks.0, &secret)?;
            }
            if ranks.0.iter().all(|rank| rank.ended.is_some()) {
                return self.outcome(&ranks.0, asked_to_stop);
            }
            let failed =
                |rank: &Rank| rank.has_failed() && !rank.missed && !(asked_to_stop && rank.has_obeyed());
            if ranks.0.iter().any(failed) {
                let since: &Instant = first_failure.get_or_insert_with(Instant::now);
                let own = ranks.0.iter().any(|rank| failed(rank) && !self.report(rank).consequence);
                if since.elapsed() > self.patience(&ranks.0, own) {
                    return self.end_failed(&mut ranks.0, asked_to_stop);
                }
            }
            match interrupts() {
                0 => {}
                1 if asked_to_stop => {}
                1 => {
                    asked_to_stop = true;
                    for rank in &mut ranks.0 {
                        rank.send("stop\n");
                    }
                }
                _ => {
                    end(&mut ranks.0)?;
                    return Ok(SupervisorOutcome::Aborted);
                }
            }
            std::thread::sleep(POLL);
        }
    }

    /// Ends the ranks that still run after one has failed. Returns the failure.
    fn end_failed(&self, ranks: &mut [Rank], asked_to_stop: bool) -> Result<SupervisorOutcome, LaunchError> {
        let running = || ranks.iter().filter(|rank| rank.ended.is_none());
        let stopped: Vec<usize> = running().filter(|rank| rank.is_stopped()).map(|rank| rank.rank).collect();
        let running: Vec<usize> = running().map(|rank| rank.rank).collect();
        end(ranks)?;
        // There is a failed rank, so there is a failure to tell.
        let Some(mut report) = self.failure(ranks, &running, asked_to_stop) else {
            return Ok(SupervisorOutcome::Aborted);
        };
        if let Some(rank) = stopped.iter().find(|rank| report.blamed.contains(rank)) {
            report.message = format!("rank {rank} is stopped by a signal (SIGSTOP): {}", report.message);
        }
        Err(self.rank_error(report))
    }

    /// Returns the outcome of ranks that have all ended.
    fn outcome(&self, ranks: &[Rank], asked_to_stop: bool) -> Result<SupervisorOutcome, LaunchError> {
        let obeyed = asked_to_stop && ranks.iter().any(Rank::has_obeyed);
        match self.failure(ranks, &[], asked_to_stop) {
            // Ranks that wait for one that has obeyed complain that it is gone.
            Some(report) if !(obeyed && report.consequence) => Err(self.rank_error(report)),
            _ if obeyed => Ok(SupervisorOutcome::BeforeMeeting),
            _ if ranks.iter().any(Rank::was_interrupted) => Ok(SupervisorOutcome::Interrupted),
            _ => Ok(SupervisorOutcome::Finished),
        }
    }

    fn start(&self, secret: &str, port: u16) -> Result<Ranks, LaunchError> {
        let (first, world_size) =
            self.place.as_ref().map_or((0, self.ranks), |place| (place.first, place.world_size));
        let mut ranks = Ranks(Vec::with_capacity(self.ranks));
        for local in 0..self.ranks {
            let rank = first + local;
            let place = [
                ("RANK", rank.to_string()),
                ("WORLD_SIZE", world_size.to_string()),
                ("LOCAL_RANK", local.to_string()),
                ("LOCAL_WORLD_SIZE", self.ranks.to_string()),
                ("MASTER_PORT", port.to_string()),
            ];
            ranks.0.push(self.spawn(rank, &[], &place, secret)?);
        }
        Ok(ranks)
    }

    /// Starts one rank.
    fn spawn(
        &self,
        rank: usize,
        more: &[String],
        place: &[(&str, String)],
        secret: &str,
    ) -> Result<Rank, LaunchError> {
        // A report of an earlier attempt in the same folder must not be taken for this one's.
        let _ = std::fs::remove_file(FailureReport::path(&self.logs, rank));
        let _ = std::fs::remove_file(FlightRecord::path(&self.logs, rank));
        let mut command = Command::new(&self.program);
        command.args(&self.arguments).args(more).env(SUPERVISED, "1").stdin(Stdio::piped());
        command.envs(place.iter().map(|(name, value)| (name, value)));
        // They meet on loopback, or at the interface that the user has named.
        command.env_remove("MASTER_ADDR");
        if let Some(file) = self.secret_file.as_ref().filter(|_| std::env::var_os(SECRET_FILE).is_none()) {
            command.env(SECRET_FILE, file).env(DRAWN_SECRET, file);
        } else {
            command.env_remove(DRAWN_SECRET);
        }
        if let Some(place) = &self.place {
            // Rank 0 takes the first free one of the ports that belong to the job's name.
            command.env("MASTER_ADDR", &place.master).env_remove("MASTER_PORT").envs(&place.environment);
        }
        if let (Some(_), 1..) = (&self.place, rank) {
            command.stdout(Stdio::piped()).stderr(Stdio::piped());
        } else if rank > 0 || self.quiet {
            let path = FailureReport::log_path(&self.logs, rank);
            let open = || open_to_append(&path);
            let outputs = open().and_then(|log| Ok((log.try_clone()?, log)));
            let (out, err) = outputs.map_err(|source| LaunchError::Log { path: path.clone(), source })?;
            command.stderr(err);
            if cfg!(unix) && self.least.is_some() && !self.quiet {
                command.env(KEEPS_OUTPUT, "1");
            } else {
                command.stdout(out);
            }
        }
        // A terminal sends Ctrl-C to its whole foreground group; the ranks are to hear of it from here, once.
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let child = command.spawn().map_err(|source| LaunchError::Spawn { rank, source })?;
        let interrupted_code = self.interrupted_code;
        let mut rank = Rank { rank, child, ended: None, missed: false, replaced: false, interrupted_code };
        // Not by its arguments or its environment, which others can list.
        rank.send(secret);
        if let Some(place) = &self.place {
            let before = format!("[rank {} on {}] ", rank.rank, place.host);
            prefix(rank.child.stdout.take(), before.clone());
            prefix(rank.child.stderr.take(), before);
        }
        Ok(rank)
    }

    /// Starts others in place of ranks that have died, as many as there may be.
    fn replace(&self, ranks: &mut Vec<Rank>, secret: &str) -> Result<(), LaunchError> {
        let runs = ranks.iter().any(|rank| rank.ended.is_none());
        for at in 0..ranks.len() {
            let rank = &mut ranks[at];
            if !rank.missed || rank.replaced {
                continue;
            }
            rank.replaced = true;
            let dead = rank.rank;
            let Replacements { most, claim: Some(claim) } = &self.replacements else { continue };
            if !runs || ranks.len() >= self.ranks + most {
                continue;
            }
            let number = claim().map_err(|problem| LaunchError::Replace { dead, problem })?;
            ranks.push(self.spawn(number, &["--join".to_owned(), number.to_string()], &[], secret)?);
        }
        Ok(())
    }

    /// Finds ranks that have died without a word, or that the others have left out, while enough are left to go on, and writes
    /// down how.
    fn note_deaths(&self, ranks: &mut [Rank]) {
        let Some(least) = self.least else { return };
        for at in 0..ranks.len() {
            let rank = &ranks[at];
            if !rank.has_failed() || rank.has_obeyed() || rank.missed {
                continue;
            }
            // One that has come later, and has failed because of others, is missed like one that has died.
            let came = rank.rank >= self.ranks;
            let is_own = |report: FailureReport| !(report.left_out || came && report.consequence);
            if FailureReport::read(&self.logs, rank.rank).is_some_and(is_own) {
                continue;
            }
            if ranks.len() - ranks.iter().filter(|rank| rank.has_failed()).count() >= least {
                // If it cannot be written, the end of the run says who is missing, and not why.
                let _ = FailureReport { died: true, ..self.report(rank) }.write(&self.logs);
                ranks[at].missed = true;
            }
        }
    }

    /// Kills ranks that a signal has stopped if all others have ended: no rank waits for them any more, and they would not obey.
    fn end_stopped(&self, ranks: &mut [Rank], since: &mut Option<Instant>) {
        let mut running = ranks.iter().filter(|rank| rank.ended.is_none()).peekable();
        let others_ended = ranks.iter().any(|rank| rank.ended.is_some()) && running.peek().is_some();
        if !others_ended || !running.all(Rank::is_stopped) {
            *since = None;
        } else if since.get_or_insert_with(Instant::now).elapsed() > GRACE {
            for rank in ranks.iter_mut().filter(|rank| rank.ended.is_none()) {
                let message =
                    "was stopped by a signal (SIGSTOP), and the others ended without it; it was killed";
                let report = FailureReport::now(rank.rank, message.to_owned(), false);
                // If it cannot be written, the exit status says that the rank was killed.
                let _ = FailureReport { died: true, ..report }.write(&self.logs);
                let _ = rank.child.kill();
                rank.missed = true;
            }
        }
    }

    /// Returns the time for running ranks once one has failed, by its `own` fault or because of another's.
    fn patience(&self, ranks: &[Rank], own: bool) -> Duration {
        // One that is stopped tells no cause and writes nothing.
        let able = |rank: &Rank| rank.ended.is_none() && !rank.is_stopped();
        let has_written = |rank: &Rank| FlightRecord::path(&self.logs, rank.rank).exists();
        let cause = if own || !ranks.iter().any(able) { SETTLE } else { CAUSE };
        // A rank that fails writes its record first. Without any record the ranks had not met, unless one was killed.
        let was_killed = |rank: &Rank| rank.ended.is_some_and(|(_, status)| signal(status).is_some());
        let had_met = |rank: &Rank| has_written(rank) || was_killed(rank);
        let writes = ranks.iter().any(had_met) && ranks.iter().any(|rank| able(rank) && !has_written(rank));
        cause + if writes { RECORDING } else { Duration::ZERO }
    }

    /// Returns an ended rank's report, or one made from its exit status.
    fn report(&self, rank: &Rank) -> FailureReport {
        FailureReport::read(&self.logs, rank.rank).unwrap_or_else(|| {
            let status = rank.ended.map(|(_, status)| status);
            let message = describe_end(status, &self.logs, rank.rank);
            FailureReport::now(rank.rank, message, false)
        })
    }

    /// The first failure by a rank's own fault, or else the first; ranks in `ended_here` were ended on purpose, and those that
    /// were `asked` to stop may have obeyed.
    fn failure(&self, ranks: &[Rank], ended_here: &[usize], asked: bool) -> Option<FailureReport> {
        let succeeded = |rank: &Rank| rank.ended.is_some() && !rank.has_failed();
        if ranks.iter().any(succeeded) && ranks.iter().all(|rank| rank.missed || succeeded(rank)) {
            return None;
        }
        let failed = ranks.iter().filter_map(|rank| {
            let (when, _) = rank.ended?;
            let on_purpose = ended_here.contains(&rank.rank) || (asked && rank.has_obeyed());
            let reported = FailureReport::read(&self.logs, rank.rank).is_some();
            // A rank that was ended on purpose counts only if it has complained by itself before.
            (rank.has_failed() && (!on_purpose || reported)).then(|| (self.report(rank), rank.missed, when))
        });
        // Those who have gone on without a rank say what has ended them.
        let order = |(report, missed, when): &(FailureReport, bool, Instant)| {
            (report.consequence, *missed, report.time_ms, *when)
        };
        Some(failed.min_by_key(order)?.0)
    }

    /// Returns the error for a failure report.
    fn rank_error(&self, report: FailureReport) -> LaunchError {
        let log = FailureReport::log_path(&self.logs, report.rank);
        let FailureReport { rank, message, blamed, .. } = report;
        LaunchError::Rank(RankFailure { rank, message, log, blamed })
    }
}

impl Rank {
    /// Returns true if it was interrupted and has saved.
    fn was_interrupted(&self) -> bool {
        let code = self.interrupted_code.map(i32::from);
        code.is_some() && self.ended.is_some_and(|(_, status)| status.code() == code)
    }

    /// Returns true if it has ended with an error.
    fn has_failed(&self) -> bool {
        self.ended.is_some_and(|(_, status)| !status.success()) && !self.was_interrupted()
    }

    /// Returns true if it was asked to end before it had met the others, and did.
    fn has_obeyed(&self) -> bool {
        self.ended.is_some_and(|(_, status)| status.code() == Some(ABORTED.into()))
    }

    /// Returns true if a signal has stopped it, where the system shows that (proc_pid_stat(5)).
    fn is_stopped(&self) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap_or_default();
        stat.rsplit_once(')').is_some_and(|(_, state)| state.trim_start().starts_with(['T', 't']))
    }

    fn poll(&mut self) -> Result<(), LaunchError> {
        if self.ended.is_none() {
            let status =
                self.child.try_wait().map_err(|source| LaunchError::Wait { rank: self.rank, source })?;
            self.ended = status.map(|status| (Instant::now(), status));
        }
        Ok(())
    }

    /// Writes a line to the rank's pipe. A rank that has ended no longer reads it, which is no error.
    fn send(&mut self, line: &str) {
        if let (None, Some(pipe)) = (&self.ended, self.child.stdin.as_mut()) {
            let _ = pipe.write_all(line.as_bytes()).and_then(|()| pipe.flush());
        }
    }
}

/// Passes the lines of a rank on to this process's standard error, each with `before` before it, until there are no more.
fn prefix(output: Option<impl io::Read + Send + 'static>, before: String) {
    let Some(output) = output else { return };
    std::thread::spawn(move || {
        let (mut output, mut line) = (io::BufReader::new(output), Vec::new());
        while output.read_until(b'\n', &mut line).is_ok_and(|count| count > 0) {
            // In one piece, so that lines of several ranks do not mix. The output may be closed. A library may print
            // bytes that are no UTF-8, and more lines after them.
            let text = String::from_utf8_lossy(&line);
            let _ = io::stderr()
                .write_all(format!("{before}{}\n", text.trim_end_matches(['\r', '\n'])).as_bytes());
            line.clear();
        }
    });
}

/// Tells all ranks to end, and kills those that do not within [`GRACE`].
fn end(ranks: &mut [Rank]) -> Result<(), LaunchError> {
    for rank in ranks.iter_mut() {
        rank.send("abort\n");
        drop(rank.child.stdin.take());
    }
    let since = Instant::now();
    while ranks.iter().any(|rank| rank.ended.is_none()) {
        let late = since.elapsed() > GRACE;
        for rank in ranks.iter_mut() {
            if late && rank.ended.is_none() {
                let _ = rank.child.kill();
            }
            rank.poll()?;
        }
        std::thread::sleep(POLL);
    }
    Ok(())
}
