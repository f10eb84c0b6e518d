//! The program: its commands, and what their exit codes mean.
//!
//! 0: done, also when a run was interrupted and left a checkpoint. 1: failed. 2: asked for something that does
//! not exist or cannot be, such as an unknown option or key. 128 + the signal's number (130 for Ctrl-C, 143 for TERM): ended
//! by a second signal, or by a first one while ranks still looked for each other.

mod error;

mod interrupts;
mod log;

mod resolve;

mod changes;
mod train_args;

mod process;

mod joining;
mod launched;

mod hosts;
mod tui;

mod local;
mod node;

mod train;

mod config;
mod data;
mod diagnose;
mod doctor;
mod environment;
mod eval;
mod export;
mod hash;
mod jobs;
mod join;
mod leave;
mod plan;
mod rank;
mod report;
mod sample;
mod serve;
mod submit;
mod sweep;
mod trace;
mod track;
mod watch;

use std::process::ExitCode;

use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};

use crate::Program;
use crate::console::err;
use error::{CliError, with_causes};

/// Trains deep-learning models across ranks.
#[derive(Debug, Parser)]
#[command(name = "phalanx", version, about, max_term_width = 110, propagate_version = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Train(Box<train_args::TrainArgs>),
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
    Track(track::TrackArgs),
    Config(config::ConfigArgs),
    Data(data::DataArgs),
    Trace(trace::TraceArgs),
    Doctor(doctor::DoctorArgs),
    Diagnose(diagnose::DiagnoseArgs),
    #[command(hide = true)]
    Rank(rank::RankArgs),
    #[command(hide = true)]
    HostRanks,
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
    let outcome = interrupts::survive_file_size_limit().and_then(|()| carry_out(program, cli.command));
    let Err(error) = outcome else { return ExitCode::SUCCESS };
    if !error.is_reported() {
        err(&format!("error: {}", with_causes(&error)));
    }
    error.exit_code()
}

fn carry_out(program: &Program, command: Command) -> Result<(), CliError> {
    match command {
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
        Command::Track(args) => track::run(&args),
        Command::Config(args) => config::run(program, &args),
        Command::Data(args) => data::run(program, &args),
        Command::Trace(args) => trace::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Diagnose(args) => diagnose::run(&args),
        Command::Rank(args) => rank::run(program, &args),
        Command::HostRanks => hosts::carry_out(),
    }
}
