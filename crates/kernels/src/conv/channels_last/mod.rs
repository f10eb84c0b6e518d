//! Convolution with the channels innermost, for f32.
//!
//! A block of images is copied so that the channels of a pixel lie together, and convolved there. A tile of the
//! result is the same pixel of several images by several vectors of channels, so it lives in registers, its
//! weights are one contiguous stream that was packed once, and nothing is lowered: of a pixel's window exactly
//! those taps enter that lie inside the image. On the small maps of a network's last stages that leaves out a
//! third to a half of the arithmetic.
//!
//! Forward and the input's gradient are one kernel: every pixel of the result is a sum over sources, a source
//! being a pixel of the other map and the tap that leads there. Strides need no zeros between pixels that way.

mod gather;

pub(crate) mod pack;
pub(crate) mod sources;
mod weight;
mod weight_by_outputs;
mod weight_product;

use super::Conv2dShape;
use crate::context::Context;

/// Elements of the copied images of a block: 2 MiB.
const BLOCK_ELEMENTS: usize = 512 << 10;

/// Whether these kernels take a convolution: others have too few channels to fill vectors, or too few images.
fn suits(shape: &Conv2dShape) -> bool {
    shape.groups == 1 && shape.in_channels >= 16 && shape.out_channels >= 16 && shape.batch >= 4
}

/// Whether forward and the input's gradient are done here.
pub(super) fn suits_gather(shape: &Conv2dShape) -> bool {
    suits(shape)
}

/// Whether the gradient of the weights is done here.
pub(super) fn suits_weight(shape: &Conv2dShape) -> bool {
    suits(shape)
}

/// y = x ⋆ w.
pub(super) fn forward(context: &Context, shape: &Conv2dShape, x: &[f32], w: &[f32], y: &mut [f32]) {
    let mut sources = sources::of_outputs(shape);
    let taps = sources.renumber_taps();
    let window = shape.kernel[0] * shape.kernel[1];
    let (inputs, outputs) = (shape.in_channels, shape.out_channels);
    let pass = gather::Pass {
        batch: shape.batch,
        inputs,
        outputs,
        in_plane: shape.height * shape.width,
        taps: &taps,
        sources: &sources,
    };
    pass.run(
        context,
        x,
        pack::Weights { values: w, per_output: inputs * window, per_input: window, window },
        y,
    );
}

/// dx = w ⋆ᵀ dy.
pub(super) fn backward_input(context: &Context, shape: &Conv2dShape, dy: &[f32], w: &[f32], dx: &mut [f32]) {
    let mut sources = sources::of_inputs(shape);
    let taps = sources.renumber_taps();
    let window = shape.kernel[0] * shape.kernel[1];
    let inputs = shape.in_channels;
    let pass = gather::Pass {
        batch: shape.batch,
        inputs: shape.out_channels,
        outputs: inputs,
        in_plane: shape.out_height() * shape.out_width(),
        taps: &taps,
        sources: &sources,
    };
    // Seen from here the gradient's channels are the inputs.
    pass.run(
        context,
        dy,
        pack::Weights { values: w, per_output: window, per_input: inputs * window, window },
        dx,
    );
}

/// dw = x ⋆ dy, or dw += with `accumulate`.
pub(super) fn backward_weight(
    context: &Context,
    shape: &Conv2dShape,
    x: &[f32],
    dy: &[f32],
    dw: &mut [f32],
    accumulate: bool,
) {
    weight::run(context, shape, x, dy, dw, accumulate);
}

/// Images that a thread copies at a time: whole groups of `group`, as evenly as possible over the threads.
pub(crate) fn images_in_block(context: &Context, batch: usize, elements: usize, group: usize) -> usize {
    let fit = (BLOCK_ELEMENTS / elements.max(1)).max(1);
    let share = batch.div_ceil(context.parts()).max(1);
    let wanted = fit.min(share);
    if wanted <= group { group.min(share) } else { wanted / group * group }
}
