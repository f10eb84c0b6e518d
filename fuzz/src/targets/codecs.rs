//! Encoded gradients between ranks.

use phalanx_fuzz_harness::Random;
use phalanx_kernels::{
    Context, compress_lossless, decompress_lossless, dequantise_int4, dequantise_int8, dequantise_stochastic,
    int4_len, lossless_bound, quantise_int4, quantise_int8, quantise_stochastic, scales_len, scatter_add,
    sign_decode, sign_encode, sign_len, top_k,
};

use super::Target;

/// The numbers of the codecs' kernels in inputs.
const INT8: u8 = 0;
const INT4: u8 = 1;
const QSGD: u8 = 2;
const SIGN: u8 = 3;
const LOSSLESS: u8 = 4;
const ENTRIES: u8 = 5;

/// Levels of QSGD.
const LEVELS: u8 = 127;

/// The largest number of decoded values.
pub(super) const LONGEST: usize = 4096;

/// Returns numbers of many magnitudes, with some NaN and infinity.
pub(super) fn numbers(len: usize) -> Vec<f32> {
    let number = |at: usize| match at % 61 {
        60 => f32::from_bits(at as u32),
        59 => f32::NAN,
        58 => f32::NEG_INFINITY,
        _ => ((at * at * 31 % 97) as f32 - 48.0) * 0.5_f32.powi((at % 23) as i32),
    };
    (0..len).map(number).collect()
}

/// An input of the kernels: the kernel, the number of values, the values of a scale, the 32-bit words of scales or
/// indices, and the message.
#[derive(Debug, Clone, PartialEq)]
struct CodecInput {
    kind: u8,
    len: usize,
    chunk: usize,
    words: usize,
    message: Vec<u8>,
}

/// Returns the bytes of 32-bit words.
fn words_of<T: Copy>(words: &[T], bytes: impl Fn(T) -> [u8; 4]) -> Vec<u8> {
    words.iter().flat_map(|word| bytes(*word)).collect()
}

impl CodecInput {
    fn read(bytes: &[u8]) -> Option<Self> {
        let ([kind, numbers @ ..], message) = bytes.split_first_chunk::<7>()?;
        let [len, chunk, words] =
            std::array::from_fn(|at| usize::from(u16::from_le_bytes([numbers[2 * at], numbers[2 * at + 1]])));
        Some(Self { kind: kind % 6, len: len % LONGEST, chunk, words, message: message.to_vec() })
    }

    fn write(&self) -> Vec<u8> {
        let numbers = [self.len, self.chunk, self.words].map(|number| (number as u16).to_le_bytes());
        [&[self.kind][..], numbers.as_flattened(), &self.message].concat()
    }

    /// Encodes test values with a kernel.
    fn of(kind: u8, len: usize, chunk: usize) -> Option<Self> {
        let (context, values) = (Context::new(1), numbers(len));
        let mut scales = vec![0.0; scales_len(len, chunk)];
        let (mut whole, mut bytes) = (vec![0_i8; len], Vec::new());
        let mut head = Vec::new();
        match kind {
            INT8 => quantise_int8(&context, &values, chunk, &mut scales, &mut whole).ok()?,
            QSGD => {
                quantise_stochastic(&context, (&values, chunk), (LEVELS, 7), &mut scales, &mut whole).ok()?;
            }
            INT4 => {
                bytes.resize(int4_len(len), 0);
                quantise_int4(&context, &values, chunk, &mut scales, &mut bytes).ok()?;
            }
            SIGN => {
                bytes.resize(sign_len(len), 0);
                sign_encode(&context, &values, chunk, &mut scales, &mut bytes).ok()?;
            }
            LOSSLESS => {
                compress_lossless(&context, &values, &mut bytes);
                scales.clear();
            }
            _ => {
                let mut indices = Vec::new();
                top_k(&context, &values, len.div_ceil(3), &mut indices).ok()?;
                let largest: Vec<f32> = indices.iter().map(|at| values[*at as usize]).collect();
                (head, bytes) = (words_of(&indices, u32::to_le_bytes), words_of(&largest, f32::to_le_bytes));
                scales.clear();
            }
        }
        if matches!(kind, INT8 | QSGD) {
            bytes = whole.iter().map(|number| number.cast_unsigned()).collect();
        }
        head.extend(words_of(&scales, f32::to_le_bytes));
        let words = head.len() / 4;
        Some(Self { kind, len, chunk, words, message: [head, bytes].concat() })
    }

    /// Returns the number of bytes after the scales, if the values can be divided into such chunks.
    fn rest(&self) -> Option<usize> {
        let (bytes, multiple) = match self.kind {
            INT8 | QSGD => (self.len, 1),
            INT4 => (int4_len(self.len), 2),
            _ => (sign_len(self.len), 8),
        };
        (self.chunk > 0 && self.chunk.is_multiple_of(multiple)).then_some(bytes)
    }

    /// Returns the words of the message, and the bytes after them.
    fn pieces(&self) -> (&[[u8; 4]], &[u8]) {
        let (words, rest) = self.message.split_at((4 * self.words).min(self.message.len()));
        (words.as_chunks().0, rest)
    }

    /// Decodes the message to `out`, or adds to its values.
    fn decode(&self, out: &mut [f32], add: bool) -> bool {
        let (context, chunk, (words, rest)) = (Context::new(1), self.chunk, self.pieces());
        let scales: Vec<f32> = words.iter().map(|word| f32::from_le_bytes(*word)).collect();
        let signed: Vec<i8> = rest.iter().map(|byte| byte.cast_signed()).collect();
        let decoded = match self.kind {
            INT8 => dequantise_int8(&context, (&scales, &signed), chunk, out, add),
            INT4 => dequantise_int4(&context, (&scales, rest), chunk, out, add),
            QSGD => dequantise_stochastic(&context, (&scales, &signed), (chunk, LEVELS), out, add),
            SIGN => sign_decode(&context, (&scales, rest), chunk, out, add),
            LOSSLESS => decompress_lossless(&context, rest, out),
            _ => {
                let indices: Vec<u32> = words.iter().map(|word| u32::from_le_bytes(*word)).collect();
                let values: Vec<f32> =
                    rest.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
                scatter_add(&indices, &values, out)
            }
        };
        decoded.is_ok()
    }

