//! Timing of streams by events, which the host need not wait for.

use std::sync::OnceLock;

use cudarc::driver::CudaEvent;
use cudarc::driver::sys::CUevent_flags;

use super::{Device, Stream};
use crate::driver::failed;
use crate::libraries::Library;
use crate::{GpuError, Result};

/// The first driver version, major and minor, with `cuEventElapsedTime_v2`.
const NEEDED: (u32, u32) = (12, 8);

/// Events with times, recorded on the streams of a device.
#[derive(Debug)]
pub struct Timer {
    device: Device,
    events: Vec<CudaEvent>,
}

impl Timer {
    /// Returns a timer without events.
    ///
    /// # Errors
    /// [`GpuError::Unsupported`] if the driver is older than CUDA 12.8.
    pub fn new(device: &Device) -> Result<Self> {
        static FOUND: OnceLock<Option<(u32, u32)>> = OnceLock::new();
        let read = || {
            let version = Library::Driver.find().ok()?.version;
            let (major, minor) = version.split_once('.')?;
            Some((major.parse().ok()?, minor.parse().ok()?))
        };
        match FOUND.get_or_init(read) {
            Some(found) if *found < NEEDED => {
                let ((major, minor), (least, part)) = (*found, NEEDED);
                let problem = format!("a driver of CUDA {major}.{minor}; {least}.{part} or newer is needed");
                Err(GpuError::unsupported("the time of an event", problem))
            }
            _ => Ok(Self { device: device.clone(), events: Vec::new() }),
        }
    }

    /// Records an event after all work that was issued on a stream. The host does not wait.
    ///
    /// # Errors
    /// If the driver fails; [`GpuError::Capture`] while the stream takes part in a capture.
    pub fn record(&mut self, stream: Stream) -> Result<()> {
        self.device.refuse_host_wait("the time of an event", stream)?;
        let flags = Some(CUevent_flags::CU_EVENT_DEFAULT);
        let event = self.device.stream(stream).record_event(flags).map_err(failed("record an event"))?;
        self.events.push(event);
        Ok(())
    }

    /// Returns the seconds from the first event to each. None if an event is pending and `wait` is false.
    ///
    /// # Errors
    /// If the driver fails, or issued work has failed.
    pub fn seconds(&self, wait: bool) -> Result<Option<Vec<f64>>> {
        const ACTION: &str = "query the time of an event";
        // A thread that records must not query events.
        self.device.flush()?;
        let Some(first) = self.events.first() else { return Ok(Some(Vec::new())) };
        // The last events complete last.
        for moment in self.events.iter().rev().filter(|_| !wait) {
            if !moment.try_is_complete().map_err(failed(ACTION))? {
                return Ok(None);
            }
        }
        let since = |moment: &CudaEvent| -> Result<f64> {
            Ok(f64::from(first.elapsed_ms(moment).map_err(failed(ACTION))?) * 1e-3)
        };
        self.events.iter().map(since).collect::<Result<_>>().map(Some)
    }
}
