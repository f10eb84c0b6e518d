//! Hashes of the values of tensors. They do not depend on the files or the number of ranks.
//!
//! Every element is hashed with its tensor's name, type and shape and with its position. The hashes of all elements are
//! added, so ranks add those of their pieces. BLAKE3 then hashes the sums of all tensors of a kind. This finds
//! accidental differences. It is no defence against an attacker, who can construct two checkpoints with equal sums.

use std::collections::BTreeMap;
use std::io::{self, Write};

use candle_core::DType;
use serde::{Deserialize, Serialize};

use super::finite::non_finite;
use super::piece::Piece;
use super::region::{Interval, Region};
use super::{Checkpoint, CheckpointError};

/// The hash of all tensors of each kind, in hexadecimal.
pub type Hashes = BTreeMap<String, String>;

/// The sum of the hashes of some elements of a tensor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct TensorSum {
    kind: String,
    name: String,
    dtype: String,
    shape: Vec<usize>,
    sums: [u64; 2],
}

impl TensorSum {
    /// Returns the sum over no elements of a piece's tensor.
    pub(super) fn of(piece: &Piece) -> Self {
        let Piece { kind, name, dtype, shape, .. } = piece.clone();
        Self { kind, name, dtype, shape, sums: [0; 2] }
    }

    /// The seed of every element's hash.
    fn seed(&self) -> [u64; 2] {
        let Self { name, dtype, shape, .. } = self;
        let hash = blake3::hash(format!("{name}\0{dtype}\0{shape:?}").as_bytes());
        let (words, _) = hash.as_bytes().as_chunks::<8>();
        [0, 1].map(|at| u64::from_le_bytes(words[at]))
    }

    /// Adds the sums of other elements of the same tensor.
    fn add(&mut self, other: [u64; 2]) {
        self.sums.iter_mut().zip(other).for_each(|(own, other)| *own = own.wrapping_add(other));
    }
}

/// A writer that hashes the elements of a piece, and counts those that are not finite, before it passes them on.
pub(super) struct SummingWriter<'a, W> {
    out: &'a mut W,
    elements: Elements,
    dtype: DType,
    non_finite: usize,
}

/// The result of writing the elements of a piece.
pub(super) struct WrittenElements {
    pub(super) sum: TensorSum,
    /// The number of infinities and NaNs.
    pub(super) non_finite: usize,
}

impl<'a, W: Write> SummingWriter<'a, W> {
    /// Creates a writer for the elements of `piece`, which are of type `dtype`.
    pub(super) fn new(out: &'a mut W, piece: &Piece, dtype: DType) -> Self {
        let elements = Elements::new(TensorSum::of(piece), &piece.region, dtype.size_in_bytes());
        Self { out, elements, dtype, non_finite: 0 }
    }

    pub(super) fn finish(self) -> WrittenElements {
        WrittenElements { sum: self.elements.sum, non_finite: self.non_finite }
    }
}

