//! Laps: when streams came to what they were given, by the device's own clock, so that the host need not wait to measure.

use std::sync::OnceLock;

use cudarc::driver::CudaEvent;
use cudarc::driver::sys::CUevent_flags;

use super::{Device, Stream};
use crate::driver::failed;
use crate::libraries::Library;
use crate::{GpuError, Result};

/// The first version of the driver, major and minor, with the call that tells times of events (`cuEventElapsedTime_v2`).
const NEEDED: (u32, u32) = (12, 8);

/// Moments at which streams of a device come to what they are given.
#[derive(Debug)]
pub struct Laps {
    device: Device,
    moments: Vec<CudaEvent>,
}

impl Laps {
    /// None yet.
    ///
    /// # Errors
    /// [`GpuError::Unsupported`] if the driver is older than CUDA 12.8's.
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
                let problem =
                    format!("a driver of CUDA {major}.{minor}; {least}.{part} is the first that tells");
                Err(GpuError::unsupported("the time of an event", problem))
            }
            _ => Ok(Self { device: device.clone(), moments: Vec::new() }),
        }
    }

    /// Notes the moment at which a stream has done all that it was given until now. The host does not wait.
    ///
    /// # Errors
    /// If the driver fails; [`GpuError::Capture`] while the stream takes part in a capture.
    pub fn note(&mut self, stream: Stream) -> Result<()> {
        self.device.refuse_waiting("the time of an event", stream)?;
        let flags = Some(CUevent_flags::CU_EVENT_DEFAULT);
        let event = self.device.stream(stream).record_event(flags).map_err(failed("mark a moment"))?;
        self.moments.push(event);
        Ok(())
    }

    /// Seconds from the first moment to each; nothing if they have not all come and this is not to wait for them.
    ///
    /// # Errors
    /// If the driver fails, or something that was issued before has failed.
    pub fn seconds(&self, wait: bool) -> Result<Option<Vec<f64>>> {
        const ACTION: &str = "ask for the time of an event";
        // The driver is not to be asked while this thread records.
        self.device.flush()?;
        let Some(first) = self.moments.first() else { return Ok(Some(Vec::new())) };
        // The last ones come last.
        for moment in self.moments.iter().rev().filter(|_| !wait) {
            if !moment.try_is_complete().map_err(failed(ACTION))? {
                return Ok(None);
            }
        }
        let since = |moment: &CudaEvent| -> Result<f64> {
            Ok(f64::from(first.elapsed_ms(moment).map_err(failed(ACTION))?) * 1e-3)
        };
        self.moments.iter().map(since).collect::<Result<_>>().map(Some)
    }
}
