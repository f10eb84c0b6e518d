//! Batch norm, over one batch and over the halves of two ranks that share statistics.

use phalanx_cuda::kernels::{
    BatchNorm, BatchNormBackward, batch_norm, batch_norm_affine_gradients, batch_norm_backward,
    batch_norm_fixed, batch_norm_gradient_sums, batch_norm_running, batch_norm_statistics, batch_norm_sums,
    batch_norm_train, batch_norm_train_backward,
};
use phalanx_cuda::{ElementType, Gpu};
use phalanx_kernels::{
    Activation, ActivationMask, Affine, BatchNormGrads, Epilogue, batch_norm_forward, batch_norm_moments,
    batch_norm_train_backward as cpu_train_backward,
};

use super::inputs::{
    Draw, PAIRS, assert_close, assert_of, assert_within, cpu, download, on_gpu, rounded, upload,
};

/// Sizes around the smallest plane that is a part by itself, and channels-last.
const MAPS: [[usize; 3]; 15] = [
    [130, 8, 1],
    [200, 264, 1],
    [66, 24, 4],
    [2, 3, 49],
    [4, 8, 64],
    [3, 5, 1],
    [300, 8, 1],
    [7, 16, 4],
    [70, 2, 16],
    [2, 4, 31],
    [2, 4, 32],
    [1, 2, 1500],
    [2, 1, 1027],
    [1, 1, 2],
    [5, 33, 40],
];

/// The expected results of batch norm in f64, from elements rounded as stored.
struct Expected {
    y: Vec<f64>,
    mean: Vec<f64>,
    moment: Vec<f64>,
    dx: Vec<f64>,
    residual: Vec<f64>,
    sums: Vec<f64>,
    /// The largest of the terms whose difference is dx.
    terms: f64,
}

#[allow(clippy::too_many_arguments, reason = "a reference takes everything")]
fn reference(
    dims: [usize; 3],
    x: &[f64],
    gamma: &[f64],
    beta: &[f64],
    residual: Option<&[f64]>,
    activation: Activation,
    output: Option<&[f64]>,
    dy: &[f64],
    eps: f64,
) -> Expected {
    let channels = dims[1];
    let (mut mean, mut moment) = (vec![0.0; channels], vec![0.0; channels]);
    batch_norm_moments(&cpu(), dims, x, &mut mean, &mut moment).unwrap();
    let count = (dims[0] * dims[2]) as f64;
    let inv_std: Vec<f64> = moment.iter().map(|m2| 1.0 / (m2 / count + eps).sqrt()).collect();
    let affine = Affine { mean: &mean, inv_std: &inv_std, gamma, beta };
    let mut y = vec![0.0; x.len()];
    batch_norm_forward(&cpu(), dims, x, affine, Epilogue { activation, residual }, &mut y).unwrap();
    let (mut dx, mut through, mut sums) = (vec![0.0; x.len()], vec![0.0; x.len()], vec![0.0; 2 * channels]);
    let (plain, along) = sums.split_at_mut(channels);
    let mask = ActivationMask { activation, output: output.filter(|_| residual.is_some()) };
    let to = BatchNormGrads { dx: &mut dx, residual: Some(&mut through) };
    let from = phalanx_kernels::BatchNormBackward { x, dy, affine, mask };
    cpu_train_backward(&cpu(), dims, from, [plain, along], to).unwrap();
    let factor = inv_std.iter().zip(gamma).fold(0.0_f64, |most, (s, g)| most.max((s * g).abs()));
    let terms = factor * dy.iter().fold(0.0_f64, |most, dy| most.max(dy.abs()));
    Expected { y, mean, moment, dx, residual: through, sums, terms }
}

