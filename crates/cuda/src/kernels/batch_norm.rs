//! Batch normalisation over [N, C, P], over one batch or over those of all ranks.
//!
//! Channels-last maps are [N·P, C, 1]. *Statistics* are f64, `[1 + 2·C]`: the elements of a channel, the means, and the sums of
//! squared deviations. *Sums*, which ranks add up, have the same length: the elements, Σx and Σx². The sums of a *gradient* are
//! `[2·C]`: Σdy and Σdy·x̂.

use phalanx_kernels::Activation;

use super::channels::{Backward, COEFFICIENTS, ChannelSplit, moments, normalise};
use super::grid::{check, check_len, check_type, launch, over, warps};
use super::sources::CHANNEL_STATISTICS;
use crate::{ElementType, Gpu, GpuError, Result, Slice};

const FUNCTION: &str = "batch_norm";

/// The arguments of a batch norm, with a fused activation. Weights are of the compute type.
#[derive(Debug, Clone, Copy)]
pub struct BatchNorm<'a> {
    /// Samples, channels, and elements of a channel of one sample.
    pub dims: [usize; 3],
    /// The input.
    pub x: &'a Slice,
    /// The weight `[C]`.
    pub gamma: &'a Slice,
    /// The bias `[C]`.
    pub beta: &'a Slice,
    /// Added to the variance.
    pub eps: f64,
    /// Applied to the output.
    pub activation: Activation,
}

/// The arguments of the backward of a batch norm.
#[derive(Debug, Clone, Copy)]
pub struct BatchNormBackward<'a> {
    /// The forward pass.
    pub pass: BatchNorm<'a>,
    /// The statistics of the forward pass.
    pub statistics: &'a Slice,
    /// The output, if a residual was added before an activation.
    pub output: Option<&'a Slice>,
    /// The output's gradient.
    pub dy: &'a Slice,
    /// Compute the gradient of the residual separately.
    pub residual: bool,
}

impl BatchNorm<'_> {
    fn channels(&self) -> usize {
        self.dims[1]
    }

    fn wide(&self) -> ElementType {
        self.x.dtype().wide()
    }

    fn check(&self) -> Result<()> {
        check(FUNCTION, "gamma", self.gamma, self.wide(), self.channels())?;
        check(FUNCTION, "beta", self.beta, self.wide(), self.channels())
    }

    /// Returns the coefficients of forward, with space for those of backward.
    fn coefficients(&self, gpu: &Gpu, statistics: &Slice) -> Result<Slice> {
        self.check()?;
        check(FUNCTION, "statistics", statistics, ElementType::F64, 1 + 2 * self.channels())?;
        let rows = gpu.unwritten(self.wide(), COEFFICIENTS * self.channels())?;
        let name = format!("batch_norm_coefficients_{}", self.wide());
        launch(gpu, &CHANNEL_STATISTICS, &name, over(self.channels(), 1))
            .slice(statistics)
            .number(self.channels() as i64)
            .slice(self.gamma)
            .slice(self.beta)
            .number(self.eps)
            .slice(&rows)
            .run()?;
        Ok(rows)
    }

    fn normalise(&self, gpu: &Gpu, rows: &Slice, residual: Option<&Slice>) -> Result<Slice> {
        normalise(gpu, FUNCTION, self.dims, self.x, (rows, self.channels()), residual, self.activation, false)
    }
}

/// Returns the statistics of this batch, and the coefficients of `pass`.
fn statistics_of(
    gpu: &Gpu,
    dims: [usize; 3],
    x: &Slice,
    pass: Option<&BatchNorm<'_>>,
) -> Result<(Slice, Option<Slice>)> {
    let channels = dims[1];
    if dims[0] * dims[2] == 0 {
        return Err(GpuError::argument(FUNCTION, format!("channels of no elements: {dims:?}")));
    }
    let (split, wide) = (ChannelSplit::of(dims), x.dtype().wide());
    let parts = moments(gpu, FUNCTION, dims, split, x)?;
    let statistics = gpu.unwritten(ElementType::F64, 1 + 2 * channels)?;
    let rows = pass.map(|_| gpu.unwritten(wide, COEFFICIENTS * channels)).transpose()?;
    launch(gpu, &CHANNEL_STATISTICS, &format!("batch_norm_finish_{wide}"), warps(channels))
        .slice(&parts)
        .number(split.descriptor(dims))
        .number(channels as i64)
        .slice(&statistics)
        .optional(pass.map(|pass| pass.gamma))
        .optional(pass.map(|pass| pass.beta))
        .number(pass.map_or(0.0, |pass| pass.eps))
        .optional(rows.as_ref())
        .run()?;
    Ok((statistics, rows))
}

