//! Norms, pooling, activations, softmax, products and optimizer steps: f32 against f64, threads against one.

use phalanx_kernels::{
    Activation, ActivationMask, AdamOptions, Affine, BatchNormBackward, BatchNormGrads, BatchNormOutput,
    Context, CrossEntropyOptions, CrossEntropyRows, Dropout, Epilogue, Float, GroupNormShape, LambOptions,
    LionOptions, Matrix, MatrixMut, NormBackward, NormGrads, NormInput, NormOutput, Pool2dShape, SamplePart,
    SgdOptions, UnaryOp, adam_step, avg_pool2d_forward, batch_norm_backward_input, batch_norm_backward_sums,
    batch_norm_forward, batch_norm_moments, batch_norm_train, batch_norm_train_backward, cross_entropy_rows,
    dropout, ema_step, group_norm_forward, lamb_direction, lamb_step, layer_norm_backward,
    layer_norm_forward, linear_forward, lion_step, matmul_batched, max_pool2d_backward, max_pool2d_forward,
    sgd_step, softmax_rows_forward, trust_ratio, unary_backward, unary_forward, upsample_nearest2d_forward,
};
use proptest::prelude::*;

use crate::harness::{random, wide};

/// Returns random numbers in [-scale, scale), rounded to f32 so that both types see the same.
fn scaled<T: Float>(seed: u64, len: usize, scale: f64) -> Vec<T> {
    random::<f32>(seed, len).into_iter().map(|v| T::from_f64(f64::from(v * scale as f32))).collect()
}

fn near(a: &[f32], b: &[f64], bound: f64, what: &str) {
    assert_eq!(a.len(), b.len());
    let off: f64 = a.iter().zip(b).map(|(a, b)| (f64::from(*a) - b).powi(2)).sum::<f64>().sqrt();
    let size: f64 = b.iter().map(|b| b * b).sum::<f64>().sqrt();
    assert!(off <= bound * size.max(1e-6), "{what}: {off:e} of {size:e}");
}

const ACTIVATIONS: [UnaryOp; 12] = [
    UnaryOp::Relu,
    UnaryOp::ReluSquared,
    UnaryOp::Relu6,
    UnaryOp::LeakyRelu(0.2),
    UnaryOp::Sigmoid,
    UnaryOp::Tanh,
    UnaryOp::Silu,
    UnaryOp::Gelu,
    UnaryOp::GeluTanh,
    UnaryOp::QuickGelu,
    UnaryOp::Exp,
    UnaryOp::Clamp { low: -30.0, high: 0.5 },
];

#[test]
fn activations_are_accurate_and_finite() {
    for op in ACTIVATIONS {
        for scale in [0.01, 1.0, 8.0] {
            let (x, x64): (Vec<f32>, Vec<f64>) = (scaled(1, 40_001, scale), scaled(1, 40_001, scale));
            let (mut y, mut y64) = (vec![0.0_f32; x.len()], vec![0.0; x.len()]);
            unary_forward(&Context::new(1), op, &x64, &mut y64).expect("sound");
            for threads in [1, 2] {
                unary_forward(&Context::new(threads), op, &x, &mut y).expect("sound");
                near(&y, &y64, 1e-6, &format!("{op:?} at {scale}"));
            }
            let (dy, dy64): (Vec<f32>, Vec<f64>) = (scaled(2, x.len(), 1.0), scaled(2, x.len(), 1.0));
            let (mut dx, mut dx64) = (vec![0.0_f32; x.len()], vec![0.0; x.len()]);
            unary_backward(&Context::new(2), op, &x, &y, &dy, &mut dx).expect("sound");
            unary_backward(&Context::new(1), op, &x64, &y64, &dy64, &mut dx64).expect("sound");
            near(&dx, &dx64, 2e-6, &format!("{op:?}' at {scale}"));
        }
        let mut y = [0.0_f32; 4];
        unary_forward(&Context::new(1), op, &[-1e4_f32, -90.0, 60.0, 0.0], &mut y).expect("sound");
        assert!(y.iter().all(|y| y.is_finite()), "{op:?}: {y:?}");
    }
}

