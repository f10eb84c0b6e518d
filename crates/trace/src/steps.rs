//! The selection of steps that are traced.

use std::fmt;
use std::str::FromStr;

/// The traced steps of a run, counted from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TraceSteps {
    /// No steps: no trace.
    #[default]
    None,
    /// All steps, including the time before, between and after them.
    All,
    /// The steps from the first to the last, inclusive, and the time between them.
    Range {
        /// The first step.
        first: u64,
        /// The last step.
        last: u64,
    },
}

impl TraceSteps {
    /// Returns true if no steps are recorded.
    pub fn is_none(&self) -> bool {
        *self == Self::None
    }

    /// Returns true if step `step` is recorded.
    pub fn covers(&self, step: u64) -> bool {
        match self {
            Self::None => false,
            Self::All => true,
            Self::Range { first, last } => (*first..=*last).contains(&step),
        }
    }
}

impl FromStr for TraceSteps {
    type Err = String;

    /// Parses the empty text, `all`, or `a..b`.
    fn from_str(text: &str) -> Result<Self, String> {
        let text = text.trim();
        if text.is_empty() {
            return Ok(Self::None);
        }
        if text == "all" {
            return Ok(Self::All);
        }
        let number = |text: &str| text.trim().parse::<u64>().ok();
        match text.split_once("..").map(|(first, last)| (number(first), number(last))) {
            Some((Some(first), Some(last))) if first >= 1 && first <= last => Ok(Self::Range { first, last }),
            Some((Some(_), Some(_))) => {
                Err(format!("`{text}` has no steps: they are counted from 1, and the first comes first"))
            }
            _ => Err(format!("`{text}` is neither `all` nor a range of steps such as 20..25")),
        }
    }
}

impl fmt::Display for TraceSteps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => Ok(()),
            Self::All => f.write_str("all"),
            Self::Range { first, last } => write!(f, "{first}..{last}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_read_as_they_are_written() {
        for (text, steps) in [
            ("", TraceSteps::None),
            ("all", TraceSteps::All),
            ("3..3", TraceSteps::Range { first: 3, last: 3 }),
            ("20..25", TraceSteps::Range { first: 20, last: 25 }),
        ] {
            assert_eq!(text.parse(), Ok(steps));
            assert_eq!(steps.to_string(), text);
        }
        let range: TraceSteps = "2..4".parse().expect("a range");
        assert_eq!([1, 2, 4, 5].map(|step| range.covers(step)), [false, true, true, false]);
        for wrong in ["0..3", "4..2", "4", "a..b", "..", "some"] {
            assert!(wrong.parse::<TraceSteps>().is_err(), "{wrong}");
        }
    }
}
