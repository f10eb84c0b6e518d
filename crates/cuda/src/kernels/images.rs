//! Conversion of byte images to normalised maps, with lookup, crop, flip, erased rectangles and mixtures.

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
    /// The source of each result, [N, 8] of u32 with the bits of i32: the image, the first row and column (negative inside a
    /// black border), 1 for a horizontal flip, and the first row, first column, height and width of a rectangle of the result
    /// that is 0. None converts each image, from its upper left corner. An index beyond the images gives NaN: the host does
    /// not wait for a check.
    pub places: Option<&'a Slice>,
    /// The mixture of each result with another one, whose eight numbers follow in `places`, [N, 16].
    pub blend: Option<ImageBlend>,
    /// Subtracted from bytes/255, by channel.
    pub mean: &'a [f32],
    /// The divisor after that, by channel.
    pub std: &'a [f32],
}

/// The mixture of images.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ImageBlend {
    /// The share of an image itself; the rest is the other's.
    pub share: f32,
    /// The rectangle that comes from the other image: first row, first column, height and width. None mixes all pixels.
    pub patch: Option<[u32; 4]>,
}

impl ImageBlend {
    /// Returns the kernel's arguments: the share and the rest, then the kind of mixture (1 for all pixels, 2 for a rectangle) and
    /// the rectangle.
    fn arguments(blend: Option<Self>) -> ([f32; 2], [i32; 5]) {
        let Some(Self { share, patch }) = blend else { return ([1.0, 0.0], [0; 5]) };
        let [top, left, height, width] = patch.unwrap_or_default().map(u32::cast_signed);
        ([share, 1.0 - share], [if patch.is_some() { 2 } else { 1 }, top, left, height, width])
    }
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
            let each = if batch.blend.is_some() { 16 } else { 8 };
            check_type(FUNCTION, "places", places, ElementType::U32)?;
            check_len(FUNCTION, "places", places, places.len() / each * each)?;
            places.len() / each
        }
    };
    if batch.blend.is_some() && batch.places.is_none() {
        return Err(GpuError::argument(FUNCTION, "a blend needs places"));
    }
    let (shares, mixture) = ImageBlend::arguments(batch.blend);
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
        .number(shares)
        .number(mixture)
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