#[test]
fn batch_norm_matches_its_definition() {
    for dims in [[3, 5, 7], [1, 2, 1], [70, 37, 4], [33, 20, 1], [4, 3, 300], [2, 1, 65_000]] {
        let [n, c, p] = dims;
        let x: Vec<f32> = scaled::<f32>(1, n * c * p, 2.0).iter().map(|v| v + 100.0).collect();
        let channel = |i: usize| i / p % c;
        let (mut mean_ref, mut m2_ref) = (vec![0.0; c], vec![0.0; c]);
        let count = (n * p) as f64;
        wide(&x).iter().enumerate().for_each(|(i, v)| mean_ref[channel(i)] += v / count);
        wide(&x)
            .iter()
            .enumerate()
            .for_each(|(i, v)| m2_ref[channel(i)] += (v - mean_ref[channel(i)]).powi(2));
        for threads in [1, 2] {
            let context = Context::new(threads);
            let (mut mean, mut m2) = (vec![0.0; c], vec![0.0; c]);
            batch_norm_moments(&context, dims, &x, &mut mean, &mut m2).expect("sound");
            for ch in 0..c {
                assert!((mean[ch] - mean_ref[ch]).abs() < 1e-5 * 100.0, "{dims:?}");
                assert!(
                    (m2[ch] - m2_ref[ch]).abs() <= 1e-4 * m2_ref[ch] + 1e-6,
                    "{dims:?}: {} {}",
                    m2[ch],
                    m2_ref[ch]
                );
            }
            batch_norm_in_all_ways(&context, dims, &x, &mean, &m2);
        }
    }
}

