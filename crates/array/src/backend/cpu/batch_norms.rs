//! Batch normalisation with the CPU kernels.

use candle_core::{DType, Device, Tensor};
use phalanx_kernels::{
    self as kernels, ActivationMask, Affine, BatchNormGrads, BatchNormOutput, Epilogue, NormInput,
    batch_norm_backward_input, batch_norm_backward_sums, batch_norm_forward, batch_norm_moments,
    batch_norm_train, batch_norm_train_backward,
};

use crate::backend::{Array, BatchNormBackward, BatchNormMaps, BatchNormPass, BatchNorms, RunningStatistics};
use crate::storage::{Contiguous, Scalar, dispatch, stored, tensor_from, unwritten};
use crate::{ArrayError, Context, Result};

const OP: &str = "batch_norm2d";

/// The parts of statistics.
struct Statistics<'a> {
    count: f64,
    mean: &'a [f64],
    moment: &'a [f64],
}

impl<'a> Statistics<'a> {
    fn of(values: &'a [f64]) -> Result<Self> {
        match values.split_first() {
            Some((count, rest)) if rest.len() % 2 == 0 => {
                let (mean, moment) = rest.split_at(rest.len() / 2);
                Ok(Self { count: *count, mean, moment })
            }
            _ => Err(ArrayError::shape(OP, format!("statistics are [1 + 2·C], not [{}]", values.len()))),
        }
    }

    /// Returns mean and 1/√(variance + eps) in the element type.
    fn rounded<T: Scalar>(&self, eps: f64) -> (Vec<T>, Vec<T>) {
        let round = <T as phalanx_kernels::Float>::from_f64;
        let mean = self.mean.iter().map(|mean| round(*mean)).collect();
        let inv_std = self.moment.iter().map(|m2| round(1.0 / (m2 / self.count + eps).sqrt())).collect();
        (mean, inv_std)
    }
}

fn doubles(values: Vec<f64>) -> Result<Array> {
    let len = values.len();
    Ok(tensor_from(values, len)?.into())
}

fn vector(values: &[f64], dtype: DType) -> Result<Array> {
    Ok(Tensor::from_vec(values.to_vec(), values.len(), &Device::Cpu)?.to_dtype(dtype)?.into())
}

fn floats(array: &Array) -> Result<Vec<f64>> {
    Ok(array.host(OP)?.to_dtype(DType::F64)?.to_vec1::<f64>()?)
}

/// The inputs of a backward, locked for reading.
struct Reads<'a> {
    x: Contiguous<'a>,
    dy: Contiguous<'a>,
    gamma: Contiguous<'a>,
    beta: Contiguous<'a>,
    output: Option<Contiguous<'a>>,
    statistics: Contiguous<'a>,
}

impl<'a> Reads<'a> {
    fn of(context: &Context, from: BatchNormBackward<'a>) -> Result<Self> {
        let read = |array: &'a Array| Contiguous::by(OP, context, array.host(OP)?);
        Ok(Self {
            x: read(from.pass.x)?,
            dy: read(from.dy)?,
            gamma: read(from.pass.gamma)?,
            beta: read(from.pass.beta)?,
            output: from.output.map(read).transpose()?,
            statistics: Contiguous::locked(OP, from.statistics.host(OP)?)?,
        })
    }
}

impl BatchNorms for Context {
    fn batch_norm_sums(&self, dims: [usize; 3], x: &Array) -> Result<Array> {
        let [batch, channels, pixels] = dims;
        let count = (batch * pixels) as f64;
        let (mut mean, mut moment) = (vec![0.0_f64; channels], vec![0.0_f64; channels]);
        let x = x.host(OP)?;
        let read = Contiguous::by(OP, self, x)?;
        dispatch!(OP, x.dtype(), T => {
            batch_norm_moments(self, dims, read.slice::<T>()?, &mut mean, &mut moment).map_err(ArrayError::from)
        })?;
        // In f64, going through Σx² costs no accuracy that f32 had.
        let mut sums = Vec::with_capacity(2 * channels + 1);
        sums.push(count);
        sums.extend(mean.iter().map(|m| m * count));
        sums.extend(mean.iter().zip(&moment).map(|(m, m2)| m2 + m * m * count));
        doubles(sums)
    }

    fn batch_norm_statistics(&self, sums: &Array) -> Result<Array> {
        let read = Contiguous::locked(OP, sums.host(OP)?)?;
        let sums = read.slice::<f64>()?;
        let Statistics { count, mean: first, moment: second } = Statistics::of(sums)?;
        if count < 2.0 {
            let problem =
                format!("training needs more than one element a channel, over all ranks; there is {count}");
            return Err(ArrayError::shape(OP, problem));
        }
        let mut statistics = Vec::with_capacity(sums.len());
        statistics.push(count);
        statistics.extend(first.iter().map(|sum| sum / count));
        let means = statistics[1..].to_vec();
        statistics.extend(
            second.iter().zip(&means).map(|(squares, mean)| (squares - mean * mean * count).max(0.0)),
        );
        doubles(statistics)
    }

