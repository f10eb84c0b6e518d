//! The residual block: twice norm, SiLU and 3×3 convolution, with the time added between them.

use phalanx_tensor::nn::{Conv2d, GroupNorm, Linear};
use phalanx_tensor::ops::{self, Conv2dOptions};
use phalanx_tensor::{Block, Result, Scope, Tape, Value};

use super::conv;

/// The settings of the residual blocks of a network.
#[derive(Debug, Clone, Copy)]
pub(in crate::diffusion) struct ResnetConfig {
    /// The groups of each norm.
    pub(in crate::diffusion) groups: usize,
    /// The constant added to the variance.
    pub(in crate::diffusion) eps: f64,
    /// The width of the embedded time; `None` without time.
    pub(in crate::diffusion) time: Option<usize>,
    /// The dropout probability before the second convolution.
    pub(in crate::diffusion) dropout: f64,
    /// Starts the second convolution at zero, so that the block begins as the identity.
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
    /// The channels of the output.
    channels: usize,
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
            channels: outputs,
            dropout,
            name: scope.block_name().to_owned(),
        })
    }
}

impl Block for ResnetBlock2D {
    fn name(&self) -> &str {
        &self.name
    }

    /// Takes images in one or several values, which are concatenated along the channels (a skip connection last). With
    /// time, the last input is its embedding [N, time].
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
        let hidden = ops::dropout_of_part(tape, &hidden, self.dropout, self.channels)?;
        let hidden = self.conv2.forward(tape, &hidden)?;
        let shortcut = match &self.conv_shortcut {
            Some(conv) => conv.forward(tape, &x)?,
            None => x,
        };
        Ok(vec![ops::add(tape, &shortcut, &hidden)?])
    }
}