/// Every activation, with and without an addition: in halves against the definition in f64, and in one go against the
/// halves.
fn batch_norm_in_all_ways(context: &Context, dims: [usize; 3], x: &[f32], mean: &[f64], m2: &[f64]) {
    let [n, c, p] = dims;
    let count = (n * p) as f64;
    let channel = |i: usize| i / p % c;
    let m: Vec<f32> = mean.iter().map(|v| *v as f32).collect();
    let s: Vec<f32> = m2.iter().map(|v| (1.0 / (v / count + 1e-5).sqrt()) as f32).collect();
    let (g, b): (Vec<f32>, Vec<f32>) = (scaled(3, c, 1.0), scaled(4, c, 1.0));
    let (dy, added): (Vec<f32>, Vec<f32>) = (scaled(5, x.len(), 1.0), scaled(6, x.len(), 1.0));
    let affine = Affine { mean: &m, inv_std: &s, gamma: &g, beta: &b };
    for activation in [Activation::None, Activation::Relu, Activation::Relu6] {
        for residual in [None, Some(added.as_slice())] {
            let what = format!("{dims:?} {activation:?} {}", residual.is_some());
            let finish = Epilogue { activation, residual };
            let mut y = vec![7.0; x.len()];
            batch_norm_forward(context, dims, x, affine, finish, &mut y).expect("sound");
            let mut passes = vec![false; x.len()];
            for (i, y) in y.iter().enumerate() {
                let ch = channel(i);
                let plain = (x[i] - m[ch]) * (s[ch] * g[ch]) + b[ch] + residual.map_or(0.0, |r| r[i]);
                let want = match activation {
                    Activation::None => plain,
                    Activation::Relu => plain.max(0.0),
                    Activation::Relu6 => plain.clamp(0.0, 6.0),
                };
                assert!((y - want).abs() < 1e-4, "{what}: {y} {want}");
                passes[i] = activation == Activation::None || (*y > 0.0 && (*y < 6.0 || want == plain));
            }
            let dys = |i: usize| if passes[i] { f64::from(dy[i]) } else { 0.0 };
            let xhat = |i: usize| (f64::from(x[i]) - f64::from(m[channel(i)])) * f64::from(s[channel(i)]);
            let (mut a_ref, mut d_ref) = (vec![0.0; c], vec![0.0; c]);
            for i in 0..x.len() {
                a_ref[channel(i)] += dys(i);
                d_ref[channel(i)] += dys(i) * xhat(i);
            }
            let cut = ActivationMask { activation, output: residual.map(|_| y.as_slice()) };
            let (mut a, mut d) = (vec![7.0; c], vec![7.0; c]);
            let from = BatchNormBackward { x, dy: &dy, affine, mask: cut };
            batch_norm_backward_sums(context, dims, from, [&mut a, &mut d]).expect("sound");
            assert!(a.iter().zip(&a_ref).all(|(a, r)| (a - r).abs() < 2e-3), "{what}: {a:?} {a_ref:?}");
            assert!(d.iter().zip(&d_ref).all(|(d, r)| (d - r).abs() < 1e-2), "{what}: {d:?} {d_ref:?}");
            let means = [&a, &d].map(|sums| sums.iter().map(|v| v / count).collect::<Vec<f64>>());
            let (mut dx, mut dr) = (vec![7.0; x.len()], vec![7.0; x.len()]);
            let to = BatchNormGrads { dx: &mut dx, residual: residual.map(|_| dr.as_mut_slice()) };
            let halves = [means[0].as_slice(), &means[1]];
            batch_norm_backward_input(context, dims, from, halves, to).expect("sound");
            for i in 0..x.len() {
                let ch = channel(i);
                let inner = dys(i) - means[0][ch] - xhat(i) * means[1][ch];
                let want = f64::from(g[ch]) * f64::from(s[ch]) * inner;
                assert!(
                    (f64::from(dx[i]) - want).abs() < 1e-4 * (1.0 + want.abs()),
                    "{what}: {} {want}",
                    dx[i]
                );
                assert!(residual.is_none() || f64::from(dr[i]) == dys(i), "{what}");
            }
            // In one go the same bits come out.
            let (mut mean_too, mut m2_too, mut y_too) = (vec![7.0; c], vec![7.0; c], vec![7.0; x.len()]);
            let input = NormInput { x, gamma: &g, beta: &b, eps: 1e-5 };
            let normed = BatchNormOutput { y: &mut y_too, mean: &mut mean_too, moment: &mut m2_too };
            batch_norm_train(context, dims, input, finish, normed).expect("sound");
            assert!(mean_too == mean && m2_too == m2 && y_too == y, "{what}");
            let (mut a_too, mut d_too) = (vec![7.0; c], vec![7.0; c]);
            let (mut dx_too, mut dr_too) = (vec![7.0; x.len()], vec![7.0; x.len()]);
            let to = BatchNormGrads { dx: &mut dx_too, residual: residual.map(|_| dr_too.as_mut_slice()) };
            let sums = [a_too.as_mut_slice(), &mut d_too];
            batch_norm_train_backward(context, dims, from, sums, to).expect("sound");
            assert!(a_too == a && d_too == d && dx_too == dx && dr_too == dr, "{what}");
        }
    }
}

