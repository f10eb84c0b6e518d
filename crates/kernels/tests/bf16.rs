//! Products of bf16 against f64 over drawn shapes, on every instruction set that the machine has.

use phalanx_kernels::{
    Context, Conv2dShape, Level, Matrix, MatrixMut, Products, bf16, conv2d_backward_input,
    conv2d_backward_input_bf16, conv2d_backward_weight, conv2d_backward_weight_bf16, conv2d_forward,
    conv2d_forward_bf16, matmul_batched, matmul_bf16, narrow, widen,
};
use proptest::prelude::*;

fn draw(seed: u64, len: usize) -> Vec<bf16> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1_u64 << 23) as f32 - 1.0
    };
    (0..len).map(|_| bf16::from_f32(next())).collect()
}

fn wide(values: &[bf16]) -> Vec<f32> {
    values.iter().map(|value| value.to_f32()).collect()
}

fn distance(values: &[f32], reference: &[f64]) -> f64 {
    assert_eq!(values.len(), reference.len());
    let off: f64 = values.iter().zip(reference).map(|(v, r)| (f64::from(*v) - r).powi(2)).sum();
    let size: f64 = reference.iter().map(|r| r * r).sum();
    (off / size.max(1e-30)).sqrt()
}

/// Products of bf16 numbers are exact in f32, so sums of them are as good as f32's.
const SUMS: f64 = 2e-6;

/// A result that is rounded to bf16 once.
const ROUNDED: f64 = 4e-3;

