//! Preparation of images on the CPU.

use candle_core::{DType, Device, Tensor};

use crate::backend::{Array, ImageBlend, ImagePreparation, Images, PLACE_NUMBERS};
use crate::storage::{Bytes, Indices};
use crate::{ArrayError, Context, Result};

const OP: &str = "images";

/// Returns the error for an image index that is out of range.
fn missing(image: u32, images: usize) -> ArrayError {
    ArrayError::shape(OP, format!("image {image} is out of range; there are {images}"))
}

/// Normalises a byte of a channel.
fn value(byte: u8, mean: f32, std: f32) -> f32 {
    (f32::from(byte) / 255.0 - mean) / std
}

/// A part of an image, and how it is placed.
struct Crop<'a> {
    /// The bytes [height, width, 3].
    image: &'a [u8],
    height: usize,
    width: usize,
    /// The row and column of the first pixel; it may lie outside of the image.
    corner: [i64; 2],
    is_flipped: bool,
    /// The first row, first column, height and width of what is 0.
    erased: [u32; 4],
}

impl<'a> Crop<'a> {
    /// Finds the part with these numbers among images [height, width, 3].
    fn of(numbers: &[u32], bytes: &'a [u8], [height, width]: [usize; 2]) -> Result<Self> {
        let each = height * width * 3;
        let image = bytes.chunks_exact(each.max(1)).nth(numbers[0] as usize);
        let image = image.ok_or_else(|| missing(numbers[0], bytes.len() / each.max(1)))?;
        let corner = [numbers[1], numbers[2]].map(|corner| i64::from(corner.cast_signed()));
        let erased = [numbers[4], numbers[5], numbers[6], numbers[7]];
        Ok(Self { image, height, width, corner, is_flipped: numbers[3] != 0, erased })
    }

    /// Returns the normalised value of a channel at a pixel of the crop, which is `out_width` wide. Outside of the image it is
    /// that of 0.
    #[inline]
    fn value(&self, table: &[f32; 256], channel: usize, [row, column]: [usize; 2], out_width: usize) -> f32 {
        if is_within(self.erased, row, column) {
            return 0.0;
        }
        let column = if self.is_flipped { out_width - 1 - column } else { column };
        let (y, x) = (row as i64 + self.corner[0], column as i64 + self.corner[1]);
        let is_inside = (0..self.height as i64).contains(&y) && (0..self.width as i64).contains(&x);
        let byte =
            if is_inside { self.image[(y as usize * self.width + x as usize) * 3 + channel] } else { 0 };
        table[usize::from(byte)]
    }
}

/// Returns true if a pixel is in a rectangle: first row, first column, height and width.
fn is_within([top, left, height, width]: [u32; 4], row: usize, column: usize) -> bool {
    let inside = |at: usize, from: u32, length: u32| at.wrapping_sub(from as usize) < length as usize;
    inside(row, top, height) && inside(column, left, width)
}

/// Mixes the values of two images at a pixel.
fn blend_at(blend: &ImageBlend, row: usize, column: usize, own: f32, other: f32) -> f32 {
    match blend.patch {
        Some(patch) => {
            if is_within(patch, row, column) {
                other
            } else {
                own
            }
        }
        None => blend.share * own + (1.0 - blend.share) * other,
    }
}

impl Images for Context {
    fn image_set(&self, dims: [usize; 4]) -> Result<Array> {
        Ok(Tensor::zeros(&dims, DType::U8, &Device::Cpu)?.into())
    }

    fn put_images(&self, set: &Array, rows: &Array, from: &Array) -> Result<()> {
        let (set, from) = (set.host(OP)?, from.host(OP)?);
        let rows = Indices::of(OP, rows.host(OP)?)?;
        let rows = rows.slice()?;
        let there = set.dims4()?.0;
        for (number, row) in rows.iter().enumerate() {
            if *row as usize >= there {
                return Err(missing(*row, there));
            }
            set.slice_set(&from.narrow(0, number, 1)?.contiguous()?, 0, *row as usize)?;
        }
        Ok(())
    }