fn batch_norm_in(gpu: &Gpu, draw: &mut Draw, dims: [usize; 3], dtype: ElementType, grad: ElementType) {
    let (len, channels, wide, eps) = (dims.iter().product(), dims[1], dtype.wide(), 1e-3);
    let count = (dims[0] * dims[2]) as f64;
    let (mut x, _) = draw.slice(gpu, dtype, len);
    // Means far from zero, as they are before a norm.
    x.iter_mut().enumerate().for_each(|(at, x)| {
        *x = rounded(dtype, *x + 3.0 * ((at / dims[2] % channels) % 3) as f64);
    });
    let x_gpu = upload(gpu, dtype, &x);
    let ((gamma, gamma_gpu), (beta, beta_gpu)) =
        (draw.slice(gpu, wide, channels), draw.slice(gpu, wide, channels));
    let (dy, dy_gpu) = draw.slice(gpu, grad, len);
    let (added, added_gpu) = draw.slice(gpu, dtype, len);
    for activation in [Activation::None, Activation::Relu, Activation::Relu6] {
        for with_residual in [false, true] {
            let what = format!("{dims:?} {dtype} {grad} {activation:?} residual {with_residual}");
            let pass = BatchNorm { dims, x: &x_gpu, gamma: &gamma_gpu, beta: &beta_gpu, eps, activation };
            let (y_gpu, statistics) =
                batch_norm_train(gpu, pass, with_residual.then_some(&added_gpu)).unwrap();
            let output = download(gpu, &y_gpu);
            let residual = with_residual.then_some(&*added);
            let expected = reference(dims, &x, &gamma, &beta, residual, activation, Some(&output), &dy, eps);
            assert_close(gpu, &what, &y_gpu, &expected.y);
            let found = gpu.download::<f64>(&statistics).unwrap();
            assert_eq!(found[0], count, "{what}");
            let tolerance = if wide == ElementType::F64 { 1e-12 } else { 2e-6 };
            let largest = expected.moment.iter().fold(0.0_f64, |a, b| a.max(*b));
            for c in 0..channels {
                let (mean, moment) = (found[1 + c], found[1 + channels + c]);
                assert!((mean - expected.mean[c]).abs() < tolerance * 8.0, "{what}: mean {mean} of {c}");
                assert!((moment - expected.moment[c]).abs() <= tolerance * largest, "{what}: moment of {c}");
            }
            let from = BatchNormBackward {
                pass,
                statistics: &statistics,
                output: with_residual.then_some(&y_gpu),
                dy: &dy_gpu,
                residual: with_residual,
            };
            let (dx, through, sums) = batch_norm_train_backward(gpu, from).unwrap();
            assert_within(
                gpu,
                &what,
                &sums,
                &expected.sums,
                if wide == ElementType::F64 { 1e-10 } else { 1e-5 },
            );
            // An argument close to a kink may be on either side in f32.
            if activation == Activation::None || with_residual {
                let tolerance = if wide == ElementType::F64 { 1e-10 } else { 1e-5 };
                assert_of(gpu, &what, &dx, &expected.dx, tolerance, expected.terms);
            }
            assert_eq!(through.is_some(), with_residual);
            if let Some(through) = through {
                assert_close(gpu, &what, &through, &expected.residual);
            }
            // In halves, as ranks that share statistics compute it.
            let apart = batch_norm_gradient_sums(gpu, from).unwrap();
            assert_eq!(download(gpu, &apart), download(gpu, &sums), "{what}");
            let (halves, _) = batch_norm_backward(gpu, from, Some(&apart)).unwrap();
            assert_eq!(download(gpu, &halves), download(gpu, &dx), "{what}");
            let [dgamma, dbeta] = batch_norm_affine_gradients(gpu, &sums, wide).unwrap();
            assert_close(gpu, &what, &dgamma, &expected.sums[channels..]);
            assert_close(gpu, &what, &dbeta, &expected.sums[..channels]);
            let shared = batch_norm_statistics(gpu, &batch_norm_sums(gpu, dims, &x_gpu).unwrap()).unwrap();
            let again = batch_norm(gpu, pass, &shared, with_residual.then_some(&added_gpu)).unwrap();
            assert_within(
                gpu,
                &what,
                &again,
                &expected.y,
                if wide == ElementType::F64 { 1e-10 } else { 1e-5 },
            );
        }
    }
}

#[test]
fn batch_norm_over_planes_and_columns() {
    on_gpu(|gpu| {
        let mut draw = Draw::new(13);
        for (dtype, grad) in PAIRS {
            for dims in MAPS {
                batch_norm_in(gpu, &mut draw, dims, dtype, grad);
            }
        }
    });
}

#[test]
fn batch_norm_by_fixed_statistics_and_running_ones() {
    on_gpu(|gpu| {
        let mut draw = Draw::new(14);
        for (dims, dtype) in [([2, 5, 49], ElementType::F32), ([9, 8, 1], ElementType::F64)] {
            let (len, channels) = (dims.iter().product(), dims[1]);
            let (x, x_gpu) = draw.slice(gpu, dtype, len);
            let (dy, dy_gpu) = draw.slice(gpu, dtype, len);
            let ((gamma, gamma_gpu), (beta, beta_gpu), (mean, mean_gpu)) = (
                draw.slice(gpu, dtype, channels),
                draw.slice(gpu, dtype, channels),
                draw.slice(gpu, dtype, channels),
            );
            let variance: Vec<f64> = (0..channels).map(|c| 0.5 + c as f64).collect();
            let variance_gpu = upload(gpu, dtype, &variance);
            let pass = BatchNorm {
                dims,
                x: &x_gpu,
                gamma: &gamma_gpu,
                beta: &beta_gpu,
                eps: 1e-5,
                activation: Activation::None,
            };
            let fixed = batch_norm_fixed(gpu, &mean_gpu, &variance_gpu, 7.0).unwrap();
            let channel = |at: usize| at / dims[2] % channels;
            let factor = |c: usize| gamma[c] / (variance[c] + 1e-5).sqrt();
            let y: Vec<f64> = x
                .iter()
                .enumerate()
                .map(|(at, x)| (x - mean[channel(at)]) * factor(channel(at)) + beta[channel(at)])
                .collect();
            assert_close(gpu, "fixed", &batch_norm(gpu, pass, &fixed, None).unwrap(), &y);
            let from =
                BatchNormBackward { pass, statistics: &fixed, output: None, dy: &dy_gpu, residual: false };
            let (dx, _) = batch_norm_backward(gpu, from, None).unwrap();
            let expected: Vec<f64> = dy.iter().enumerate().map(|(at, dy)| dy * factor(channel(at))).collect();
            assert_close(gpu, "fixed", &dx, &expected);
            let (_, statistics) = batch_norm_train(gpu, pass, None).unwrap();
            batch_norm_running(gpu, &statistics, 0.25, &mean_gpu, &variance_gpu).unwrap();
            let found = gpu.download::<f64>(&statistics).unwrap();
            let mixed = |old: &[f64], new: &dyn Fn(usize) -> f64| -> Vec<f64> {
                (0..channels).map(|c| 0.75 * old[c] + 0.25 * new(c)).collect()
            };
            assert_close(gpu, "running", &mean_gpu, &mixed(&mean, &|c| found[1 + c]));
            let unbiased = |c: usize| found[1 + channels + c] / (found[0] - 1.0);
            assert_close(gpu, "running", &variance_gpu, &mixed(&variance, &unbiased));
            assert!(batch_norm_sums(gpu, [dims[0], channels, 0], &x_gpu.view(0..0).unwrap()).is_err());
            assert!(batch_norm(gpu, pass, &mean_gpu, None).is_err());
        }
    });
}
