//! The keys about single parameters: which are frozen, factors of their learning rates, and adapters in their place.

use phalanx_tensor::{NamePattern, ParamRules, RateRule, TensorError};

use super::keys::{Config, OptimConfig};

impl OptimConfig {
    /// The patterns of `optim.freeze`.
    pub(super) fn frozen(&self) -> Result<Vec<NamePattern>, TensorError> {
        self.freeze.iter().map(|text| NamePattern::new(text)).collect()
    }

    /// The patterns of `optim.no_decay`.
    pub(super) fn undecayed(&self) -> Result<Vec<NamePattern>, TensorError> {
        self.no_decay.iter().map(|text| NamePattern::new(text)).collect()
    }

    /// The patterns of `optim.unturned`.
    pub(super) fn unturned(&self) -> Result<Vec<NamePattern>, TensorError> {
        self.unturned.iter().map(|text| NamePattern::new(text)).collect()
    }

    /// The factors of `optim.rates`. The error is a message.
    pub(super) fn rate_rules(&self) -> Result<Vec<RateRule>, String> {
        self.rates.iter().map(|text| rate_rule(text)).collect()
    }

    /// True if frozen parameters are trained later.
    pub fn unfreezes(&self) -> bool {
        self.unfreeze_step > 0 || self.unfreeze_epoch > 0
    }

    /// The step after which frozen parameters are trained, counted from 1; `None` if they never are.
    pub fn unfreezes_after(&self, steps_per_epoch: u64) -> Option<u64> {
        match (self.unfreeze_step, self.unfreeze_epoch as u64) {
            (0, 0) => None,
            (0, epochs) => Some(epochs.saturating_mul(steps_per_epoch)),
            (steps, _) => Some(steps),
        }
    }
}

impl Config {
    /// The rules for the parameters of the network called `network`, which may be empty.
    ///
    /// # Errors
    /// A message about a pattern or a factor.
    pub fn param_rules(&self, network: &str) -> Result<ParamRules, String> {
        let optim = &self.optim;
        Ok(ParamRules {
            prefix: if network.is_empty() { String::new() } else { format!("{network}.") },
            frozen: optim.frozen().map_err(|error| format!("optim.freeze: {error}"))?,
            unfreezes: optim.unfreezes(),
            undecayed: optim.undecayed().map_err(|error| format!("optim.no_decay: {error}"))?,
            unturned: optim.unturned().map_err(|error| format!("optim.unturned: {error}"))?,
            rates: optim.rate_rules().map_err(|problem| format!("optim.rates: {problem}"))?,
            adapters: self.lora.rule()?,
        })
    }
}

/// Reads `PATTERN = FACTOR`.
fn rate_rule(text: &str) -> Result<RateRule, String> {
    let wrong = || format!("`{text}` is not a pattern and a factor of at least 0, such as `fc = 10`");
    let (pattern, factor) = text.split_once('=').ok_or_else(wrong)?;
    let pattern = NamePattern::new(pattern).map_err(|_| wrong())?;
    let factor = factor.trim().parse::<f64>().ok().filter(|factor| factor.is_finite() && *factor >= 0.0);
    Ok(RateRule { pattern, factor: factor.ok_or_else(wrong)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_read_and_mistakes_are_named() {
        let mut config = Config::default();
        assert_eq!(config.param_rules("").expect("sound"), ParamRules::default());
        config.optim.freeze = vec!["stem".to_owned(), "layer1".to_owned()];
        config.optim.no_decay = vec!["*.embed_tokens".to_owned()];
        config.optim.rates = vec!["fc = 10".to_owned(), "layer?.*.bn1=0.5".to_owned()];
        let rules = config.param_rules("critic").expect("sound");
        assert_eq!((rules.prefix.as_str(), rules.frozen.len(), rules.unfreezes), ("critic.", 2, false));
        assert_eq!(rules.rates.iter().map(|rule| rule.factor).collect::<Vec<_>>(), [10.0, 0.5]);
        assert_eq!(rules.undecayed.iter().map(ToString::to_string).collect::<Vec<_>>(), ["*.embed_tokens"]);
        assert_eq!(rules.rates[1].pattern.to_string(), "layer?.*.bn1");
        config.optim.unfreeze_epoch = 3;
        assert_eq!((config.optim.unfreezes(), config.optim.unfreezes_after(7)), (true, Some(21)));
        for wrong in ["fc", "fc = ten", "= 3", "fc = -1", "fc = inf"] {
            config.optim.rates = vec![wrong.to_owned()];
            let problem = config.param_rules("").expect_err(wrong);
            assert!(problem.starts_with(&format!("optim.rates: `{wrong}` is not")), "{problem}");
        }
    }
}
