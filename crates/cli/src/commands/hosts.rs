//! `phalanx train --hosts`: starts ranks on several hosts over ssh.

use std::collections::BTreeMap;
use std::path::Path;

use phalanx_collectives::{CommError, Secret};

use super::error::CliError;
use super::process::Display;
use phalanx_config::Resolved;
use phalanx_launch::{ABORTED, Hosts, Order, RemoteSupervisor, SECRET_FILE, SupervisorOutcome};
use phalanx_run::RunFolder;
use phalanx_trainer::engine;

/// The default ssh command. It never prompts for passwords, and detects within 30 seconds that a host is down.
pub(super) const SSH: &str = "ssh -o BatchMode=yes -o ServerAliveInterval=10 -o ServerAliveCountMax=3";

/// Environment variables that are not passed to other hosts: secrets, or specific to a process.
const NOT_PASSED_ON: &[&str] = &[phalanx_run::SUPERVISED, phalanx_launch::KEEPS_OUTPUT, SECRET_FILE];

/// The ranks of each host, and the command that starts them.
#[derive(Debug, Clone)]
pub(super) struct SshHosts {
    pub(super) hosts: Hosts,
    ssh: Vec<String>,
}

impl SshHosts {
    /// Reads `--hosts` and `--ssh`.
    pub(super) fn read(hosts: &str, ssh: &str) -> Result<Self, CliError> {
        let hosts = Hosts::read(hosts).map_err(|error| CliError::Usage(error.to_string()))?;
        let ssh: Vec<String> = ssh.split_whitespace().map(str::to_owned).collect();
        if ssh.is_empty() {
            return Err(CliError::Usage("--ssh names no program".to_owned()));
        }
        Ok(Self { hosts, ssh })
    }

    /// Checks that the run can be started on several hosts.
    pub(super) fn check(&self, resolved: &Resolved) -> Result<(), CliError> {
        let config = &resolved.config;
        let (ranks, world_size) = (self.hosts.ranks(), config.world_size());
        let problem = if config.elastic().is_some() {
            "elastic.min: start the run on one of the hosts, and `join` from the others".to_owned()
        } else if engine::in_one_process(config) {
            format!("train.strategy = {} has all ranks as threads of one process", config.train.strategy)
        } else if ranks != world_size {
            format!("it has {ranks} ranks, but the run has {world_size} (train.ranks and sync.servers)")
        } else {
            return Ok(());
        };
        Err(CliError::Usage(format!("--hosts: {problem}")))
    }

    /// Returns the supervisor of a run in a shared folder. `survives` is true if the run continues without lost ranks.
    pub(super) fn supervisor(
        &self,
        program: &Path,
        folder: &RunFolder,
        survives: bool,
        display: Display,
    ) -> Result<RemoteSupervisor, CliError> {
        let folder = std::path::absolute(folder.path()).map_err(CliError::failed)?;
        let mut environment: BTreeMap<String, String> = std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .filter(|(name, _)| name.starts_with("PHALANX_") && !NOT_PASSED_ON.contains(&name.as_str()))
            .collect();
        environment.insert("PHALANX_JOB".to_owned(), format!("hosts {}", random()?));
        let mut arguments = vec!["rank".to_owned(), folder.display().to_string()];
        arguments.extend(display.options());
        Ok(RemoteSupervisor {
            program: program.to_owned(),
            agent: vec!["host-ranks".to_owned()],
            arguments,
            hosts: self.hosts.clone(),
            ssh: self.ssh.clone(),
            folder,
            environment,
            secret: secret()?,
            survives,
        })
    }
}

/// Returns 32 random bytes in hexadecimal.
fn random() -> Result<String, CliError> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).map_err(|error| CliError::failed(format!("no random numbers: {error}")))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Returns the secret of the user, or a random one for this run.
fn secret() -> Result<String, CliError> {
    match std::env::var_os(SECRET_FILE) {
        Some(path) => {
            let path = Path::new(&path);
            // Checks the file and its secret by the same rules as ranks that read it themselves.
            let refused = |error: CommError| CliError::Usage(format!("{SECRET_FILE}: {error}"));
            Secret::from_file(path).map_err(refused)?;
            let read = std::fs::read_to_string(path);
            let named = |error| CliError::failed(format!("{SECRET_FILE} {}: {error}", path.display()));
            Ok(read.map_err(named)?.trim().to_owned())
        }
        None => random(),
    }
}

/// Reads the order of the launcher and starts the ranks of this host.
pub(super) fn carry_out() -> Result<(), CliError> {
    let program = std::env::current_exe().map_err(CliError::failed)?;
    let order = Order::read().map_err(|error| CliError::Usage(error.to_string()))?;
    match order.carry_out(program) {
        Ok(SupervisorOutcome::Finished) => Ok(()),
        Ok(
            SupervisorOutcome::BeforeMeeting | SupervisorOutcome::Aborted | SupervisorOutcome::Interrupted,
        ) => Err(CliError::Ended { message: String::new(), code: ABORTED }),
        // The launcher prints the failures of ranks from their reports.
        Err(phalanx_launch::AgentError::Launch(phalanx_launch::LaunchError::Rank(_))) => {
            Err(CliError::Reported)
        }
        Err(error) => Err(CliError::failed(error)),
    }
}
