//! What a kernel says when its arguments do not go together.

/// What this crate's functions return.
pub type Result<T, E = KernelError> = std::result::Result<T, E>;

/// A kernel refused its arguments; nothing was read or written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KernelError {
    /// A slice has not as many elements as the shape says.
    #[error("{kernel}: `{argument}` has {found} elements; the shape needs {expected}")]
    Length {
        /// The kernel.
        kernel: &'static str,
        /// Which argument.
        argument: &'static str,
        /// How many elements the shape needs.
        expected: usize,
        /// How many there are.
        found: usize,
    },
    /// Instructions were asked for that are not there.
    #[error("instruction set `{name}`: {problem}")]
    Level {
        /// What was asked for.
        name: String,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// A shape makes no sense.
    #[error("{kernel}: {problem}")]
    Shape {
        /// The kernel.
        kernel: &'static str,
        /// What is wrong, with the numbers.
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
