//! The program: its commands, and what their exit codes mean.
//!
//! 0: done, also when a run was interrupted and left a checkpoint. 1: failed. 2: asked for something that does
//! not exist or cannot be, such as an unknown option or key. 128 + the signal's number (130 for Ctrl-C, 143 for TERM): ended
//! by a second signal, or by a first one while ranks still looked for each other.

mod error;
mod help;
mod hints;

mod interrupts;
mod log;

mod resolve;

mod config_args;
mod node_args;
mod train_args;

mod changes;
mod ending;
mod former_run;
mod trained_model;

mod process;

mod joining;
mod launched;

mod hosts;
mod translate;
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
mod explain;
mod export;
mod find_lr;
mod hash;
mod jobs;
mod join;
mod leave;
mod plan;
mod predict;
mod rank;
mod report;
mod sample;
mod serve;
mod shell;
mod submit;
mod sweep;
mod tokens;
mod trace;
mod track;
mod watch;
mod write;

use std::process::ExitCode;

use clap::{
    Args, ColorChoice, Command as CommandLine, CommandFactory as _, FromArgMatches as _, Parser, Subcommand,
};

use crate::Program;
use crate::console::{self, Verbosity, err};
use error::{CliError, with_causes};
use help::ExampleNames;

/// Trains deep-learning models across ranks.
#[derive(Debug, Parser)]
#[command(name = "phalanx", version, about, max_term_width = 110, propagate_version = true)]
struct Cli {
    #[command(flatten)]
    output: OutputArgs,
    #[command(subcommand)]
    command: Command,
}

/// The options of all commands.
#[derive(Debug, Args)]
struct OutputArgs {
    /// Print details too.
    #[arg(short, long, global = true, conflicts_with = "quiet", display_order = 900)]
    verbose: bool,
    /// Print results, warnings and errors only.
    #[arg(short, long, global = true, display_order = 901)]
    quiet: bool,
    /// Colours in help, errors and progress.
    #[arg(long, global = true, value_name = "WHEN", default_value_t = ColorChoice::Auto, display_order = 902)]
    color: ColorChoice,
}

impl OutputArgs {
    fn verbosity(&self) -> Verbosity {
        match (self.verbose, self.quiet) {
            (true, _) => Verbosity::Verbose,
            (_, true) => Verbosity::Quiet,
            _ => Verbosity::Normal,
        }
    }
}

#[derive(Debug, Subcommand)]
enum Command {
    Train(Box<train_args::TrainArgs>),
    Join(join::JoinArgs),
    Leave(leave::LeaveArgs),
    Watch(watch::WatchArgs),
    Plan(plan::PlanArgs),
    FindLr(find_lr::FindLrArgs),
    Sample(sample::SampleArgs),
    Explain(explain::ExplainArgs),
    Write(write::WriteArgs),
    Translate(translate::TranslateArgs),
    Eval(eval::EvalArgs),
    Predict(predict::PredictArgs),
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
    Tokens(tokens::TokensArgs),
    Trace(trace::TraceArgs),
    Doctor(doctor::DoctorArgs),
    Diagnose(diagnose::DiagnoseArgs),
    Completions(shell::CompletionsArgs),
    Man(shell::ManArgs),
    #[command(hide = true)]
    Rank(rank::RankArgs),
    #[command(hide = true)]
    HostRanks,
}

/// Runs the command line of a program with this process's arguments.
pub fn main(program: &Program) -> ExitCode {
    environment::complete();
    let words: Vec<String> =
        std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned()).collect();
    let command = command_of(program).color(colors(&words));
    let parsed = command.clone().try_get_matches().and_then(|matches| Cli::from_arg_matches(&matches));
    let cli = parsed.unwrap_or_else(|mut error| {
        hints::add(&mut error, &command, program.catalogue(), &words);
        error.exit()
    });
    cli.output.verbosity().set();
    console::set_colors(cli.output.color);
    let outcome = interrupts::survive_file_size_limit().and_then(|()| carry_out(program, cli.command));
    let Err(error) = outcome else { return ExitCode::SUCCESS };
    if !error.is_reported() {
        err(&format!("error: {}", with_causes(&error)));
    }
    error.exit_code()
}

/// Returns the command line of `program`, with its name, groups and examples.
fn command_of(program: &Program) -> CommandLine {
    let mut command = command_line().name(program.name()).bin_name(program.name());
    if let Some(description) = program.description() {
        command = command.about(description);
    }
    if program.studies().next().is_none() {
        command = command.mut_subcommand("study", |command| command.hide(true));
    }
    let names = ExampleNames {
        program: program.name(),
        preset: program.catalogue().default_preset(),
        study: program.studies().next(),
    };
    help::complete(command, names)
}

/// Returns the definition of all commands.
fn command_line() -> CommandLine {
    Cli::command()
}

/// Returns the choice of colours in words that are not parsed yet, for errors of parsing.
fn colors(words: &[String]) -> ColorChoice {
    let given = words.iter().enumerate().find_map(|(at, word)| match word.as_str() {
        "--color" => words.get(at + 1).map(String::as_str),
        word => word.strip_prefix("--color="),
    });
    given.and_then(|given| given.parse().ok()).unwrap_or_default()
}

fn carry_out(program: &Program, command: Command) -> Result<(), CliError> {
    match command {
        Command::Train(args) => train::run(program, &args),
        Command::Join(args) => join::run(program, &args),
        Command::Leave(args) => leave::run(program, &args),
        Command::Watch(args) => watch::run(&args),
        Command::Plan(args) => plan::run(program, &args),
        Command::FindLr(args) => find_lr::run(program, &args),
        Command::Sample(args) => sample::run(program, &args),
        Command::Explain(args) => explain::run(program, &args),
        Command::Write(args) => write::run(program, &args),
        Command::Translate(args) => translate::run(program, &args),
        Command::Eval(args) => eval::run(program, &args),
        Command::Predict(args) => predict::run(program, &args),
        Command::Export(args) => export::run(program, &args),
        Command::Hash(args) => hash::run(&args),
        Command::Submit(args) => submit::run(program, &args),
        Command::Status(args) => jobs::status(&args),
        Command::Logs(args) => jobs::logs(&args),
        Command::Cancel(args) => jobs::cancel(&args),
        Command::Sweep(args) => sweep::run(program, &args),
        Command::Study(args) => sweep::run_study(program, &args),
        Command::Report(args) => report::run(program, &args),
        Command::Serve(args) => serve::run(program, &args),
        Command::Track(args) => track::run(&args),
        Command::Config(args) => config::run(program, &args),
        Command::Data(args) => data::run(program, &args),
        Command::Tokens(args) => tokens::run(&args),
        Command::Trace(args) => trace::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Diagnose(args) => diagnose::run(program, &args),
        Command::Completions(args) => {
            shell::completions(&args, command_of(program));
            Ok(())
        }
        Command::Man(args) => shell::man(&args, command_of(program)),
        Command::Rank(args) => rank::run(program, &args),
        Command::HostRanks => hosts::carry_out(),
    }
}
