//! The residual block: twice norm, SiLU and 3×3 convolution, the time added between them.

use phalanx_tensor::nn::{Conv2d, GroupNorm, Linear};
use phalanx_tensor::ops::{self, Conv2dOptions};
use phalanx_tensor::{Block, Result, Scope, Tape, Value};

use super::conv;

/// What residual blocks of one network have in common.
#[derive(Debug, Clone, Copy)]
pub(in crate::diffusion) struct ResnetConfig {
    /// Groups of each norm.
    pub(in crate::diffusion) groups: usize,
    /// Added to the variance.
    pub(in crate::diffusion) eps: f64,
    /// Width of the embedded time, where it is told.
    pub(in crate::diffusion) time: Option<usize>,
    /// Probability of dropping an element before the second convolution.
    pub(in crate::diffusion) dropout: f64,
    /// Whether the second convolution starts at zero, so that the block begins as the identity.
    pub(in crate::diffusion) zero_init: bool,
}

/// A residual block with the names of diffusers' `ResnetBlock2D`.
#[derive(Debug)]
pub(in crate::diffusion) struct ResnetBlock2D {
    name: String,
    norm1: GroupNorm,
    conv1: Conv2d,
    time_emb_proj: Option<Linear>,
    norm2: GroupNorm,
    conv2: Conv2d,
    conv_shortcut: Option<Conv2d>,
    dropout: f64,
}

impl ResnetBlock2D {
    pub(in crate::diffusion) fn new(
        scope: &Scope,
        inputs: usize,
        outputs: usize,
        config: ResnetConfig,
    ) -> Result<Self> {
        let scope = scope.block();
        let ResnetConfig { groups, eps, time, dropout, zero_init } = config;
        let same = Conv2dOptions::new(1, 1);
        let project = |time| Linear::new(&scope.pp("time_emb_proj"), time, outputs);
        let shortcut =
            || conv(&scope.pp("conv_shortcut"), (inputs, outputs, 1), Conv2dOptions::new(1, 0), false);
        Ok(Self {
            norm1: GroupNorm::new(&scope.pp("norm1"), groups, inputs, eps)?,
            conv1: conv(&scope.pp("conv1"), (inputs, outputs, 3), same, false)?,
            time_emb_proj: time.map(project).transpose()?,
            norm2: GroupNorm::new(&scope.pp("norm2"), groups, outputs, eps)?,
            conv2: conv(&scope.pp("conv2"), (outputs, outputs, 3), same, zero_init)?,
            conv_shortcut: (inputs != outputs).then(shortcut).transpose()?,
            dropout,
            name: scope.block_name().to_owned(),
        })
    }
}

impl Block for ResnetBlock2D {
    fn name(&self) -> &str {
        &self.name
    }

    /// Takes images and, where the block is told the time, its embedding [N, time]; images that come in several values,
    /// those of a skip behind the others, are one after the other along their channels.
    fn forward(&self, tape: &Tape, inputs: &[Value]) -> Result<Vec<Value>> {
        let (images, time) = match &self.time_emb_proj {
            Some(_) => inputs.split_at(inputs.len() - 1),
            None => (inputs, &[][..]),
        };
        let x = match images {
            [alone] => alone.clone(),
            several => ops::cat(tape, &several.iter().collect::<Vec<_>>(), 1)?,
        };
        let mut hidden = ops::silu(tape, &self.norm1.forward(tape, &x)?)?;
        hidden = self.conv1.forward(tape, &hidden)?;
        if let (Some(project), [time]) = (&self.time_emb_proj, time) {
            let time = project.forward(tape, &ops::silu(tape, time)?)?;
            let (batch, channels) = (time.dims()[0], time.dims()[1]);
            hidden = ops::broadcast_add(tape, &hidden, &ops::reshape(tape, &time, (batch, channels, 1, 1))?)?;
        }
        hidden = ops::silu(tape, &self.norm2.forward(tape, &hidden)?)?;
        hidden = self.conv2.forward(tape, &ops::dropout(tape, &hidden, self.dropout)?)?;
        let around = match &self.conv_shortcut {
            Some(shortcut) => shortcut.forward(tape, &x)?,
            None => x,
        };
        Ok(vec![ops::add(tape, &around, &hidden)?])
    }
}
