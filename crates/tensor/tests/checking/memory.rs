//! Memory, shapes, random numbers, rows, images.

use candle_core::{DType, Shape, Tensor};
use phalanx_tensor::Key;
use phalanx_tensor::backend::{
    Array, Destination, Download, Dropout, ImagePreparation, Images, Lookups, Memory, Random, Shapes,
    Transfers, Upload,
};

use super::{Checking, Opaque, Result, Transfer};

impl Transfers for Checking {
    fn to_host(&self, array: &Array) -> Result<Tensor> {
        let opaque = array.device::<Opaque>("copy to the host", "the checking back end")?;
        self.note(Transfer::Out(array.dtype(), array.dims().to_vec()));
        Ok(opaque.tensor.force_contiguous()?)
    }

    fn begin_snapshot(&self, array: &Array) -> Result<Download> {
        let opaque = array.device::<Opaque>("numbers for the host", "the checking back end")?;
        self.note(Transfer::Out(array.dtype(), array.dims().to_vec()));
        Array::from(&opaque.tensor).begin_snapshot()
    }

    fn begin_download(&self, array: &Array) -> Result<Download> {
        self.begin_snapshot(array)
    }

    fn begin_upload(&self, to: &Array, elements: &Tensor) -> Result<Upload> {
        self.note(Transfer::In(elements.dtype(), elements.dims().to_vec()));
        self.cpu().begin_upload(&self.open("move in", to)?, elements)
    }

    fn from_host(&self, tensor: &Tensor) -> Result<Array> {
        self.note(Transfer::In(tensor.dtype(), tensor.dims().to_vec()));
        Ok(self.seal(tensor.force_contiguous()?))
    }
}

impl Memory for Checking {
    fn unwritten(&self, shape: &Shape, dtype: DType) -> Result<Array> {
        self.hide(&self.cpu().unwritten(shape, dtype)?)
    }

    fn full(&self, value: f64, shape: &Shape, dtype: DType) -> Result<Array> {
        self.hide(&self.cpu().full(value, shape, dtype)?)
    }

    fn zero(&self, to: &Array) -> Result<()> {
        self.cpu().zero(&self.open("zero", to)?)
    }

    fn copy(&self, to: &Array, from: &Array) -> Result<()> {
        self.cpu().copy(&self.open("copy", to)?, &self.open("copy", from)?)
    }

    fn accumulate(&self, to: &Array, addend: &Array) -> Result<()> {
        self.cpu().accumulate(&self.open("accumulate", to)?, &self.open("accumulate", addend)?)
    }

    fn cast(&self, array: &Array, dtype: DType) -> Result<Array> {
        self.hide(&self.cpu().cast(&self.open("cast", array)?, dtype)?)
    }

    fn branch(&self, _: u64) -> Result<()> {
        Ok(())
    }

    fn duplicate(&self, array: &Array) -> Result<Array> {
        self.hide(&self.cpu().duplicate(&self.open("duplicate", array)?)?)
    }
}

impl Shapes for Checking {
    fn permute(&self, x: &Array, dims: &[usize]) -> Result<Array> {
        self.hide(&self.cpu().permute(&self.open("permute", x)?, dims)?)
    }

    fn narrow(&self, x: &Array, dim: usize, start: usize, len: usize) -> Result<Array> {
        self.hide(&self.cpu().narrow(&self.open("narrow", x)?, dim, start, len)?)
    }

    fn pad_with_zeros(&self, x: &Array, dim: usize, before: usize, after: usize) -> Result<Array> {
        self.hide(&self.cpu().pad_with_zeros(&self.open("pad", x)?, dim, before, after)?)
    }

    fn cat(&self, arrays: &[Array], dim: usize) -> Result<Array> {
        let arrays = arrays.iter().map(|array| self.open("cat", array)).collect::<Result<Vec<_>>>()?;
        self.hide(&self.cpu().cat(&arrays, dim)?)
    }

    fn broadcast_as(&self, x: &Array, shape: &Shape) -> Result<Array> {
        self.hide(&self.cpu().broadcast_as(&self.open("broadcast_as", x)?, shape)?)
    }
}

impl Random for Checking {
    fn dropout(&self, x: &Array, of: Dropout) -> Result<Array> {
        self.hide(&self.cpu().dropout(&self.open("dropout", x)?, of)?)
    }

    fn gaussian_noise(&self, key: Key, start: usize, shape: &Shape, dtype: DType) -> Result<Array> {
        self.hide(&self.cpu().gaussian_noise(key, start, shape, dtype)?)
    }
}

impl Lookups for Checking {
    fn progression(&self, start: u32, step: u32, len: usize) -> Result<Array> {
        self.hide(&self.cpu().progression(start, step, len)?)
    }

    fn embedding(&self, table: &Array, ids: &Array, shape: &Shape, dtype: DType) -> Result<Array> {
        let (table, ids) = (self.open("embedding", table)?, self.open("embedding", ids)?);
        self.hide(&self.cpu().embedding(&table, &ids, shape, dtype)?)
    }

    fn embedding_backward(&self, dy: &Array, ids: &Array, to: &Destination) -> Result<()> {
        let (dy, ids) = (self.open("embedding", dy)?, self.open("embedding", ids)?);
        let to = Destination { array: self.open("embedding", &to.array)?, add: to.add };
        self.cpu().embedding_backward(&dy, &ids, &to)
    }
}

impl Images for Checking {
    fn image_set(&self, dims: [usize; 4]) -> Result<Array> {
        self.hide(&self.cpu().image_set(dims)?)
    }

    fn put_images(&self, set: &Array, rows: &Array, from: &Array) -> Result<()> {
        let (set, rows) = (self.open("images", set)?, self.open("images", rows)?);
        self.cpu().put_images(&set, &rows, &self.open("images", from)?)
    }

    fn images(&self, pixels: &Array, places: &Array, how: &ImagePreparation) -> Result<Array> {
        let (pixels, places) = (self.open("images", pixels)?, self.open("images", places)?);
        self.hide(&self.cpu().images(&pixels, &places, how)?)
    }
}
