//! The errors of jobs.

use phalanx_run::RunError;

/// Why a job cannot be submitted, asked about or cancelled.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClusterError {
    /// A program of the scheduler is not there.
    #[error("`{program}` cannot be started: {source}; is this a login node of a SLURM cluster?")]
    Missing {
        /// The program.
        program: &'static str,
        /// Why not.
        source: std::io::Error,
    },
    /// A program of the scheduler has refused.
    #[error("{program} says: {said}")]
    Refused {
        /// The program.
        program: &'static str,
        /// Its words.
        said: String,
    },
    /// A program of the scheduler has answered something else than expected.
    #[error("{program} answered `{said}`, which is not understood")]
    Answer {
        /// The program.
        program: &'static str,
        /// Its words.
        said: String,
    },
    /// A run was not submitted.
    #[error("{0} was not submitted: it has no job.json")]
    NotSubmitted(String),
    /// The tasks of an array cannot be read.
    #[error("--array {text}: {problem}; tasks are numbers and ranges, as in 0-3,7")]
    Array {
        /// The given text.
        text: String,
        /// The problem with it.
        problem: String,
    },
    /// A time cannot be read.
    #[error("--time {0} is no time: minutes, h:mm:ss or d-hh:mm:ss")]
    Time(String),
    /// A text that would become part of a script has a control character.
    #[error(
        "{what} `{text}` has the control character {character}, which must not reach a script; choose another name"
    )]
    ControlCharacter {
        /// The option or file that the text belongs to.
        what: String,
        /// The text, escaped.
        text: String,
        /// The character, escaped.
        character: String,
    },
    /// A path that would become part of a script is not UTF-8.
    #[error("{what} {path} is not UTF-8, which a script cannot hold; choose another name")]
    NotUtf8 {
        /// The option or file that the path belongs to.
        what: String,
        /// The path, with replacement characters.
        path: String,
    },
    /// A file of a run cannot be read or written.
    #[error(transparent)]
    Run(#[from] RunError),
}
