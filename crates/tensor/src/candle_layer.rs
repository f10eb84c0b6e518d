//! Layers of candle-nn that ops of this crate compute, so that they can be cut over ranks.

use candle_nn::{Conv2d, Embedding, Linear, VarBuilder};

use crate::candle_module::registered;
use crate::ops::{self, Conv2dOptions};
use crate::store::{Param, Scope};
use crate::tape::{Tape, Value};
use crate::{Result, TensorError};

/// The op of this crate that computes a layer of candle-nn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LayerOp {
    /// [`ops::linear`].
    Linear,
    /// [`ops::conv2d`] with these options.
    Conv2d(Conv2dOptions),
    /// [`ops::embedding`].
    Embedding,
}

/// A layer of candle-nn that an op of this crate computes: [`Linear`], [`Conv2d`] and [`Embedding`].
pub trait KnownLayer {
    /// Returns the op.
    fn op(&self) -> LayerOp;
}

impl KnownLayer for Linear {
    fn op(&self) -> LayerOp {
        LayerOp::Linear
    }
}

impl KnownLayer for Conv2d {
    fn op(&self) -> LayerOp {
        let config = self.config();
        LayerOp::Conv2d(Conv2dOptions {
            stride: [config.stride; 2],
            padding: [config.padding; 2],
            dilation: [config.dilation; 2],
            groups: config.groups,
        })
    }
}

impl KnownLayer for Embedding {
    fn op(&self) -> LayerOp {
        LayerOp::Embedding
    }
}

/// A layer of candle-nn with its variables in a [`crate::ParamStore`], computed by an op of this crate.
///
/// It has the names, shapes and initial values of [`crate::CandleModule`], and may be cut over ranks: a rank that holds a portion of the
/// variables computes with it as [`crate::nn`]'s layers do. So a model of candle-nn is cut by registering its large layers one by one;
/// everything between them stays candle code in segments ([`Tape::segment`], [`crate::CandleModule`]).
///
/// ```
/// use candle_core::{Device, Tensor};
/// use phalanx_tensor::{BuildOptions, CandleLayer, StoreBuilder, Tape, Value};
/// # use phalanx_tensor::{Context, Key, Session};
///
/// # fn main() -> phalanx_tensor::Result<()> {
/// let builder = StoreBuilder::new(BuildOptions::default());
/// let layer = CandleLayer::register(&builder.root().pp("up"), |vb| candle_nn::linear(4, 7, vb))?;
/// let store = builder.build()?;
/// assert_eq!(store.param("up.weight")?.dims(), [7, 4]);
/// # let tape = Tape::recording(Session::training(std::sync::Arc::new(Context::new(1)), Key::new(0)));
/// let y = layer.forward(&tape, &Value::constant(Tensor::new(&[[1.0_f32, 2.0, 3.0, 4.0]], &Device::Cpu)?))?;
/// assert_eq!(y.dims(), [1, 7]);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct CandleLayer {
    op: LayerOp,
    block: String,
    weight: Param,
    bias: Option<Param>,
}

impl CandleLayer {
    /// Registers the variables of the layer that `build` makes: a weight, and perhaps a bias.
    ///
    /// # Errors
    /// Errors of candle, duplicate names, other variables, and those of a plan that cannot cut them.
    pub fn register<L: KnownLayer>(
        scope: &Scope,
        build: impl FnOnce(VarBuilder<'_>) -> candle_core::Result<L>,
    ) -> Result<Self> {
        let (layer, params) = registered(scope, build)?;
        let (mut weight, mut bias) = (None, None);
        for (name, param) in params {
            let place = match name.rsplit('.').next() {
                Some("weight") => &mut weight,
                Some("bias") => &mut bias,
                _ => {
                    let problem =
                        format!("the candle layer has `{name}`, and an op takes a weight and a bias");
                    return Err(TensorError::Backward(problem));
                }
            };
            *place = Some(param);
        }
        let weight =
            weight.ok_or_else(|| TensorError::Backward("the candle layer has no weight".to_owned()))?;
        Ok(Self { op: layer.op(), block: scope.block_name().to_owned(), weight, bias })
    }

    /// Runs the layer.
    ///
    /// # Errors
    /// If shapes or placements do not match.
    pub fn forward(&self, tape: &Tape, x: &Value) -> Result<Value> {
        let compute = |x: &Value| {
            let weight = tape.param(&self.weight)?;
            let bias = self.bias.as_ref().map(|bias| tape.param(bias)).transpose()?;
            match self.op {
                LayerOp::Linear => ops::linear(tape, x, &weight, bias.as_ref()),
                LayerOp::Conv2d(options) => ops::conv2d(tape, x, &weight, bias.as_ref(), options),
                LayerOp::Embedding => ops::embedding(tape, &weight, &x.array()?),
            }
        };
        if self.block.is_empty() { compute(x) } else { tape.run_as(&self.block, x, compute) }
    }
}