#[test]
fn layer_and_group_norm_have_unit_variance() {
    let context = Context::new(2);
    let x: Vec<f32> = scaled(1, 6 * 40, 3.0);
    let (ones, zeros) = (vec![1.0_f32; 40], vec![0.0_f32; 40]);
    let (mut y, mut m, mut s) = (vec![0.0; x.len()], vec![0.0; 6], vec![0.0; 6]);
    let input = NormInput { x: &x, gamma: &ones, beta: &zeros, eps: 1e-5 };
    let normed = NormOutput { y: &mut y, mean: &mut m, inv_std: &mut s };
    layer_norm_forward(&context, [6, 40], input, normed).expect("sound");
    for row in y.chunks(40) {
        let mean = row.iter().sum::<f32>() / 40.0;
        let variance = row.iter().map(|v| (v - mean).powi(2)).sum::<f32>() / 40.0;
        assert!(mean.abs() < 1e-5 && (variance - 1.0).abs() < 1e-3, "{mean} {variance}");
    }
    let dy: Vec<f32> = scaled(2, x.len(), 1.0);
    let (mut dx, mut dg, mut db) = (vec![0.0; x.len()], vec![0.0; 40], vec![0.0; 40]);
    let kept = NormBackward { x: &x, dy: &dy, gamma: &ones, mean: &m, inv_std: &s };
    let grads = NormGrads { dx: &mut dx, dgamma: &mut dg, dbeta: &mut db };
    layer_norm_backward(&context, [6, 40], kept, None, grads).expect("sound");
    assert!(dx.chunks(40).all(|row| row.iter().sum::<f32>().abs() < 1e-4));
    let mut both = vec![0.0; x.len()];
    let grads = NormGrads { dx: &mut both, dgamma: &mut dg, dbeta: &mut db };
    layer_norm_backward(&context, [6, 40], kept, Some(&x), grads).expect("sound");
    assert!(both.iter().zip(&dx).zip(&x).all(|((both, dx), x)| *both == dx + x));
    let (gamma, beta) = (vec![1.0_f32; 8], vec![0.0_f32; 8]);
    let (mut m, mut s) = (vec![0.0; 4], vec![0.0; 4]);
    let shape = GroupNormShape { batch: 2, channels: 8, plane: 15, groups: 2 };
    let input = NormInput { x: &x, gamma: &gamma, beta: &beta, eps: 1e-5 };
    let normed = NormOutput { y: &mut y, mean: &mut m, inv_std: &mut s };
    group_norm_forward(&context, shape, input, normed).expect("sound");
    for group in y.chunks(60) {
        let variance = group.iter().map(|v| v * v).sum::<f32>() / 60.0;
        assert!((variance - 1.0).abs() < 1e-3, "{variance}");
    }
    let normed = NormOutput { y: &mut y, mean: &mut m, inv_std: &mut s };
    let wrong = group_norm_forward(&context, GroupNormShape { groups: 3, ..shape }, input, normed);
    assert!(
        wrong.expect_err("3 does not divide 8").to_string().contains("3 groups do not divide 8 channels")
    );
}

#[test]
fn pooling_follows_pytorch() {
    // 31 gives 15 under 2/2 and 3 at the end; padding counts as minus infinity.
    let shape = Pool2dShape {
        batch: 1,
        channels: 1,
        height: 3,
        width: 3,
        kernel: [3, 3],
        stride: [2, 2],
        padding: [1, 1],
    };
    let x: [f32; 9] = [1.0, -2.0, 3.0, -4.0, 5.0, -6.0, 7.0, -8.0, f32::NAN];
    let (mut y, mut indices) = ([0.0; 4], [0; 4]);
    let context = Context::new(1);
    max_pool2d_forward(&context, &shape, &x, &mut y, &mut indices).expect("sound");
    assert_eq!((y[0], y[1], y[2], indices), (5.0, 5.0, 7.0, [4, 4, 6, 8]));
    assert!(y[3].is_nan());
    let mut dx = [9.0; 9];
    max_pool2d_backward(&context, &shape, &[1.0, 2.0, 3.0, 4.0], &indices, &mut dx).expect("sound");
    assert_eq!(dx, [0.0, 0.0, 0.0, 0.0, 3.0, 0.0, 3.0, 0.0, 4.0]);
    assert!(max_pool2d_backward(&context, &shape, &[1.0; 4], &[9; 4], &mut dx).is_err(), "an index outside");
    let x: [f32; 9] = std::array::from_fn(|i| i as f32);
    avg_pool2d_forward(&context, &shape, false, &x, &mut y).expect("sound");
    assert_eq!(y, [2.0, 3.0, 5.0, 6.0]);
    avg_pool2d_forward(&context, &shape, true, &x, &mut y).expect("sound");
    assert_eq!(y, [8.0 / 9.0, 12.0 / 9.0, 20.0 / 9.0, 24.0 / 9.0]);
    assert!(Pool2dShape { padding: [2, 1], ..shape }.validate().is_err(), "more than half a window");
    let mut up = [0.0_f32; 10];
    upsample_nearest2d_forward(&context, 1, [1, 3], [2, 5], &[1.0, 2.0, 3.0], &mut up).expect("sound");
    assert_eq!(up, [1.0, 1.0, 2.0, 2.0, 3.0, 1.0, 1.0, 2.0, 2.0, 3.0]);
}

