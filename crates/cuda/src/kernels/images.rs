//! Images as bytes to normalised maps, looked up, cut out and turned over on the way.

use super::grid::{check, check_len, check_type, launch, narrow_size, over};
use super::sources::IMAGES;
use crate::{ElementType, Gpu, GpuError, Layout, Result, Slice};

/// Images of one size, and what becomes of them.
#[derive(Debug, Clone, Copy)]
pub struct ImageBatch<'a> {
    /// The bytes.
    pub pixels: &'a Slice,
    /// How they lie: [M, H, W, C], as decoders give them, or [M, C, H, W].
    pub layout: Layout,
    /// M, H, W and C; C is at most 4.
    pub dims: [usize; 4],
    /// Height and width of what comes out.
    pub size: [usize; 2],
    /// Where each result comes from, [N, 4] of u32 whose bits are i32: the image, the row and the column of it where the result
    /// begins, negative within a black border, and 1 for results that are turned left to right. None makes a result of each image,
    /// from its upper left corner on. The result of an image that is not there is NaN: nobody waits here to find out.
    pub places: Option<&'a Slice>,
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
    let results = match batch.places {
        None => count,
        Some(places) => {
            check_type(FUNCTION, "places", places, ElementType::U32)?;
            check_len(FUNCTION, "places", places, places.len() / 4 * 4)?;
            places.len() / 4
        }
    };
    let mut numbers = [0.0_f32; 8];
    numbers[..channels].copy_from_slice(batch.mean);
    numbers[4..4 + channels].copy_from_slice(batch.std);
    let mut sizes = [0_i32; 6];
    for (to, size) in sizes.iter_mut().zip([count, height, width, channels, out_height, out_width]) {
        *to = narrow_size(FUNCTION, size)?;
    }
    let pixels = results * out_height * out_width;
    let y = gpu.unwritten(dtype, pixels * channels)?;
    launch(gpu, &IMAGES, &format!("images_{dtype}"), over(pixels, 1))
        .slice(batch.pixels)
        .optional(batch.places)
        .slice(&y)
        .number(sizes)
        .number(numbers)
        .number([batch.layout, layout].map(|layout| i32::from(layout == Layout::ChannelsLast)))
        .number(pixels as i64)
        .run()?;
    Ok(y)
}

/// Row n of `from` becomes row rows\[n\] of `to`, both of bytes in rows of `width`. Rows that `to` does not have are left out.
///
/// # Errors
/// If lengths or types do not go together.
pub fn put_rows(gpu: &Gpu, to: &Slice, from: &Slice, rows: &Slice, width: usize) -> Result<()> {
    const FUNCTION: &str = "put_rows";
    check_type(FUNCTION, "to", to, ElementType::U8)?;
    check_type(FUNCTION, "rows", rows, ElementType::U32)?;
    check(FUNCTION, "from", from, ElementType::U8, rows.len() * width)?;
    let there = to.len().checked_div(width).unwrap_or(0);
    launch(gpu, &IMAGES, "put_rows", over(from.len(), 1))
        .slice(to)
        .number(narrow_size(FUNCTION, there)?.cast_unsigned())
        .slice(from)
        .slice(rows)
        .number(width as i64)
        .number(from.len() as i64)
        .run()
}