    /// Returns true if the sizes are valid: then decoding must succeed. Wrong sizes must be rejected.
    fn fits(&self) -> Option<bool> {
        let (words, rest) = self.pieces();
        match self.kind {
            LOSSLESS => None,
            ENTRIES => {
                let inside = |word: &[u8; 4]| (u32::from_le_bytes(*word) as usize) < self.len;
                Some(words.len() == rest.len() / 4 && words.iter().all(inside))
            }
            _ => {
                let scales = scales_len(self.len, self.chunk);
                Some(self.rest() == Some(rest.len()) && words.len() == scales)
            }
        }
    }
}

fn coded() -> Vec<Vec<u8>> {
    let all = (INT8..=ENTRIES).flat_map(|kind| [0, 1, 9, 64, 301].map(|len| CodecInput::of(kind, len, 16)));
    let all: Option<Vec<_>> = all.map(|coded| Some(coded?.write())).collect();
    assert!(all.is_some(), "numbers are encoded");
    all.unwrap_or_default()
}

/// Overwrites some bytes after the first `from`. Keeps the length.
pub(super) fn in_place(input: &mut [u8], from: usize, random: &mut Random) -> bool {
    if input.len() <= from {
        return false;
    }
    for _ in 0..1 + random.below(4) {
        let at = from + random.below(input.len() - from);
        let size = (*random.pick(&[1, 2, 4])).min(input.len() - at);
        input[at..at + size].copy_from_slice(&random.awkward().to_le_bytes()[..size]);
    }
    true
}

/// Moves frequency from one exponent to another in a lossless message of `len` numbers. The table of frequencies stays
/// valid.
pub(super) fn other_frequencies(message: &mut [u8], len: usize, random: &mut Random) -> bool {
    const CODED: u8 = 1;
    let table = 1 + 3 * len;
    let (Some(&CODED), Some(more)) = (message.first(), message.get(table + 1)) else { return false };
    let count = usize::from(*more) + 1;
    let Some(pairs) = message.get_mut(table + 2..table + 2 + 2 * count) else { return false };
    let pairs = pairs.as_chunks_mut::<2>().0;
    let (less, more) = (random.below(count), random.below(count));
    let frequency = u16::from_le_bytes(pairs[less]);
    let moved = random.below(usize::from(frequency) + 1) as u16;
    pairs[less] = (frequency - moved).to_le_bytes();
    pairs[more] = u16::from_le_bytes(pairs[more]).wrapping_add(moved).to_le_bytes();
    true
}

/// Changes a message in place, or its number of values together with its length.
fn of_numbers(input: &mut Vec<u8>, random: &mut Random) -> bool {
    let Some(mut coded) = CodecInput::read(input) else { return false };
    match random.below(3) {
        0 if coded.kind == LOSSLESS => other_frequencies(&mut input[7..], coded.len, random),
        0 if coded.kind < LOSSLESS => {
            coded.len = random.below(LONGEST);
            coded.chunk = *random.pick(&[1, 2, 8, 16, 24, 4096]);
            coded.words = scales_len(coded.len, coded.chunk);
            let rest = coded.rest().unwrap_or(coded.len);
            coded.message.resize(4 * coded.words + rest, random.number() as u8);
            *input = coded.write();
            true
        }
        0 => {
            // Changes entries and keeps their number.
            let words = coded.words.min(coded.message.len() / 4);
            for word in coded.message.as_chunks_mut::<4>().0.iter_mut().take(words) {
                if random.once_in(4) {
                    *word = (random.below(coded.len + 1) as u32).to_le_bytes();
                }
            }
            *input = coded.write();
            true
        }
        _ => in_place(input, 7, random),
    }
}

fn same(one: &[f32], other: &[f32]) -> bool {
    one.iter().zip(other).all(|(a, b)| a == b || a.is_nan() && b.is_nan())
}

fn decode(bytes: &[u8]) {
    let Some(coded) = CodecInput::read(bytes) else { return };
    let (mut values, mut sums) = (vec![0.0; coded.len], vec![0.0; coded.len]);
    let is_decoded = coded.decode(&mut values, false);
    assert_eq!(coded.decode(&mut sums, true), is_decoded);
    assert!(
        coded.fits().is_none_or(|fits| fits == is_decoded),
        "what does not fit was decoded, or what does was not"
    );
    if !is_decoded {
        return;
    }
    assert!(same(&values, &sums), "adding to zeros is something else");
    if coded.kind == LOSSLESS {
        let (mut again, mut back) = (Vec::new(), vec![1.0; coded.len]);
        compress_lossless(&Context::new(1), &values, &mut again);
        let came = decompress_lossless(&Context::new(1), &again, &mut back);
        assert!(came.is_ok() && again.len() <= lossless_bound(coded.len));
        assert!(values.iter().zip(&back).all(|(a, b)| a.to_bits() == b.to_bits()), "something was lost");
    }
}

pub(super) const CODECS: Target = Target {
    name: "codecs",
    about: "kernels that decode gradients: integers, signs, entries, numbers without loss",
    seeds: coded,
    words: &["\u{10}\0", "\0\u{10}", "\0\0\u{7f}\0"],
    change: of_numbers,
    read: decode,
    cases: 300,
    memory: 48 << 20,
};
