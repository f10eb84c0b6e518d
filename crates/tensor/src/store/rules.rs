//! Rules about parameters by name: which are frozen, and the factors of their learning rates.

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

/// A factor of the learning rate of some parameters.
#[derive(Debug, Clone, PartialEq)]
pub struct RateRule {
    /// The parameters.
    pub pattern: NamePattern,
    /// The factor.
    pub factor: f64,
}

/// Rules about the parameters of a network. A pattern matches a parameter by its name or by the name of its block.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ParamRules {
    /// The beginning of all names that patterns may leave out: the network's name and a dot, or nothing.
    pub prefix: String,
    /// The parameters that are frozen.
    pub frozen: Vec<NamePattern>,
    /// True if frozen parameters are trained later ([`super::ParamBucket::set_frozen`]).
    pub unfreezes: bool,
    /// The parameters without weight decay.
    pub undecayed: Vec<NamePattern>,
    /// The matrices that [`crate::optim::Muon`] steps as it does vectors.
    pub unturned: Vec<NamePattern>,
    /// Factors of learning rates. Of several rules for a parameter, the last one counts.
    pub rates: Vec<RateRule>,
}

impl ParamRules {
    /// True if a pattern matches a parameter.
    pub(super) fn fits(&self, pattern: &NamePattern, name: &str, block: &str) -> bool {
        let fits = |name: &str| {
            let short = name.strip_prefix(self.prefix.as_str()).filter(|_| !self.prefix.is_empty());
            pattern.matches(name) || short.is_some_and(|short| pattern.matches(short))
        };
        fits(name) || (!block.is_empty() && fits(block))
    }

    /// True if a parameter is frozen.
    pub(super) fn freezes(&self, name: &str, block: &str) -> bool {
        self.frozen.iter().any(|pattern| self.fits(pattern, name, block))
    }

    /// True if a parameter has no weight decay.
    pub(super) fn exempts(&self, name: &str, block: &str) -> bool {
        self.undecayed.iter().any(|pattern| self.fits(pattern, name, block))
    }

    /// True if a matrix is stepped as a vector.
    pub(super) fn keeps_unturned(&self, name: &str, block: &str) -> bool {
        self.unturned.iter().any(|pattern| self.fits(pattern, name, block))
    }

    /// The factor of a parameter's learning rate.
    pub(super) fn rate(&self, name: &str, block: &str) -> f64 {
        let rule = self.rates.iter().rev().find(|rule| self.fits(&rule.pattern, name, block));
        rule.map_or(1.0, |rule| rule.factor)
    }

    /// The patterns of all rules.
    pub(super) fn patterns(&self) -> impl Iterator<Item = &NamePattern> {
        let rates = self.rates.iter().map(|rule| &rule.pattern);
        self.frozen.iter().chain(&self.undecayed).chain(&self.unturned).chain(rates)
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

    #[test]
    fn the_last_rate_counts_and_prefixes_of_networks_may_be_left_out() {
        let pattern = |text: &str| NamePattern::new(text).expect("text");
        let rate = |text: &str, factor| RateRule { pattern: pattern(text), factor };
        let rules = ParamRules {
            prefix: "critic.".to_owned(),
            frozen: vec![pattern("stem"), pattern("critic.0")],
            undecayed: Vec::new(),
            unturned: Vec::new(),
            unfreezes: false,
            rates: vec![rate("*", 0.1), rate("2", 10.0)],
        };
        assert!(rules.freezes("critic.conv1.weight", "critic.stem") && rules.freezes("critic.0.weight", ""));
        assert!(!rules.freezes("critic.2.weight", "critic.2"));
        assert_eq!((rules.rate("critic.2.weight", ""), rules.rate("critic.4.weight", "")), (10.0, 0.1));
    }
}
