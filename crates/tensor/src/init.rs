//! Initial values of parameters, equal to PyTorch's `torch.nn.init` in distribution.
//!
//! Every element is drawn from its own position of the parameter's stream, so a rank fills just its shard. Fan-in and
//! fan-out follow PyTorch's `_calculate_fan_in_and_fan_out`: for a weight of shape `[out, in, …kernel]` fan-in is `in
//! × kernel`, fan-out `out × kernel`.

use std::ops::Range;

use crate::Key;

/// The fan that scales a variance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fan {
    /// Elements of the weight that feed one output.
    In,
    /// Elements of the weight that one input feeds.
    Out,
}

/// The initial distribution of a parameter.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Init {
    /// Every element the same.
    Constant(f64),
    /// Uniform in [low, high).
    Uniform {
        /// Lower bound.
        low: f64,
        /// Upper bound.
        high: f64,
    },
    /// Normal.
    Normal {
        /// Mean.
        mean: f64,
        /// Standard deviation.
        std: f64,
    },
    /// Normal, truncated at two standard deviations (`trunc_normal_` with its default bounds scaled by `std`).
    TruncatedNormal {
        /// Mean.
        mean: f64,
        /// Standard deviation before truncation.
        std: f64,
    },
    /// He et al. 2015, normal: std = gain / √fan.
    KaimingNormal {
        /// The fan.
        fan: Fan,
        /// √2 for ReLU.
        gain: f64,
    },
    /// He et al. 2015, uniform: bound = gain · √(3 / fan).
    KaimingUniform {
        /// The fan.
        fan: Fan,
        /// √2 for ReLU.
        gain: f64,
    },
    /// Glorot & Bengio 2010, uniform: bound = gain · √(6 / (fan_in + fan_out)).
    XavierUniform {
        /// Scale.
        gain: f64,
    },
    /// Glorot & Bengio 2010, normal: std = gain · √(2 / (fan_in + fan_out)).
    XavierNormal {
        /// Scale.
        gain: f64,
    },
    /// The weights of PyTorch's `Linear` and `Conv2d`: uniform in ±1/√fan_in.
    TorchDefault,
    /// The biases of PyTorch's `Linear` and `Conv2d`: uniform in ±1/√fan_in of the weight.
    TorchBias {
        /// Fan-in of the weight that the bias belongs to.
        fan_in: usize,
    },
}

impl Init {
    /// Zeros.
    pub const ZEROS: Self = Self::Constant(0.0);
    /// Ones.
    pub const ONES: Self = Self::Constant(1.0);
    /// `kaiming_normal_(mode="fan_out", nonlinearity="relu")`, as in torchvision's image models.
    pub const KAIMING_FAN_OUT: Self = Self::KaimingNormal { fan: Fan::Out, gain: std::f64::consts::SQRT_2 };

    /// Fills `out` with elements `range` (row-major) of a parameter of shape `dims`.
    pub fn fill(self, dims: &[usize], key: Key, range: Range<usize>, out: &mut [f64]) {
        let out = &mut out[..range.len()];
        let (fan_in, fan_out) = fans(dims);
        let fan_of = |fan| (if fan == Fan::In { fan_in } else { fan_out }).max(1) as f64;
        let both = (fan_in + fan_out).max(1) as f64;
        let uniform = |low: f64, high: f64, out: &mut [f64]| {
            key.uniform(range.start, out);
            out.iter_mut().for_each(|v| *v = low + (high - low) * *v);
        };
        let normal = |mean: f64, std: f64, out: &mut [f64]| {
            key.normal(range.start, out);
            out.iter_mut().for_each(|v| *v = mean + std * *v);
        };
        match self {
            Self::Constant(value) => out.fill(value),
            Self::Uniform { low, high } => uniform(low, high, out),
            Self::Normal { mean, std } => normal(mean, std, out),
            Self::TruncatedNormal { mean, std } => {
                // Inverse-free: one uniform number an element through the normal's inverse distribution
                // function between its values at −2 and 2.
                key.uniform(range.start, out);
                let (low, high) = (normal_cdf(-2.0), normal_cdf(2.0));
                out.iter_mut().for_each(|v| *v = mean + std * normal_quantile(low + (high - low) * *v));
            }
            Self::KaimingNormal { fan, gain } => normal(0.0, gain / fan_of(fan).sqrt(), out),
            Self::KaimingUniform { fan, gain } => {
                let bound = gain * (3.0 / fan_of(fan)).sqrt();
                uniform(-bound, bound, out);
            }
            Self::XavierUniform { gain } => {
                let bound = gain * (6.0 / both).sqrt();
                uniform(-bound, bound, out);
            }
            Self::XavierNormal { gain } => normal(0.0, gain * (2.0 / both).sqrt(), out),
            Self::TorchDefault => {
                let bound = 1.0 / (fan_in.max(1) as f64).sqrt();
                uniform(-bound, bound, out);
            }
            Self::TorchBias { fan_in } => {
                let bound = 1.0 / (fan_in.max(1) as f64).sqrt();
                uniform(-bound, bound, out);
            }
        }
    }
}

