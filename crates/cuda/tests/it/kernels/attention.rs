//! Attention, against weights computed in f64.

use phalanx_cuda::kernels::{AttentionSizes, attention, attention_backward, attention_supports};
use phalanx_cuda::{ElementType, Gpu, Options};

use super::inputs::{Draw, assert_of, on_gpu};
use crate::software;

/// Output, logarithms of sums, and the gradients of q, k and v.
fn reference(sizes: AttentionSizes, [q, k, v]: [&[f64]; 3], dy: &[f64]) -> [Vec<f64>; 5] {
    let AttentionSizes { matrices, length, keys, dim, causal } = sizes;
    let scale = 1.0 / (dim as f64).sqrt();
    let mut to = [vec![], vec![], vec![0.0; q.len()], vec![0.0; k.len()], vec![0.0; v.len()]];
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    for head in 0..matrices {
        let row = |of: &'_ [f64], rows: usize, at: usize| of[(head * rows + at) * dim..][..dim].to_vec();
        for t in 0..length {
            let seen = if causal { (t + 1).min(keys) } else { keys };
            let query = row(q, length, t);
            let scores: Vec<f64> = (0..seen).map(|s| scale * dot(&query, &row(k, keys, s))).collect();
            let largest = scores.iter().copied().fold(f64::MIN, f64::max);
            let log_sum = scores.iter().map(|score| (score - largest).exp()).sum::<f64>().ln() + largest;
            let weights: Vec<f64> = scores.iter().map(|score| (score - log_sum).exp()).collect();
            let mut output = vec![0.0; dim];
            for (s, weight) in weights.iter().enumerate() {
                output.iter_mut().zip(row(v, keys, s)).for_each(|(to, v)| *to += weight * v);
            }
            let grad = row(dy, length, t);
            let along = dot(&output, &grad);
            for (s, weight) in weights.iter().enumerate() {
                let (key, value) = (row(k, keys, s), row(v, keys, s));
                let slope = weight * (dot(&grad, &value) - along) * scale;
                for d in 0..dim {
                    to[2][(head * length + t) * dim + d] += slope * key[d];
                    to[3][(head * keys + s) * dim + d] += slope * query[d];
                    to[4][(head * keys + s) * dim + d] += weight * grad[d];
                }
            }
            to[0].extend(output);
            to[1].push(log_sum);
        }
    }
    to
}

fn attends(gpu: &Gpu, draw: &mut Draw, sizes: AttentionSizes, dtype: ElementType) {
    let AttentionSizes { matrices, length, keys, dim, .. } = sizes;
    let what = format!("{sizes:?}");
    let (q, q_gpu) = draw.slice(gpu, dtype, matrices * length * dim);
    let (k, k_gpu) = draw.slice(gpu, dtype, matrices * keys * dim);
    let (v, v_gpu) = draw.slice(gpu, dtype, matrices * keys * dim);
    let (dy, dy_gpu) = draw.slice(gpu, dtype, q.len());
    let expected = reference(sizes, [&q, &k, &v], &dy);
    // Weights are rounded to the operands' type before the second product.
    let tolerance = match dtype {
        ElementType::F64 => 1e-12,
        ElementType::Bf16 => 8e-3,
        ElementType::F16 => 1e-3,
        _ => 1e-5,
    };
    // No gradient is larger than its terms, which have the magnitude of the inputs.
    let largest = |values: &[f64]| values.iter().fold(0.0_f64, |most, v| most.max(v.abs()));
    let magnitude = largest(&dy);
    let [output, log_sums] = attention(gpu, sizes, &q_gpu, &k_gpu, &v_gpu).unwrap();
    assert_of(gpu, &what, &output, &expected[0], tolerance, 0.0);
    assert_of(gpu, &what, &log_sums, &expected[1], tolerance.min(1e-5), 1.0);
    let inputs = [&q_gpu, &k_gpu, &v_gpu];
    let grads = attention_backward(gpu, sizes, inputs, [&output, &log_sums], &dy_gpu, [true; 3]).unwrap();
    for (at, grad) in grads.iter().enumerate() {
        let grad = grad.as_ref().expect("all are wanted");
        assert_of(gpu, &format!("{what}, gradient {at}"), grad, &expected[2 + at], tolerance, magnitude);
    }
    let some =
        attention_backward(gpu, sizes, inputs, [&output, &log_sums], &dy_gpu, [true, false, true]).unwrap();
    assert_eq!(some.each_ref().map(Option::is_some), [true, false, true]);
}

fn sizes(matrices: usize, length: usize, keys: usize, dim: usize, causal: bool) -> AttentionSizes {
    AttentionSizes { matrices, length, keys, dim, causal }
}

#[test]
fn attention_in_f32_and_f64() {
    on_gpu(|gpu| {
        let mut draw = Draw::new(51);
        for dtype in [ElementType::F32, ElementType::F64] {
            for sizes in [
                sizes(1, 1, 1, 1, false),
                sizes(2, 5, 7, 3, false),
                sizes(1, 33, 65, 64, false),
                sizes(3, 40, 40, 17, true),
                sizes(1, 70, 70, 8, true),
                sizes(1, 9, 40, 100, true),
                sizes(1, 40, 9, 6, true),
                sizes(2, 32, 32, 32, false),
            ] {
                attends(gpu, &mut draw, sizes, dtype);
            }
        }
        attends(gpu, &mut draw, sizes(1, 34, 20, 250, false), ElementType::F32);
        let x = gpu.zeros(ElementType::F32, 300).unwrap();
        assert!(attention(gpu, sizes(1, 1, 1, 300, false), &x, &x, &x).is_err(), "heads too large");
        assert!(attention(gpu, sizes(1, 3, 1, 100, false), &x, &x, &x).is_err(), "keys too long");
    });
}

#[test]
fn attention_by_tensor_cores() {
    on_gpu(|gpu| {
        let mut draw = Draw::new(52);
        for dtype in [ElementType::Bf16, ElementType::F16] {
            for sizes in [
                sizes(1, 1, 1, 1, false),
                sizes(2, 5, 7, 3, false),
                sizes(1, 65, 70, 64, false),
                sizes(2, 80, 80, 40, true),
                sizes(1, 9, 140, 16, true),
                sizes(1, 100, 30, 96, true),
                sizes(1, 64, 64, 128, false),
                sizes(1, 20, 50, 160, true),
            ] {
                attends(gpu, &mut draw, sizes, dtype);
            }
        }
    });
}

#[test]
fn heads_beyond_the_shared_memory_are_refused() {
    // As on GPUs of compute capability 8.6.
    software::run_with(&[("SOFTWARE_GPU_SHARED", "101376"), ("SOFTWARE_GPU_CAPABILITY", "86")], || {
        let gpu = &Gpu::new(0, &Options { cache: Some(software::cache()), ..Options::default() }).unwrap();
        let mut draw = Draw::new(9);
        for (dtype, dim, fits) in
            [(ElementType::F32, 64, true), (ElementType::F32, 256, false), (ElementType::F16, 192, true)]
        {
            assert_eq!(attention_supports(gpu, dtype, dim), fits, "{dtype} {dim}");
            let sizes = AttentionSizes { matrices: 1, length: 3, keys: 5, dim, causal: false };
            if fits {
                attends(gpu, &mut draw, sizes, dtype);
                continue;
            }
            let x = gpu.zeros(dtype, 5 * dim).unwrap();
            let q = x.view(0..3 * dim).unwrap();
            let error = attention(gpu, sizes, &q, &x, &x).unwrap_err();
            assert!(error.to_string().contains("bytes of shared memory, and has 101376"), "{error}");
        }
    });
}