    fn batch_norm_fixed(&self, mean: &Array, variance: &Array, count: f64) -> Result<Array> {
        let mut statistics = vec![count];
        statistics.extend(floats(mean)?);
        statistics.extend(floats(variance)?.into_iter().map(|v| v * count));
        doubles(statistics)
    }

    fn batch_norm_train(&self, pass: BatchNormPass<'_>) -> Result<(Array, Array)> {
        let BatchNormPass { dims, x, gamma, beta, eps, activation, residual } = pass;
        let [batch, channels, pixels] = dims;
        let input = x.host(OP)?;
        let read = Contiguous::by(OP, self, input)?;
        let residual = residual.map(|residual| Contiguous::by(OP, self, residual.host(OP)?)).transpose()?;
        let (g, b) = (Contiguous::by(OP, self, gamma.host(OP)?)?, Contiguous::by(OP, self, beta.host(OP)?)?);
        let mut statistics = vec![0.0_f64; 1 + 2 * channels];
        statistics[0] = (batch * pixels) as f64;
        let (mean, moment) = statistics[1..].split_at_mut(channels);
        let output = dispatch!(OP, input.dtype(), T => {
            let x = read.slice::<T>()?;
            let residual = residual.as_ref().map(|residual| residual.slice::<T>()).transpose()?;
            let finish = Epilogue { activation, residual };
            let mut y = unwritten::<T>(x.len());
            let values = NormInput { x, gamma: g.slice::<T>()?, beta: b.slice::<T>()?, eps };
            let normed = BatchNormOutput { y: &mut y, mean, moment };
            batch_norm_train(self, dims, values, finish, normed)?;
            stored(self, y, input.shape().clone(), input.dtype())
        })?;
        Ok((output.into(), doubles(statistics)?))
    }

    fn batch_norm(&self, pass: BatchNormPass<'_>, statistics: &Array) -> Result<Array> {
        let BatchNormPass { dims, x, gamma, beta, eps, activation, residual } = pass;
        let input = x.host(OP)?;
        let read = Contiguous::by(OP, self, input)?;
        let residual = residual.map(|residual| Contiguous::by(OP, self, residual.host(OP)?)).transpose()?;
        let (g, b) = (Contiguous::by(OP, self, gamma.host(OP)?)?, Contiguous::by(OP, self, beta.host(OP)?)?);
        let statistics = Contiguous::locked(OP, statistics.host(OP)?)?;
        let statistics = Statistics::of(statistics.slice::<f64>()?)?;
        dispatch!(OP, input.dtype(), T => {
            let x = read.slice::<T>()?;
            let residual = residual.as_ref().map(|residual| residual.slice::<T>()).transpose()?;
            let (mean, inv_std) = statistics.rounded::<T>(eps);
            let affine =
                Affine { mean: &mean, inv_std: &inv_std, gamma: g.slice::<T>()?, beta: b.slice::<T>()? };
            let mut y = unwritten::<T>(x.len());
            batch_norm_forward(self, dims, x, affine, Epilogue { activation, residual }, &mut y)?;
            Ok(stored(self, y, input.shape().clone(), input.dtype())?.into())
        })
    }

    fn batch_norm_running(&self, statistics: &Array, running: RunningStatistics<'_>) -> Result<[Array; 2]> {
        let RunningStatistics { momentum, mean, variance } = running;
        let read = Contiguous::locked(OP, statistics.host(OP)?)?;
        let Statistics { count, mean: new_mean, moment } = Statistics::of(read.slice::<f64>()?)?;
        let mixed = |old: &Array, new: &mut dyn Iterator<Item = f64>| -> Result<Array> {
            let values = floats(old)?.into_iter().zip(new);
            let values: Vec<f64> = values.map(|(old, new)| (1.0 - momentum) * old + momentum * new).collect();
            vector(&values, old.dtype())
        };
        Ok([
            mixed(mean, &mut new_mean.iter().copied())?,
            mixed(variance, &mut moment.iter().map(|m2| m2 / (count - 1.0)))?,
        ])
    }

