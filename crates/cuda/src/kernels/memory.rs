//! Fills, conversions and in-place sums.

use half::{bf16, f16};

use super::grid::{check_len, launch, over, pack};
use super::sources::MEMORY;
use crate::{Element, ElementType, Gpu, GpuError, Result, Slice, Stream};

/// Returns the bits of a number as an element.
fn bits(value: f64, dtype: ElementType) -> u64 {
    match dtype {
        ElementType::F32 => u64::from((value as f32).to_bits()),
        ElementType::F64 => value.to_bits(),
        ElementType::Bf16 => u64::from(bf16::from_f64(value).to_bits()),
        ElementType::F16 => u64::from(f16::from_f64(value).to_bits()),
        ElementType::U8 => u64::from(value as u8),
        ElementType::U32 => u64::from(value as u32),
        ElementType::I64 => (value as i64).cast_unsigned(),
    }
}

/// Sets every element of `to`.
///
/// # Errors
/// If the driver fails.
pub fn fill(gpu: &Gpu, to: &Slice, value: f64) -> Result<()> {
    let (bits, size) = (bits(value, to.dtype()), to.dtype().size());
    if bits == 0 {
        return to.zero_on(Stream::Compute);
    }
    launch(gpu, &MEMORY, &format!("fill_b{size}"), over(to.len(), 16 / size))
        .slice(to)
        .number(bits)
        .number(to.len() as i64)
        .run()
}

/// Bytes per launch of [`write`].
const CARRIED: usize = 512;

/// Overwrites `to` by host elements, passed as kernel arguments: the host does not wait, and may change them after this returns.
/// Use it for few elements: each launch carries 512 bytes. A graph repeats the captured elements.
///
/// # Errors
/// If lengths or types differ.
pub fn write<T: Element>(gpu: &Gpu, to: &Slice, from: &[T]) -> Result<()> {
    super::grid::check("write", "to", to, T::TYPE, from.len())?;
    let each = CARRIED / size_of::<T>();
    for (at, part) in from.chunks(each).enumerate() {
        let mut words = [0_u64; CARRIED / 8];
        let bytes: &[u8] = bytemuck::cast_slice(part);
        bytemuck::cast_slice_mut::<_, u8>(&mut words)[..bytes.len()].copy_from_slice(bytes);
        let place = to.view(at * each..at * each + part.len())?;
        launch(gpu, &MEMORY, "write_bytes", [1, 1, 1])
            .blocks([1; 3], [CARRIED, 1, 1])
            .number(words)
            .slice(&place)
            .number(bytes.len() as i32)
            .run()?;
    }
    Ok(())
}

/// Overwrites `to` by the elements of `from`, converted as by Rust's `as`.
///
/// # Errors
/// If lengths differ, or there is no such conversion.
pub fn convert_to(gpu: &Gpu, from: &Slice, to: &Slice) -> Result<()> {
    convert_on(gpu, from, to, Stream::Compute)
}

/// Works as [`convert_to`], on a stream.
///
/// # Errors
/// If lengths differ, or there is no such conversion.
pub fn convert_on(gpu: &Gpu, from: &Slice, to: &Slice, stream: Stream) -> Result<()> {
    check_len("convert", "to", to, from.len())?;
    let (a, b) = (from.dtype(), to.dtype());
    if a == b {
        return to.copy_from_on(from, stream);
    }
    let whole = |dtype| matches!(dtype, ElementType::U8 | ElementType::U32 | ElementType::I64);
    if b == ElementType::U8 && whole(a) || whole(b) && a.is_half() {
        return Err(GpuError::unsupported("convert", format!("{a} to {b}")));
    }
    let packs = if whole(a) || whole(b) || a.size() == 8 || b.size() == 8 { 1 } else { pack(&[a, b]) };
    launch(gpu, &MEMORY, &format!("convert_{a}_{b}"), over(from.len(), packs))
        .on(stream)
        .slice(from)
        .slice(to)
        .number(from.len() as i64)
        .run()
}

/// Converts elements to another type. Returns a handle of the same memory if the type is equal.
///
/// # Errors
/// If there is no such conversion.
pub fn convert(gpu: &Gpu, from: &Slice, dtype: ElementType) -> Result<Slice> {
    if from.dtype() == dtype {
        return Ok(from.clone());
    }
    let to = gpu.unwritten(dtype, from.len())?;
    convert_to(gpu, from, &to)?;
    Ok(to)
}

/// Computes `to += addend`. Each sum is rounded once.
///
/// # Errors
/// If lengths differ, or the types do not match: 16-bit types combine with the same type and f32.
pub fn accumulate(gpu: &Gpu, to: &Slice, addend: &Slice) -> Result<()> {
    const FUNCTION: &str = "accumulate";
    check_len(FUNCTION, "addend", addend, to.len())?;
    let (a, b) = (to.dtype(), addend.dtype());
    let whole = |dtype| matches!(dtype, ElementType::U8 | ElementType::U32 | ElementType::I64);
    if whole(a)
        || a != b
            && (a.wide() != ElementType::F32 || b.wide() != ElementType::F32 || a.is_half() && b.is_half())
    {
        return Err(GpuError::unsupported(FUNCTION, format!("{b} added to {a}")));
    }
    launch(gpu, &MEMORY, &format!("accumulate_{a}_{b}"), over(to.len(), pack(&[a, b])))
        .slice(to)
        .slice(addend)
        .number(to.len() as i64)
        .run()
}

/// Increments a 64-bit counter in place.
///
/// # Errors
/// If it is not one element of i64.
pub fn count_up(gpu: &Gpu, counter: &Slice) -> Result<()> {
    super::grid::check("count_up", "counter", counter, ElementType::I64, 1)?;
    launch(gpu, &MEMORY, "count_up", [1, 1, 1]).blocks([1; 3], [1; 3]).slice(counter).run()
}
