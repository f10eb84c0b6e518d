//! Where a value of the configuration came from, and everything that can be wrong with one.

use std::fmt;
use std::path::PathBuf;

use super::section::Mismatch;

/// The place where a value was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// Nowhere: it is the default.
    Default,
    /// A line of a preset or of a file.
    Line {
        /// The file, or `presets/NAME.toml` for what ships inside the program.
        file: String,
        /// The line, counted from 1.
        line: usize,
    },
    /// An option of the command line, as the user wrote it.
    Option(String),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::Line { file, line } => write!(f, "{file}:{line}"),
            Self::Option(text) => f.write_str(text),
        }
    }
}

/// The error of a configuration. Every message names the place.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// A key that does not exist.
    #[error("{origin}: unknown key {key}{}", did_you_mean(suggestion.as_deref()))]
    UnknownKey {
        /// Where it was written.
        origin: Origin,
        /// The key as written.
        key: String,
        /// The nearest key that exists.
        suggestion: Option<String>,
    },
    /// A key that other tasks have.
    #[error("{origin}: {key} is a key of {}; model.kind is {kind}", of.join(", "))]
    ForeignKey {
        /// Where it was written.
        origin: Origin,
        /// The key.
        key: String,
        /// The tasks that have it.
        of: Vec<String>,
        /// The task that is configured.
        kind: String,
    },
    /// A value that its key cannot take.
    #[error("{origin}: {key}: {mismatch}")]
    WrongType {
        /// Where it was written.
        origin: Origin,
        /// The key.
        key: String,
        /// The expected and the found value.
        mismatch: Box<Mismatch>,
    },
    /// Text that is not TOML.
    #[error("{origin}: {message}")]
    Syntax {
        /// Where the parser stopped.
        origin: Origin,
        /// The parser's message.
        message: String,
    },
    /// An option that is not of the form `section.key=value`.
    #[error("{option}: expected section.key=value")]
    NotAnAssignment {
        /// The option as written.
        option: String,
    },
    /// A name that is neither a preset nor a file.
    #[error("{}there is no preset `{name}`{}; `{program} config list` lists the presets, and a file's name ends in .toml",
        prefix(origin), did_you_mean(suggestion.as_deref()))]
    NoSuchPreset {
        /// Where the name was written.
        origin: Origin,
        /// The name.
        name: String,
        /// The nearest preset.
        suggestion: Option<String>,
        /// The program that would list them.
        program: String,
    },
    /// A file that cannot be read.
    #[error("{}cannot read {}: {source}", prefix(origin), path.display())]
    Read {
        /// Where its name was written.
        origin: Origin,
        /// The file.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// Files that extend each other in a circle.
    #[error("{origin}: `extends` goes round in a circle: {}", chain.join(" -> "))]
    Cycle {
        /// The line that closes the circle.
        origin: Origin,
        /// The files from the first to its repetition.
        chain: Vec<String>,
    },
    /// A relation between values that does not hold.
    #[error("{}{relation}", prefix(origin))]
    Invalid {
        /// Where the first of the values came from.
        origin: Origin,
        /// The relation, with the numbers.
        relation: String,
    },
    /// Something that the configuration can name but that this version does not do.
    #[error("{}{what}", prefix(origin))]
    NotBuilt {
        /// Where it was asked for.
        origin: Origin,
        /// The missing name, and the available ones.
        what: String,
    },
    /// Several problems, one a line.
    #[error("{}", lines(.0))]
    Several(Vec<ConfigError>),
}

impl ConfigError {
    /// One error for all of `problems`.
    pub(super) fn from_all(mut problems: Vec<Self>) -> Result<(), Self> {
        match problems.len() {
            0 => Ok(()),
            1 => Err(problems.remove(0)),
            _ => Err(Self::Several(problems)),
        }
    }
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { expected, found, nearest, reason } = self;
        match reason {
            Some(reason) => f.write_str(reason),
            None => write!(f, "expected {expected}, found {found}{}", did_you_mean(nearest.as_deref())),
        }
    }
}

fn did_you_mean(suggestion: Option<&str>) -> String {
    suggestion.map(|near| format!("; did you mean {near}?")).unwrap_or_default()
}

fn prefix(origin: &Origin) -> String {
    if *origin == Origin::Default { String::new() } else { format!("{origin}: ") }
}

fn lines(problems: &[ConfigError]) -> String {
    problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}
