//! Products of bf16 against f64 over drawn shapes, on every instruction set that the machine has.

use phalanx_kernels::{
    Context, Conv2dShape, Matrix, MatrixMut, Products, RoundedFactor, RoundedResult, bf16,
    conv2d_backward_input, conv2d_backward_input_bf16, conv2d_backward_weight, conv2d_backward_weight_bf16,
    conv2d_forward, conv2d_forward_bf16, matmul_batched, matmul_bf16, narrow, widen,
};
use proptest::prelude::*;

use crate::harness::{contexts, distance, random, wide};

/// Returns random bf16 numbers.
fn brains(seed: u64, len: usize) -> Vec<bf16> {
    random::<f32>(seed, len).into_iter().map(bf16::from_f32).collect()
}

/// Returns matrices stored in bf16 or f32.
fn factor<'a>(
    low: bool,
    values: &'a [bf16],
    wide: &'a [f32],
    [rows, cols]: [usize; 2],
    transposed: bool,
) -> RoundedFactor<'a> {
    match low {
        true => RoundedFactor::Bf16(Matrix::batched(values, rows, cols, transposed)),
        false => RoundedFactor::F32(Matrix::batched(wide, rows, cols, transposed)),
    }
}

/// Converts to f32.
fn singles(values: &[bf16]) -> Vec<f32> {
    values.iter().map(|value| value.to_f32()).collect()
}

/// Products of bf16 numbers are exact in f32, so sums of them are as good as f32's.
const SUMS: f64 = 2e-6;

/// A result that is rounded to bf16 once.
const ROUNDED: f64 = 4e-3;

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..Default::default() })]
    #[test]
    fn matrices(
        batch in 1_usize..4,
        m in 1_usize..70,
        n in 1_usize..120,
        k in prop_oneof![1_usize..40, 250_usize..300, 1020_usize..1030],
        transposed: (bool, bool),
        stored: (bool, bool),
        with_bias: bool,
        threads in 1_usize..4,
    ) {
        let (a, b) = (brains(1, batch * m * k), brains(2, batch * k * n));
        let (wide_a, wide_b) = (singles(&a), singles(&b));
        let at_a = |p: usize, i: usize, l: usize| p * m * k + if transposed.0 { l * m + i } else { i * k + l };
        let at_b = |p: usize, l: usize, j: usize| p * k * n + if transposed.1 { j * k + l } else { l * n + j };
        let mut reference = Vec::with_capacity(batch * m * n);
        for p in 0..batch {
            for (i, j) in (0..m).flat_map(|i| (0..n).map(move |j| (i, j))) {
                let terms = (0..k).map(|l| f64::from(wide_a[at_a(p, i, l)]) * f64::from(wide_b[at_b(p, l, j)]));
                reference.push(terms.sum::<f64>());
            }
        }
        let biases = singles(&brains(3, n));
        let biased: Vec<f64> = reference.iter().enumerate()
            .map(|(at, sum)| sum + if with_bias { f64::from(biases[at % n]) } else { 0.0 }).collect();
        let by_pairs = contexts(threads).map(|(level, context)| (level, context.with_pairs()));
        for (level, context) in contexts(threads).chain(by_pairs) {
            let left = factor(stored.0, &a, &wide_a, [m, k], transposed.0);
            let right = factor(stored.1, &b, &wide_b, [k, n], transposed.1);
            let bias = with_bias.then_some(&biases[..]);
            let mut c = vec![7.0; batch * m * n];
            let to = RoundedResult::F32(MatrixMut::batched(&mut c, m, n));
            matmul_bf16(&context, batch, left, right, bias, to).expect("sound");
            prop_assert!(distance(&c, &biased) < SUMS, "{level}: {:e}", distance(&c, &biased));
            let to = RoundedResult::AddF32(MatrixMut::batched(&mut c, m, n));
            matmul_bf16(&context, batch, left, right, bias, to).expect("sound");
            let twice: Vec<f64> = biased.iter().map(|r| 2.0 * r).collect();
            prop_assert!(distance(&c, &twice) < SUMS, "{level}: {:e}", distance(&c, &twice));
            let mut low = vec![bf16::from_f32(7.0); batch * m * n];
            let to = RoundedResult::Bf16(MatrixMut::batched(&mut low, m, n));
            matmul_bf16(&context, batch, left, right, bias, to).expect("sound");
            prop_assert!(distance(&singles(&low), &biased) < ROUNDED, "{level}");
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
        let (x, w, dy) = (brains(1, shape.input_len()), brains(2, shape.weight_len()), brains(3, shape.output_len()));
        let bias: Vec<f32> = singles(&brains(4, channels[1]));
        let (wide_x, wide_w, wide_dy) = (singles(&x), singles(&w), singles(&dy));
        // The f64 kernels are checked against the definition elsewhere.
        let (x64, w64, dy64, b64) = (wide(&wide_x), wide(&wide_w), wide(&wide_dy), wide(&bias));
        let one = Context::new(1);
        let (mut y64, mut dx64, mut dw64) = (vec![0.0; dy.len()], vec![0.0; x.len()], vec![0.0; w.len()]);
        conv2d_forward(&one, &shape, &x64, &w64, Some(&b64), &mut y64).expect("sound");
        conv2d_backward_input(&one, &shape, &dy64, &w64, &mut dx64).expect("sound");
        conv2d_backward_weight(&one, &shape, &x64, &dy64, &mut dw64, false).expect("sound");
        let by_pairs = contexts(threads).map(|(level, context)| (level, context.with_pairs()));
        for (level, context) in contexts(threads).chain(by_pairs) {
            let mut y = vec![bf16::from_f32(7.0); dy.len()];
            conv2d_forward_bf16(&context, &shape, &x, &w, Some(&bias), &mut y).expect("sound");
            prop_assert!(distance(&singles(&y), &y64) < ROUNDED, "{level} {shape:?}");
            let mut dx = vec![bf16::from_f32(7.0); x.len()];
            conv2d_backward_input_bf16(&context, &shape, &dy, &w, &mut dx).expect("sound");
            prop_assert!(distance(&singles(&dx), &dx64) < ROUNDED, "{level} {shape:?}");
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
    let values = brains(9, 100_003);
    let mut back = vec![bf16::ZERO; values.len()];
    let mut wider = vec![0.0; values.len()];
    widen(&context, &values, &mut wider).expect("as long");
    narrow(&context, &wider, &mut back).expect("as long");
    assert_eq!(values, back);
    let error = narrow(&context, &wider, &mut back[1..]).expect_err("another length").to_string();
    assert!(error.contains("100003") && error.contains("100002"), "{error}");
}
