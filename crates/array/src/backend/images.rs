//! Images as bytes: kept on a device, cropped and normalised there.

use super::Array;
use crate::{Precision, Result};

/// The numbers of a prepared image in the `places` of [`Images::images`].
pub const PLACE_NUMBERS: usize = 8;

/// The mixture of each prepared image with another one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ImageBlend {
    /// The share of the image itself, 0 to 1; the rest is the other's.
    pub share: f32,
    /// The rectangle that comes from the other image as it is: first row, first column, height and width. `None` mixes
    /// all pixels.
    pub patch: Option<[u32; 4]>,
}

/// The size of prepared images and the normalisation of their channels.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ImagePreparation {
    /// Height and width of the result.
    pub size: [usize; 2],
    /// Subtracted from bytes / 255, for red, green and blue.
    pub mean: [f32; 3],
    /// The divisor after that, for red, green and blue.
    pub std: [f32; 3],
    /// The mixture with other images, after the normalisation.
    pub blend: Option<ImageBlend>,
    /// The precision of the products that read the result. A back end may choose the memory layout by it.
    pub precision: Precision,
}

/// Image preparation on a back end. Bytes are u8 [M, H, W, 3].
pub trait Images {
    /// Allocates bytes of `dims`, [M, H, W, 3], that stay for a whole training. The contents are not specified.
    ///
    /// # Errors
    /// If memory cannot be allocated.
    fn image_set(&self, dims: [usize; 4]) -> Result<Array>;

    /// Copies the images `from`, u8 [N, H, W, 3], to the rows `rows`, u32 `[N]`, of a set with the same image size.
    ///
    /// # Errors
    /// If sizes or types do not match; and, where the back end can tell without waiting, if a row is not below M.
    fn put_images(&self, set: &Array, rows: &Array, from: &Array) -> Result<()>;

    /// Computes (byte / 255 − mean) / std of crops of images, f32 [N, 3, height, width], with the same bits on every back end.
    ///
    /// `places`, u32 [N, 8], has for each result: the index of its image, the row and the column where the crop begins (bits of
    /// i32, negative within a black border), 1 to mirror it left to right, and the first row, first column, height and width of a
    /// rectangle of the result that is 0. With a blend, [N, 16], the numbers of the other image follow.
    ///
    /// # Errors
    /// If sizes or types do not match; and, where the back end can tell without waiting, if an index is not below M.
    fn images(&self, pixels: &Array, places: &Array, how: &ImagePreparation) -> Result<Array>;
}
