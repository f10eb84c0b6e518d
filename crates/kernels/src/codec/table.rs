//! Frequencies of bytes for an entropy coder: counted, scaled to a power of two, written and read.

/// Frequencies add up to 2 to this.
pub(super) const SCALE_BITS: u32 = 12;

/// What frequencies add up to.
pub(super) const SCALE: u32 = 1 << SCALE_BITS;

/// How often each byte comes, in parts of [`SCALE`], and where its parts begin.
#[derive(Debug, Clone)]
pub(super) struct Table {
    pub(super) frequency: [u32; 256],
    pub(super) start: [u32; 256],
}

impl Table {
    /// Of bytes of which each comes so often; none comes at all in an empty message.
    pub(super) fn of(counts: &[u32; 256]) -> Self {
        let total: u64 = counts.iter().map(|count| u64::from(*count)).sum();
        let mut frequency = counts.map(|count| {
            let share = u64::from(count) * u64::from(SCALE) / total.max(1);
            if count == 0 { 0 } else { (share as u32).max(1) }
        });
        // What rounding has left over or taken too much goes to the most frequent, a little to each if it must.
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

    /// Writes the table: the first byte that comes, how many more there are up to the last, and a frequency of 16 bits for each.
    pub(super) fn write(&self, out: &mut Vec<u8>) {
        let comes = |at: &usize| self.frequency[*at] > 0;
        let first = (0..256).find(comes).unwrap_or(0);
        let last = (0..256).rev().find(comes).unwrap_or(first);
        out.extend([first as u8, (last - first) as u8]);
        self.frequency[first..=last]
            .iter()
            .for_each(|frequency| out.extend((*frequency as u16).to_le_bytes()));
    }

    /// Reads a table, and what is behind it; `None` if it is none.
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
