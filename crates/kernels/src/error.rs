//! Errors of kernels whose arguments do not match.

/// The result of this crate's functions.
pub type Result<T, E = KernelError> = std::result::Result<T, E>;

/// A kernel refused its arguments before reading or writing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KernelError {
    /// The length of a slice does not match the shape.
    #[error("{kernel}: `{argument}` has {found} elements; the shape needs {expected}")]
    Length {
        /// The kernel.
        kernel: &'static str,
        /// The argument.
        argument: &'static str,
        /// The length that the shape needs.
        expected: usize,
        /// The length of the slice.
        found: usize,
    },
    /// An instruction set is unknown or missing.
    #[error("instruction set `{name}`: {problem}")]
    Level {
        /// The requested name.
        name: String,
        /// The problem.
        problem: &'static str,
    },
    /// A shape is invalid.
    #[error("{kernel}: {problem}")]
    Shape {
        /// The kernel.
        kernel: &'static str,
        /// The problem, with the numbers.
        problem: String,
    },
}

/// Checks the length of one argument.
pub(crate) fn check_len(
    kernel: &'static str,
    argument: &'static str,
    expected: usize,
    found: usize,
) -> Result<()> {
    if expected == found { Ok(()) } else { Err(KernelError::Length { kernel, argument, expected, found }) }
}