#[test]
fn dropout_depends_on_the_sample_and_the_place_in_it_alone() {
    let of = Dropout { key: 3, p: 0.2, first_sample: 4, part: None };
    let run = |threads: usize, of: Dropout, samples: usize, x: &[f32]| {
        let mut y = vec![9.0; x.len()];
        dropout(&Context::new(threads), of, samples, x, &mut y).expect("whole samples");
        y
    };
    let x = random::<f32>(1, 7 * 30_000);
    let whole = run(1, of, 7, &x);
    assert_eq!(whole, run(3, of, 7, &x), "threads change no bit");
    let share = whole.iter().filter(|y| **y == 0.0).count() as f64 / whole.len() as f64;
    assert!((share - 0.2).abs() < 0.004, "{share}");
    assert!(x.iter().zip(&whole).all(|(x, y)| *y == 0.0 || *y == x * 1.25));
    let last = run(1, Dropout { first_sample: 10, ..of }, 1, &x[6 * 30_000..]);
    assert_eq!(last, whole[6 * 30_000..], "the last sample alone");
    let short: Vec<f32> = x.chunks(30_000).flat_map(|sample| &sample[..1001]).copied().collect();
    let masks = run(1, of, 7, &short);
    let expected: Vec<f32> = whole.chunks(30_000).flat_map(|sample| &sample[..1001]).copied().collect();
    assert_eq!(masks, expected, "shorter samples have the beginning of the mask");
    assert!(dropout(&Context::new(1), of, 2, &[0.0_f32; 3], &mut [0.0; 3]).is_err());
}

#[test]
fn parts_of_samples_have_the_mask_of_whole_ones() {
    let of = Dropout { key: 3, p: 0.4, first_sample: 1, part: None };
    let run = |threads: usize, of: Dropout, x: &[f32]| {
        let mut y = vec![9.0; x.len()];
        dropout(&Context::new(threads), of, 5, x, &mut y).map(|()| y)
    };
    let x = random::<f32>(1, 5 * 6_000);
    let whole = run(1, of, &x).expect("whole samples");
    // One run a sample, such as positions; and several, such as features of each position.
    for part in [SamplePart { first: 1200, own: 2401, all: 6000 }, SamplePart { first: 7, own: 13, all: 30 }]
    {
        let own = |of: &[f32]| -> Vec<f32> {
            of.chunks(part.all).flat_map(|run| &run[part.first..][..part.own]).copied().collect()
        };
        for threads in [1, 3] {
            let found = run(threads, Dropout { part: Some(part), ..of }, &own(&x)).expect("whole runs");
            assert_eq!(found, own(&whole), "{part:?}");
        }
    }
    let wrong = SamplePart { first: 0, own: 7, all: 10 };
    assert!(run(1, Dropout { part: Some(wrong), ..of }, &x).is_err(), "6000 elements are no runs of 7");
}

