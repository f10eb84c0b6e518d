//! The program: its commands, and what their exit codes mean.
//!
//! 0: done, also when a run was interrupted and left a checkpoint. 1: failed. 2: asked for something that does
//! not exist or cannot be, such as an unknown option or key. 128 + the signal's number (130 for Ctrl-C, 143 for TERM): ended
//! by a second signal, or by a first one while ranks still looked for each other.

mod config;
mod diagnose;
mod doctor;
mod environment;
mod eval;
mod export;
mod hash;
mod hosts;
mod interrupts;
mod jobs;
mod join;
mod launched;
mod leave;
mod log;
mod node;
mod plan;
mod rank;
mod report;
mod sample;
mod serve;
mod submit;
mod sweep;
mod trace;
mod train;
mod tui;
mod watch;

use std::path::Path;
use std::process::ExitCode;

use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};

use crate::Program;
use crate::console::err;
use phalanx_run::RunFolder;
use phalanx_trainer::config::{Config, ConfigError};
use phalanx_trainer::engine::{Judge, Task};

/// Trains deep-learning models across ranks.
#[derive(Debug, Parser)]
#[command(name = "phalanx", version, about, max_term_width = 110, propagate_version = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Train(Box<train::TrainArgs>),
    Join(join::JoinArgs),
    Leave(leave::LeaveArgs),
    Watch(watch::WatchArgs),
    Plan(plan::PlanArgs),
    Sample(sample::SampleArgs),
    Eval(eval::EvalArgs),
    Export(export::ExportArgs),
    Hash(hash::HashArgs),
    Submit(Box<submit::SubmitArgs>),
    Status(jobs::StatusArgs),
    Logs(jobs::LogsArgs),
    Cancel(jobs::CancelArgs),
    Sweep(sweep::SweepArgs),
    Study(sweep::StudyArgs),
    Report(report::ReportArgs),
    Serve(serve::ServeArgs),
    Config(config::ConfigArgs),
    Trace(trace::TraceArgs),
    Doctor(doctor::DoctorArgs),
    Diagnose(diagnose::DiagnoseArgs),
    #[command(hide = true)]
    Rank(rank::RankArgs),
    #[command(hide = true)]
    HostRanks,
}

/// Why a command did not do what it should.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CliError {
    /// The command asks for something that does not exist or cannot be.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The arguments or the environment ask for something that cannot be.
    #[error("{0}")]
    Usage(String),
    /// The work failed.
    #[error(transparent)]
    Failed(Box<dyn std::error::Error + Send + Sync>),
    /// The work failed and whoever supervises this process will say so.
    #[error("failed")]
    Reported,
    /// A signal asked for the end, and there was nothing to finish, or it was insisted on.
    #[error("{message}")]
    Ended {
        /// What was ended; empty if whoever supervises this process will say so.
        message: String,
        /// The exit code: of a program that the signal has ended, or what a supervisor expects.
        code: u8,
    },
}

impl CliError {
    /// The work failed with `error`.
    pub(crate) fn failed(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self::Failed(error.into())
    }
}

/// Runs the command line of a program with this process's arguments.
pub fn main(program: &Program) -> ExitCode {
    environment::complete();
    let mut command = Cli::command().name(program.name()).bin_name(program.name());
    command = command.about(program.description());
    if program.studies().next().is_none() {
        command = command.mut_subcommand("study", |command| command.hide(true));
    }
    let cli = Cli::from_arg_matches(&command.get_matches()).unwrap_or_else(|error| error.exit());
    let outcome = match cli.command {
        Command::Train(args) => train::run(program, &args),
        Command::Join(args) => join::run(program, &args),
        Command::Leave(args) => leave::run(program, &args),
        Command::Watch(args) => watch::run(&args),
        Command::Plan(args) => plan::run(program, &args),
        Command::Sample(args) => sample::run(program, &args),
        Command::Eval(args) => eval::run(program, &args),
        Command::Export(args) => export::run(&args),
        Command::Hash(args) => hash::run(&args),
        Command::Submit(args) => submit::run(program, &args),
        Command::Status(args) => jobs::status(&args),
        Command::Logs(args) => jobs::logs(&args),
        Command::Cancel(args) => jobs::cancel(&args),
        Command::Sweep(args) => sweep::run(program, &args),
        Command::Study(args) => sweep::run_study(program, &args),
        Command::Report(args) => report::run(&args),
        Command::Serve(args) => serve::run(&args),
        Command::Config(args) => config::run(program, &args),
        Command::Trace(args) => trace::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Diagnose(args) => diagnose::run(&args),
        Command::Rank(args) => rank::run(program, &args),
        Command::HostRanks => hosts::carry_out(),
    };
    let error = match outcome {
        Ok(()) => return ExitCode::SUCCESS,
        Err(error) => error,
    };
    let code = match &error {
        CliError::Config(_) | CliError::Usage(_) => 2,
        CliError::Failed(_) | CliError::Reported => 1,
        CliError::Ended { code, .. } => *code,
    };
    let told_elsewhere = match &error {
        CliError::Reported => true,
        CliError::Ended { message, .. } => message.is_empty(),
        _ => false,
    };
    if !told_elsewhere {
        err(&format!("error: {}", with_causes(&error)));
    }
    ExitCode::from(code)
}

/// The task that a configuration chooses, with the judges of what it draws.
fn task_of(program: &Program, config: &Config) -> Result<Task, CliError> {
    let known = |config: &Config| {
        let none = || CliError::Usage(format!("{} has no task `{}`", program.name(), config.model.kind));
        program.task_of(config).cloned().ok_or_else(none)
    };
    let judges = config.quality.judges.iter().map(|judge| {
        let folder = RunFolder::open(Path::new(judge)).map_err(CliError::failed)?;
        let resolved = program.catalogue().resolve_run(&folder.config())?;
        Ok(Judge::new(folder.path(), known(&resolved.config)?, resolved.config))
    });
    Ok(known(config)?.judged_by(judges.collect::<Result<_, CliError>>()?))
}

/// A message with the messages of its causes, those left out that it quotes itself.
pub(crate) fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let message = error.to_string();
        if !text.contains(&message) {
            text.push_str(&format!("\n  because: {message}"));
        }
        cause = error.source();
    }
    text
}
