//! Transposed convolution: the input's gradient of a convolution as an operation.

use super::{Conv2dShape, add_bias, conv2d_backward_input, conv2d_backward_weight, conv2d_forward};
use crate::context::Context;
use crate::error::{KernelError, Result, check_len};
use crate::float::Float;

/// The sizes of a transposed two-dimensional convolution (Zeiler et al. 2010), as in PyTorch's `ConvTranspose2d`; pairs
/// are [height, width].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConvTranspose2dShape {
    /// Images.
    pub batch: usize,
    /// Channels of an input image.
    pub in_channels: usize,
    /// Height of an input image.
    pub height: usize,
    /// Width of an input image.
    pub width: usize,
    /// Channels of an output image.
    pub out_channels: usize,
    /// Size of the window.
    pub kernel: [usize; 2],
    /// Pixels of the output between those of the input.
    pub stride: [usize; 2],
    /// Pixels removed from each side of the output.
    pub padding: [usize; 2],
    /// Pixels added on the lower and right side. They select among the output sizes that a convolution maps to the same
    /// input size. Less than the stride or the dilation.
    pub output_padding: [usize; 2],
    /// Step between the taps of a window.
    pub dilation: [usize; 2],
    /// Independent convolutions over equal parts of the channels.
    pub groups: usize,
}

impl ConvTranspose2dShape {
    /// Returns the convolution whose transpose this is, from this one's output to its input.
    ///
    /// # Errors
    /// [`KernelError::Shape`] if the sizes are invalid.
    pub fn convolution(&self) -> Result<Conv2dShape> {
        let wrong = |problem: String| Err(KernelError::Shape { kernel: "conv_transpose2d", problem });
        let mut size = [0; 2];
        for axis in 0..2 {
            let (stride, dilation) = (self.stride[axis], self.dilation[axis]);
            if self.kernel[axis] == 0 || stride == 0 || dilation == 0 || [self.height, self.width][axis] == 0
            {
                return wrong(format!("kernel, stride, dilation and size must be at least 1: {self:?}"));
            }
            if self.output_padding[axis] >= stride.max(dilation) {
                return wrong(format!(
                    "output padding {:?} must be less than stride {:?} or dilation {:?}",
                    self.output_padding, self.stride, self.dilation
                ));
            }
            let whole = ([self.height, self.width][axis] - 1) * stride
                + dilation * (self.kernel[axis] - 1)
                + self.output_padding[axis]
                + 1;
            let Some(left) = whole.checked_sub(2 * self.padding[axis]).filter(|&left| left > 0) else {
                return wrong(format!("padding {:?} cuts off all of an output of {whole}", self.padding));
            };
            size[axis] = left;
        }
        let shape = Conv2dShape {
            batch: self.batch,
            in_channels: self.out_channels,
            height: size[0],
            width: size[1],
            out_channels: self.in_channels,
            kernel: self.kernel,
            stride: self.stride,
            padding: self.padding,
            dilation: self.dilation,
            groups: self.groups,
        };
        shape.validate()?;
        if [shape.out_height(), shape.out_width()] != [self.height, self.width] {
            return wrong(format!("no convolution leads back to {}x{}: {self:?}", self.height, self.width));
        }
        Ok(shape)
    }
}

/// Computes y = w ⋆ᵀ x + bias: `x` is [N, C, H, W], `w` [C, O/groups, KH, KW], `bias` `[O]`, `y` [N, O, H', W'].
///
/// # Errors
/// If the sizes are invalid or a length does not match them.
pub fn conv_transpose2d_forward<T: Float>(
    context: &Context,
    shape: &ConvTranspose2dShape,
    x: &[T],
    w: &[T],
    bias: Option<&[T]>,
    y: &mut [T],
) -> Result<()> {
    let convolution = shape.convolution()?;
    if let Some(bias) = bias {
        check_len("conv_transpose2d_forward", "bias", shape.out_channels, bias.len())?;
    }
    conv2d_backward_input(context, &convolution, x, w, y)?;
    // The outputs here are the inputs of the convolution.
    let plane = convolution.height * convolution.width;
    let outputs = Conv2dShape {
        in_channels: 1,
        out_channels: shape.out_channels,
        kernel: [1; 2],
        stride: [1; 2],
        padding: [0; 2],
        dilation: [1; 2],
        groups: 1,
        ..convolution
    };
    debug_assert_eq!(y.len(), shape.batch * shape.out_channels * plane);
    add_bias(context, &outputs, bias, y);
    Ok(())
}

/// Computes the gradient of the input: `dy` is [N, O, H', W'], `dx` [N, C, H, W] is overwritten.
///
/// # Errors
/// If the sizes are invalid or a length does not match them.
pub fn conv_transpose2d_backward_input<T: Float>(
    context: &Context,
    shape: &ConvTranspose2dShape,
    dy: &[T],
    w: &[T],
    dx: &mut [T],
) -> Result<()> {
    conv2d_forward(context, &shape.convolution()?, dy, w, None, dx)
}

/// Computes the gradient of the weights and writes it to `dw`, or adds it with `accumulate`.
///
/// # Errors
/// If the sizes are invalid or a length does not match them.
pub fn conv_transpose2d_backward_weight<T: Float>(
    context: &Context,
    shape: &ConvTranspose2dShape,
    x: &[T],
    dy: &[T],
    dw: &mut [T],
    accumulate: bool,
) -> Result<()> {
    conv2d_backward_weight(context, &shape.convolution()?, dy, x, dw, accumulate)
}