#[test]
fn softmax_and_cross_entropy_at_the_extremes() {
    let context = Context::new(2);
    const HIDDEN: f32 = f32::NEG_INFINITY;
    let x = [1e4_f32, -1e4, 0.0, HIDDEN, 3.0, 3.0, HIDDEN, HIDDEN, HIDDEN];
    let mut y = [9.0; 9];
    softmax_rows_forward(&context, 3, 3, &x, &mut y).expect("sound");
    assert_eq!(y, [1.0, 0.0, 0.0, 0.0, 0.5, 0.5, 0.0, 0.0, 0.0]);
    let options = CrossEntropyOptions::default();
    let of = CrossEntropyRows { labels: &[1, 0], weights: None, options, factor: 1.0 };
    let (mut logits, mut losses) = ([1e4_f32, -1e4, 0.0, 0.0], [0.0; 2]);
    cross_entropy_rows(&context, 2, of, &mut logits, &mut losses).expect("sound");
    assert_eq!((losses[0], logits), (2e4, [1.0, -1.0, -0.5, 0.5]));
    assert!((losses[1] - std::f32::consts::LN_2).abs() < 1e-6);
    let of = CrossEntropyRows { labels: &[1, 2], ..of };
    let error = cross_entropy_rows(&context, 2, of, &mut logits, &mut losses).expect_err("out of range");
    assert!(error.to_string().contains("label 2 of row 1"));
    let of = CrossEntropyRows { weights: Some(&[1.0, 0.0]), ..of };
    cross_entropy_rows(&context, 2, of, &mut logits, &mut losses).expect("a row without weight");
    assert_eq!((losses[1], &logits[2..]), (0.0, &[0.0; 2][..]));
}

/// Each loss by its formula in f64, and its gradient by differences.
#[test]
fn cross_entropy_of_all_options() {
    let (rows, width) = (5, 37);
    let labels: Vec<u32> = (0..rows).map(|row| row as u32 * 6).collect();
    let weights = [1.0, 0.5, 0.0, 2.0, 1.0];
    for (smoothing, z_loss, soft_cap, classes) in [
        (0.0, 0.0, None, None),
        (0.1, 0.0, None, None),
        (0.0, 0.1, None, Some(30)),
        (0.2, 0.05, Some(3.0), Some(33)),
    ] {
        let options = CrossEntropyOptions { smoothing, z_loss, soft_cap, classes };
        let of = CrossEntropyRows { labels: &labels, weights: Some(&weights), options, factor: 0.25 };
        let logits: Vec<f64> = random::<f64>(3, rows * width).iter().map(|x| 4.0 * x).collect();
        let total = |logits: &[f64]| -> f64 {
            let of_row = |(row, x): (usize, &[f64])| {
                let x = &x[..classes.unwrap_or(width)];
                let x: Vec<f64> =
                    x.iter().map(|x| soft_cap.map_or(*x, |cap: f64| cap * (x / cap).tanh())).collect();
                let log_sum = x.iter().map(|x| x.exp()).sum::<f64>().ln();
                let mean = x.iter().sum::<f64>() / x.len() as f64;
                let loss = log_sum - (1.0 - smoothing) * x[labels[row] as usize] - smoothing * mean;
                0.25 * f64::from(weights[row]) * (loss + z_loss * log_sum * log_sum)
            };
            logits.chunks(width).enumerate().map(of_row).sum()
        };
        for threads in [1, 3] {
            let (mut slopes, mut losses) = (logits.clone(), vec![0.0; rows]);
            cross_entropy_rows(&Context::new(threads), width, of, &mut slopes, &mut losses).expect("sound");
            assert!((losses.iter().sum::<f64>() - total(&logits)).abs() < 1e-12);
            for at in 0..logits.len() {
                let moved = |by: f64| {
                    let mut moved = logits.clone();
                    moved[at] += by;
                    total(&moved)
                };
                let slope = (moved(1e-5) - moved(-1e-5)) / 2e-5;
                assert!((slopes[at] - slope).abs() < 1e-8, "{options:?} at {at}: {} and {slope}", slopes[at]);
            }
            let single = |x: &Vec<f64>| x.iter().map(|x| *x as f32).collect::<Vec<f32>>();
            let (mut singles, mut losses) = (single(&logits), vec![0.0; rows]);
            cross_entropy_rows(&Context::new(threads), width, of, &mut singles, &mut losses).expect("sound");
            assert!(
                singles.iter().zip(&slopes).all(|(x, y)| (f64::from(*x) - y).abs() < 1e-6),
                "{options:?}"
            );
        }
    }
}

