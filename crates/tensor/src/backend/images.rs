//! Images as bytes, kept and made into numbers.

use super::Array;
use crate::{Precision, Result};

/// What images become: which part of them, and by what their channels are normalised.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ImagePreparation {
    /// Height and width of what comes out.
    pub size: [usize; 2],
    /// Taken off bytes divided by 255, for red, green and blue.
    pub mean: [f32; 3],
    /// Divided by then, for red, green and blue.
    pub std: [f32; 3],
}

/// How a back end prepares images. Bytes are u8 [M, H, W, 3].
pub trait Images {
    /// Room for bytes of `dims`, [M, H, W, 3], that stay for all of a training. What is in it is not specified.
    ///
    /// # Errors
    /// If memory cannot be allocated.
    fn image_set(&self, dims: [usize; 4]) -> Result<Array>;

    /// Makes the images `from`, u8 [N, H, W, 3], those of numbers `rows`, u32 `[N]`, of a set of the same size.
    ///
    /// # Errors
    /// If sizes or types do not go together; and, where the back end can tell without waiting, if a number is not below M.
    fn put_images(&self, set: &Array, rows: &Array, from: &Array) -> Result<()>;

    /// (byte / 255 − mean) / std of parts of images, f32 [N, 3, height, width], with the same bits on every back end.
    ///
    /// `places`, u32 [N, 4], says of each result: the number of its image, the row and the column of it where the result begins
    /// (bits of i32, negative within a black border), and 1 if it is then mirrored left to right. `precision` is that of the
    /// products to come: a back end may let the elements lie as these read them.
    ///
    /// # Errors
    /// If sizes or types do not go together; and, where the back end can tell without waiting, if a number is not below M.
    fn images(
        &self,
        pixels: &Array,
        places: &Array,
        how: &ImagePreparation,
        precision: Precision,
    ) -> Result<Array>;
}
