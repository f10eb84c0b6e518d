//! An entropy coder of bytes: an asymmetric numeral system (Duda 2013) in its range form, as in Giesen's `rans_word`.
//!
//! 32-bit states emit and consume 16-bit words, at most one for each byte. Only addresses depend on the data, so no branch is
//! mispredicted. Eight interleaved states let a CPU work on several bytes at a time. The encoder divides by a product with an
//! inverse that is exact for all states.

use super::table::{SCALE, SCALE_BITS, Table};

/// The lower bound of a state between bytes.
const LOWEST: u32 = 1 << 16;

/// Interleaved states.
const STATES: usize = 8;

/// Fractional bits of an inverse. A state is below frequency·2²⁰ when it is divided, and a frequency is at most 2¹². So the
/// error of an inverse that is rounded up, below frequency·2⁻⁴⁴, never reaches the next whole number.
const INVERSE_BITS: u32 = 44;

/// The numbers that encode a byte.
#[derive(Debug, Clone, Copy, Default)]
struct Step {
    inverse: u64,
    frequency: u32,
    /// The difference of the scale and the frequency.
    rest: u32,
    start: u32,
}

impl Step {
    fn of(frequency: u32, start: u32) -> Self {
        let inverse = (1_u64 << INVERSE_BITS).div_ceil(u64::from(frequency.max(1)));
        Self { inverse, frequency, rest: SCALE - frequency, start }
    }

    /// Encodes the byte into a state. A state that would become too large first emits a word before place `at` of `words`.
    #[inline(always)]
    fn put(&self, state: u32, words: &mut [[u8; 2]], at: &mut usize) -> u32 {
        let full = state >> (32 - SCALE_BITS) >= self.frequency;
        words[*at - 1] = (state as u16).to_le_bytes();
        *at -= usize::from(full);
        let state = state >> (16 * u32::from(full));
        let quotient = ((u64::from(state) * self.inverse) >> INVERSE_BITS) as u32;
        state + quotient * self.rest + self.start
    }
}

/// Appends the code of bytes, all of which the table must have: the final states and the words, in reading order.
pub(super) fn encode(bytes: &[u8], table: &Table, out: &mut Vec<u8>) {
    let mut steps = [Step::default(); 256];
    for (step, (frequency, start)) in steps.iter_mut().zip(table.frequency.iter().zip(table.start)) {
        *step = Step::of(*frequency, start);
    }
    // A byte emits a word at most, and the place before the first is written to as well.
    let mut words = vec![[0_u8; 2]; bytes.len() + 1];
    let mut at = words.len();
    let mut states = [LOWEST; STATES];
    let (whole, tail) = bytes.as_chunks::<STATES>();
    // From the last to the first, so that they are read from the first.
    for (state, byte) in states.iter_mut().zip(tail).rev() {
        *state = steps[usize::from(*byte)].put(*state, &mut words, &mut at);
    }
    for bytes in whole.iter().rev() {
        for lane in (0..STATES).rev() {
            states[lane] = steps[usize::from(bytes[lane])].put(states[lane], &mut words, &mut at);
        }
    }
    states.iter().for_each(|state| out.extend(state.to_le_bytes()));
    out.extend_from_slice(words[at..].as_flattened());
}

/// Decodes bytes to all of `out`; `None` if the code is damaged or has another length.
pub(super) fn decode(code: &[u8], table: &Table, out: &mut [u8]) -> Option<()> {
    let (heads, words) = code.split_at_checked(4 * STATES)?;
    let (words, odd) = words.as_chunks::<2>();
    odd.is_empty().then_some(())?;
    // For each part of the scale: the byte, its frequency less 1, and the offset in the byte's parts.
    let mut parts = [0_u32; SCALE as usize];
    for byte in 0..256 {
        let (start, frequency) = (table.start[byte], table.frequency[byte]);
        for into in 0..frequency {
            parts[(start + into) as usize] = byte as u32 | (frequency - 1) << 8 | into << (8 + SCALE_BITS);
        }
    }
    let mut states = [0_u32; STATES];
    states
        .iter_mut()
        .zip(heads.as_chunks::<4>().0)
        .for_each(|(state, head)| *state = u32::from_le_bytes(*head));
    let mut at = 0;
    let mut take = |state: u32| {
        let part = parts[(state % SCALE) as usize];
        let frequency = (part >> 8 & (SCALE - 1)) + 1;
        let state = frequency * (state >> SCALE_BITS) + (part >> (8 + SCALE_BITS));
        // Reading past the last word shows at the end.
        let word = words.get(at).map_or(0, |word| u32::from(u16::from_le_bytes(*word)));
        let short = state < LOWEST;
        at += usize::from(short);
        (if short { state << 16 | word } else { state }, part as u8)
    };
    let (whole, tail) = out.as_chunks_mut::<STATES>();
    for out in whole {
        for lane in 0..STATES {
            (states[lane], out[lane]) = take(states[lane]);
        }
    }
    for (state, out) in states.iter_mut().zip(tail) {
        (*state, *out) = take(*state);
    }
    // The encoder began with these states.
    (at == words.len() && states == [LOWEST; STATES]).then_some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotients_are_those_of_a_division() {
        for frequency in [1, 2, 3, 5, 7, 100, 1023, 1024, 1025, 2047, 3001, 4093, 4095, 4096] {
            let step = Step::of(frequency, 0);
            let end = u64::from(frequency) << 20;
            let near = (0..64).flat_map(|by| [by, end / 2 + by, end - 1 - by]);
            let multiples = (1..4096_u64).flat_map(|times| {
                let multiple = times * 257 * u64::from(frequency);
                [multiple - 1, multiple]
            });
            for state in near.chain(multiples).filter(|state| *state < end) {
                let quotient = (state * step.inverse) >> INVERSE_BITS;
                assert_eq!(quotient, state / u64::from(frequency), "{state} / {frequency}");
            }
        }
    }

    #[test]
    fn bytes_of_all_frequencies_come_back() {
        for (len, most) in
            [(0_u64, 1), (1, 1), (7, 3), (8, 256), (1000, 1), (1003, 2), (5000, 17), (9001, 256)]
        {
            let bytes: Vec<u8> = (0..len).map(|at| (at * at * 31 % 65_521 % most) as u8).collect();
            let mut counts = [0; 256];
            bytes.iter().for_each(|byte| counts[usize::from(*byte)] += 1);
            let table = Table::of(&counts);
            let mut code = Vec::new();
            encode(&bytes, &table, &mut code);
            let mut back = vec![0; bytes.len()];
            assert_eq!(decode(&code, &table, &mut back), Some(()), "{len} of {most}");
            assert_eq!(back, bytes);
            code.extend([0; 2]);
            assert_eq!(decode(&code, &table, &mut back), None, "something is left");
        }
    }
}
