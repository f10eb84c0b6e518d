//! `phalanx watch`: shows a running or finished run, or sends it a request.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::error::CliError;
use super::interrupts::Interrupts;
use crate::console::out;
use phalanx_report::dashboard::{self, ExitReason, Outcome};
use phalanx_run::{Request, RunFolder};
use phalanx_trainer::engine::refusal;

/// Show a running or finished run: a dashboard on a terminal (`?` shows its keys), otherwise its metrics lines.
#[derive(Debug, Args)]
pub(super) struct WatchArgs {
    /// The run's folder.
    run: PathBuf,
    /// Print lines also on a terminal.
    #[arg(long)]
    plain: bool,
    /// Send a request to the run and wait until the run takes it.
    #[arg(long, value_name = "REQUEST", conflicts_with = "plain")]
    ask: Option<RunRequest>,
}

/// A request to a run.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum RunRequest {
    /// Take no further step.
    Pause,
    /// Continue after a pause.
    Resume,
    /// Save a checkpoint before the next step.
    Save,
    /// Save a checkpoint and end the run.
    Stop,
}

impl From<RunRequest> for Request {
    fn from(ask: RunRequest) -> Self {
        match ask {
            RunRequest::Pause => Self::Pause,
            RunRequest::Resume => Self::Resume,
            RunRequest::Save => Self::Save,
            RunRequest::Stop => Self::Stop,
        }
    }
}

pub(super) fn run(args: &WatchArgs) -> Result<(), CliError> {
    let folder = RunFolder::open(&args.run).map_err(CliError::failed)?;
    let interrupts = Interrupts::listen()?;
    let count = || interrupts.count();
    let interrupted = || CliError::Ended { message: String::new(), code: interrupts.exit_code() };
    let outcome = match args.ask {
        Some(ask) => dashboard::send_request(&folder, ask.into(), refusal, &count, &mut out)
            .map_err(CliError::failed)?,
        None if !args.plain && dashboard::is_terminal() => {
            return match dashboard::show(&folder, None, refusal, &count).map_err(CliError::failed)? {
                ExitReason::Interrupted => Err(interrupted()),
                ExitReason::Ended | ExitReason::Quit => Ok(()),
            };
        }
        None => dashboard::follow(&folder, &count, &mut out),
    };
    match outcome {
        Outcome::Done => Ok(()),
        Outcome::Failed(why) => Err(CliError::failed(why)),
        Outcome::Interrupted => Err(interrupted()),
    }
}