/// Returns fan-in and fan-out of a weight; both are the length of a one-dimensional parameter.
fn fans(dims: &[usize]) -> (usize, usize) {
    match dims {
        [] => (1, 1),
        [n] => (*n, *n),
        [out, input, kernel @ ..] => {
            let kernel: usize = kernel.iter().product();
            (input * kernel, out * kernel)
        }
    }
}

/// Φ(x), the standard normal distribution function, by the complementary error function of Numerical Recipes.
fn normal_cdf(x: f64) -> f64 {
    let z = (x / std::f64::consts::SQRT_2).abs();
    let t = 1.0 / (1.0 + 0.5 * z);
    let polynomial = [
        -1.26551223,
        1.00002368,
        0.37409196,
        0.09678418,
        -0.18628806,
        0.27886807,
        -1.13520398,
        1.48851587,
        -0.82215223,
        0.17087277,
    ];
    let sum = polynomial.iter().rev().fold(0.0, |sum, c| sum * t + c);
    let erfc = t * (-z * z + sum).exp();
    if x < 0.0 { 0.5 * erfc } else { 1.0 - 0.5 * erfc }
}

/// Φ⁻¹(p), by Newton steps from a logistic start; used between Φ(−2) and Φ(2), where it converges in a few.
fn normal_quantile(p: f64) -> f64 {
    let mut x = (p / (1.0 - p)).ln() / 1.702;
    for _ in 0..6 {
        let density = (-0.5 * x * x).exp() / (std::f64::consts::TAU).sqrt();
        x -= (normal_cdf(x) - p) / density;
    }
    x
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moments(init: Init, dims: &[usize]) -> (f64, f64, f64) {
        let n: usize = dims.iter().product();
        let mut out = vec![0.0; n];
        init.fill(dims, Key::new(3).stream("w"), 0..n, &mut out);
        let mean = out.iter().sum::<f64>() / n as f64;
        let std = (out.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / n as f64).sqrt();
        (mean, std, out.iter().fold(0.0, |m: f64, v| m.max(v.abs())))
    }

    #[test]
    fn scales_are_those_of_pytorch() {
        let dims = [64, 48, 3, 3];
        let (fan_in, fan_out) = (48.0 * 9.0, 64.0 * 9.0_f64);
        let uniform_std = |bound: f64| bound / 3.0_f64.sqrt();
        let gain = std::f64::consts::SQRT_2;
        let cases = [
            (Init::KAIMING_FAN_OUT, gain / fan_out.sqrt()),
            (Init::KaimingUniform { fan: Fan::In, gain }, gain / f64::sqrt(fan_in)),
            (Init::XavierUniform { gain: 1.0 }, (2.0 / (fan_in + fan_out)).sqrt()),
            (Init::XavierNormal { gain: 1.0 }, (2.0 / (fan_in + fan_out)).sqrt()),
            (Init::TorchDefault, uniform_std(1.0 / f64::sqrt(fan_in))),
            (Init::TorchBias { fan_in: 100 }, uniform_std(0.1)),
            (Init::Uniform { low: -2.0, high: 2.0 }, uniform_std(2.0)),
            (Init::Normal { mean: 0.0, std: 0.02 }, 0.02),
            // The standard deviation of a normal truncated at two is 0.8796 of the original one.
            (Init::TruncatedNormal { mean: 0.0, std: 1.0 }, 0.8796),
        ];
        for (init, expected) in cases {
            let (mean, std, largest) = moments(init, &dims);
            assert!((std / expected - 1.0).abs() < 0.02, "{init:?}: {std} instead of {expected}");
            assert!(mean.abs() < 0.03 * expected, "{init:?}: mean {mean}");
            if matches!(init, Init::TruncatedNormal { .. }) {
                assert!(largest <= 2.0 + 1e-6 && largest > 1.95, "{largest}");
            }
        }
    }

    #[test]
    fn a_shard_is_the_same_as_the_range_of_the_whole() {
        let dims = [10, 7];
        for init in [Init::TorchDefault, Init::KAIMING_FAN_OUT, Init::TruncatedNormal { mean: 0.0, std: 1.0 }]
        {
            let mut whole = vec![0.0; 70];
            init.fill(&dims, Key::new(1), 0..70, &mut whole);
            let mut part = vec![0.0; 20];
            init.fill(&dims, Key::new(1), 33..53, &mut part);
            assert_eq!(part, whole[33..53]);
        }
    }
}