    fn images(&self, pixels: &Array, places: &Array, how: &ImagePreparation) -> Result<Array> {
        let pixels = pixels.host(OP)?;
        let (_, height, width, channels) = pixels.dims4()?;
        let places = places.host(OP)?;
        let (count, numbers) = places.dims2()?;
        let expected = if how.blend.is_some() { 2 * PLACE_NUMBERS } else { PLACE_NUMBERS };
        if channels != 3 || numbers != expected {
            let problem =
                format!("{channels} channels and {numbers} numbers a crop; expected 3 and {expected}");
            return Err(ArrayError::shape(OP, problem));
        }
        let (bytes, places) = (Bytes::of(OP, pixels)?, Indices::of(OP, places)?);
        let (bytes, places) = (bytes.slice()?, places.slice()?);
        // A byte has 256 values, so tables replace the arithmetic.
        let tables: [[f32; 256]; 3] = std::array::from_fn(|channel| {
            std::array::from_fn(|byte| value(byte as u8, how.mean[channel], how.std[channel]))
        });
        let [out_height, out_width] = how.size;
        let mut out = Vec::with_capacity(count * 3 * out_height * out_width);
        for place in places.chunks_exact(numbers) {
            let crop = |numbers| Crop::of(numbers, bytes, [height, width]);
            let own = crop(&place[..PLACE_NUMBERS])?;
            let other = how.blend.map(|blend| Ok::<_, ArrayError>((blend, crop(&place[PLACE_NUMBERS..])?)));
            let other = other.transpose()?;
            for (channel, table) in tables.iter().enumerate() {
                for at in (0..out_height * out_width).map(|at| [at / out_width, at % out_width]) {
                    let value = own.value(table, channel, at, out_width);
                    out.push(match &other {
                        None => value,
                        Some((blend, other)) => {
                            let other = other.value(table, channel, at, out_width);
                            blend_at(blend, at[0], at[1], value, other)
                        }
                    });
                }
            }
        }
        Ok(Tensor::from_vec(out, (count, 3, out_height, out_width), &Device::Cpu)?.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Precision;

    #[test]
    fn images_come_from_where_they_are_put() {
        let context = Context::new(1);
        let set = context.image_set([3, 1, 2, 3]).expect("room");
        let bytes =
            Tensor::from_vec((0_u8..12).map(|byte| 51 * (byte % 6)).collect(), (2, 1, 2, 3), &Device::Cpu);
        let rows = Array::from(Tensor::new(&[2_u32, 0], &Device::Cpu).expect("a tensor"));
        context.put_images(&set, &rows, &bytes.expect("a tensor").into()).expect("they fit");
        let (mean, std, precision) = ([0.0; 3], [1.0; 3], Precision::F32);
        let how = ImagePreparation { size: [1, 2], mean, std, blend: None, precision };
        let place = |numbers: [u32; 4]| {
            let numbers = [&numbers[..], &[0; 4]].concat();
            let places = Tensor::from_vec(numbers, (1, 8), &Device::Cpu).expect("a tensor");
            let made = context.images(&set, &places.into(), &how)?;
            Ok::<_, ArrayError>(made.tensor()?.flatten_all()?.to_vec1::<f32>()?)
        };
        assert_eq!(place([2, 0, 0, 0]).expect("there"), [0.0, 0.6, 0.2, 0.8, 0.4, 1.0]);
        assert_eq!(place([0, 0, 0, 1]).expect("there"), [0.6, 0.0, 0.8, 0.2, 1.0, 0.4]);
        // One column to the left of the image, where it is black.
        assert_eq!(place([2, 0, u32::MAX, 0]).expect("there"), [0.0, 0.0, 0.0, 0.2, 0.0, 0.4]);
        assert!(place([3, 0, 0, 0]).is_err());
        let blended = |blend, numbers: [u32; 16]| {
            let places = Tensor::from_vec(numbers.to_vec(), (1, 16), &Device::Cpu).expect("a tensor");
            let how = ImagePreparation { blend: Some(blend), ..how };
            let made =
                context.images(&set, &places.into(), &how).and_then(|made| made.tensor()).expect("sound");
            made.flatten_all().and_then(|made| made.to_vec1::<f32>()).expect("numbers")
        };
        // The second pixel of the first image is erased; the other image is mirrored.
        let pair = [2, 0, 0, 0, 0, 1, 1, 1, 0, 0, 0, 1, 0, 0, 0, 0];
        let mixed = blended(ImageBlend { share: 0.25, patch: None }, pair);
        let expected = [0.6, 0.0, 0.8, 0.2, 1.0, 0.4].map(|other| 0.75 * other);
        assert_eq!(mixed[1], expected[1]);
        assert_eq!([mixed[0], mixed[2]], [expected[0], 0.25 * 0.2 + expected[2]]);
        let patch = Some([0, 1, 1, 1]);
        assert_eq!(blended(ImageBlend { share: 0.5, patch }, pair), [0.0, 0.0, 0.2, 0.2, 0.4, 0.4]);
        let beyond = Array::from(Tensor::new(&[3_u32], &Device::Cpu).expect("a tensor"));
        let one = Tensor::zeros((1, 1, 2, 3), DType::U8, &Device::Cpu).expect("a tensor");
        assert!(context.put_images(&set, &beyond, &one.into()).is_err());
    }
}
