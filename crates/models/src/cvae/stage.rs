//! A stage of the encoder or the decoder.

use phalanx_tensor::nn::{Conv2d, GroupNorm};
use phalanx_tensor::ops::{self, Conv2dOptions};
use phalanx_tensor::{Block, Result, Scope, Tape, Value};

use super::film::Film;

/// The change of size in a [`Stage`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Resize {
    /// Half the size, by the stride of the convolution.
    Half,
    /// Twice the size, by nearest neighbours before the convolution.
    Double,
}

/// A 3×3 convolution that halves or doubles the size, group norm, modulation by the text, leaky ReLU.
#[derive(Debug)]
pub(super) struct Stage {
    name: String,
    conv: Conv2d,
    norm: GroupNorm,
    film: Film,
    resize: Resize,
}

impl Stage {
    pub(super) fn new(
        scope: &Scope,
        inputs: usize,
        outputs: usize,
        text_dim: usize,
        resize: Resize,
    ) -> Result<Self> {
        let scope = scope.block();
        let options = Conv2dOptions::new(if resize == Resize::Half { 2 } else { 1 }, 1);
        Ok(Self {
            name: scope.block_name().to_owned(),
            conv: Conv2d::new(&scope.pp("conv"), inputs, outputs, 3, options)?,
            norm: GroupNorm::new(&scope.pp("norm"), crate::groups_for(outputs), outputs, 1e-5)?,
            film: Film::new(&scope.pp("film"), text_dim, outputs)?,
            resize,
        })
    }
}

impl Block for Stage {
    fn name(&self) -> &str {
        &self.name
    }

    fn forward(&self, tape: &Tape, inputs: &[Value]) -> Result<Vec<Value>> {
        let x = match self.resize {
            Resize::Half => inputs[0].clone(),
            Resize::Double => ops::upsample_nearest2d(tape, &inputs[0], 2)?,
        };
        let x = self.norm.forward(tape, &self.conv.forward(tape, &x)?)?;
        let x = self.film.forward(tape, &x, &inputs[1])?;
        Ok(vec![ops::leaky_relu(tape, &x, 0.1)?])
    }
}