#[test]
fn optimizer_steps_by_hand_and_by_threads() {
    // Three steps of momentum by hand: w = 1, g = 1, lr 0.1, momentum 0.5.
    let context = Context::new(1);
    let (mut w, mut buffer) = ([1.0_f64], [0.0]);
    let mut options = SgdOptions { lr: 0.1, momentum: 0.5, nesterov: false, weight_decay: 0.0, first: true };
    for (step, expected) in [0.9, 0.75, 0.575].into_iter().enumerate() {
        options.first = step == 0;
        sgd_step(&context, options, &mut w, &[1.0], &mut buffer).expect("sound");
        assert!((w[0] - expected).abs() < 1e-12, "step {step}: {}", w[0]);
    }
    // Adam's first step is the sign of the gradient times the rate.
    let adam =
        AdamOptions { lr: 0.1, betas: (0.9, 0.999), eps: 1e-8, weight_decay: 0.0, decoupled: false, step: 1 };
    let (mut w, mut m, mut v) = ([1.0_f64, 1.0], [0.0; 2], [0.0; 2]);
    adam_step(&context, adam, &mut w, &[5.0, -0.01], &mut m, &mut v).expect("sound");
    assert!((w[0] - 0.9).abs() < 1e-6 && (w[1] - 1.1).abs() < 1e-6, "{w:?}");
    let run = |threads: usize| {
        let context = Context::new(threads);
        let len = 100_003;
        let (mut w, g): (Vec<f32>, Vec<f32>) = (scaled(1, len, 1.0), scaled(2, len, 1.0));
        let (mut m, mut v, mut e) = (vec![0.0; len], vec![0.0; len], w.clone());
        for step in 1..=3 {
            adam_step(
                &context,
                AdamOptions { step, weight_decay: 0.1, decoupled: true, ..adam },
                &mut w,
                &g,
                &mut m,
                &mut v,
            )
            .expect("sound");
            ema_step(&context, 0.9, &mut e, &w).expect("sound");
        }
        (w, e)
    };
    assert_eq!(run(1), run(2));
    assert_eq!(run(1), run(3));
}

