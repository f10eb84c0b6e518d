//! Staging of uploads in page-locked memory, so that the host does not wait for the stream.

use std::collections::VecDeque;

use super::pinned::{PendingUpload, Pinned};
use super::slice::Slice;
use crate::Result;
use crate::device::Stream;

/// The maximum of page-locked bytes, unused and in copies.
const MOST: usize = 256 << 20;

/// The smallest page-locked allocation: a page.
const SMALLEST: usize = 4096;

/// A cache of page-locked memory: allocating it stops the device.
#[derive(Debug, Default)]
pub(crate) struct Staging {
    /// Unused memory with its bytes, the smallest first.
    kept: Vec<(usize, Pinned<u8>)>,
    /// Pending copies with their bytes, the oldest first.
    leaving: VecDeque<(usize, PendingUpload<u8>)>,
}

impl Staging {
    /// The largest staged upload. Larger ones are not staged, and the host waits for them: weights that are read once, not
    /// batches.
    pub(crate) const LARGEST: usize = 64 << 20;

    /// Starts a copy of bytes to a slice of the same length, in the order of a stream. The bytes have been read when this
    /// returns. Returns false, without a copy, if they are too many, or too many are pending.
    ///
    /// # Errors
    /// If the driver fails.
    pub(crate) fn send(&mut self, from: &[u8], to: &Slice, stream: Stream) -> Result<bool> {
        self.collect()?;
        let wanted = from.len().next_power_of_two().max(SMALLEST);
        if wanted > Self::LARGEST {
            return Ok(false);
        }
        // Much larger memory stays free for larger uploads.
        let fits = self.kept.iter().position(|(bytes, _)| (wanted..=4 * wanted).contains(bytes));
        let (bytes, mut memory) = match fits {
            Some(at) => self.kept.remove(at),
            None if self.bytes() + wanted > MOST => return Ok(false),
            None => (wanted, Pinned::new(to.device(), wanted)?),
        };
        memory.values_mut()[..from.len()].copy_from_slice(from);
        self.leaving.push_back((bytes, memory.upload_to(&to.as_bytes(), stream)?.release_slice()));
        Ok(true)
    }

    /// Reclaims the memory of finished copies.
    ///
    /// # Errors
    /// If a copy failed.
    pub(crate) fn collect(&mut self) -> Result<()> {
        while let Some((_, oldest)) = self.leaving.front() {
            if !oldest.is_done()? {
                break;
            }
            if let Some((bytes, oldest)) = self.leaving.pop_front() {
                let place = self.kept.partition_point(|(other, _)| *other <= bytes);
                self.kept.insert(place, (bytes, oldest.finish()?));
            }
        }
        Ok(())
    }

    fn bytes(&self) -> usize {
        let kept = self.kept.iter().map(|(bytes, _)| bytes);
        kept.chain(self.leaving.iter().map(|(bytes, _)| bytes)).sum()
    }
}
