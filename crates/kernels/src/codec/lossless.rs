//! Lossless compression of floats: exponents are entropy-coded, signs and mantissas are stored unchanged.
//!
//! The exponents of gradients take few values, about three bits of entropy each; mantissas are noise. Exponents go through
//! an entropy coder ([`super::rans`]) with the frequencies of the message. Numbers that would not become smaller are stored
//! unchanged.
//!
//! A message begins with a byte for its mode. A plain message then has the numbers. A coded message has the lower 16 bits of
//! each number, 8 bits of each with the sign and the rest of the mantissa, the table of frequencies, and the coded exponents.

use super::rans;
use super::table::Table;
use crate::context::Context;
use crate::error::{KernelError, Result};

/// The mode of a message of unchanged numbers.
const PLAIN: u8 = 0;
/// The mode of a message with coded exponents.
const CODED: u8 = 1;

/// Counting tables used in turn, so that equal exponents in a row do not wait for each other.
const COUNTERS: usize = 8;

/// The maximum size of a message of [`compress_lossless`] for `len` numbers, in bytes.
pub fn lossless_bound(len: usize) -> usize {
    1 + 4 * len
}

/// Appends a message with the exact numbers.
pub fn compress_lossless(context: &Context, values: &[f32], out: &mut Vec<u8>) {
    let start = out.len();
    let len = values.len();
    out.push(CODED);
    out.resize(start + 1 + 3 * len, 0);
    let mut exponents = vec![0_u8; len];
    let (low, high) = out[start + 1..].split_at_mut(2 * len);
    let low = low.as_chunks_mut().0;
    context.simd(
        #[inline(always)]
        || split(values, &mut exponents, low, high),
    );
    let table = Table::of(&counted(&exponents));
    table.write(out);
    rans::encode(&exponents, &table, out);
    if len == 0 || out.len() - start >= lossless_bound(len) {
        out.truncate(start);
        out.push(PLAIN);
        out.resize(start + lossless_bound(len), 0);
        let numbers = out[start + 1..].as_chunks_mut().0;
        numbers.iter_mut().zip(values).for_each(|(bytes, value)| *bytes = value.to_le_bytes());
    }
}

/// Splits numbers into exponents, the lower 16 bits, and 8 bits with the sign and the rest of the mantissa.
#[inline(always)]
fn split(values: &[f32], exponents: &mut [u8], low: &mut [[u8; 2]], high: &mut [u8]) {
    for (((value, exponent), low), high) in values.iter().zip(exponents).zip(low).zip(high) {
        let bits = value.to_bits();
        *exponent = (bits >> 23) as u8;
        *low = (bits as u16).to_le_bytes();
        *high = (bits >> 16 & 0x7f | bits >> 24 & 0x80) as u8;
    }
}

/// The inverse of [`split`].
#[inline(always)]
fn join(exponents: &[u8], low: &[[u8; 2]], high: &[u8], out: &mut [f32]) {
    for (((out, exponent), low), high) in out.iter_mut().zip(exponents).zip(low).zip(high) {
        let (low, high) = (u32::from(u16::from_le_bytes(*low)), u32::from(*high));
        *out = f32::from_bits((high & 0x80) << 24 | u32::from(*exponent) << 23 | (high & 0x7f) << 16 | low);
    }
}

/// Counts each byte.
fn counted(bytes: &[u8]) -> [u32; 256] {
    let mut counts = [[0_u32; 256]; COUNTERS];
    let (whole, tail) = bytes.as_chunks::<COUNTERS>();
    for bytes in whole {
        for (counts, byte) in counts.iter_mut().zip(bytes) {
            counts[usize::from(*byte)] += 1;
        }
    }
    tail.iter().for_each(|byte| counts[0][usize::from(*byte)] += 1);
    std::array::from_fn(|at| counts.iter().map(|counts| counts[at]).sum())
}

/// Writes the numbers of a message of [`compress_lossless`].
///
/// # Errors
/// [`KernelError::Shape`] if the message is damaged or has another length than `out`.
pub fn decompress_lossless(context: &Context, message: &[u8], out: &mut [f32]) -> Result<()> {
    let len = out.len();
    decoded(context, message, out).ok_or_else(|| KernelError::Shape {
        kernel: "decompress_lossless",
        problem: format!("a message of {} bytes is not one of {len} numbers", message.len()),
    })
}

fn decoded(context: &Context, message: &[u8], out: &mut [f32]) -> Option<()> {
    let (mode, rest) = message.split_first()?;
    if *mode == PLAIN {
        let (numbers, odd) = rest.as_chunks::<4>();
        (odd.is_empty() && numbers.len() == out.len()).then_some(())?;
        out.iter_mut().zip(numbers).for_each(|(out, bytes)| *out = f32::from_le_bytes(*bytes));
        return Some(());
    }
    (*mode == CODED).then_some(())?;
    let (low, rest) = rest.split_at_checked(2 * out.len())?;
    let (high, rest) = rest.split_at_checked(out.len())?;
    let (table, code) = Table::read(rest)?;
    let mut exponents = vec![0_u8; out.len()];
    rans::decode(code, &table, &mut exponents)?;
    context.simd(
        #[inline(always)]
        || join(&exponents, low.as_chunks().0, high, out),
    );
    Some(())
}
