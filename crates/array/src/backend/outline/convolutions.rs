//! Convolutions without numbers.

use super::{Outlines, expect_len};
use crate::Result;
use crate::backend::{Array, Conv2dShape, ConvBackward, ConvForward, ConvTranspose2dShape, Convolutions};
use crate::storage::wide;

/// The destinations and the input's gradient of a backward.
fn backward<S>(
    outlines: &Outlines,
    op: &'static str,
    of: &ConvBackward<'_, S>,
    input: [usize; 4],
) -> Result<Option<Array>> {
    if let Some((x, _)) = of.weight {
        expect_len(op, x, input.iter().product())?;
    }
    Ok(of.input.map(|_| outlines.array(input.to_vec(), wide(of.dy.dtype()))))
}

impl Convolutions for Outlines {
    fn conv2d(&self, of: ConvForward<'_, Conv2dShape>) -> Result<Array> {
        const OP: &str = "conv2d";
        let ConvForward { shape, x, weight, bias, dtype, .. } = of;
        expect_len(OP, x, shape.input_len())?;
        let [height, width] = shape.kernel;
        expect_len(OP, weight, shape.out_channels * (shape.in_channels / shape.groups) * height * width)?;
        bias.map_or(Ok(()), |bias| expect_len(OP, bias, shape.out_channels))?;
        let dims = vec![shape.batch, shape.out_channels, shape.out_height(), shape.out_width()];
        Ok(self.array(dims, dtype))
    }

    fn conv2d_backward(&self, of: ConvBackward<'_, Conv2dShape>) -> Result<Option<Array>> {
        const OP: &str = "conv2d";
        let shape = of.shape;
        expect_len(OP, of.dy, shape.output_len())?;
        backward(self, OP, &of, [shape.batch, shape.in_channels, shape.height, shape.width])
    }

    fn conv_transpose2d(&self, of: ConvForward<'_, ConvTranspose2dShape>) -> Result<Array> {
        let ConvForward { shape, x, dtype, .. } = of;
        expect_len("conv_transpose2d", x, shape.batch * shape.in_channels * shape.height * shape.width)?;
        let made = shape.convolution()?;
        let dims = vec![shape.batch, shape.out_channels, made.height, made.width];
        Ok(self.array(dims, dtype))
    }

    fn conv_transpose2d_backward(&self, of: ConvBackward<'_, ConvTranspose2dShape>) -> Result<Option<Array>> {
        let shape = of.shape;
        let input = [shape.batch, shape.in_channels, shape.height, shape.width];
        backward(self, "conv_transpose2d", &of, input)
    }
}
