//! Attention in one pass over the keys, and its gradients. Backward needs only the logarithm of each row's sum of exponentials
//! (FlashAttention, Dao et al. 2022).

use super::grid::{THREADS, check, launch, warps};
use super::sources::{ATTENTION, ATTENTION_TILES, Family};
use crate::{ElementType, Gpu, GpuError, Result, Slice};

/// The sizes of attention, and its mask.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AttentionSizes {
    /// Samples times heads.
    pub matrices: usize,
    /// Positions of q.
    pub length: usize,
    /// Positions of k and v.
    pub keys: usize,
    /// Elements of a head.
    pub dim: usize,
    /// Position t attends to 0..=t only.
    pub causal: bool,
}

/// The kernels for an element type and a head size.
struct Kernels {
    family: &'static Family,
    /// The suffix of their names: "bf16_d64".
    suffix: String,
    /// Rows of a block.
    rows: usize,
    threads: usize,
    /// Bytes of shared memory, forward and backward.
    shared: [usize; 2],
    /// True if separate blocks compute the gradients of keys and values.
    split: bool,
}

impl Kernels {
    /// Returns the kernels, if the GPU has enough shared memory.
    fn on(gpu: &Gpu, dtype: ElementType, dim: usize) -> Result<Self> {
        let kernels = Self::of(dtype, dim)?;
        let (needed, has) =
            (kernels.shared[0].max(kernels.shared[1]), gpu.device().description().shared_memory);
        if needed <= has {
            return Ok(kernels);
        }
        let what = format!(
            "heads of {dim} elements of {dtype}: a block needs {needed} bytes of shared memory, and has {has}"
        );
        Err(GpuError::unsupported("attention", what))
    }

    fn of(dtype: ElementType, dim: usize) -> Result<Self> {
        let known: &[usize] = match dtype {
            ElementType::F32 => &[64, 128, 256],
            ElementType::F64 => &[128],
            ElementType::Bf16 | ElementType::F16 => &[32, 64, 96, 128, 192],
            _ => &[],
        };
        let Some(most) = known.iter().copied().find(|most| dim <= *most) else {
            let what = format!("heads of {dim} elements of {dtype}; at most {:?}", known.last());
            return Err(GpuError::unsupported("attention", what));
        };
        let suffix = format!("{dtype}_d{most}");
        if dtype.is_half() {
            let (bytes, columns) = (2 * (most + 8), if most > 128 { 32 } else { 64 });
            return Ok(Self {
                family: &ATTENTION_TILES,
                suffix,
                rows: 64,
                threads: 128,
                shared: [(64 + 2 * columns) * bytes, (128 + 2 * 32) * bytes],
                split: most > 96,
            });
        }
        let pitch = dim.next_multiple_of(4) + 4;
        let bytes = |tiles: usize, weights: usize| (tiles * 32 * pitch + weights * 32 * 33) * dtype.size();
        Ok(Self {
            family: &ATTENTION,
            suffix,
            rows: 32,
            threads: THREADS,
            shared: [bytes(3, 1), bytes(4, 2)],
            split: false,
        })
    }
}

impl AttentionSizes {
    fn queries(&self) -> usize {
        self.matrices * self.length * self.dim
    }

    fn positions(&self) -> usize {
        self.matrices * self.keys * self.dim
    }

    fn check(&self, gpu: &Gpu, function: &'static str, [q, k, v]: [&Slice; 3]) -> Result<Kernels> {
        let dtype = q.dtype();
        check(function, "q", q, dtype, self.queries())?;
        check(function, "k", k, dtype, self.positions())?;
        check(function, "v", v, dtype, self.positions())?;
        if self.keys == 0 || self.dim == 0 {
            return Err(GpuError::argument(function, format!("no keys: {self:?}")));
        }
        for size in [self.length, self.keys] {
            // Rows of tiles beyond the last one are counted, too.
            super::grid::narrow_size(function, size + 64)?;
        }
        Kernels::on(gpu, dtype, self.dim)
    }

    fn scale(&self) -> f64 {
        1.0 / (self.dim as f64).sqrt()
    }
}

/// Returns true if there are kernels for heads of `dim` elements of a type, and the GPU has enough shared memory.
pub fn attention_supports(gpu: &Gpu, dtype: ElementType, dim: usize) -> bool {
    Kernels::on(gpu, dtype, dim).is_ok()
}