fn channels_of(statistics: &Slice) -> Result<usize> {
    check_type(FUNCTION, "statistics", statistics, ElementType::F64)?;
    if statistics.len().is_multiple_of(2) {
        let problem = format!("statistics are [1 + 2·C], not [{}]", statistics.len());
        return Err(GpuError::argument(FUNCTION, problem));
    }
    Ok(statistics.len() / 2)
}

/// Computes the sums of this batch.
///
/// # Errors
/// If lengths or types do not match, or there are no elements.
pub fn batch_norm_sums(gpu: &Gpu, dims: [usize; 3], x: &Slice) -> Result<Slice> {
    let (statistics, _) = statistics_of(gpu, dims, x, None)?;
    converted(gpu, "batch_norm_sums", &statistics)
}

/// Converts sums to statistics.
///
/// # Errors
/// If the array is not [1 + 2·C] of f64.
pub fn batch_norm_statistics(gpu: &Gpu, sums: &Slice) -> Result<Slice> {
    converted(gpu, "batch_norm_statistics", sums)
}

fn converted(gpu: &Gpu, kernel: &str, from: &Slice) -> Result<Slice> {
    let channels = channels_of(from)?;
    let to = gpu.unwritten(ElementType::F64, from.len())?;
    launch(gpu, &CHANNEL_STATISTICS, kernel, over(channels, 1))
        .slice(from)
        .number(channels as i64)
        .slice(&to)
        .run()?;
    Ok(to)
}

/// Converts running mean and variance to the statistics of `count` elements per channel.
///
/// # Errors
/// If lengths or types differ.
pub fn batch_norm_fixed(gpu: &Gpu, mean: &Slice, variance: &Slice, count: f64) -> Result<Slice> {
    check(FUNCTION, "variance", variance, mean.dtype(), mean.len())?;
    let statistics = gpu.unwritten(ElementType::F64, 1 + 2 * mean.len())?;
    launch(gpu, &CHANNEL_STATISTICS, &format!("batch_norm_fixed_{}", mean.dtype()), over(mean.len(), 1))
        .slice(mean)
        .slice(variance)
        .number(count)
        .number(mean.len() as i64)
        .slice(&statistics)
        .run()?;
    Ok(statistics)
}

/// Normalises by the batch's statistics: act(norm(x) + residual). Returns the output and the statistics.
///
/// # Errors
/// If lengths or types do not match, or there are no elements.
pub fn batch_norm_train(gpu: &Gpu, pass: BatchNorm<'_>, residual: Option<&Slice>) -> Result<(Slice, Slice)> {
    pass.check()?;
    let (statistics, rows) = statistics_of(gpu, pass.dims, pass.x, Some(&pass))?;
    let rows = rows.expect("a pass was given");
    Ok((pass.normalise(gpu, &rows, residual)?, statistics))
}

/// Normalises by given statistics.
///
/// # Errors
/// If lengths or types do not match.
pub fn batch_norm(
    gpu: &Gpu,
    pass: BatchNorm<'_>,
    statistics: &Slice,
    residual: Option<&Slice>,
) -> Result<Slice> {
    let rows = pass.coefficients(gpu, statistics)?;
    pass.normalise(gpu, &rows, residual)
}

/// Updates running mean and (unbiased) variance in place: the batch's values have the weight `momentum`.
///
/// # Errors
/// If lengths or types differ.
pub fn batch_norm_running(
    gpu: &Gpu,
    statistics: &Slice,
    momentum: f64,
    mean: &Slice,
    variance: &Slice,
) -> Result<()> {
    let channels = channels_of(statistics)?;
    check_len(FUNCTION, "mean", mean, channels)?;
    check(FUNCTION, "variance", variance, mean.dtype(), channels)?;
    launch(gpu, &CHANNEL_STATISTICS, &format!("batch_norm_running_{}", mean.dtype()), over(channels, 1))
        .slice(statistics)
        .number(momentum)
        .number(channels as i64)
        .slice(mean)
        .slice(variance)
        .run()
}

