//! Embeddings of timesteps.

use candle_core::{DType, Device, Tensor};
use phalanx_tensor::nn::Linear;
use phalanx_tensor::{Block, Result, Scope, Tape, Value, ops};

/// Computes sines and cosines of timesteps (Vaswani et al. 2017), [N, width], of width/2 frequencies
/// exp(−ln(10000)·i/(width/2 − `shift`)). The cosines come first if `flip`. DDPM's networks have the sines first and
/// shift 1, those of latent diffusion the cosines first and shift 0.
pub(in crate::diffusion) fn sinusoids(
    tape: &Tape,
    timesteps: &[f64],
    width: usize,
    flip: bool,
    shift: f64,
    dtype: DType,
) -> Result<Value> {
    let half = width / 2;
    let mut values = Vec::with_capacity(timesteps.len() * width);
    for timestep in timesteps {
        let angle = |i: usize| {
            let exponent = i as f64 / (half as f64 - shift).max(1.0);
            timestep * (-10_000_f64.ln() * exponent).exp()
        };
        let (sines, cosines) = ((0..half).map(|i| angle(i).sin()), (0..half).map(|i| angle(i).cos()));
        match flip {
            true => values.extend(cosines.chain(sines)),
            false => values.extend(sines.chain(cosines)),
        }
        // An odd width ends with a zero.
        values.extend((2 * half..width).map(|_| 0.0));
    }
    let tensor = Tensor::from_vec(values, (timesteps.len(), width), &Device::Cpu)?.to_dtype(dtype)?;
    Ok(Value::constant(tape.backend().from_host(&tensor)?))
}

/// Two fully connected layers with a SiLU between them: `linear_1`, `linear_2`.
#[derive(Debug)]
pub(in crate::diffusion) struct TimeEmbedding {
    name: String,
    linear_1: Linear,
    linear_2: Linear,
}

impl TimeEmbedding {
    pub(in crate::diffusion) fn new(scope: &Scope, inputs: usize, outputs: usize) -> Result<Self> {
        let scope = scope.block();
        Ok(Self {
            linear_1: Linear::new(&scope.pp("linear_1"), inputs, outputs)?,
            linear_2: Linear::new(&scope.pp("linear_2"), outputs, outputs)?,
            name: scope.block_name().to_owned(),
        })
    }
}

impl Block for TimeEmbedding {
    fn name(&self) -> &str {
        &self.name
    }

    /// Takes sinusoids [N, inputs]; returns [N, outputs].
    fn forward(&self, tape: &Tape, inputs: &[Value]) -> Result<Vec<Value>> {
        let hidden = ops::silu(tape, &self.linear_1.forward(tape, &inputs[0])?)?;
        Ok(vec![self.linear_2.forward(tape, &hidden)?])
    }
}

/// A fully connected layer from a text feature to a vector that is added to the embedded time: diffusers'
/// `class_embedding` of type "simple_projection".
#[derive(Debug)]
pub(in crate::diffusion) struct ClassEmbedding {
    name: String,
    linear: Linear,
}

impl ClassEmbedding {
    pub(in crate::diffusion) fn new(scope: &Scope, inputs: usize, outputs: usize) -> Result<Self> {
        let scope = scope.block();
        Ok(Self { linear: Linear::new(&scope, inputs, outputs)?, name: scope.block_name().to_owned() })
    }
}

impl Block for ClassEmbedding {
    fn name(&self) -> &str {
        &self.name
    }

    /// Takes features [N, inputs]; returns [N, outputs].
    fn forward(&self, tape: &Tape, inputs: &[Value]) -> Result<Vec<Value>> {
        Ok(vec![self.linear.forward(tape, &inputs[0])?])
    }
}
