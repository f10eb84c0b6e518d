//! Attention in one pass over the keys, and its gradients. Backward needs only the logarithm of each row's sum of exponentials
//! (FlashAttention, Dao et al. 2022). Queries, keys and values are read where a projection wrote them.

use super::attention_inputs::{AttentionInputs, AttentionOperands, AttentionSizes};
use super::grid::{THREADS, check, launch, warps};
use super::sources::{ATTENTION, ATTENTION_TILES, Family};
use crate::launch::Launch;
use crate::{ElementType, Gpu, GpuError, Result, Slice};

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

/// Returns true if there are kernels for heads of `dim` elements of a type, and the GPU has enough shared memory.
pub fn attention_supports(gpu: &Gpu, dtype: ElementType, dim: usize) -> bool {
    Kernels::on(gpu, dtype, dim).is_ok()
}

/// The gradients of attention, in the compute type.
#[derive(Debug)]
pub enum AttentionGradients {
    /// Of queries, keys and values in one array.
    Joined(Slice),
    /// Of those of q, k and v that are wanted.
    Apart([Option<Slice>; 3]),
}

/// Queries, keys and values, or their gradients, as the kernels take them: each begins at its first head.
#[derive(Debug)]
struct Parts {
    q: Slice,
    k: Slice,
    v: Slice,
    /// The elements between positions.
    pitches: [usize; 3],
}

impl Parts {
    fn of(sizes: &AttentionSizes, operands: &AttentionOperands<'_>) -> Result<Self> {
        Ok(match operands {
            AttentionOperands::Joined(all) => Self::of_joined(sizes, all)?,
            AttentionOperands::Apart([q, k, v]) => {
                let [heads, key_heads] = [sizes.heads, sizes.key_heads].map(|heads| heads * sizes.dim);
                Self {
                    q: (*q).clone(),
                    k: (*k).clone(),
                    v: (*v).clone(),
                    pitches: [heads, key_heads, key_heads],
                }
            }
        })
    }

    fn of_joined(sizes: &AttentionSizes, all: &Slice) -> Result<Self> {
        let pitch = (sizes.heads + 2 * sizes.key_heads) * sizes.dim;
        let from = |head: usize| all.view((head * sizes.dim).min(all.len())..all.len());
        let (q, k, v) = (from(0)?, from(sizes.heads)?, from(sizes.heads + sizes.key_heads)?);
        Ok(Self { q, k, v, pitches: [pitch; 3] })
    }
}

impl AttentionInputs<'_> {
    fn kernels(&self, gpu: &Gpu, function: &'static str) -> Result<Kernels> {
        self.check(function)?;
        let sizes = &self.sizes;
        if sizes.keys == 0 || sizes.dim == 0 {
            return Err(GpuError::argument(function, format!("no keys: {sizes:?}")));
        }
        // Rows of tiles beyond the last one are counted, too.
        for size in [sizes.length, sizes.keys, sizes.length * sizes.heads] {
            super::grid::narrow_size(function, size + 64)?;
        }
        Kernels::on(gpu, self.operands.dtype(), sizes.dim)
    }

    /// Adds the arguments that all passes have: the mask, the sizes, the factors and the dropout.
    fn arguments<'a>(
        &'a self,
        launch: Launch<'a>,
        pitches: [usize; 3],
        step: Option<&'a Slice>,
    ) -> Result<Launch<'a>> {
        let launch = launch.optional(self.mask.lengths).optional(self.mask.starts).optional(step);
        let launch = launch.number(self.sizes.numbers("attention", pitches)?);
        Ok(launch.number([self.sizes.scale(), self.kept_factor()]).number(self.dropout_numbers()))
    }
}

/// Computes softmax(q·kᵀ/√dim)·v. Returns the output [samples, length, heads, dim], and the logarithms of each row's sum of
/// exponentials [samples, heads, length] in the compute type. A query that sees no key gets 0.
///
/// # Errors
/// If lengths or types do not match, or heads are larger than the kernels or the GPU support.
pub fn attention(gpu: &Gpu, of: &AttentionInputs<'_>) -> Result<[Slice; 2]> {
    let kernels = of.kernels(gpu, "attention")?;
    let (sizes, dtype) = (&of.sizes, of.operands.dtype());
    let output = gpu.unwritten(dtype, sizes.queries())?;
    let log_sums = gpu.unwritten(dtype.wide(), sizes.rows())?;
    let grid = [sizes.samples * sizes.heads * sizes.length.div_ceil(kernels.rows), 1, 1];
    let parts = Parts::of(sizes, &of.operands)?;
    let step = of.step(gpu);
    let name = format!("attention_{}", kernels.suffix);
    let launch = launch(gpu, kernels.family, &name, grid)
        .blocks(grid, [kernels.threads, 1, 1])
        .shared(kernels.shared[0])
        .slice(&parts.q)
        .slice(&parts.k)
        .slice(&parts.v)
        .slice(&output)
        .slice(&log_sums);
    of.arguments(launch, parts.pitches, step.as_ref())?.run()?;
    Ok([output, log_sums])
}

