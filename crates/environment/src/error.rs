//! The error of a launcher's variables.

/// The result of this crate's functions.
pub type Result<T, E = EnvironmentError> = std::result::Result<T, E>;

/// A variable is missing or malformed, or a launcher does not answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("environment variable {variable}: {problem}")]
pub struct EnvironmentError {
    /// The variable.
    pub variable: &'static str,
    /// The problem.
    pub problem: String,
}

impl EnvironmentError {
    /// Returns the error of a variable that is missing or malformed.
    pub fn new(variable: &'static str, problem: impl Into<String>) -> Self {
        Self { variable, problem: problem.into() }
    }
}
