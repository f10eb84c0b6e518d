//! The table of byte frequencies of an entropy coder, scaled to a power of two.

/// log₂ of [`SCALE`].
pub(super) const SCALE_BITS: u32 = 12;

/// The sum of all frequencies.
pub(super) const SCALE: u32 = 1 << SCALE_BITS;

/// The frequency of each byte in parts of [`SCALE`], and the start of its parts.
#[derive(Debug, Clone)]
pub(super) struct Table {
    pub(super) frequency: [u32; 256],
    pub(super) start: [u32; 256],
}

impl Table {
    /// Scales counts of bytes; all are 0 in an empty message.
    pub(super) fn of(counts: &[u32; 256]) -> Self {
        let total: u64 = counts.iter().map(|count| u64::from(*count)).sum();
        let mut frequency = counts.map(|count| {
            let share = u64::from(count) * u64::from(SCALE) / total.max(1);
            if count == 0 { 0 } else { (share as u32).max(1) }
        });
        // The most frequent byte takes the rounding difference; several share a large surplus.
        let mut sum: u32 = frequency.iter().sum();
        while total > 0 && sum != SCALE {
            let most = (0..256).max_by_key(|at| (frequency[*at], 256 - at)).unwrap_or(0);
            if sum < SCALE {
                frequency[most] += SCALE - sum;
            } else {
                let taken = (sum - SCALE).min(frequency[most] / 2).max(1);
                frequency[most] -= taken;
            }
            sum = frequency.iter().sum();
        }
        Self::from_frequencies(frequency)
    }

    fn from_frequencies(frequency: [u32; 256]) -> Self {
        let mut start = [0; 256];
        let mut sum = 0;
        for (start, frequency) in start.iter_mut().zip(frequency) {
            *start = sum;
            sum += frequency;
        }
        Self { frequency, start }
    }

    /// Writes the table: the first byte that occurs, the number of bytes from it to the last, less 1, and a 16-bit frequency
    /// for each.
    pub(super) fn write(&self, out: &mut Vec<u8>) {
        let comes = |at: &usize| self.frequency[*at] > 0;
        let first = (0..256).find(comes).unwrap_or(0);
        let last = (0..256).rev().find(comes).unwrap_or(first);
        out.extend([first as u8, (last - first) as u8]);
        self.frequency[first..=last]
            .iter()
            .for_each(|frequency| out.extend((*frequency as u16).to_le_bytes()));
    }

    /// Reads a table and returns it with the bytes behind it; `None` if it is damaged.
    pub(super) fn read(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let [first, more, rest @ ..] = bytes else { return None };
        let (first, count) = (usize::from(*first), usize::from(*more) + 1);
        let (written, rest) = rest.split_at_checked(2 * count)?;
        let mut frequency = [0; 256];
        let into = frequency.get_mut(first..first + count)?;
        for (into, pair) in into.iter_mut().zip(written.as_chunks::<2>().0) {
            *into = u32::from(u16::from_le_bytes(*pair));
        }
        (frequency.iter().sum::<u32>() == SCALE).then(|| (Self::from_frequencies(frequency), rest))
    }
}