impl<W: Write> Write for SummingWriter<'_, W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.out.write_all(bytes)?;
        self.elements.take(bytes);
        self.non_finite += non_finite(self.dtype, bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// The elements of a region that are still to be hashed.
struct Elements {
    sum: TensorSum,
    seed: [u64; 2],
    size: usize,
    /// The remaining intervals, the next one last.
    intervals: Vec<Interval>,
}

impl Elements {
    fn new(sum: TensorSum, region: &Region, size: usize) -> Self {
        let mut intervals = region.intervals(&sum.shape);
        intervals.reverse();
        Self { seed: sum.seed(), sum, size: size.max(1), intervals }
    }

    /// Whole elements.
    fn take(&mut self, mut bytes: &[u8]) {
        while let (false, Some(interval)) = (bytes.is_empty(), self.intervals.last_mut()) {
            let count = interval.len.min(bytes.len() / self.size).max(1);
            let (now, rest) = bytes.split_at((count * self.size).min(bytes.len()));
            let sums = sum_of(self.seed, interval.start, now, self.size);
            *interval = Interval {
                start: interval.start + count,
                len: interval.len.saturating_sub(count),
                first: interval.first + count,
            };
            if interval.len == 0 {
                self.intervals.pop();
            }
            self.sum.add(sums);
            bytes = rest;
        }
    }
}

/// The sums over elements that follow each other, the first at `start`.
fn sum_of(seed: [u64; 2], start: usize, bytes: &[u8], size: usize) -> [u64; 2] {
    let mut sums = [0_u64; 2];
    let mut add = |at: usize, bits: u64| {
        let of_place = mixed(seed[0].wrapping_add((start + at) as u64));
        let first = mixed(of_place ^ bits.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let second = mixed(first ^ seed[1] ^ bits);
        sums = [sums[0].wrapping_add(first), sums[1].wrapping_add(second)];
    };
    match size {
        4 => {
            let words = bytes.as_chunks::<4>().0.iter().enumerate();
            words.for_each(|(at, word)| add(at, u64::from(u32::from_le_bytes(*word))));
        }
        _ => {
            for (at, element) in bytes.chunks(size).enumerate() {
                add(at, element.iter().rev().fold(0, |bits, byte| bits << 8 | u64::from(*byte)));
            }
        }
    }
    sums
}

/// A bijection of 64 bits all of whose outputs depend on all inputs (the finaliser of SplitMix64, Steele et al. 2014).
fn mixed(mut bits: u64) -> u64 {
    bits = (bits ^ bits >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ bits >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ bits >> 31
}

/// The hash of each kind, from the sums of parts of tensors, of which every element is in one.
pub(super) fn hashes(parts: impl IntoIterator<Item = TensorSum>) -> Hashes {
    let mut kinds: BTreeMap<String, BTreeMap<String, TensorSum>> = BTreeMap::new();
    for part in parts {
        let known = kinds.entry(part.kind.clone()).or_default();
        match known.get_mut(&part.name) {
            Some(sum) => sum.add(part.sums),
            None => drop(known.insert(part.name.clone(), part)),
        }
    }
    let hash = |named: BTreeMap<String, TensorSum>| {
        let mut hasher = blake3::Hasher::new();
        for TensorSum { name, dtype, shape, sums, .. } in named.into_values() {
            hasher
                .update(format!("{name}\0{dtype}\0{shape:?}\0{:016x}{:016x}\n", sums[0], sums[1]).as_bytes());
        }
        hasher.finalize().to_hex().to_string()
    };
    kinds.into_iter().map(|(kind, named)| (kind, hash(named))).collect()
}

impl Checkpoint {
    /// Returns the hash of each kind of tensor. That of [`super::MODEL`] is equal for equal parameters and buffers,
    /// under every strategy and number of ranks.
    ///
    /// # Errors
    /// If files that have to be read cannot be.
    pub fn hashes(&self) -> Result<Hashes, CheckpointError> {
        match self.index.hashes.is_empty() {
            true => self.computed_hashes(),
            false => Ok(self.index.hashes.clone()),
        }
    }

    /// Computes those hashes from the contents of the files, without the index's.
    ///
    /// # Errors
    /// If a file cannot be read.
    pub fn computed_hashes(&self) -> Result<Hashes, CheckpointError> {
        let reader = self.reader();
        let mut sums = Vec::new();
        for kind in reader.kinds() {
            for (name, shape) in reader.tensors(kind) {
                let Some(piece) = reader.pieces(kind, name).first() else { continue };
                let whole = Region::whole(shape);
                let size = reader.element_size(kind, name)?;
                let mut elements = Elements::new(TensorSum::of(piece), &whole, size);
                reader.read_bytes(kind, name, &whole, |_, bytes| {
                    elements.take(bytes);
                    Ok(())
                })?;
                sums.push(elements.sum);
            }
        }
        Ok(hashes(sums))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sum(kind: &str, name: &str, region: Region, values: &[f32]) -> TensorSum {
        let piece = Piece {
            kind: kind.to_owned(),
            name: name.to_owned(),
            dtype: "f32".to_owned(),
            shape: vec![2, 3],
            region,
            file: "f".to_owned(),
            key: "k".to_owned(),
        };
        let mut out = Vec::new();
        let mut summing = SummingWriter::new(&mut out, &piece, DType::F32);
        for value in values {
            summing.write_all(&value.to_le_bytes()).expect("memory");
        }
        let sum = summing.finish().sum;
        assert_eq!(out.len(), 4 * values.len());
        sum
    }

    #[test]
    fn a_hash_does_not_depend_on_how_tensors_are_cut() {
        let values = [1.0, -0.0, 3.0, 4.0, 5.0, 6.0];
        let whole = hashes([sum("model", "w", (0..6).into(), &values)]);
        for cut in 0..=6 {
            let parts = [(cut..6, &values[cut..]), (0..cut, &values[..cut])];
            let parts = parts.map(|(range, values)| sum("model", "w", range.into(), values));
            assert_eq!(hashes(parts), whole, "{cut}");
        }
        // The last column, and the others.
        let columns = [sum("model", "w", Region::of_dims(&[0..2, 2..3]), &[3.0, 6.0]), {
            sum("model", "w", Region::of_dims(&[0..2, 0..2]), &[1.0, -0.0, 4.0, 5.0])
        }];
        assert_eq!(hashes(columns), whole);
    }

    #[test]
    fn every_bit_place_and_name_counts() {
        let values = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0_f32];
        let of =
            |name: &str, values: &[f32]| hashes([sum("model", name, (0..6).into(), values)])["model"].clone();
        let plain = of("w", &values);
        let mut all = vec![plain.clone(), of("v", &values)];
        for bit in 0..32 {
            let mut changed = values;
            changed[4] = f32::from_bits(changed[4].to_bits() ^ 1 << bit);
            all.push(of("w", &changed));
        }
        for at in 1..6 {
            let mut changed = values;
            changed.swap(0, at);
            all.push(of("w", &changed));
        }
        let count = all.len();
        all.sort();
        all.dedup();
        assert_eq!(all.len(), count);
        // A kind has a hash of its own, and names of other kinds do not count.
        let two =
            hashes([sum("ema", "w", (0..6).into(), &values), sum("model", "w", (0..6).into(), &values)]);
        assert_eq!((two["model"].clone(), two["ema"].clone()), (plain.clone(), plain));
    }
}
