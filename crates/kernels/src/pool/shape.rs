//! The sizes of a pooling.

use std::ops::Range;

use crate::error::{KernelError, Result};

/// The sizes of a two-dimensional pooling; pairs are [height, width].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pool2dShape {
    /// Images.
    pub batch: usize,
    /// Channels.
    pub channels: usize,
    /// Height of the input.
    pub height: usize,
    /// Width of the input.
    pub width: usize,
    /// Window.
    pub kernel: [usize; 2],
    /// Step between windows.
    pub stride: [usize; 2],
    /// Border on each side. It is at most half a window, as in PyTorch, so that every window has an element.
    pub padding: [usize; 2],
}

impl Pool2dShape {
    /// Checks the sizes.
    ///
    /// # Errors
    /// [`KernelError::Shape`] with the invalid size.
    pub fn validate(&self) -> Result<()> {
        let wrong = |problem: String| Err(KernelError::Shape { kernel: "pool2d", problem });
        for axis in 0..2 {
            let (kernel, padding) = (self.kernel[axis], self.padding[axis]);
            let size = [self.height, self.width][axis];
            if kernel == 0 || self.stride[axis] == 0 {
                return wrong(format!(
                    "window {:?} and stride {:?} must be at least 1",
                    self.kernel, self.stride
                ));
            }
            if padding * 2 > kernel {
                return wrong(format!("padding {padding} is more than half of the window {kernel}"));
            }
            if size + 2 * padding < kernel {
                return wrong(format!(
                    "a window of {kernel} does not fit a size of {size} padded by {padding}"
                ));
            }
        }
        Ok(())
    }

    fn out_size(&self, axis: usize) -> usize {
        ([self.height, self.width][axis] + 2 * self.padding[axis]).saturating_sub(self.kernel[axis])
            / self.stride[axis]
            + 1
    }

    /// Height of the output.
    pub fn out_height(&self) -> usize {
        self.out_size(0)
    }

    /// Width of the output.
    pub fn out_width(&self) -> usize {
        self.out_size(1)
    }

    /// Elements of the input.
    pub fn input_len(&self) -> usize {
        self.batch * self.channels * self.height * self.width
    }

    /// Elements of the output.
    pub fn output_len(&self) -> usize {
        self.batch * self.channels * self.out_height() * self.out_width()
    }

    /// The input positions along `axis` that window `index` covers inside the image.
    #[inline(always)]
    pub(super) fn window(&self, axis: usize, index: usize) -> Range<usize> {
        let start = index * self.stride[axis];
        let end = (start + self.kernel[axis]).saturating_sub(self.padding[axis]);
        start.saturating_sub(self.padding[axis])..end.min([self.height, self.width][axis])
    }
}