impl BatchNormBackward<'_> {
    fn by<'a>(&'a self, rows: &'a Slice) -> Backward<'a> {
        let BatchNorm { x, activation, dims, .. } = self.pass;
        Backward { x, output: self.output, dy: self.dy, activation, rows, sets: dims[1], last: false }
    }

    fn sums(&self, gpu: &Gpu, rows: &Slice) -> Result<Slice> {
        let (dims, split) = (self.pass.dims, ChannelSplit::of(self.pass.dims));
        let parts = self.by(rows).sums(gpu, FUNCTION, dims, split)?;
        let sums = gpu.unwritten(ElementType::F64, 2 * dims[1])?;
        launch(gpu, &CHANNEL_STATISTICS, "batch_norm_gradient_sums", warps(dims[1]))
            .slice(&parts)
            .number(split.descriptor(dims))
            .number(dims[1] as i64)
            .slice(self.statistics)
            .number(self.pass.eps)
            .slice(&sums)
            .run()?;
        Ok(sums)
    }

    fn maps(&self, gpu: &Gpu, rows: &Slice, sums: Option<&Slice>) -> Result<(Slice, Option<Slice>)> {
        let channels = self.pass.channels();
        if let Some(sums) = sums {
            check(FUNCTION, "sums", sums, ElementType::F64, 2 * channels)?;
        }
        let name = format!("batch_norm_backward_coefficients_{}", self.pass.wide());
        launch(gpu, &CHANNEL_STATISTICS, &name, over(channels, 1))
            .slice(self.statistics)
            .optional(sums)
            .number(channels as i64)
            .number(self.pass.eps)
            .slice(rows)
            .run()?;
        self.by(rows).input(gpu, FUNCTION, self.pass.dims, self.residual)
    }
}

/// Computes the gradients of [`batch_norm_train`]: of the input and, if requested, of the residual, of dy's type; and the sums of
/// the output's gradient.
///
/// # Errors
/// If lengths or types do not match.
pub fn batch_norm_train_backward(
    gpu: &Gpu,
    from: BatchNormBackward<'_>,
) -> Result<(Slice, Option<Slice>, Slice)> {
    let rows = from.pass.coefficients(gpu, from.statistics)?;
    let sums = from.sums(gpu, &rows)?;
    let (dx, residual) = from.maps(gpu, &rows, Some(&sums))?;
    Ok((dx, residual, sums))
}

/// Computes the sums of the output's gradient.
///
/// # Errors
/// If lengths or types do not match.
pub fn batch_norm_gradient_sums(gpu: &Gpu, from: BatchNormBackward<'_>) -> Result<Slice> {
    let rows = from.pass.coefficients(gpu, from.statistics)?;
    from.sums(gpu, &rows)
}

/// Computes the gradients of the maps from the gradient's sums over the elements of the statistics. Without sums the statistics
/// are constants.
///
/// # Errors
/// If lengths or types do not match.
pub fn batch_norm_backward(
    gpu: &Gpu,
    from: BatchNormBackward<'_>,
    sums: Option<&Slice>,
) -> Result<(Slice, Option<Slice>)> {
    let rows = from.pass.coefficients(gpu, from.statistics)?;
    from.maps(gpu, &rows, sums)
}

/// Computes the gradients of weight and bias from a gradient's sums, as `dtype`: f32 or f64.
///
/// # Errors
/// If the array is not [2·C] of f64.
pub fn batch_norm_affine_gradients(gpu: &Gpu, sums: &Slice, dtype: ElementType) -> Result<[Slice; 2]> {
    check_type(FUNCTION, "sums", sums, ElementType::F64)?;
    let channels = sums.len() / 2;
    check_len(FUNCTION, "sums", sums, 2 * channels)?;
    let to = [gpu.unwritten(dtype, channels)?, gpu.unwritten(dtype, channels)?];
    launch(gpu, &CHANNEL_STATISTICS, &format!("batch_norm_affine_gradients_{dtype}"), over(channels, 1))
        .slice(sums)
        .number(channels as i64)
        .slice(&to[0])
        .slice(&to[1])
        .run()?;
    Ok(to)
}
