//! Convolutions, pooling and up-sampling.

use phalanx_tensor::backend::{Conv2dShape, ConvTranspose2dShape, Pool2dShape};

use super::{Attributes, Lowering, TracedOp};
use crate::error::Result;
use crate::node::{Attribute, Values};

impl Lowering {
    pub(super) fn conv2d(&mut self, op: TracedOp<'_>, shape: &Conv2dShape) -> Result<String> {
        let attributes = vec![
            ("kernel_shape", Attribute::sizes(&shape.kernel)),
            ("strides", Attribute::sizes(&shape.stride)),
            ("pads", Attribute::pads(shape.padding)),
            ("dilations", Attribute::sizes(&shape.dilation)),
            ("group", Attribute::Int(shape.groups as i64)),
        ];
        self.convolution("Conv", op, attributes)
    }

    pub(super) fn conv_transpose2d(
        &mut self,
        op: TracedOp<'_>,
        shape: &ConvTranspose2dShape,
    ) -> Result<String> {
        let attributes = vec![
            ("kernel_shape", Attribute::sizes(&shape.kernel)),
            ("strides", Attribute::sizes(&shape.stride)),
            ("pads", Attribute::pads(shape.padding)),
            ("output_padding", Attribute::sizes(&shape.output_padding)),
            ("dilations", Attribute::sizes(&shape.dilation)),
            ("group", Attribute::Int(shape.groups as i64)),
        ];
        self.convolution("ConvTranspose", op, attributes)
    }

    /// Adds a convolution of an image, a weight and an optional bias.
    fn convolution(
        &mut self,
        operator: &'static str,
        op: TracedOp<'_>,
        attributes: Attributes,
    ) -> Result<String> {
        let mut inputs = vec![self.input(op, 0)?, self.input(op, 1)?];
        inputs.extend(self.optional_input(op, 2)?);
        Ok(self.emit(operator, inputs, attributes))
    }

    pub(super) fn pool(
        &mut self,
        operator: &'static str,
        op: TracedOp<'_>,
        shape: &Pool2dShape,
        more: Attributes,
    ) -> Result<String> {
        let mut attributes = vec![
            ("kernel_shape", Attribute::sizes(&shape.kernel)),
            ("strides", Attribute::sizes(&shape.stride)),
            ("pads", Attribute::pads(shape.padding)),
        ];
        attributes.extend(more);
        self.of_inputs(operator, op, attributes)
    }

    pub(super) fn upsample(&mut self, op: TracedOp<'_>, factor: usize) -> Result<String> {
        let x = self.input(op, 0)?;
        let factor = factor as f32;
        let scales = self.constant(vec![4], Values::F32(vec![1.0, 1.0, factor, factor]));
        // Each pixel is repeated: position y comes from ⌊y / factor⌋.
        let attributes = vec![
            ("mode", Attribute::Text("nearest")),
            ("coordinate_transformation_mode", Attribute::Text("asymmetric")),
            ("nearest_mode", Attribute::Text("floor")),
        ];
        Ok(self.emit("Resize", [x, String::new(), scales], attributes))
    }
}