    fn batch_norm_train_backward(&self, of: BatchNormBackward<'_>) -> Result<(BatchNormMaps, Array)> {
        let BatchNormPass { dims, x, eps, activation, .. } = of.pass;
        let (input, channels) = (x.host(OP)?, dims[1]);
        let reads = Reads::of(self, of)?;
        let statistics = Statistics::of(reads.statistics.slice::<f64>()?)?;
        let mut sums = vec![0.0_f64; 2 * channels];
        dispatch!(OP, input.dtype(), T => {
            let (x, dy) = (reads.x.slice::<T>()?, reads.dy.slice::<T>()?);
            let output = reads.output.as_ref().map(|y| y.slice::<T>()).transpose()?;
            let (mean, inv_std) = statistics.rounded::<T>(eps);
            let (gamma, beta) = (reads.gamma.slice::<T>()?, reads.beta.slice::<T>()?);
            let affine = Affine { mean: &mean, inv_std: &inv_std, gamma, beta };
            let mut dx = unwritten::<T>(x.len());
            let mut residual = of.residual.then(|| unwritten::<T>(x.len()));
            let to = BatchNormGrads { dx: &mut dx, residual: residual.as_deref_mut() };
            let (sum_dy, sum_dy_xhat) = sums.split_at_mut(channels);
            let maps = kernels::BatchNormBackward { x, dy, affine, mask: ActivationMask { activation, output } };
            batch_norm_train_backward(self, dims, maps, [sum_dy, sum_dy_xhat], to)?;
            let tensor = |values| Ok::<_, ArrayError>(tensor_from(values, input.shape().clone())?.into());
            let maps = BatchNormMaps { dx: tensor(dx)?, residual: residual.map(tensor).transpose()? };
            Ok((maps, doubles(sums)?))
        })
    }

    fn batch_norm_gradient_sums(&self, of: BatchNormBackward<'_>) -> Result<Array> {
        let BatchNormPass { dims, x, eps, activation, .. } = of.pass;
        let (input, channels) = (x.host(OP)?, dims[1]);
        let reads = Reads::of(self, of)?;
        let statistics = Statistics::of(reads.statistics.slice::<f64>()?)?;
        let mut sums = vec![0.0_f64; 2 * channels];
        dispatch!(OP, input.dtype(), T => {
            let (x, dy) = (reads.x.slice::<T>()?, reads.dy.slice::<T>()?);
            let output = reads.output.as_ref().map(|y| y.slice::<T>()).transpose()?;
            let (mean, inv_std) = statistics.rounded::<T>(eps);
            let (gamma, beta) = (reads.gamma.slice::<T>()?, reads.beta.slice::<T>()?);
            let affine = Affine { mean: &mean, inv_std: &inv_std, gamma, beta };
            let (sum_dy, sum_dy_xhat) = sums.split_at_mut(channels);
            let maps = kernels::BatchNormBackward { x, dy, affine, mask: ActivationMask { activation, output } };
            batch_norm_backward_sums(self, dims, maps, [sum_dy, sum_dy_xhat])?;
            doubles(sums)
        })
    }

    fn batch_norm_backward(&self, of: BatchNormBackward<'_>, sums: Option<&Array>) -> Result<BatchNormMaps> {
        let BatchNormPass { dims, x, eps, activation, .. } = of.pass;
        let (input, channels) = (x.host(OP)?, dims[1]);
        let reads = Reads::of(self, of)?;
        let statistics = Statistics::of(reads.statistics.slice::<f64>()?)?;
        let mut means = vec![0.0; 2 * channels];
        if let Some(sums) = sums {
            let sums = Contiguous::locked(OP, sums.host(OP)?)?;
            means.iter_mut().zip(sums.slice::<f64>()?).for_each(|(mean, sum)| *mean = sum / statistics.count);
        }
        dispatch!(OP, input.dtype(), T => {
            let (x, dy) = (reads.x.slice::<T>()?, reads.dy.slice::<T>()?);
            let output = reads.output.as_ref().map(|y| y.slice::<T>()).transpose()?;
            let (mean, inv_std) = statistics.rounded::<T>(eps);
            let (gamma, beta) = (reads.gamma.slice::<T>()?, reads.beta.slice::<T>()?);
            let affine = Affine { mean: &mean, inv_std: &inv_std, gamma, beta };
            let mut dx = unwritten::<T>(x.len());
            let mut residual = of.residual.then(|| unwritten::<T>(x.len()));
            let to = BatchNormGrads { dx: &mut dx, residual: residual.as_deref_mut() };
            let maps = kernels::BatchNormBackward { x, dy, affine, mask: ActivationMask { activation, output } };
            batch_norm_backward_input(self, dims, maps, [&means[..channels], &means[channels..]], to)?;
            let tensor = |values| Ok::<_, ArrayError>(tensor_from(values, input.shape().clone())?.into());
            Ok(BatchNormMaps { dx: tensor(dx)?, residual: residual.map(tensor).transpose()? })
        })
    }

    fn batch_norm_affine_gradients(&self, sums: &Array, dtype: DType) -> Result<[Array; 2]> {
        let sums = Contiguous::locked(OP, sums.host(OP)?)?;
        let sums = sums.slice::<f64>()?;
        let (sum_dy, sum_dy_xhat) = sums.split_at(sums.len() / 2);
        Ok([vector(sum_dy_xhat, dtype)?, vector(sum_dy, dtype)?])
    }

    fn count_up(&self, counter: &Array) -> Result<Array> {
        let seen = counter.host("counter")?.to_scalar::<i64>()?;
        Ok(Tensor::new(seen + 1, &Device::Cpu)?.into())
    }
}
