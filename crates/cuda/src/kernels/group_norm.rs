//! Group normalisation of maps N, C, P, channels-first or channels-last.

use phalanx_kernels::Activation;

use super::channels::{Backward, COEFFICIENTS, ChannelSplit, moments, normalise};
use super::grid::{check, launch, narrow_size, over, warps};
use super::row_norms::NormInputs;
use super::sources::CHANNEL_STATISTICS;
use crate::{ElementType, Gpu, GpuError, Result, Slice, TensorLayout};

const FUNCTION: &str = "group_norm";

fn check_groups([_, channels, plane]: [usize; 3], groups: usize) -> Result<()> {
    if groups == 0 || !channels.is_multiple_of(groups) || plane == 0 {
        let problem = format!("{groups} groups of {channels} channels of {plane} elements");
        return Err(GpuError::argument(FUNCTION, problem));
    }
    Ok(())
}

fn split_of(dims: [usize; 3], last: bool) -> ChannelSplit {
    if last { ChannelSplit::of_last(dims) } else { ChannelSplit::Planes }
}

/// Combines the parts of planes: moments, or sums.
fn of_planes(gpu: &Gpu, dims: [usize; 3], split: ChannelSplit, parts: Slice, moments: bool) -> Result<Slice> {
    let ([batch, channels, plane], ChannelSplit::Pixels { per_chunk }) = (dims, split) else {
        return Ok(parts);
    };
    let chunks = plane.div_ceil(per_chunk);
    if chunks == 1 {
        return Ok(parts);
    }
    let (planes, to) = (batch * channels, gpu.unwritten(ElementType::F64, 2 * batch * channels)?);
    let name = if moments { "plane_moments_of_chunks" } else { "plane_sums_of_chunks" };
    let launch = launch(gpu, &CHANNEL_STATISTICS, name, over(planes, 1))
        .slice(&parts)
        .number(chunks as i64)
        .number(channels as i64);
    let launch = match moments {
        true => launch.number(per_chunk as i64).number((plane - (chunks - 1) * per_chunk) as i64),
        false => launch,
    };
    launch.slice(&to).number(planes as i64).run()?;
    Ok(to)
}

/// Normalises groups of channels of maps N, C, P. Returns the output, and the means and 1/√(variance + eps) [N·groups]. `gamma`
/// and `beta` are of the compute type.
///
/// # Errors
/// If lengths or types do not match, or the groups do not divide the channels.
pub fn group_norm(
    gpu: &Gpu,
    layout: TensorLayout,
    dims: [usize; 3],
    groups: usize,
    x: &Slice,
    [gamma, beta]: [&Slice; 2],
    eps: f64,
) -> Result<[Slice; 3]> {
    let last = layout == TensorLayout::ChannelsLast;
    let [batch, channels, plane] = dims;
    check_groups(dims, groups)?;
    let wide = x.dtype().wide();
    check(FUNCTION, "gamma", gamma, wide, channels)?;
    check(FUNCTION, "beta", beta, wide, channels)?;
    let split = split_of(dims, last);
    let parts = moments(gpu, FUNCTION, dims, split, x)?;
    let parts = of_planes(gpu, dims, split, parts, true)?;
    let (mean, inv_std) = (gpu.unwritten(wide, batch * groups)?, gpu.unwritten(wide, batch * groups)?);
    let rows = gpu.unwritten(wide, COEFFICIENTS * batch * channels)?;
    launch(gpu, &CHANNEL_STATISTICS, &format!("group_norm_finish_{wide}"), warps(batch * groups))
        .slice(&parts)
        .number((batch * groups) as i64)
        .number(narrow_size(FUNCTION, groups)?)
        .number(narrow_size(FUNCTION, channels)?)
        .number(narrow_size(FUNCTION, plane)?)
        .number(eps)
        .slice(gamma)
        .slice(beta)
        .slice(&mean)
        .slice(&inv_std)
        .slice(&rows)
        .run()?;
    let y = normalise(gpu, FUNCTION, dims, x, (&rows, batch * channels), None, Activation::None, last)?;
    Ok([y, mean, inv_std])
}

/// Computes the gradients of [`group_norm`]: of the input, in dy's type; of weight and bias, in the compute type.
///
/// # Errors
/// If lengths or types do not match.
pub fn group_norm_backward(
    gpu: &Gpu,
    layout: TensorLayout,
    dims: [usize; 3],
    groups: usize,
    from: NormInputs<'_>,
) -> Result<[Slice; 3]> {
    let last = layout == TensorLayout::ChannelsLast;
    let [batch, channels, plane] = dims;
    check_groups(dims, groups)?;
    let NormInputs { x, dy, gamma, mean, inv_std } = from;
    let wide = x.dtype().wide();
    check(FUNCTION, "gamma", gamma, wide, channels)?;
    check(FUNCTION, "mean", mean, wide, batch * groups)?;
    check(FUNCTION, "inv_std", inv_std, wide, batch * groups)?;
    let planes = batch * channels;
    let sizes = [groups, channels, plane].map(|size| narrow_size(FUNCTION, size));
    let [few, all, size] = [sizes[0].clone()?, sizes[1].clone()?, sizes[2].clone()?];
    let rows = gpu.unwritten(wide, COEFFICIENTS * planes)?;
    launch(gpu, &CHANNEL_STATISTICS, &format!("group_norm_coefficients_{wide}"), over(planes, 1))
        .slice(mean)
        .slice(inv_std)
        .slice(gamma)
        .number(planes as i64)
        .number(few)
        .number(all)
        .slice(&rows)
        .run()?;
    let by = Backward { x, output: None, dy, activation: Activation::None, rows: &rows, sets: planes, last };
    let split = split_of(dims, last);
    let parts = by.sums(gpu, FUNCTION, dims, split)?;
    let parts = of_planes(gpu, dims, split, parts, false)?;
    launch(
        gpu,
        &CHANNEL_STATISTICS,
        &format!("group_norm_backward_coefficients_{wide}"),
        warps(batch * groups),
    )
    .slice(&parts)
    .number((batch * groups) as i64)
    .number(few)
    .number(all)
    .number(size)
    .slice(gamma)
    .slice(inv_std)
    .slice(&rows)
    .run()?;
    let (dgamma, dbeta) = (gpu.unwritten(wide, channels)?, gpu.unwritten(wide, channels)?);
    launch(gpu, &CHANNEL_STATISTICS, &format!("group_norm_affine_{wide}"), warps(channels))
        .slice(&parts)
        .number(batch as i64)
        .number(few)
        .number(all)
        .slice(inv_std)
        .slice(&dgamma)
        .slice(&dbeta)
        .run()?;
    let (dx, _) = by.input(gpu, FUNCTION, dims, false)?;
    Ok([dx, dgamma, dbeta])
}
