//! Group normalisation over [N, C, P].

use phalanx_kernels::Activation;

use super::channels::{Backward, COEFFICIENTS, Cut, moments, normalise};
use super::grid::{check, launch, narrow_size, over, warps};
use super::row_norms::NormInputs;
use super::sources::CHANNEL_STATISTICS;
use crate::{Gpu, GpuError, Result, Slice};

const FUNCTION: &str = "group_norm";

fn check_groups([_, channels, plane]: [usize; 3], groups: usize) -> Result<()> {
    if groups == 0 || !channels.is_multiple_of(groups) || plane == 0 {
        let problem = format!("{groups} groups of {channels} channels of {plane} elements");
        return Err(GpuError::argument(FUNCTION, problem));
    }
    Ok(())
}

/// Group normalisation: the output, and the means and 1/√(variance + eps) of [N·groups]. `gamma` and `beta` are of the type that
/// is computed in.
///
/// # Errors
/// If lengths or types do not go together, or the groups do not divide the channels.
pub fn group_norm(
    gpu: &Gpu,
    dims: [usize; 3],
    groups: usize,
    x: &Slice,
    gamma: &Slice,
    beta: &Slice,
    eps: f64,
) -> Result<[Slice; 3]> {
    let [batch, channels, plane] = dims;
    check_groups(dims, groups)?;
    let wide = x.dtype().wide();
    check(FUNCTION, "gamma", gamma, wide, channels)?;
    check(FUNCTION, "beta", beta, wide, channels)?;
    let parts = moments(gpu, FUNCTION, dims, Cut::Planes, x)?;
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
    let y = normalise(gpu, FUNCTION, dims, x, (&rows, batch * channels), None, Activation::None)?;
    Ok([y, mean, inv_std])
}

/// The gradients of [`group_norm`]: of the input, as dy's type; of weight and bias, in the type that is computed in.
///
/// # Errors
/// If lengths or types do not go together.
pub fn group_norm_backward(
    gpu: &Gpu,
    dims: [usize; 3],
    groups: usize,
    from: NormInputs<'_>,
) -> Result<[Slice; 3]> {
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
    let by = Backward { x, output: None, dy, activation: Activation::None, rows: &rows, sets: planes };
    let parts = by.sums(gpu, FUNCTION, dims, Cut::Planes)?;
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
