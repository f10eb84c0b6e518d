//! A back end that proves the seam: it computes by the CPU's functions on arrays that nobody else can look into, and writes
//! down what crosses between it and the host.

mod learning;
mod math;
mod memory;

use std::sync::{Arc, Mutex, PoisonError};

use candle_core::{DType, Shape, Tensor};
use phalanx_tensor::backend::{Array, ArrayBackend, DeviceArray};
use phalanx_tensor::{Context, Result};

/// What crossed, and which way.
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
    /// A device that computes as `context` does.
    pub(crate) fn new(context: Context) -> Self {
        Self(Arc::new(Inner { context, transfers: Mutex::default() }))
    }

    /// What crossed since the last call.
    pub(crate) fn take_transfers(&self) -> Vec<Transfer> {
        std::mem::take(&mut self.0.transfers.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn note(&self, transfer: Transfer) {
        self.0.transfers.lock().unwrap_or_else(PoisonError::into_inner).push(transfer);
    }

    fn cpu(&self) -> &Context {
        &self.0.context
    }

    /// What the CPU's functions take. Arrays of the host are refused here, as any device would.
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

    /// Hides what the CPU computed.
    fn hide(&self, array: &Array) -> Result<Array> {
        Ok(self.seal(array.host("checking")?.contiguous()?))
    }
}

impl ArrayBackend for Checking {
    fn name(&self) -> &'static str {
        "the checking back end"
    }
}
