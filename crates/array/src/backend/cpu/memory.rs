//! Host memory.

use candle_core::{DType, Device, Shape, Tensor};

use crate::backend::{Array, Download, Memory, Transfers, Upload};
use crate::{Context, Result, storage};

impl Transfers for Context {
    fn to_host(&self, array: &Array) -> Result<Tensor> {
        array.host("copy to the host").cloned()
    }

    fn begin_snapshot(&self, array: &Array) -> Result<Download> {
        array.begin_snapshot()
    }

    fn begin_download(&self, array: &Array) -> Result<Download> {
        array.begin_download()
    }

    fn begin_upload(&self, to: &Array, elements: &Tensor) -> Result<Upload> {
        to.begin_upload(elements)
    }

    fn from_host(&self, tensor: &Tensor) -> Result<Array> {
        Ok(tensor.into())
    }
}

impl Memory for Context {
    fn unwritten(&self, shape: &Shape, dtype: DType) -> Result<Array> {
        if storage::is_half(dtype) {
            return Ok(Tensor::zeros(shape, dtype, &Device::Cpu)?.into());
        }
        storage::dispatch!("unwritten memory", dtype, T => {
            Ok(storage::tensor_from(storage::unwritten::<T>(shape.elem_count()), shape.clone())?.into())
        })
    }

    fn full(&self, value: f64, shape: &Shape, dtype: DType) -> Result<Array> {
        Ok(Tensor::full(value, shape, &Device::Cpu)?.to_dtype(dtype)?.into())
    }

    fn branch(&self, _: u64) -> Result<()> {
        Ok(())
    }

    fn zero(&self, to: &Array) -> Result<()> {
        storage::zero_in_place(to.host("zero")?)
    }

    fn copy(&self, to: &Array, from: &Array) -> Result<()> {
        const OP: &str = "copy";
        storage::copy_in_place(to.host(OP)?, from.host(OP)?)
    }

    fn accumulate(&self, to: &Array, addend: &Array) -> Result<()> {
        const OP: &str = "accumulate";
        storage::accumulate(self, to.host(OP)?, addend.host(OP)?)
    }

    fn cast(&self, array: &Array, dtype: DType) -> Result<Array> {
        Ok(storage::cast(self, array.host("convert")?, dtype)?.into())
    }

    fn duplicate(&self, array: &Array) -> Result<Array> {
        Ok(array.host("duplicate")?.force_contiguous()?.into())
    }
}
