//! Times of a sum on a device, by the device's clock. The host records events and reads them when they are over.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use phalanx_tensor::backend::Stopwatch;

use crate::Result;
use crate::stream::CodecStream;

/// Moments of one sum: its beginning, the beginning and end of each operation between ranks, its end, and when what is computed came to
/// need the sum and when it went on.
#[derive(Debug)]
pub struct SumTimer(Mutex<Box<dyn Stopwatch>>);

/// The times of a sum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SumTimes {
    /// From beginning to end.
    pub(crate) all: Duration,
    /// Operations between ranks, waiting for the others included.
    pub(crate) moving: Duration,
    /// The time that computing has waited.
    pub(crate) waited: Duration,
}

impl SumTimer {
    /// Begins to measure the next work of the stream.
    ///
    /// # Errors
    /// If the device does not tell times.
    pub fn start(stream: &CodecStream) -> Result<Self> {
        let this = Self(Mutex::new(stream.codecs()?.stopwatch()?));
        this.note()?;
        Ok(this)
    }

    fn stopwatch(&self) -> MutexGuard<'_, Box<dyn Stopwatch>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes when the device's codecs have done what they were given until now.
    pub fn note(&self) -> Result<()> {
        Ok(self.stopwatch().note()?)
    }

    /// Notes when what was to be computed until now is done.
    pub fn note_computing(&self) -> Result<()> {
        Ok(self.stopwatch().note_computing()?)
    }

    /// Returns the times of the sum; `None` while it is under way, unless `wait` is set.
    pub(crate) fn read(&self, wait: bool) -> Result<Option<SumTimes>> {
        Ok(self.stopwatch().seconds(wait)?.map(|moments| took(&moments)))
    }
}

fn took(moments: &[f64]) -> SumTimes {
    let time = |seconds: f64| Duration::from_secs_f64(seconds.max(0.0));
    let [start, moving @ .., end, needed, went_on] = moments else {
        return SumTimes { all: Duration::ZERO, moving: Duration::ZERO, waited: Duration::ZERO };
    };
    let moving: f64 = moving.as_chunks::<2>().0.iter().map(|[begun, over]| over - begun).sum();
    SumTimes { all: time(end - start), moving: time(moving), waited: time(went_on - needed) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_told_apart() {
        let seconds = Duration::from_secs_f64;
        let expected = SumTimes { all: seconds(5.0), moving: seconds(1.5), waited: seconds(0.25) };
        assert_eq!(took(&[0.0, 1.0, 2.0, 3.0, 3.5, 5.0, 4.75, 5.0]), expected);
        // Nothing travelled, and the sum was there before it was needed: clocks of events are coarse.
        let expected = SumTimes { all: seconds(5.0), moving: Duration::ZERO, waited: Duration::ZERO };
        assert_eq!(took(&[0.0, 5.0, 8.0, 7.9999]), expected);
    }
}