#[test]
fn lion_and_lamb_by_hand_and_by_threads() {
    let context = Context::new(1);
    let lion = LionOptions { lr: 0.1, betas: (0.5, 0.75), weight_decay: 0.5 };
    let (mut w, mut m) = ([1.0_f64; 4], [2.0, -2.0, 2.0, f64::NAN]);
    // Mixed momenta of 1.5, -0.5, 0 and NaN.
    lion_step(&context, lion, &mut w, &[1.0, 1.0, -2.0, 1.0], &mut m).expect("sound");
    assert_eq!((w[..3].to_vec(), m[..3].to_vec()), (vec![0.85, 1.05, 0.95], vec![1.75, -1.25, 1.0]));
    assert!(w[3].is_nan() && m[3].is_nan());

    let lamb = LambOptions { lr: 0.1, betas: (0.9, 0.999), eps: 0.0, weight_decay: 0.5, step: 1 };
    let (w, g, zeros) = ([2.0_f64, -4.0], [5.0, -0.01], [0.0; 2]);
    let mut direction = [0.0; 2];
    lamb_direction(&context, lamb, &w, &g, [&zeros, &zeros], &mut direction).expect("sound");
    // The first step of Adam is the sign, to which the decay is added.
    assert!((direction[0] - 2.0).abs() < 1e-12 && (direction[1] + 3.0).abs() < 1e-12, "{direction:?}");
    let ratio = trust_ratio(20.0, 13.0);
    assert_eq!((trust_ratio(0.0, 1.0), trust_ratio(1.0, 0.0), trust_ratio(f64::NAN, 1.0)), (1.0, 1.0, 1.0));
    let (mut moved, mut m, mut v) = (w, zeros, zeros);
    lamb_step(&context, lamb, ratio, &mut moved, &g, [&mut m, &mut v]).expect("sound");
    for at in 0..2 {
        assert!((moved[at] - (w[at] - 0.1 * (20.0_f64 / 13.0).sqrt() * direction[at])).abs() < 1e-12);
    }
    assert!(lamb_step(&context, lamb, 1.0, &mut moved, &g, [&mut m, &mut v[..1]]).is_err());

    let run = |threads: usize| {
        let (context, len) = (Context::new(threads), 100_003);
        let (mut w, g): (Vec<f32>, Vec<f32>) = (scaled(1, len, 1.0), scaled(2, len, 1.0));
        let (mut m, mut v, mut direction) = (vec![0.0; len], vec![0.0; len], vec![0.0; len]);
        lion_step(&context, lion, &mut w, &g, &mut m).expect("sound");
        lamb_direction(&context, lamb, &w, &g, [&m, &v], &mut direction).expect("sound");
        lamb_step(&context, lamb, 0.7, &mut w, &g, [&mut m, &mut v]).expect("sound");
        (w, m, v, direction)
    };
    assert_eq!(run(1), run(3));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, failure_persistence: None, ..Default::default() })]
    #[test]
    fn products(batch in 1_usize..4, m in 1_usize..20, n in prop_oneof![1_usize..20, 60_usize..200], k in 0_usize..20, ta: bool, tb: bool, add: bool, threads in 1_usize..4) {
        let (a, b): (Vec<f32>, Vec<f32>) = (scaled(1, batch * m * k, 1.0), scaled(2, batch * k * n, 1.0));
        let mut c = vec![3.0_f32; batch * m * n];
        let out = MatrixMut::batched(&mut c, m, n);
        matmul_batched(&Context::new(threads), batch, Matrix::batched(&a, m, k, ta), Matrix::batched(&b, k, n, tb), out, add)
            .expect("sound");
        for g in 0..batch {
            for (i, j) in (0..m).flat_map(|i| (0..n).map(move |j| (i, j))) {
                let want: f64 = (0..k)
                    .map(|p| {
                        let a = a[g * m * k + if ta { p * m + i } else { i * k + p }];
                        let b = b[g * k * n + if tb { j * k + p } else { p * n + j }];
                        f64::from(a) * f64::from(b)
                    })
                    .sum();
                let want = want + if add { 3.0 } else { 0.0 };
                prop_assert!((f64::from(c[(g * m + i) * n + j]) - want).abs() < 1e-5);
            }
        }
        let short = Matrix::batched(&a[..a.len().saturating_sub(1)], m, k, ta);
        if k > 0 {
            prop_assert!(matmul_batched(&Context::new(1), batch, short, Matrix::batched(&b, k, n, tb), MatrixMut::batched(&mut c, m, n), false).is_err());
        }
    }
}

#[test]
fn a_linear_layer_adds_bias() {
    for (rows, inputs, outputs) in [(1, 1, 1), (5, 7, 3), (130, 64, 33), (3, 0, 4)] {
        let (x, w): (Vec<f32>, Vec<f32>) = (scaled(1, rows * inputs, 1.0), scaled(2, outputs * inputs, 1.0));
        let bias: Vec<f32> = scaled(3, outputs, 1.0);
        let product: Vec<f64> = (0..rows * outputs)
            .map(|i| {
                let (row, output) = (i / outputs, i % outputs);
                (0..inputs).map(|k| f64::from(x[row * inputs + k]) * f64::from(w[output * inputs + k])).sum()
            })
            .collect();
        let wanted: Vec<f64> =
            product.iter().enumerate().map(|(i, v)| v + f64::from(bias[i % outputs])).collect();
        for threads in [1, 3] {
            let (context, sizes) = (Context::new(threads), [rows, inputs, outputs]);
            let mut y = vec![7.0; rows * outputs];
            linear_forward(
                &context,
                sizes,
                &x,
                Matrix::batched(&w, sizes[1], sizes[2], true),
                Some(&bias),
                &mut y,
            )
            .expect("sound");
            near(&y, &wanted, 1e-5, &format!("{sizes:?}"));
            linear_forward(&context, sizes, &x, Matrix::batched(&w, sizes[1], sizes[2], true), None, &mut y)
                .expect("sound");
            near(&y, &product, 1e-5, &format!("{sizes:?} without bias"));
        }
    }
}
