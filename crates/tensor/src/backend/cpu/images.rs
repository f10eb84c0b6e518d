//! Preparation of images on the CPU.

use candle_core::{DType, Device, Tensor};

use crate::backend::{Array, ImagePreparation, Images};
use crate::storage::{Bytes, Indices};
use crate::{Context, Result, TensorError};

const OP: &str = "images";

/// Returns the error for an image index that is out of range.
fn missing(image: u32, images: usize) -> TensorError {
    TensorError::shape(OP, format!("image {image} is out of range; there are {images}"))
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
}

impl Crop<'_> {
    /// Returns the byte of a channel at a pixel of the crop, which is `out_width` wide. It is 0 outside of the image.
    #[inline]
    fn byte(&self, channel: usize, row: usize, column: usize, out_width: usize) -> u8 {
        let column = if self.is_flipped { out_width - 1 - column } else { column };
        let (y, x) = (row as i64 + self.corner[0], column as i64 + self.corner[1]);
        let is_inside = (0..self.height as i64).contains(&y) && (0..self.width as i64).contains(&x);
        if is_inside { self.image[(y as usize * self.width + x as usize) * 3 + channel] } else { 0 }
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
        let (images, height, width, channels) = pixels.dims4()?;
        let places = places.host(OP)?;
        let (count, numbers) = places.dims2()?;
        if channels != 3 || numbers != 4 {
            let problem = format!("{channels} channels and {numbers} numbers a crop; expected 3 and 4");
            return Err(TensorError::shape(OP, problem));
        }
        let (bytes, places) = (Bytes::of(OP, pixels)?, Indices::of(OP, places)?);
        let (bytes, places) = (bytes.slice()?, places.slice()?);
        // A byte has 256 values, so tables replace the arithmetic.
        let tables: [[f32; 256]; 3] = std::array::from_fn(|channel| {
            std::array::from_fn(|byte| value(byte as u8, how.mean[channel], how.std[channel]))
        });
        let [out_height, out_width] = how.size;
        let mut out = Vec::with_capacity(count * 3 * out_height * out_width);
        for place in places.chunks_exact(4) {
            let [image, top, left, flipped] = [place[0], place[1], place[2], place[3]];
            if image as usize >= images {
                return Err(missing(image, images));
            }
            let each = height * width * 3;
            let crop = Crop {
                image: &bytes[image as usize * each..(image as usize + 1) * each],
                height,
                width,
                corner: [top, left].map(|corner| i64::from(corner.cast_signed())),
                is_flipped: flipped != 0,
            };
            for (channel, table) in tables.iter().enumerate() {
                for row in 0..out_height {
                    let bytes = (0..out_width).map(|column| crop.byte(channel, row, column, out_width));
                    out.extend(bytes.map(|byte| table[usize::from(byte)]));
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
        let how = ImagePreparation { size: [1, 2], mean: [0.0; 3], std: [1.0; 3], precision: Precision::F32 };
        let place = |numbers: [u32; 4]| {
            let places = Tensor::from_vec(numbers.to_vec(), (1, 4), &Device::Cpu).expect("a tensor");
            let made = context.images(&set, &places.into(), &how)?;
            Ok::<_, TensorError>(made.tensor()?.flatten_all()?.to_vec1::<f32>()?)
        };
        assert_eq!(place([2, 0, 0, 0]).expect("there"), [0.0, 0.6, 0.2, 0.8, 0.4, 1.0]);
        assert_eq!(place([0, 0, 0, 1]).expect("there"), [0.6, 0.0, 0.8, 0.2, 1.0, 0.4]);
        // One column to the left of the image, where it is black.
        assert_eq!(place([2, 0, u32::MAX, 0]).expect("there"), [0.0, 0.0, 0.0, 0.2, 0.0, 0.4]);
        assert!(place([3, 0, 0, 0]).is_err());
        let beyond = Array::from(Tensor::new(&[3_u32], &Device::Cpu).expect("a tensor"));
        let one = Tensor::zeros((1, 1, 2, 3), DType::U8, &Device::Cpu).expect("a tensor");
        assert!(context.put_images(&set, &beyond, &one.into()).is_err());
    }
}
