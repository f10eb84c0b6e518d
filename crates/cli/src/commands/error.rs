//! The errors of commands, and their exit codes.

use std::process::ExitCode;

use phalanx_config::ConfigError;

/// The reason why a command failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum CliError {
    /// The command asks for something that does not exist or cannot be.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The arguments or the environment ask for something that cannot be.
    #[error("{0}")]
    Usage(String),
    /// The work failed.
    #[error(transparent)]
    Failed(Box<dyn std::error::Error + Send + Sync>),
    /// The work failed, and the supervisor of this process reports it.
    #[error("failed")]
    Reported,
    /// A signal asked for the end, and there was nothing to finish, or it was insisted on.
    #[error("{message}")]
    Ended {
        /// The interrupted work; empty if the supervisor of this process reports it.
        message: String,
        /// The exit code: of a program that the signal has ended, or what a supervisor expects.
        code: u8,
    },
}

impl CliError {
    /// The work failed with `error`.
    pub(super) fn failed(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self::Failed(error.into())
    }
}

impl CliError {
    /// The exit code: 2 for a wrong request, 1 for failed work, or the code of a signal.
    pub(super) fn exit_code(&self) -> ExitCode {
        ExitCode::from(match self {
            Self::Config(_) | Self::Usage(_) => 2,
            Self::Failed(_) | Self::Reported => 1,
            Self::Ended { code, .. } => *code,
        })
    }

    /// True if the supervisor of this process prints the error.
    pub(super) fn is_reported(&self) -> bool {
        match self {
            Self::Reported => true,
            Self::Ended { message, .. } => message.is_empty(),
            _ => false,
        }
    }
}

/// Joins an error's message with those of its causes that it does not quote itself.
pub(super) fn with_causes(error: &dyn std::error::Error) -> String {
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