/// Computes softmax(q·kᵀ/√dim)·v of q [matrices, length, dim] and k and v [matrices, keys, dim]. Returns the output, and the
/// logarithms of each row's sum of exponentials [matrices, length] in the compute type.
///
/// # Errors
/// If lengths or types do not match, or heads are larger than the kernels or the GPU support.
pub fn attention(gpu: &Gpu, sizes: AttentionSizes, q: &Slice, k: &Slice, v: &Slice) -> Result<[Slice; 2]> {
    let kernels = sizes.check(gpu, "attention", [q, k, v])?;
    let output = gpu.unwritten(q.dtype(), q.len())?;
    let log_sums = gpu.unwritten(q.dtype().wide(), sizes.matrices * sizes.length)?;
    let grid = [sizes.matrices * sizes.length.div_ceil(kernels.rows), 1, 1];
    launch(gpu, kernels.family, &format!("attention_{}", kernels.suffix), grid)
        .blocks(grid, [kernels.threads, 1, 1])
        .shared(kernels.shared[0])
        .slice(q)
        .slice(k)
        .slice(v)
        .slice(&output)
        .slice(&log_sums)
        .number(sizes.length as i32)
        .number(sizes.keys as i32)
        .number(sizes.dim as i32)
        .number(sizes.scale())
        .number(i32::from(sizes.causal))
        .run()?;
    Ok([output, log_sums])
}

/// Computes the gradients of q, k and v that `wants` selects, in the compute type. Keys and values are computed together. Takes
/// the results of [`attention`], and the output's gradient, which is rounded to the operands' type.
///
/// # Errors
/// If lengths or types do not match, or heads are larger than the kernels or the GPU support.
pub fn attention_backward(
    gpu: &Gpu,
    sizes: AttentionSizes,
    [q, k, v]: [&Slice; 3],
    [output, log_sums]: [&Slice; 2],
    dy: &Slice,
    wants: [bool; 3],
) -> Result<[Option<Slice>; 3]> {
    const FUNCTION: &str = "attention_backward";
    let kernels = sizes.check(gpu, FUNCTION, [q, k, v])?;
    let (dtype, wide, rows) = (q.dtype(), q.dtype().wide(), sizes.matrices * sizes.length);
    check(FUNCTION, "output", output, dtype, q.len())?;
    check(FUNCTION, "log_sums", log_sums, wide, rows)?;
    super::grid::check_len(FUNCTION, "dy", dy, q.len())?;
    let dy = &super::convert(gpu, dy, dtype)?;
    let deltas = &gpu.unwritten(wide, rows)?;
    launch(gpu, &ATTENTION, &format!("attention_deltas_{dtype}"), warps(rows))
        .slice(output)
        .slice(dy)
        .slice(deltas)
        .number(rows as i64)
        .number(sizes.dim as i32)
        .run()?;
    let run = |pass: &str, own: usize, split: usize, to: &[&Slice]| {
        let grid = [sizes.matrices * own.div_ceil(kernels.rows), 1, split];
        let name = format!("attention_{pass}_{}", kernels.suffix);
        let launch = launch(gpu, kernels.family, &name, grid)
            .blocks(grid, [kernels.threads, 1, 1])
            .shared(kernels.shared[1])
            .slice(q)
            .slice(k)
            .slice(v)
            .slice(dy)
            .slice(log_sums)
            .slice(deltas);
        to.iter()
            .fold(launch, |launch, slice| launch.slice(slice))
            .number(sizes.length as i32)
            .number(sizes.keys as i32)
            .number(sizes.dim as i32)
            .number(sizes.scale())
            .number(i32::from(sizes.causal))
            .run()
    };
    let mut grads = [None, None, None];
    if wants[0] {
        let dq = gpu.unwritten(wide, q.len())?;
        run("queries", sizes.length, 1, &[&dq])?;
        grads[0] = Some(dq);
    }
    if wants[1] || wants[2] {
        let (dk, dv) = (gpu.unwritten(wide, k.len())?, gpu.unwritten(wide, v.len())?);
        run("keys", sizes.keys, if kernels.split { 2 } else { 1 }, &[&dk, &dv])?;
        grads[1] = wants[1].then_some(dk);
        grads[2] = wants[2].then_some(dv);
    }
    Ok(grads)
}
