//! The sizes of a convolution.

use crate::error::{KernelError, Result};

/// The sizes of a two-dimensional convolution; pairs are [height, width].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Conv2dShape {
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
    /// Step between windows.
    pub stride: [usize; 2],
    /// Zeros on each side.
    pub padding: [usize; 2],
    /// Step between the taps of a window.
    pub dilation: [usize; 2],
    /// Independent convolutions over equal parts of the channels.
    pub groups: usize,
}

impl Conv2dShape {
    /// Checks the sizes.
    ///
    /// # Errors
    /// [`KernelError::Shape`] with the invalid size.
    pub fn validate(&self) -> Result<()> {
        let wrong = |problem: String| Err(KernelError::Shape { kernel: "conv2d", problem });
        let zero = [self.kernel, self.stride, self.dilation].concat().contains(&0);
        if zero || self.groups == 0 || self.in_channels == 0 || self.out_channels == 0 {
            return wrong(format!(
                "kernel, stride, dilation, groups and channels must be at least 1: {self:?}"
            ));
        }
        if !self.in_channels.is_multiple_of(self.groups) || !self.out_channels.is_multiple_of(self.groups) {
            return wrong(format!(
                "{} groups do not divide {} input and {} output channels",
                self.groups, self.in_channels, self.out_channels
            ));
        }
        for axis in 0..2 {
            let (size, reach) = (self.size(axis) + 2 * self.padding[axis], self.reach(axis));
            if size < reach {
                let name = ["height", "width"][axis];
                return wrong(format!("the window reaches over {reach} but the padded {name} is {size}"));
            }
        }
        Ok(())
    }

    fn size(&self, axis: usize) -> usize {
        [self.height, self.width][axis]
    }

    /// The extent of a window.
    fn reach(&self, axis: usize) -> usize {
        self.dilation[axis] * (self.kernel[axis] - 1) + 1
    }

    fn out_size(&self, axis: usize) -> usize {
        (self.size(axis) + 2 * self.padding[axis]).saturating_sub(self.reach(axis)) / self.stride[axis] + 1
    }

    /// Height of an output image.
    pub fn out_height(&self) -> usize {
        self.out_size(0)
    }

    /// Width of an output image.
    pub fn out_width(&self) -> usize {
        self.out_size(1)
    }

    /// Elements of the input.
    pub fn input_len(&self) -> usize {
        self.batch * self.in_channels * self.height * self.width
    }

    /// Elements of the weights.
    pub fn weight_len(&self) -> usize {
        self.out_channels * (self.in_channels / self.groups.max(1)) * self.kernel[0] * self.kernel[1]
    }

    /// Multiplications of a forward pass, those with the zeros of the padding included.
    pub fn multiply_adds(&self) -> usize {
        self.weight_len() * self.batch * self.out_height() * self.out_width()
    }

    /// Elements of the output.
    pub fn output_len(&self) -> usize {
        self.batch * self.out_channels * self.out_height() * self.out_width()
    }

    /// True if every group has one input channel.
    pub(super) fn is_depthwise(&self) -> bool {
        self.groups > 1 && self.groups == self.in_channels
    }

    /// Returns the range of output positions along `axis` whose tap `tap` falls inside the image.
    pub(super) fn inside(&self, axis: usize, tap: usize) -> (usize, usize) {
        let (offset, padding, stride) = (tap * self.dilation[axis], self.padding[axis], self.stride[axis]);
        let start = padding.saturating_sub(offset).div_ceil(stride);
        // Positions o with o·stride + offset − padding ≤ size − 1.
        let end = match (self.size(axis) + padding).checked_sub(offset + 1) {
            Some(room) if self.size(axis) > 0 => room / stride + 1,
            _ => 0,
        };
        let end = end.min(self.out_size(axis));
        (start.min(end), end)
    }
}
