//! Patterns of the names of parameters.

use std::fmt;

use crate::{Result, TensorError};

/// A pattern of parameters: a name, the beginning of names up to a dot, or either with `*` for any letters and `?` for one
/// letter. `layer1` matches `layer1.0.conv1.weight`; `*.bn?` matches all norms of that name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamePattern(String);

impl NamePattern {
    /// Makes a pattern.
    ///
    /// # Errors
    /// [`TensorError::Argument`] if it is empty.
    pub fn new(text: &str) -> Result<Self> {
        match text.trim() {
            "" => Err(TensorError::Argument {
                name: "pattern of names",
                value: format!("{text:?}"),
                expected: "expected a name, or its beginning up to a dot",
            }),
            text => Ok(Self(text.to_owned())),
        }
    }

    /// True if it matches a name or its beginning up to a dot.
    pub fn matches(&self, name: &str) -> bool {
        matches(self.0.as_bytes(), name.as_bytes())
    }
}

impl fmt::Display for NamePattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Matches by trying the last `*` for ever more letters.
fn matches(pattern: &[u8], name: &[u8]) -> bool {
    let (mut at, mut letter) = (0, 0);
    // The place after the last `*`, and the first letter that it has not been tried for.
    let mut retry = None;
    loop {
        if at == pattern.len() && matches!(name.get(letter), None | Some(b'.')) {
            return true;
        }
        match (pattern.get(at), name.get(letter)) {
            (Some(b'*'), _) => {
                at += 1;
                retry = Some((at, letter));
            }
            (Some(wanted), Some(found)) if wanted == found || *wanted == b'?' => {
                (at, letter) = (at + 1, letter + 1);
            }
            _ => match retry {
                Some((after, from)) if from < name.len() => {
                    (at, letter) = (after, from + 1);
                    retry = Some((after, from + 1));
                }
                _ => return false,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_names_and_their_beginnings_up_to_a_dot() {
        let matches = |pattern: &str, name: &str| NamePattern::new(pattern).expect("text").matches(name);
        for (pattern, name) in [
            ("layer1", "layer1.0.conv1.weight"),
            ("layer1", "layer1"),
            ("layer1.0.conv1.weight", "layer1.0.conv1.weight"),
            ("*.bn?", "layer1.0.bn2.weight"),
            ("*.bias", "fc.bias"),
            ("*bias", "bias"),
            ("layer?.1", "layer3.1.conv1.weight"),
            ("*.1.*", "layer3.1.conv1.weight"),
            ("*", "fc.weight"),
            ("**a*", "cba.x"),
        ] {
            assert!(matches(pattern, name), "{pattern} {name}");
        }
        for (pattern, name) in [
            ("layer1", "layer10.0.weight"),
            ("layer1.", "layer1.0.weight"),
            ("0.conv1", "layer1.0.conv1.weight"),
            ("*.bn", "layer1.0.bn2.weight"),
            ("fc.weight.x", "fc.weight"),
            ("fc?", "fc.weight"),
            ("?", ""),
        ] {
            assert!(!matches(pattern, name), "{pattern} {name}");
        }
        assert!(NamePattern::new(" ").is_err());
    }
}
