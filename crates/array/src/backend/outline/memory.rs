//! Memory without numbers.

use candle_core::{DType, Device, Shape, Tensor};

use super::{OutlineArray, Outlines, expect_equal, expect_len};
use crate::backend::{Array, Download, Memory, Transfers, Upload};
use crate::{ArrayError, Result};

impl Outlines {
    /// Returns an array of this back end; none for one of the host.
    pub(super) fn own<'a>(&self, op: &'static str, array: &'a Array) -> Result<Option<&'a OutlineArray>> {
        match array.is_host() {
            true => Ok(None),
            false => array.device(op, "an outline").map(Some),
        }
    }

    /// Notes that an array is overwritten.
    pub(super) fn overwrite(&self, op: &'static str, to: &Array) -> Result<()> {
        if let Some(own) = self.own(op, to)? {
            own.write();
        }
        Ok(())
    }

    /// A copy that fails when it is waited for.
    fn never(op: &'static str) -> Download {
        Download::pending(move || Err(ArrayError::NoNumbers { op }))
    }
}

impl Transfers for Outlines {
    fn to_host(&self, array: &Array) -> Result<Tensor> {
        const OP: &str = "copy to the host";
        match self.own(OP, array)? {
            None => array.tensor(),
            Some(own) => match own.numbers() {
                Some(numbers) => Ok(numbers.clone()),
                None if self.0.assumes_zeros() => {
                    Ok(Tensor::zeros(array.shape(), array.dtype(), &Device::Cpu)?)
                }
                None => Err(ArrayError::NoNumbers { op: OP }),
            },
        }
    }

    fn begin_snapshot(&self, array: &Array) -> Result<Download> {
        match array.dtype().is_float() {
            true if self.0.assumes_zeros() => {
                Ok(Download::ready(Tensor::zeros(array.shape(), DType::F32, &Device::Cpu)?))
            }
            true => Ok(Self::never("numbers for the host")),
            false => Err(ArrayError::dtype("numbers for the host", array.dtype())),
        }
    }

    fn begin_download(&self, _: &Array) -> Result<Download> {
        Ok(Self::never("move to the host"))
    }

    fn begin_upload(&self, to: &Array, elements: &Tensor) -> Result<Upload> {
        expect_len("move in", to, elements.elem_count())?;
        self.overwrite("move in", to)?;
        Ok(Upload::ready())
    }

    fn from_host(&self, tensor: &Tensor) -> Result<Array> {
        let bytes = crate::storage::bytes_of(tensor.elem_count(), tensor.dtype());
        let array =
            OutlineArray::new(self.clone(), self.0.hold(bytes), tensor.shape().clone(), tensor.dtype());
        Ok(Array::of_device(array.with_numbers(Some(tensor.contiguous()?))))
    }
}

impl Memory for Outlines {
    fn unwritten(&self, shape: &Shape, dtype: DType) -> Result<Array> {
        Ok(self.array(shape.clone(), dtype))
    }

    fn full(&self, _: f64, shape: &Shape, dtype: DType) -> Result<Array> {
        Ok(self.array(shape.clone(), dtype))
    }

    fn branch(&self, _: u64) -> Result<()> {
        Ok(())
    }

    fn zero(&self, to: &Array) -> Result<()> {
        self.overwrite("zero", to)
    }

    fn copy(&self, to: &Array, from: &Array) -> Result<()> {
        expect_equal("copy", to, &[from])?;
        self.overwrite("copy", to)
    }

    fn accumulate(&self, to: &Array, addend: &Array) -> Result<()> {
        expect_equal("accumulate", to, &[addend])?;
        self.overwrite("accumulate", to)
    }

    fn cast(&self, array: &Array, dtype: DType) -> Result<Array> {
        match array.dtype() == dtype {
            true => Ok(array.clone()),
            false => Ok(self.like(array, dtype)),
        }
    }

    fn duplicate(&self, array: &Array) -> Result<Array> {
        match self.own("duplicate", array)?.and_then(OutlineArray::numbers) {
            Some(numbers) => self.from_host(numbers),
            None => Ok(self.like(array, array.dtype())),
        }
    }
}
