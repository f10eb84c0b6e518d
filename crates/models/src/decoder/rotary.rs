//! The frequencies of rotary position embeddings (Su et al. 2021), and their scaling to contexts longer than a model was
//! trained with.

/// The scaling of frequencies. `original` is the context of training, in tokens, and `factor` the longer context's share
/// of it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum RotaryScaling {
    /// None.
    Default,
    /// All frequencies divided by the factor (Chen et al. 2023).
    Linear {
        /// The factor.
        factor: f64,
    },
    /// A larger base for texts beyond the original context ("dynamic NTK").
    Dynamic {
        /// The factor.
        factor: f64,
        /// The original context.
        original: usize,
    },
    /// Low frequencies divided by the factor, high ones kept, with a smooth passage between (Llama 3.1).
    Llama3 {
        /// The factor.
        factor: f64,
        /// Wavelengths beyond `original / low` are scaled.
        low: f64,
        /// Wavelengths up to `original / high` are kept.
        high: f64,
        /// The original context.
        original: usize,
    },
    /// A ramp between frequencies by their rotations in the original context, and scaled attention (Peng et al. 2023).
    Yarn(YarnScaling),
}

/// The numbers of YaRN.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct YarnScaling {
    /// The factor.
    pub factor: f64,
    /// The original context.
    pub original: usize,
    /// Frequencies with more rotations are kept.
    pub fast: f64,
    /// Frequencies with fewer rotations are divided by the factor.
    pub slow: f64,
    /// The factor of cosines and sines.
    pub attention: f64,
    /// True if the ends of the ramp are whole dimensions.
    pub truncate: bool,
}

/// Rotary position embeddings of heads of `dim` elements.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RotaryConfig {
    /// The base of the frequencies.
    pub theta: f64,
    /// The scaling.
    pub scaling: RotaryScaling,
}

impl RotaryConfig {
    /// Returns the frequencies of heads of `dim` elements, `dim / 2` numbers, for texts of `length` tokens.
    pub fn frequencies(&self, dim: usize, length: usize) -> Vec<f64> {
        let plain = |theta: f64| (0..dim / 2).map(move |i| theta.powf(-2.0 * i as f64 / dim as f64));
        match self.scaling {
            RotaryScaling::Default => plain(self.theta).collect(),
            RotaryScaling::Linear { factor } => plain(self.theta).map(|f| f / factor).collect(),
            RotaryScaling::Dynamic { factor, original } => {
                let share = length.max(original) as f64 / original as f64;
                let power = dim as f64 / (dim as f64 - 2.0);
                plain(self.theta * (factor * share - factor + 1.0).powf(power)).collect()
            }
            RotaryScaling::Llama3 { factor, low, high, original } => plain(self.theta)
                .map(|f| {
                    let rotations = original as f64 * f / std::f64::consts::TAU;
                    let kept = ((rotations - low) / (high - low)).clamp(0.0, 1.0);
                    (1.0 - kept) * f / factor + kept * f
                })
                .collect(),
            RotaryScaling::Yarn(yarn) => yarn.frequencies(dim, self.theta, plain(self.theta)),
        }
    }

    /// Returns the factor of cosines and sines.
    pub fn attention_factor(&self) -> f64 {
        match self.scaling {
            RotaryScaling::Yarn(yarn) => yarn.attention,
            _ => 1.0,
        }
    }
}

impl YarnScaling {
    fn frequencies(&self, dim: usize, theta: f64, plain: impl Iterator<Item = f64>) -> Vec<f64> {
        // The dimension whose frequency has a number of rotations in the original context.
        let dim_of = |rotations: f64| {
            let turns = self.original as f64 / (rotations * std::f64::consts::TAU);
            dim as f64 * turns.ln() / (2.0 * theta.ln())
        };
        let (mut low, mut high) = (dim_of(self.fast), dim_of(self.slow));
        if self.truncate {
            (low, high) = (low.floor(), high.ceil());
        }
        let (low, high) = (low.max(0.0), high.min(dim as f64 - 1.0));
        // Equal ends would divide by 0.
        let width = if low == high { 1e-3 } else { high - low };
        let scaled = |(i, f): (usize, f64)| {
            let ramp = ((i as f64 - low) / width).clamp(0.0, 1.0);
            ramp * f / self.factor + (1.0 - ramp) * f
        };
        plain.enumerate().map(scaled).collect()
    }

    /// Returns the factor of cosines and sines of the paper.
    pub fn default_attention(factor: f64) -> f64 {
        if factor <= 1.0 { 1.0 } else { 0.1 * factor.ln() + 1.0 }
    }
}
