//! Copies of the host's elements on their way to a device, so that the host does not wait until a stream has come to reading them.

use std::collections::VecDeque;

use super::pinned::{Leaving, Pinned};
use super::slice::Slice;
use crate::Result;
use crate::device::Stream;

/// The most page-locked bytes that are kept or on their way.
const MOST: usize = 256 << 20;

/// The fewest bytes that page-locked memory is made for: a page.
const SMALLEST: usize = 4096;

/// Page-locked memory that is used again and again, since making some stops the device.
#[derive(Debug, Default)]
pub(crate) struct Staging {
    /// Not in use, the smallest first, with how many bytes each has.
    kept: Vec<(usize, Pinned<u8>)>,
    /// Being read, the oldest first.
    leaving: VecDeque<(usize, Leaving<u8>)>,
}

impl Staging {
    /// What has more bytes goes by itself, and is waited for: weights that are read once, not batches.
    pub(crate) const LARGEST: usize = 64 << 20;

    /// Begins to copy bytes to a slice of as many, in the order of a stream; they were read when this returns. False if they are
    /// too many, or too many are on their way: then nothing has begun.
    ///
    /// # Errors
    /// If the driver fails.
    pub(crate) fn send(&mut self, from: &[u8], to: &Slice, stream: Stream) -> Result<bool> {
        self.collect()?;
        let wanted = from.len().next_power_of_two().max(SMALLEST);
        if wanted > Self::LARGEST {
            return Ok(false);
        }
        // Memory that is much larger would be missed by what needs it.
        let fits = self.kept.iter().position(|(bytes, _)| (wanted..=4 * wanted).contains(bytes));
        let (bytes, mut memory) = match fits {
            Some(at) => self.kept.remove(at),
            None if self.bytes() + wanted > MOST => return Ok(false),
            None => (wanted, Pinned::new(to.device(), wanted)?),
        };
        memory.values_mut()[..from.len()].copy_from_slice(from);
        self.leaving.push_back((bytes, memory.send(&to.as_bytes(), stream)?.letting_go()));
        Ok(true)
    }

    /// Takes back what was read.
    ///
    /// # Errors
    /// If a copy failed.
    pub(crate) fn collect(&mut self) -> Result<()> {
        while let Some((_, oldest)) = self.leaving.front() {
            if !oldest.has_left()? {
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