fn contexts(threads: usize) -> impl Iterator<Item = (Level, Context)> {
    Level::ALL.iter().filter_map(move |&level| Some((level, Context::with_level(threads, level).ok()?)))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..Default::default() })]
    #[test]
    fn matrices(
        batch in 1_usize..4,
        m in 1_usize..70,
        n in 1_usize..120,
        k in prop_oneof![1_usize..40, 250_usize..300],
        transposed: (bool, bool),
        threads in 1_usize..4,
    ) {
        let (a, b) = (draw(1, batch * m * k), draw(2, batch * k * n));
        let (wide_a, wide_b) = (wide(&a), wide(&b));
        let at_a = |p: usize, i: usize, l: usize| p * m * k + if transposed.0 { l * m + i } else { i * k + l };
        let at_b = |p: usize, l: usize, j: usize| p * k * n + if transposed.1 { j * k + l } else { l * n + j };
        let mut reference = Vec::with_capacity(batch * m * n);
        for p in 0..batch {
            for (i, j) in (0..m).flat_map(|i| (0..n).map(move |j| (i, j))) {
                let terms = (0..k).map(|l| f64::from(wide_a[at_a(p, i, l)]) * f64::from(wide_b[at_b(p, l, j)]));
                reference.push(terms.sum::<f64>());
            }
        }
        for (level, context) in contexts(threads) {
            let left = || Matrix::batched(&a, m, k, transposed.0);
            let right = || Matrix::batched(&b, k, n, transposed.1);
            let mut c = vec![7.0; batch * m * n];
            matmul_bf16(&context, batch, left(), right(), MatrixMut::batched(&mut c, m, n), false).expect("sound");
            prop_assert!(distance(&c, &reference) < SUMS, "{level}: {:e}", distance(&c, &reference));
            matmul_bf16(&context, batch, left(), right(), MatrixMut::batched(&mut c, m, n), true).expect("sound");
            let twice: Vec<f64> = reference.iter().map(|r| 2.0 * r).collect();
            prop_assert!(distance(&c, &twice) < SUMS, "{level}: {:e}", distance(&c, &twice));
            // f32 operands that are bf16 numbers already lose nothing by rounding.
            let context = context.with_products(Products::Bf16);
            let left = Matrix::batched(&wide_a, m, k, transposed.0);
            let right = Matrix::batched(&wide_b, k, n, transposed.1);
            matmul_batched(&context, batch, left, right, MatrixMut::batched(&mut c, m, n), false).expect("sound");
            prop_assert!(distance(&c, &reference) < SUMS, "{level}: {:e}", distance(&c, &reference));
        }
    }

    #[test]
    fn convolutions(
        batch in 1_usize..12,
        channels in [1_usize..50, 1_usize..70],
        size in [1_usize..8, 1_usize..8],
        kernel in [1_usize..4, 1_usize..4],
        stride in [1_usize..3, 1_usize..3],
        padding in [0_usize..3, 0_usize..3],
        threads in 1_usize..4,
    ) {
        let shape = Conv2dShape {
            batch, in_channels: channels[0], height: size[0], width: size[1], out_channels: channels[1],
            kernel, stride, padding, dilation: [1; 2], groups: 1,
        };
        prop_assume!(shape.validate().is_ok());
        let (x, w, dy) = (draw(1, shape.input_len()), draw(2, shape.weight_len()), draw(3, shape.output_len()));
        let bias: Vec<f32> = wide(&draw(4, channels[1]));
        let (wide_x, wide_w, wide_dy) = (wide(&x), wide(&w), wide(&dy));
        // The f64 kernels are checked against the definition elsewhere.
        let exact = |values: &[f32]| values.iter().map(|v| f64::from(*v)).collect::<Vec<f64>>();
        let (x64, w64, dy64, b64) = (exact(&wide_x), exact(&wide_w), exact(&wide_dy), exact(&bias));
        let one = Context::new(1);
        let (mut y64, mut dx64, mut dw64) = (vec![0.0; dy.len()], vec![0.0; x.len()], vec![0.0; w.len()]);
        conv2d_forward(&one, &shape, &x64, &w64, Some(&b64), &mut y64).expect("sound");
        conv2d_backward_input(&one, &shape, &dy64, &w64, &mut dx64).expect("sound");
        conv2d_backward_weight(&one, &shape, &x64, &dy64, &mut dw64, false).expect("sound");
        for (level, context) in contexts(threads) {
            let mut y = vec![bf16::from_f32(7.0); dy.len()];
            conv2d_forward_bf16(&context, &shape, &x, &w, Some(&bias), &mut y).expect("sound");
            prop_assert!(distance(&wide(&y), &y64) < ROUNDED, "{level} {shape:?}");
            let mut dx = vec![bf16::from_f32(7.0); x.len()];
            conv2d_backward_input_bf16(&context, &shape, &dy, &w, &mut dx).expect("sound");
            prop_assert!(distance(&wide(&dx), &dx64) < ROUNDED, "{level} {shape:?}");
            let mut dw = vec![7.0; w.len()];
            conv2d_backward_weight_bf16(&context, &shape, &x, &dy, &mut dw, false).expect("sound");
            prop_assert!(distance(&dw, &dw64) < 1e-5, "{level} {shape:?}");
            let context = context.with_products(Products::Bf16);
            let mut y = vec![7.0; dy.len()];
            conv2d_forward(&context, &shape, &wide_x, &wide_w, Some(&bias), &mut y).expect("sound");
            prop_assert!(distance(&y, &y64) < 1e-5, "{level} {shape:?}: {:e}", distance(&y, &y64));
            let mut dx = vec![7.0; x.len()];
            conv2d_backward_input(&context, &shape, &wide_dy, &wide_w, &mut dx).expect("sound");
            prop_assert!(distance(&dx, &dx64) < 1e-5, "{level} {shape:?}: {:e}", distance(&dx, &dx64));
        }
    }
}

#[test]
fn numbers_there_and_back() {
    let context = Context::new(2);
    let values = draw(9, 100_003);
    let mut back = vec![bf16::ZERO; values.len()];
    let mut wider = vec![0.0; values.len()];
    widen(&context, &values, &mut wider).expect("as long");
    narrow(&context, &wider, &mut back).expect("as long");
    assert_eq!(values, back);
    let error = narrow(&context, &wider, &mut back[1..]).expect_err("another length").to_string();
    assert!(error.contains("100003") && error.contains("100002"), "{error}");
}
