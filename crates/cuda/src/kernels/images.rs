//! Images as bytes to normalised maps, cut out and turned over on the way.

use super::grid::{check, launch, narrow_size, over};
use super::sources::IMAGES;
use crate::{ElementType, Gpu, GpuError, Layout, Result, Slice};

/// Images of one size, and what becomes of them.
#[derive(Debug, Clone, Copy)]
pub struct ImageBatch<'a> {
    /// The bytes.
    pub pixels: &'a Slice,
    /// How they lie: [N, H, W, C], as decoders give them, or [N, C, H, W].
    pub layout: Layout,
    /// N, H, W and C; C is at most 4.
    pub dims: [usize; 4],
    /// Height and width of what comes out.
    pub size: [usize; 2],
    /// Where in its image each result begins, [N, 2] (down, across) of u32 whose bits are i32: negative within a black border.
    /// At the upper left corner if there are none.
    pub corners: Option<&'a Slice>,
    /// Which results are turned left to right, `[N]` of u8. None if there are none.
    pub flips: Option<&'a Slice>,
    /// Taken off bytes divided by 255, channel by channel.
    pub mean: &'a [f32],
    /// Divided by then.
    pub std: &'a [f32],
}

/// (byte/255 − mean)/std as `dtype`, in the order of `layout`; f32 has the bits of the same on the processor.
///
/// # Errors
/// If lengths or types do not go together.
pub fn images(gpu: &Gpu, batch: ImageBatch<'_>, dtype: ElementType, layout: Layout) -> Result<Slice> {
    const FUNCTION: &str = "images";
    let ([count, height, width, channels], [out_height, out_width]) = (batch.dims, batch.size);
    check(FUNCTION, "pixels", batch.pixels, ElementType::U8, count * height * width * channels)?;
    if channels == 0 || channels > 4 || batch.mean.len() != channels || batch.std.len() != channels {
        let problem =
            format!("{channels} channels with {} means and {} deviations", batch.mean.len(), batch.std.len());
        return Err(GpuError::argument(FUNCTION, problem));
    }
    if !matches!(dtype, ElementType::F32 | ElementType::Bf16 | ElementType::F16) {
        return Err(GpuError::unsupported(FUNCTION, dtype.to_string()));
    }
    if let Some(corners) = batch.corners {
        check(FUNCTION, "corners", corners, ElementType::U32, 2 * count)?;
    }
    if let Some(flips) = batch.flips {
        check(FUNCTION, "flips", flips, ElementType::U8, count)?;
    }
    let mut numbers = [0.0_f32; 8];
    numbers[..channels].copy_from_slice(batch.mean);
    numbers[4..4 + channels].copy_from_slice(batch.std);
    let mut sizes = [0_i32; 5];
    for (to, size) in sizes.iter_mut().zip([height, width, channels, out_height, out_width]) {
        *to = narrow_size(FUNCTION, size)?;
    }
    let pixels = count * out_height * out_width;
    let y = gpu.unwritten(dtype, pixels * channels)?;
    launch(gpu, &IMAGES, &format!("images_{dtype}"), over(pixels, 1))
        .slice(batch.pixels)
        .optional(batch.corners)
        .optional(batch.flips)
        .slice(&y)
        .number(sizes)
        .number(numbers)
        .number([batch.layout, layout].map(|layout| i32::from(layout == Layout::ChannelsLast)))
        .number(pixels as i64)
        .run()?;
    Ok(y)
}
