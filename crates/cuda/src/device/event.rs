//! Events: points in a stream that other streams wait for.

use cudarc::driver::CudaEvent;

use super::{Device, Stream};
use crate::Result;
use crate::driver::failed;

/// A point in a stream: the end of all work issued before it was recorded.
#[derive(Debug)]
pub struct Event {
    device: Device,
    stream: Stream,
    time: u64,
    event: CudaEvent,
}

impl Device {
    /// Records an event after all work that was issued on a stream.
    ///
    /// # Errors
    /// If the driver fails.
    pub fn record_event(&self, stream: Stream) -> Result<Event> {
        self.flush()?;
        let _turn = self.0.order.turn(stream);
        let event = self.stream(stream).record_event(None).map_err(failed("record an event"))?;
        let time = self.0.order.of(stream)[stream as usize];
        Ok(Event { device: self.clone(), stream, time, event })
    }
}

impl Event {
    /// Makes all later work of `stream` wait for this event, but not for work issued after it.
    ///
    /// # Errors
    /// If the driver fails; [`GpuError::Capture`](crate::GpuError::Capture) if the stream takes part in a capture.
    pub fn make_wait(&self, stream: Stream) -> Result<()> {
        self.device.wait_for_event(stream, self.stream, self.time, &self.event)
    }
}
