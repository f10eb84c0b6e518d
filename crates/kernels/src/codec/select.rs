//! The largest of many numbers, and access by index.

use crate::context::Context;
use crate::error::{KernelError, Result, check_len};

/// Elements of the sample that estimates a threshold.
const SAMPLES: usize = 1 << 14;

/// Elements compared at a time, and one by one only if one of them passes.
const BLOCK: usize = 32;

/// Writes the indices of the `k` numbers of largest magnitude, rising. Of equal magnitudes the lower indices are taken. NaN
/// counts as the largest.
///
/// A sample estimates a threshold, so low that enough numbers almost surely pass. The selection among these is exact. If too
/// few pass, the selection is among all numbers. So the result does not depend on the sample.
///
/// # Errors
/// If there are fewer than `k` numbers, or more than fit a u32.
pub fn top_k(context: &Context, values: &[f32], k: usize, indices: &mut Vec<u32>) -> Result<()> {
    const KERNEL: &str = "top_k";
    if k > values.len() || u32::try_from(values.len()).is_err() {
        let problem = format!("the {k} largest of {} numbers", values.len());
        return Err(KernelError::Shape { kernel: KERNEL, problem });
    }
    indices.clear();
    if k == 0 {
        return Ok(());
    }
    let mut keys = Vec::new();
    let threshold = guess(values, k);
    if threshold > 0 {
        keys.reserve(k + k / 2);
        context.simd(
            #[inline(always)]
            || passing(values, threshold, &mut keys),
        );
    }
    if keys.len() < k {
        keys.clear();
        keys.extend(values.iter().enumerate().map(|(at, value)| key(at, *value)));
    }
    if keys.len() > k {
        keys.select_nth_unstable_by(k - 1, |a, b| b.cmp(a));
        keys.truncate(k);
    }
    // The lower half of a key is the complement of its index.
    indices.extend(keys.iter().map(|key| !(*key as u32)));
    indices.sort_unstable();
    Ok(())
}

/// The bits of a magnitude; as integers they are ordered as magnitudes are.
#[inline(always)]
fn magnitude(value: f32) -> u32 {
    value.to_bits() & 0x7fff_ffff
}

/// Orders by magnitude, and equal magnitudes by the lower index.
#[inline(always)]
fn key(at: usize, value: f32) -> u64 {
    u64::from(magnitude(value)) << 32 | u64::from(!(at as u32))
}

/// Estimates a magnitude that more than `k` numbers reach; 0 if the sample is too small.
fn guess(values: &[f32], k: usize) -> u32 {
    let stride = values.len() / SAMPLES;
    if stride < 4 {
        return 0;
    }
    let mut sample: Vec<u32> = values.iter().step_by(stride).map(|value| magnitude(*value)).collect();
    let expected = sample.len() as f64 * k as f64 / values.len() as f64;
    // More than the expected number among the k largest by four standard deviations and 8.
    let wanted = (expected + 4.0 * expected.sqrt() + 8.0) as usize;
    if wanted >= sample.len() {
        return 0;
    }
    *sample.select_nth_unstable_by(wanted, |a, b| b.cmp(a)).1
}

/// Collects the keys of all numbers whose magnitude reaches a threshold.
#[inline(always)]
fn passing(values: &[f32], threshold: u32, keys: &mut Vec<u64>) {
    for (block, values) in values.chunks(BLOCK).enumerate() {
        let any = values.iter().fold(false, |any, value| any | (magnitude(*value) >= threshold));
        if any {
            let first = block * BLOCK;
            let pass = values.iter().enumerate().filter(|(_, value)| magnitude(**value) >= threshold);
            keys.extend(pass.map(|(at, value)| key(first + at, *value)));
        }
    }
}

fn check_indices(kernel: &'static str, indices: &[u32], len: usize) -> Result<()> {
    match indices.iter().find(|index| **index as usize >= len) {
        None => Ok(()),
        Some(index) => {
            Err(KernelError::Shape { kernel, problem: format!("index {index} of {len} elements") })
        }
    }
}

/// Sets `out[i] = values[indices[i]]`.
///
/// # Errors
/// If the lengths differ, or there is no such element.
pub fn gather_indices(values: &[f32], indices: &[u32], out: &mut [f32]) -> Result<()> {
    const KERNEL: &str = "gather_indices";
    check_len(KERNEL, "out", indices.len(), out.len())?;
    check_indices(KERNEL, indices, values.len())?;
    out.iter_mut().zip(indices).for_each(|(out, at)| *out = values[*at as usize]);
    Ok(())
}

/// Adds `out[indices[i]] += values[i]`.
///
/// # Errors
/// If the lengths differ, or there is no such element.
pub fn scatter_add(indices: &[u32], values: &[f32], out: &mut [f32]) -> Result<()> {
    const KERNEL: &str = "scatter_add";
    check_len(KERNEL, "values", indices.len(), values.len())?;
    check_indices(KERNEL, indices, out.len())?;
    indices.iter().zip(values).for_each(|(at, value)| out[*at as usize] += value);
    Ok(())
}

/// Sets `values[indices[i]] = 0`.
///
/// # Errors
/// If there is no such element.
pub fn clear_indices(indices: &[u32], values: &mut [f32]) -> Result<()> {
    check_indices("clear_indices", indices, values.len())?;
    indices.iter().for_each(|at| values[*at as usize] = 0.0);
    Ok(())
}
