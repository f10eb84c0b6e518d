//! A back end for tests. It computes with the CPU's functions on arrays that only it can read, and records transfers
//! to and from the host.

mod attention;
mod learning;
mod math;
mod memory;

use std::sync::{Arc, Mutex, PoisonError};

use candle_core::{DType, Shape, Tensor};
use phalanx_tensor::backend::{Array, ArrayBackend, DeviceArray};
use phalanx_tensor::{ArrayError, Context};

/// The result of its functions.
type Result<T> = std::result::Result<T, ArrayError>;

/// A transfer of elements, by type and shape.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Transfer {
    /// To the device.
    In(DType, Vec<usize>),
    /// To the host.
    Out(DType, Vec<usize>),
}

/// The back end. Clones are handles.
#[derive(Debug, Clone)]
pub(crate) struct Checking(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    context: Context,
    transfers: Mutex<Vec<Transfer>>,
}

/// An array whose elements only its back end reads.
#[derive(Debug)]
struct Opaque {
    tensor: Tensor,
    backend: Checking,
}

impl DeviceArray for Opaque {
    fn shape(&self) -> &Shape {
        self.tensor.shape()
    }

    fn dtype(&self) -> DType {
        self.tensor.dtype()
    }

    fn backend(&self) -> &dyn ArrayBackend {
        &self.backend
    }

    fn view(&self, start: usize, shape: &Shape) -> Result<Array> {
        let flat = self.tensor.flatten_all()?.narrow(0, start, shape.elem_count())?;
        Ok(self.backend.seal(flat.reshape(shape)?))
    }
}

impl Checking {
    /// Makes a device that computes with `context`.
    pub(crate) fn new(context: Context) -> Self {
        Self(Arc::new(Inner { context, transfers: Mutex::default() }))
    }

    /// Returns the transfers since the last call.
    pub(crate) fn take_transfers(&self) -> Vec<Transfer> {
        std::mem::take(&mut self.0.transfers.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn note(&self, transfer: Transfer) {
        self.0.transfers.lock().unwrap_or_else(PoisonError::into_inner).push(transfer);
    }

    fn cpu(&self) -> &Context {
        &self.0.context
    }

    /// Returns the wrapped array. Arrays of the host are errors, as on any device.
    fn open(&self, op: &'static str, array: &Array) -> Result<Array> {
        let opaque = array.device::<Opaque>(op, self.name())?;
        assert!(opaque.tensor.is_contiguous(), "{op}: ops give contiguous arrays");
        Ok((&opaque.tensor).into())
    }

    fn open_if(&self, op: &'static str, array: Option<&Array>) -> Result<Option<Array>> {
        array.map(|array| self.open(op, array)).transpose()
    }

    fn seal(&self, tensor: Tensor) -> Array {
        Array::of_device(Opaque { tensor, backend: self.clone() })
    }

    /// Wraps an array that the CPU computed.
    fn hide(&self, array: &Array) -> Result<Array> {
        Ok(self.seal(array.host("checking")?.contiguous()?))
    }
}

impl ArrayBackend for Checking {
    fn name(&self) -> &'static str {
        "the checking back end"
    }
}