/// Computes the gradients, in the compute type: of operands apart those of q, k and v that `wants` selects. Keys and values are
/// computed together. Takes the results of [`attention`], and the output's gradient, which is rounded to the operands' type.
///
/// # Errors
/// If lengths or types do not match, or heads are larger than the kernels or the GPU support.
pub fn attention_backward(
    gpu: &Gpu,
    of: &AttentionInputs<'_>,
    [output, log_sums]: [&Slice; 2],
    dy: &Slice,
    wants: [bool; 3],
) -> Result<AttentionGradients> {
    const FUNCTION: &str = "attention_backward";
    let kernels = of.kernels(gpu, FUNCTION)?;
    let (sizes, dtype) = (&of.sizes, of.operands.dtype());
    let wide = dtype.wide();
    check(FUNCTION, "output", output, dtype, sizes.queries())?;
    check(FUNCTION, "log_sums", log_sums, wide, sizes.rows())?;
    super::grid::check_len(FUNCTION, "dy", dy, sizes.queries())?;
    let dy = super::convert(gpu, dy, dtype)?;
    let deltas = gpu.unwritten(wide, sizes.rows())?;
    launch(gpu, &ATTENTION, &format!("attention_deltas_{dtype}"), warps(sizes.rows()))
        .slice(output)
        .slice(&dy)
        .slice(&deltas)
        .number(sizes.rows() as i64)
        .number(sizes.dim as i32)
        .run()?;
    let pass =
        Backward { of, kernels, parts: Parts::of(sizes, &of.operands)?, saved: [&dy, log_sums, &deltas] };
    if let AttentionOperands::Joined(all) = of.operands {
        let grad = gpu.unwritten(wide, all.len())?;
        let to = Parts::of_joined(sizes, &grad)?;
        pass.queries(gpu, &to.q)?;
        pass.keys(gpu, &to.k, &to.v)?;
        return Ok(AttentionGradients::Joined(grad));
    }
    let mut grads = [None, None, None];
    if wants[0] {
        let dq = gpu.unwritten(wide, sizes.queries())?;
        pass.queries(gpu, &dq)?;
        grads[0] = Some(dq);
    }
    if wants[1] || wants[2] {
        let (dk, dv) = (gpu.unwritten(wide, sizes.positions())?, gpu.unwritten(wide, sizes.positions())?);
        pass.keys(gpu, &dk, &dv)?;
        grads[1] = wants[1].then_some(dk);
        grads[2] = wants[2].then_some(dv);
    }
    Ok(AttentionGradients::Apart(grads))
}

/// The passes of backward.
struct Backward<'a> {
    of: &'a AttentionInputs<'a>,
    kernels: Kernels,
    parts: Parts,
    /// The output's gradient, the logarithms of sums, and the products of both with the output.
    saved: [&'a Slice; 3],
}

impl Backward<'_> {
    fn queries(&self, gpu: &Gpu, to: &Slice) -> Result<()> {
        let sizes = &self.of.sizes;
        self.run(gpu, "queries", sizes.heads * sizes.length.div_ceil(self.kernels.rows), 1, &[to])
    }

    fn keys(&self, gpu: &Gpu, k: &Slice, v: &Slice) -> Result<()> {
        let (sizes, split) = (&self.of.sizes, if self.kernels.split { 2 } else { 1 });
        self.run(gpu, "keys", sizes.key_heads * sizes.keys.div_ceil(self.kernels.rows), split, &[k, v])
    }

    /// Runs a pass with `blocks` blocks a sample.
    fn run(&self, gpu: &Gpu, pass: &str, blocks: usize, split: usize, to: &[&Slice]) -> Result<()> {
        let grid = [self.of.sizes.samples * blocks, 1, split];
        let name = format!("attention_{pass}_{}", self.kernels.suffix);
        let step = self.of.step(gpu);
        let launch = launch(gpu, self.kernels.family, &name, grid)
            .blocks(grid, [self.kernels.threads, 1, 1])
            .shared(self.kernels.shared[1])
            .slice(&self.parts.q)
            .slice(&self.parts.k)
            .slice(&self.parts.v);
        let launch = self.saved.iter().chain(to).fold(launch, |launch, slice| launch.slice(slice));
        self.of.arguments(launch, self.parts.pitches, step.as_ref())?.run()
    }
}
