//! Conversion of byte images to normalised maps, with lookup, crop and flip.

use super::grid::{check, check_len, check_type, launch, narrow_size, over};
use super::sources::IMAGES;
use crate::{ElementType, Gpu, GpuError, Result, Slice, TensorLayout};

/// Images of one size, and their transformation.
#[derive(Debug, Clone, Copy)]
pub struct ImageBatch<'a> {
    /// The bytes.
    pub pixels: &'a Slice,
    /// The layout of the bytes: [M, H, W, C], as decoders return them, or [M, C, H, W].
    pub layout: TensorLayout,
    /// M, H, W and C; C is at most 4.
    pub dims: [usize; 4],
    /// Height and width of the results.
    pub size: [usize; 2],
    /// The source of each result, [N, 4] of u32 with the bits of i32: the image, the first row and column (negative inside a
    /// black border), and 1 for a horizontal flip. None converts each image, from its upper left corner. An index beyond the
    /// images gives NaN: the host does not wait for a check.
    pub places: Option<&'a Slice>,
    /// Subtracted from bytes/255, by channel.
    pub mean: &'a [f32],
    /// The divisor after that, by channel.
    pub std: &'a [f32],
}

/// Computes (byte/255 − mean)/std as `dtype`, in `layout`. f32 has the bits of the CPU's result.
///
/// # Errors
/// If lengths or types do not match.
pub fn images(gpu: &Gpu, batch: ImageBatch<'_>, dtype: ElementType, layout: TensorLayout) -> Result<Slice> {
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
        .number([batch.layout, layout].map(|layout| i32::from(layout == TensorLayout::ChannelsLast)))
        .number(pixels as i64)
        .run()?;
    Ok(y)
}

/// Copies row n of `from` to row rows\[n\] of `to`, both of bytes in rows of `width`. Row numbers beyond `to` are skipped.
///
/// # Errors
/// If lengths or types do not match.
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
