//! `phalanx watch`: shows a run that is under way or over, or sends it a request.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::error::CliError;
use super::interrupts::Interrupts;
use crate::console::out;
use phalanx_report::dashboard::{self, Left, Outcome};
use phalanx_run::{Request, RunFolder};
use phalanx_trainer::engine::refusal;

/// Shows a run, under way or over: a dashboard on a terminal (`?` tells its keys), its lines elsewhere.
#[derive(Debug, Args)]
pub(super) struct WatchArgs {
    /// The run's folder.
    run: PathBuf,
    /// Prints lines also on a terminal.
    #[arg(long)]
    plain: bool,
    /// Shows nothing, but asks the run for something and waits until it has heard.
    #[arg(long, value_name = "REQUEST", conflicts_with = "plain")]
    ask: Option<RunRequest>,
}

/// A request to a run.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum RunRequest {
    /// To take no further step.
    Pause,
    /// To go on after a pause.
    Resume,
    /// To save a checkpoint before the next step.
    Save,
    /// To save a checkpoint and end.
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
        Some(ask) => {
            dashboard::ask(&folder, ask.into(), refusal, &count, &mut out).map_err(CliError::failed)?
        }
        None if !args.plain && dashboard::is_terminal() => {
            return match dashboard::show(&folder, None, refusal, &count).map_err(CliError::failed)? {
                Left::Interrupted => Err(interrupted()),
                Left::Ended | Left::Leaves => Ok(()),
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
