//! Preparation of images with the GPU kernels. An index out of range makes NaN, because checking would wait for the
//! device.

use candle_core::DType;
use phalanx_cuda::kernels::{self, ImageBatch, ImageBlend};
use phalanx_cuda::{ElementType, TensorLayout};

use super::Cuda;
use crate::backend::{Array, ImagePreparation, Images, MemoryKind, counted_as};
use crate::{ArrayError, Precision, Result};

const OP: &str = "images";

/// Returns the sizes of bytes, [M, H, W, C].
fn sizes(pixels: &Array) -> Result<[usize; 4]> {
    if pixels.dtype() != DType::U8 {
        return Err(ArrayError::dtype(OP, pixels.dtype()));
    }
    let (images, height, width, channels) = pixels.shape().dims4()?;
    Ok([images, height, width, channels])
}

impl Images for Cuda {
    fn image_set(&self, dims: [usize; 4]) -> Result<Array> {
        let slice =
            counted_as(MemoryKind::Data, || self.gpu().unwritten(ElementType::U8, dims.iter().product()))?;
        Ok(self.array(slice, &dims))
    }

    fn put_images(&self, set: &Array, rows: &Array, from: &Array) -> Result<()> {
        let [_, height, width, channels] = sizes(set)?;
        let each = height * width * channels;
        let (to, from) = (self.slice(OP, set)?, self.slice(OP, from)?);
        Ok(kernels::put_rows(self.gpu(), to, from, self.slice(OP, rows)?, each)?)
    }

    fn images(&self, pixels: &Array, places: &Array, how: &ImagePreparation) -> Result<Array> {
        // Convolutions on tensor cores read images channels-last.
        let layout = match how.precision {
            Precision::F32 => TensorLayout::ChannelsFirst,
            _ => TensorLayout::ChannelsLast,
        };
        let batch = ImageBatch {
            pixels: self.slice(OP, pixels)?,
            layout: TensorLayout::ChannelsLast,
            dims: sizes(pixels)?,
            size: how.size,
            places: Some(self.slice(OP, places)?),
            blend: how.blend.map(|blend| ImageBlend { share: blend.share, patch: blend.patch }),
            mean: &how.mean,
            std: &how.std,
        };
        let made = kernels::images(self.gpu(), batch, ElementType::F32, layout)?;
        let (count, _) = places.shape().dims2()?;
        Ok(self.array_laid(layout, made, (count, 3, how.size[0], how.size[1])))
    }
}
