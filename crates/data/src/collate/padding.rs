//! The length of padded dimensions.

use crate::error::{DataError, Result};

/// The length to which shorter samples are padded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PadTo {
    /// The longest in the batch.
    #[default]
    Longest,
    /// The longest in the batch, rounded up to a multiple: fewer different shapes.
    Multiple(usize),
    /// A fixed length; a longer sample is an error.
    Fixed(usize),
    /// The longest in the batch, rounded up to a multiple, but at most a limit; a longer sample is an error.
    MultipleUpTo {
        /// The multiple.
        of: usize,
        /// The limit.
        most: usize,
    },
}

impl PadTo {
    /// Checks that the length is positive; `what` names the setting.
    pub(super) fn validate(self, what: &'static str) -> Result<()> {
        match self {
            Self::Multiple(0)
            | Self::Fixed(0)
            | Self::MultipleUpTo { of: 0, .. }
            | Self::MultipleUpTo { most: 0, .. } => Err(DataError::config(what, "a length of 0")),
            _ => Ok(()),
        }
    }

    /// Returns the padded length for the longest sample, at least 1; `None` if the sample is too long.
    #[must_use]
    pub fn length(self, longest: usize) -> Option<usize> {
        match self {
            Self::Longest => Some(longest.max(1)),
            Self::Multiple(of) => Some(longest.max(1).next_multiple_of(of)),
            Self::Fixed(length) => (longest <= length).then_some(length),
            Self::MultipleUpTo { of, most } => {
                (longest <= most).then(|| longest.max(1).next_multiple_of(of).min(most))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_padded_as_asked() {
        for (pad_to, expected) in [
            (PadTo::Longest, [Some(1), Some(1), Some(8), Some(9)]),
            (PadTo::Multiple(8), [Some(8), Some(8), Some(8), Some(16)]),
            (PadTo::Fixed(8), [Some(8), Some(8), Some(8), None]),
            (PadTo::MultipleUpTo { of: 4, most: 10 }, [Some(4), Some(4), Some(8), Some(10)]),
            (PadTo::MultipleUpTo { of: 4, most: 8 }, [Some(4), Some(4), Some(8), None]),
        ] {
            assert_eq!([0, 1, 8, 9].map(|longest| pad_to.length(longest)), expected);
        }
    }
}
