//! Rules about parameters by name: which are frozen, and the factors of their learning rates.

use super::{AdapterRule, NamePattern};

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
    /// Adapters that are trained in place of the parameters.
    pub adapters: Option<AdapterRule>,
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

    /// True if a pattern names a layer: by its name, the last part of it, or its block.
    pub(super) fn names_layer(&self, pattern: &NamePattern, name: &str, block: &str) -> bool {
        let last = name.rsplit('.').next().unwrap_or_default();
        self.fits(pattern, name, block) || pattern.matches(last)
    }

    /// The rule of adapters, if it holds for the layer of this name.
    pub(super) fn adapter(&self, name: &str, block: &str) -> Option<&AdapterRule> {
        let rule = self.adapters.as_ref()?;
        let weight = format!("{name}.weight");
        let is_trained = rule.trained.iter().any(|pattern| self.fits(pattern, &weight, block));
        let named = || rule.layers.iter().any(|pattern| self.names_layer(pattern, name, block));
        Some(rule).filter(|_| !is_trained && (rule.layers.is_empty() || named()))
    }

    /// True if a parameter that is no adapter's is frozen because adapters are trained in its place.
    pub(super) fn trains_adapters_alone(&self, name: &str, block: &str) -> bool {
        let is_trained =
            |rule: &AdapterRule| rule.trained.iter().any(|pattern| self.fits(pattern, name, block));
        self.adapters.as_ref().is_some_and(|rule| !is_trained(rule))
    }

    /// The patterns of all rules about parameters.
    pub fn patterns(&self) -> impl Iterator<Item = &NamePattern> {
        let rates = self.rates.iter().map(|rule| &rule.pattern);
        let trained = self.adapters.iter().flat_map(|rule| &rule.trained);
        self.frozen.iter().chain(&self.undecayed).chain(&self.unturned).chain(rates).chain(trained)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
            adapters: None,
        };
        assert!(rules.freezes("critic.conv1.weight", "critic.stem") && rules.freezes("critic.0.weight", ""));
        assert!(!rules.freezes("critic.2.weight", "critic.2"));
        assert_eq!((rules.rate("critic.2.weight", ""), rules.rate("critic.4.weight", "")), (10.0, 0.1));
    }
}
