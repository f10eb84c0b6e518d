//! Normalisation in evaluation.

use phalanx_tensor::Buffer;
use phalanx_tensor::ops::FusedActivation;

use super::{Lowering, TracedOp};
use crate::dims::{Dim, reshape_target};
use crate::error::Result;
use crate::node::{Attribute, Values};

impl Lowering {
    /// Adds a batch norm with its running statistics, the residual and the activation.
    pub(super) fn batch_norm(
        &mut self,
        op: TracedOp<'_>,
        statistics: [&Buffer; 2],
        eps: f64,
        activation: FusedActivation,
    ) -> Result<String> {
        let mut inputs = vec![self.input(op, 0)?, self.input(op, 1)?, self.input(op, 2)?];
        for buffer in statistics {
            if !self.constants.contains_key(buffer.name()) {
                self.named_array(op.name(), buffer.name(), &buffer.array())?;
            }
            inputs.push(buffer.name().to_owned());
        }
        let mut output =
            self.emit("BatchNormalization", inputs, vec![("epsilon", Attribute::Float(eps as f32))]);
        if let Some(residual) = self.optional_input(op, 3)? {
            output = self.emit("Add", [output, residual], Vec::new());
        }
        Ok(match activation {
            FusedActivation::None => output,
            FusedActivation::Relu => self.emit("Relu", [output], Vec::new()),
            FusedActivation::Relu6 => self.clip(output, 0.0, 6.0),
        })
    }

    /// Adds a group norm: an instance norm of the groups, then weight and bias of the channels. `GroupNormalization` of opset
    /// 18 has a weight for each group, and only opset 21 has one for each channel.
    pub(super) fn group_norm(&mut self, op: TracedOp<'_>, groups: usize, eps: f64) -> Result<String> {
        let x = self.input(op, 0)?;
        let grouped = self.integers(&[0, groups as i64, -1]);
        let x = self.emit("Reshape", [x, grouped], Vec::new());
        let ones = self.constant(vec![groups], Values::F32(vec![1.0; groups]));
        let zeros = self.constant(vec![groups], Values::F32(vec![0.0; groups]));
        let eps = vec![("epsilon", Attribute::Float(eps as f32))];
        let normed = self.emit("InstanceNormalization", [x, ones, zeros], eps);
        let shape = self.integers(&reshape_target(op.name(), op.dims)?);
        let normed = self.emit("Reshape", [normed, shape], Vec::new());
        // [C] as [C, 1, …], so that it broadcasts over the pixels.
        let channels = op.dims.get(1).copied();
        let Some(Dim::Fixed(channels)) = channels else { return Err(op.unsupported()) };
        let mut of_channels = vec![1; op.dims.len() - 1];
        of_channels[0] = channels as i64;
        let affine = |lowering: &mut Self, at: usize| -> Result<String> {
            let (vector, shape) = (lowering.input(op, at)?, lowering.integers(&of_channels));
            Ok(lowering.emit("Reshape", [vector, shape], Vec::new()))
        };
        let (weight, bias) = (affine(self, 1)?, affine(self, 2)?);
        let scaled = self.emit("Mul", [normed, weight], Vec::new());
        Ok(self.emit("Add", [scaled, bias], Vec::new()))
    }

    pub(super) fn layer_norm(&mut self, op: TracedOp<'_>, eps: f64) -> Result<String> {
        let attributes = vec![("axis", Attribute::Int(-1)), ("epsilon", Attribute::Float(eps as f32))];
        self.of_inputs("LayerNormalization", op, attributes)
    }
}
