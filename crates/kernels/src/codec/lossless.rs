//! Floats without loss: exponents apart and entropy-coded, signs and mantissas as they are.
//!
//! The exponents of gradients are few and unevenly spread, about three bits each; mantissas are noise that nothing compresses. So
//! exponents go through an asymmetric numeral system (Duda 2013, in the form of Giesen's byte-wise rANS) with four states in
//! turn, with frequencies counted for the message. What would not become smaller is sent as it is.
//!
//! A message is a byte that says which, and then the numbers; or the table of frequencies, the length of the coded exponents
//! (u32), these, and three bytes a number.

use super::table::{SCALE, SCALE_BITS, Table};
use crate::error::{KernelError, Result};

/// A message of the numbers as they are.
const PLAIN: u8 = 0;
/// A message with coded exponents.
const CODED: u8 = 1;

/// The least that a state is between symbols.
const LOWEST: u32 = 1 << 23;

/// States that take symbols in turn: a processor works at several at a time.
const STATES: usize = 4;

/// The most bytes that [`compress_lossless`] makes of `len` numbers.
pub fn lossless_bound(len: usize) -> usize {
    1 + 4 * len
}

/// Appends a message that holds the numbers, bit by bit.
pub fn compress_lossless(values: &[f32], out: &mut Vec<u8>) {
    let start = out.len();
    let mut counts = [[0_u32; 256]; STATES];
    let (whole, tail) = values.as_chunks::<STATES>();
    for values in whole {
        for (counts, value) in counts.iter_mut().zip(values) {
            counts[usize::from(exponent(*value))] += 1;
        }
    }
    tail.iter().for_each(|value| counts[0][usize::from(exponent(*value))] += 1);
    let total = std::array::from_fn(|at| counts.iter().map(|counts| counts[at]).sum());
    let table = Table::of(&total);
    let coded = encode(values, &table);
    out.push(CODED);
    table.write(out);
    let behind = out.len() - start + 4 + coded.len() + 3 * values.len();
    if values.is_empty() || behind >= lossless_bound(values.len()) {
        out.truncate(start);
        out.push(PLAIN);
        values.iter().for_each(|value| out.extend(value.to_le_bytes()));
        return;
    }
    out.extend((coded.len() as u32).to_le_bytes());
    out.extend(coded);
    out.reserve(3 * values.len());
    for value in values {
        let bits = value.to_bits();
        let rest = bits & 0x7f_ffff | bits >> 31 << 23;
        out.extend_from_slice(&rest.to_le_bytes()[..3]);
    }
}

#[inline(always)]
fn exponent(value: f32) -> u8 {
    (value.to_bits() >> 23) as u8
}

/// The exponents, from the last to the first, so that they are read from the first.
fn encode(values: &[f32], table: &Table) -> Vec<u8> {
    let mut backwards = Vec::with_capacity(values.len() / 2 + 4 * STATES);
    let mut states = [LOWEST; STATES];
    for (at, value) in values.iter().enumerate().rev() {
        let symbol = usize::from(exponent(*value));
        let (frequency, start) = (table.frequency[symbol], table.start[symbol]);
        let state = &mut states[at % STATES];
        let most = u64::from(LOWEST >> SCALE_BITS << 8) * u64::from(frequency);
        while u64::from(*state) >= most {
            backwards.push(*state as u8);
            *state >>= 8;
        }
        *state = ((*state / frequency) << SCALE_BITS) + *state % frequency + start;
    }
    states.iter().rev().for_each(|state| backwards.extend(state.to_be_bytes()));
    backwards.reverse();
    backwards
}

/// Writes the numbers of a message: those that [`compress_lossless`] was given.
///
/// # Errors
/// [`KernelError::Shape`] if the message is damaged, or of another number of numbers.
pub fn decompress_lossless(message: &[u8], out: &mut [f32]) -> Result<()> {
    let len = out.len();
    decoded(message, out).ok_or_else(|| KernelError::Shape {
        kernel: "decompress_lossless",
        problem: format!("a message of {} bytes is not one of {len} numbers", message.len()),
    })
}

fn decoded(message: &[u8], out: &mut [f32]) -> Option<()> {
    let (mode, rest) = message.split_first()?;
    if *mode == PLAIN {
        let (numbers, odd) = rest.as_chunks::<4>();
        (odd.is_empty() && numbers.len() == out.len()).then_some(())?;
        out.iter_mut().zip(numbers).for_each(|(out, bytes)| *out = f32::from_le_bytes(*bytes));
        return Some(());
    }
    let (table, rest) = (*mode == CODED).then(|| Table::read(rest)).flatten()?;
    let (len, rest) = rest.split_first_chunk::<4>()?;
    let (coded, mantissas) = rest.split_at_checked(u32::from_le_bytes(*len) as usize)?;
    let (mantissas, odd) = mantissas.as_chunks::<3>();
    (odd.is_empty() && mantissas.len() == out.len()).then_some(())?;
    let mut symbols = vec![0_u8; SCALE as usize];
    for symbol in 0..256 {
        let (start, frequency) = (table.start[symbol] as usize, table.frequency[symbol] as usize);
        symbols[start..start + frequency].fill(symbol as u8);
    }
    let (heads, mut coded) = coded.split_at_checked(4 * STATES)?;
    let mut states: [u32; STATES] = [0; STATES];
    states
        .iter_mut()
        .zip(heads.as_chunks::<4>().0)
        .for_each(|(state, head)| *state = u32::from_le_bytes(*head));
    for (at, (out, [low, middle, high])) in out.iter_mut().zip(mantissas).enumerate() {
        let state = &mut states[at % STATES];
        let slot = *state & (SCALE - 1);
        let symbol = symbols[slot as usize];
        let (frequency, start) = (table.frequency[usize::from(symbol)], table.start[usize::from(symbol)]);
        *state = frequency.wrapping_mul(*state >> SCALE_BITS).wrapping_add(slot - start);
        while *state < LOWEST {
            let (next, rest) = coded.split_first()?;
            *state = *state << 8 | u32::from(*next);
            coded = rest;
        }
        let bits = u32::from_le_bytes([*low, *middle, *high, 0]);
        *out = f32::from_bits(bits >> 23 << 31 | u32::from(symbol) << 23 | bits & 0x7f_ffff);
    }
    // The encoder began with these states, so nothing else may be left.
    (coded.is_empty() && states == [LOWEST; STATES]).then_some(())
}
