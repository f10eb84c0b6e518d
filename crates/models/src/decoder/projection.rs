//! The linear layers of decoders.

use phalanx_tensor::nn::Linear;
use phalanx_tensor::{Init, Result, Scope};

/// Returns a layer with normal weights, and with a bias if there is to be one.
pub(super) fn linear(scope: &Scope, inputs: usize, outputs: usize, std: f64, bias: bool) -> Result<Linear> {
    let weight = Init::Normal { mean: 0.0, std };
    Linear::with_init(scope, inputs, outputs, weight, bias.then_some(Init::ZEROS))
}
