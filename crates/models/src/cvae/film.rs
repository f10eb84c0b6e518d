//! Modulation of channels by a vector (FiLM).

use phalanx_tensor::nn::Linear;
use phalanx_tensor::{Init, Result, Scope, Tape, Value, ops};

/// x·(1 + scale) + shift for each channel, both linear in the condition (Perez et al. 2018).
#[derive(Debug)]
pub(super) struct Film {
    linear: Linear,
}

impl Film {
    pub(super) fn new(scope: &Scope, condition: usize, channels: usize) -> Result<Self> {
        // A tenth of the usual scale, so that modulation starts near the identity.
        let bound = 0.1 / (condition as f64).sqrt();
        let weight = Init::Uniform { low: -bound, high: bound };
        let linear = Linear::with_init(scope, condition, 2 * channels, weight, Some(Init::ZEROS))?;
        Ok(Self { linear })
    }

    /// Modulates `x` [N, C, H, W] by `condition` [N, D].
    pub(super) fn forward(&self, tape: &Tape, x: &Value, condition: &Value) -> Result<Value> {
        let batch = x.dims()[0];
        let both = self.linear.forward(tape, condition)?;
        // Of channels that are cut over ranks this one has some.
        let channels = both.dims()[1] / 2;
        let part = |index: usize| -> Result<Value> {
            let part = ops::narrow(tape, &both, 1, index * channels, channels)?;
            ops::reshape(tape, &part, (batch, channels, 1, 1))
        };
        let scaled = ops::broadcast_mul(tape, x, &ops::add_scalar(tape, &part(0)?, 1.0)?)?;
        ops::broadcast_add(tape, &scaled, &part(1)?)
    }
}
