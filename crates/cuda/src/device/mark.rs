//! Marks: places in a stream that other streams wait for, and no further.

use cudarc::driver::CudaEvent;

use super::{Device, Stream};
use crate::Result;
use crate::driver::failed;

/// What a stream had been given at a moment.
#[derive(Debug)]
pub struct Mark {
    device: Device,
    stream: Stream,
    time: u64,
    event: CudaEvent,
}

impl Device {
    /// Marks what a stream has been given until now.
    ///
    /// # Errors
    /// If the driver fails.
    pub fn mark(&self, stream: Stream) -> Result<Mark> {
        self.flush()?;
        let _turn = self.0.order.turn(stream);
        let event = self.stream(stream).record_event(None).map_err(failed("mark a stream"))?;
        let time = self.0.order.of(stream)[stream as usize];
        Ok(Mark { device: self.clone(), stream, time, event })
    }
}

impl Mark {
    /// What is issued on `stream` from now on begins after what was marked, and does not wait for what came later.
    ///
    /// # Errors
    /// If the driver fails; [`GpuError::Capture`](crate::GpuError::Capture) if the stream takes part in a capture.
    pub fn before(&self, stream: Stream) -> Result<()> {
        self.device.wait_for_event(stream, self.stream, self.time, &self.event)
    }
}
