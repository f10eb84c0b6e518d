//! The keys of `[lora]`: adapters in place of weights.

use phalanx_tensor::{AdapterRule, NamePattern};

use super::keys::{LoraConfig, ModelConfig};
use super::validate::Relations;

impl LoraConfig {
    /// The rule of adapters; `None` without them.
    ///
    /// # Errors
    /// A message about a pattern.
    pub(super) fn rule(&self) -> Result<Option<AdapterRule>, String> {
        let patterns = |key: &str, texts: &[String]| -> Result<Vec<NamePattern>, String> {
            let patterns = texts.iter().map(|text| NamePattern::new(text));
            patterns.collect::<Result<_, _>>().map_err(|error| format!("{key}: {error}"))
        };
        let layers = patterns("lora.layers", &self.layers)?;
        let trained = patterns("lora.trained", &self.trained)?;
        let Self { rank, alpha, dropout, .. } = *self;
        Ok((rank > 0).then_some(AdapterRule { rank, alpha, dropout, layers, trained }))
    }

    pub(super) fn check(&self, relations: &mut Relations<'_>, model: &ModelConfig) {
        relations.fraction("lora.dropout", self.dropout);
        relations.require(
            self.alpha.is_finite() && self.alpha > 0.0,
            "lora.alpha",
            format!("lora.alpha = {} is not above 0", self.alpha),
        );
        relations.require(
            self.rank == 0 || !model.weights.is_empty(),
            "lora.rank",
            format!("lora.rank = {} needs model.weights: adapters change a model that is trained", self.rank),
        );
        for (key, is_set) in [
            ("lora.layers", !self.layers.is_empty()),
            ("lora.trained", !self.trained.is_empty()),
            ("lora.from", !self.from.is_empty()),
        ] {
            relations.require(
                self.rank > 0 || !is_set,
                key,
                format!("{key} is for adapters: set lora.rank, such as to 8"),
            );
        }
        if let Err(problem) = self.rule() {
            let key = problem.split(':').next().unwrap_or_default();
            relations.require(false, key, problem.clone());
        }
    }
}
