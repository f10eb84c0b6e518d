//! The blocks of output pixels of a dense convolution, and the positions of their elements.

use std::borrow::Cow;
use std::ops::Range;

use crate::conv::Conv2dShape;
use crate::conv::lowering::{OutputRows, Tap, taps};
use crate::float::Float;
use crate::gemm_call::View;

/// The target size of a block's columns, in elements: 768 KiB of f32, most of a core's second-level cache.
const BLOCK_ELEMENTS: usize = 192 << 10;

/// The fewest columns of a block for which packing the weights is worthwhile.
const MIN_COLUMNS: usize = 128;

/// The division of the output pixels into blocks.
#[derive(Debug, Clone, Copy)]
pub(super) struct Blocks {
    /// Whole images in a block; 1 if blocks are parts of an image.
    images: usize,
    /// Output rows in a block.
    rows: usize,
    /// Blocks in all images.
    pub(super) count: usize,
    per_image: usize,
}

impl Blocks {
    fn new(shape: &Conv2dShape, depth: usize, parts: usize) -> Self {
        let (height, width) = (shape.out_height(), shape.out_width());
        let weights = depth * (shape.out_channels / shape.groups);
        // Weights that do not fit the cache are read once a block, so blocks grow with them.
        let columns = (BLOCK_ELEMENTS / depth.max(1)).max(MIN_COLUMNS).max((weights / depth.max(1)).min(512));
        let pixels = height * width;
        if pixels * 2 <= columns {
            let even = shape.batch.div_ceil(parts).max(1);
            let images = (columns / pixels.max(1)).clamp(1, even);
            return Self { images, rows: height, count: shape.batch.div_ceil(images), per_image: 1 };
        }
        let rows = (columns / width.max(1)).clamp(1, height);
        // Equal blocks rather than a small last one.
        let per_image = height.div_ceil(rows);
        let rows = height.div_ceil(per_image);
        let per_image = height.div_ceil(rows);
        Self { images: 1, rows, count: shape.batch * per_image, per_image }
    }
}

/// One group of one block: several whole images, or some rows of one image.
#[derive(Debug, Clone)]
pub(super) struct Panel {
    pub(super) group: usize,
    pub(super) images: Range<usize>,
    /// The first output row, and the one after the last.
    pub(super) rows: (usize, usize),
    /// Output pixels.
    pub(super) columns: usize,
}

impl Panel {
    /// True if the panel lies within one image.
    pub(super) fn is_single(&self) -> bool {
        self.images.len() == 1
    }

    /// The images of the panel, each with its piece of the columns.
    pub(super) fn pieces(&self) -> impl Iterator<Item = (usize, OutputRows)> + use<> {
        let (rows, row_len, pixels) = (self.rows, self.columns, self.columns / self.images.len().max(1));
        self.images
            .clone()
            .enumerate()
            .map(move |(i, image)| (image, OutputRows { rows, at: i * pixels, row_len }))
    }
}

/// The sizes of a dense convolution, and its blocks.
pub(super) struct Plan<'a> {
    pub(super) shape: &'a Conv2dShape,
    pub(super) taps: Vec<Tap>,
    /// Rows of the columns: input channels of a group times taps.
    pub(super) depth: usize,
    pub(super) in_group: usize,
    pub(super) out_group: usize,
    pub(super) in_plane: usize,
    pub(super) out_plane: usize,
    /// True for a 1×1 window with stride 1 and no padding: the image is its own columns.
    pub(super) pointwise: bool,
    pub(super) blocks: Blocks,
    parts: usize,
}

impl<'a> Plan<'a> {
    /// Plans for `parts` threads; `None` if every window lies in the padding.
    pub(super) fn new(shape: &'a Conv2dShape, parts: usize) -> Option<Self> {
        let taps = taps(shape);
        let in_group = shape.in_channels / shape.groups;
        let depth = in_group * taps.len();
        (!taps.is_empty()).then(|| Self {
            shape,
            depth,
            taps,
            in_group,
            out_group: shape.out_channels / shape.groups,
            in_plane: shape.height * shape.width,
            out_plane: shape.out_height() * shape.out_width(),
            pointwise: shape.kernel == [1, 1] && shape.stride == [1, 1] && shape.padding == [0, 0],
            blocks: Blocks::new(shape, depth, parts),
            parts,
        })
    }

    /// The panels of some blocks.
    pub(super) fn panels(&self, blocks: Range<usize>) -> impl Iterator<Item = Panel> {
        blocks.flat_map(move |block| (0..self.shape.groups).map(move |group| self.panel(block, group)))
    }

    fn panel(&self, index: usize, group: usize) -> Panel {
        let (blocks, height) = (&self.blocks, self.shape.out_height());
        let (images, rows) = if blocks.per_image == 1 {
            let first = index * blocks.images;
            (first..(first + blocks.images).min(self.shape.batch), (0, height))
        } else {
            let (image, first) = (index / blocks.per_image, index % blocks.per_image * blocks.rows);
            (image..image + 1, (first, (first + blocks.rows).min(height)))
        };
        let columns = images.len() * (rows.1 - rows.0) * self.shape.out_width();
        Panel { group, images, rows, columns }
    }

    /// Images of a task that writes a map. Blocks within an image write interleaved parts of it, so a task takes whole images.
    pub(super) fn images_per_task(&self) -> usize {
        match self.blocks.per_image {
            1 => self.blocks.images,
            _ => self.shape.batch.div_ceil(self.parts * 4).max(1),
        }
    }

    /// The blocks of a task that writes a map.
    pub(super) fn blocks_of_task(&self, task: usize) -> Range<usize> {
        if self.blocks.per_image == 1 {
            return task..task + 1;
        }
        let images = self.images_per_task();
        let last = ((task + 1) * images).min(self.shape.batch);
        task * images * self.blocks.per_image..last * self.blocks.per_image
    }

    /// The start of a group's channels in image `image` of the input.
    pub(super) fn input_at(&self, image: usize, group: usize) -> usize {
        (image * self.shape.in_channels + group * self.in_group) * self.in_plane
    }

    /// The start of a group's channels in image `image` of the output.
    pub(super) fn output_at(&self, image: usize, group: usize) -> usize {
        (image * self.shape.out_channels + group * self.out_group) * self.out_plane
    }

    /// The weights as [O, depth], without the taps that meet only padding.
    pub(super) fn used_weights<'w, T: Float>(&self, w: &'w [T]) -> Cow<'w, [T]> {
        let window = self.shape.kernel[0] * self.shape.kernel[1];
        if self.taps.len() == window {
            return Cow::Borrowed(w);
        }
        w.chunks_exact(window).flat_map(|w| self.taps.iter().map(|tap| w[tap.index])).collect()
    }

    /// The elements of a group's weights among those of all groups.
    pub(super) fn group_weights(&self, group: usize) -> Range<usize> {
        group * self.out_group * self.depth..(group + 1) * self.out_group * self.depth
    }

    /// The weights of a group as a matrix [out_group, depth].
    pub(super) fn weights<'w, T: Float>(&self, used: &'w [T], group: usize) -> View<'w, T> {
        View { data: &used[self.group_weights(group)], row_stride: self.depth, col_stride: 1 }
    }
}
