//! Attention, against the CPU's kernels in f64.

use phalanx_cuda::kernels::{
    AttentionGradients, AttentionInputs, AttentionMask, AttentionOperands, AttentionSizes, Dropout,
    StreamKey, attention, attention_backward, attention_supports,
};
use phalanx_cuda::{ElementType, Gpu, Options, Slice};
use phalanx_kernels as cpu;

use super::inputs::{Draw, assert_of, cpu as cpu_context, on_gpu};
use super::random::hash;
use crate::software;

/// The mask and the dropout of a case.
#[derive(Debug, Clone, Copy, Default)]
struct Extras {
    lengths: bool,
    starts: bool,
    dropout: Option<f64>,
    joined: bool,
}

const KEY: StreamKey = StreamKey { seed: 3, step: 1, rank: 0, stream: 99 };

/// Numbers of keys by sample, and first keys by query.
struct Ranges {
    lengths: Vec<u32>,
    starts: Vec<u32>,
}

impl Ranges {
    fn new(sizes: &AttentionSizes) -> Self {
        let AttentionSizes { samples, length, keys, .. } = *sizes;
        let own = |query: usize| (query + keys).saturating_sub(length);
        Self {
            // The last of several samples has no keys.
            lengths: (0..samples).map(|at| [keys - keys / 3, keys, 0][at.min(2)] as u32).collect(),
            starts: (0..samples * length).map(|at| (own(at % length) / 9 * 9) as u32).collect(),
        }
    }
}

/// Computes the output, the logarithms of sums, and the gradients of q, k and v on the CPU.
fn reference(sizes: &AttentionSizes, extras: Extras, [q, k, v]: [&[f64]; 3], dy: &[f64]) -> [Vec<f64>; 5] {
    let AttentionSizes { samples, heads, key_heads, length, keys, dim, causal, window } = *sizes;
    let ranges = Ranges::new(sizes);
    let inputs = cpu::AttentionInputs {
        shape: cpu::AttentionShape { samples, heads, key_heads, length, keys, dim },
        mask: cpu::AttentionMask {
            causal,
            window,
            lengths: extras.lengths.then_some(&ranges.lengths),
            starts: extras.starts.then_some(&ranges.starts),
        },
        dropout: extras.dropout.map(|p| cpu::Dropout { key: hash(KEY), p, first_sample: 5, part: None }),
        operands: cpu::AttentionOperands::Apart { q, k, v },
    };
    let context = cpu_context();
    let (mut out, mut log_sums) = (vec![0.0; q.len()], vec![0.0; samples * heads * length]);
    cpu::attention_forward(&context, inputs, &mut out, &mut log_sums).expect("fits");
    let mut grads = [q, k, v].map(|of| vec![0.0; of.len()]);
    let [q, k, v] = grads.each_mut().map(|grad| Some(&mut grad[..]));
    let to = cpu::AttentionGrads::Apart { q, k, v };
    cpu::attention_backward(&context, inputs, [&out, dy], &log_sums, to).expect("fits");
    let [q, k, v] = grads;
    [out, log_sums, q, k, v]
}

/// Joins rows of queries, keys and values position by position.
fn join(sizes: &AttentionSizes, [q, k, v]: [&[f64]; 3]) -> Vec<f64> {
    let [queries, keys] = [sizes.heads, sizes.key_heads].map(|heads| heads * sizes.dim);
    let rows = q.chunks(queries).zip(k.chunks(keys)).zip(v.chunks(keys));
    rows.flat_map(|((q, k), v)| [q, k, v].concat()).collect()
}

fn attends(gpu: &Gpu, draw: &mut Draw, sizes: AttentionSizes, extras: Extras, dtype: ElementType) {
    let what = format!("{sizes:?}, {extras:?}, {dtype}");
    let AttentionSizes { samples, heads, key_heads, length, keys, dim, .. } = sizes;
    let [queries, positions] = [length * heads, keys * key_heads].map(|rows| samples * rows * dim);
    let (q, q_gpu) = draw.slice(gpu, dtype, queries);
    let (k, k_gpu) = draw.slice(gpu, dtype, positions);
    let (v, v_gpu) = draw.slice(gpu, dtype, positions);
    let (dy, dy_gpu) = draw.slice(gpu, dtype, q.len());
    let expected = reference(&sizes, extras, [&q, &k, &v], &dy);
    let ranges = Ranges::new(&sizes);
    let on_gpu = |wanted: bool, values: &[u32]| wanted.then(|| gpu.upload(values).expect("memory"));
    let (lengths, starts) = (on_gpu(extras.lengths, &ranges.lengths), on_gpu(extras.starts, &ranges.starts));
    let all = extras.joined.then(|| super::inputs::upload(gpu, dtype, &join(&sizes, [&q, &k, &v])));
    let operands = match &all {
        Some(all) => AttentionOperands::Joined(all),
        None => AttentionOperands::Apart([&q_gpu, &k_gpu, &v_gpu]),
    };
    let inputs = AttentionInputs {
        sizes,
        mask: AttentionMask { lengths: lengths.as_ref(), starts: starts.as_ref() },
        dropout: extras.dropout.map(|p| Dropout { key: KEY, p, first_sample: 5, part: None }),
        operands,
    };
    // Weights are rounded to the operands' type before the second product.
    let tolerance = match dtype {
        ElementType::F64 => 1e-12,
        ElementType::Bf16 => 8e-3,
        ElementType::F16 => 1e-3,
        _ => 1e-5,
    };
    // No gradient is larger than its terms, which have the magnitude of the inputs, and those of a group add up.
    let largest = |values: &[f64]| values.iter().fold(0.0_f64, |most, v| most.max(v.abs()));
    let magnitude = largest(&dy);
    let [output, log_sums] = attention(gpu, &inputs).unwrap();
    assert_of(gpu, &what, &output, &expected[0], tolerance, 0.0);
    assert_of(gpu, &what, &log_sums, &expected[1], tolerance.min(1e-5), 1.0);
    let saved = [&output, &log_sums];
    match attention_backward(gpu, &inputs, saved, &dy_gpu, [true; 3]).unwrap() {
        AttentionGradients::Joined(grad) => {
            let expected = join(&sizes, [&expected[2], &expected[3], &expected[4]]);
            assert_of(gpu, &format!("{what}, gradient"), &grad, &expected, tolerance, magnitude);
        }
        AttentionGradients::Apart(grads) => {
            for (at, grad) in grads.iter().enumerate() {
                let grad = grad.as_ref().expect("all are wanted");
                assert_of(
                    gpu,
                    &format!("{what}, gradient {at}"),
                    grad,
                    &expected[2 + at],
                    tolerance,
                    magnitude,
                );
            }
            let some = attention_backward(gpu, &inputs, saved, &dy_gpu, [true, false, true]).unwrap();
            let AttentionGradients::Apart(some) = some else { panic!("{what}: operands are apart") };
            assert_eq!(some.each_ref().map(Option::is_some), [true, false, true]);
        }
    }
}

fn sizes(samples: usize, length: usize, keys: usize, dim: usize, causal: bool) -> AttentionSizes {
    AttentionSizes { samples, heads: 1, key_heads: 1, length, keys, dim, causal, window: None }
}

/// Several heads, masks of all kinds, dropout, and operands in one array.
fn cases(dim: usize) -> [(AttentionSizes, Extras); 5] {
    let plain = AttentionSizes { heads: 4, key_heads: 2, ..sizes(3, 70, 70, dim, true) };
    let none = Extras::default();
    [
        (plain, Extras { joined: true, ..none }),
        (AttentionSizes { length: 40, causal: false, ..plain }, Extras { lengths: true, ..none }),
        (AttentionSizes { length: 9, ..plain }, Extras { starts: true, lengths: true, ..none }),
        (AttentionSizes { window: Some(11), ..plain }, Extras { starts: true, joined: true, ..none }),
        (AttentionSizes { samples: 2, ..plain }, Extras { dropout: Some(0.25), ..none }),
    ]
}

#[test]
fn attention_in_f32_and_f64() {
    on_gpu(|gpu| {
        let mut draw = Draw::new(51);
        let plain = Extras::default();
        for dtype in [ElementType::F32, ElementType::F64] {
            for sizes in [
                sizes(1, 1, 1, 1, false),
                sizes(2, 5, 7, 3, false),
                sizes(1, 33, 65, 64, false),
                sizes(1, 70, 70, 8, true),
                sizes(1, 9, 40, 100, true),
                sizes(1, 40, 9, 6, true),
                sizes(2, 32, 32, 32, false),
            ] {
                attends(gpu, &mut draw, sizes, plain, dtype);
            }
            for (sizes, extras) in cases(5) {
                attends(gpu, &mut draw, sizes, extras, dtype);
            }
        }
        attends(gpu, &mut draw, sizes(1, 34, 20, 250, false), plain, ElementType::F32);
        let x = gpu.zeros(ElementType::F32, 300).unwrap();
        let refused =
            |sizes: AttentionSizes| attention(gpu, &of(sizes, [&x, &x, &x])).unwrap_err().to_string();
        assert!(refused(sizes(1, 1, 1, 300, false)).contains("heads of 300"), "heads too large");
        assert!(refused(sizes(1, 3, 1, 100, false)).contains('k'), "keys too long");
        let shared = AttentionSizes { heads: 3, key_heads: 2, ..sizes(1, 1, 1, 100, false) };
        assert!(refused(shared).contains("3 heads of queries"));
    });
}

/// Inputs without arrays of a mask.
fn of<'a>(sizes: AttentionSizes, operands: [&'a Slice; 3]) -> AttentionInputs<'a> {
    let operands = AttentionOperands::Apart(operands);
    AttentionInputs { sizes, mask: AttentionMask::default(), dropout: None, operands }
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
                sizes(1, 9, 140, 16, true),
                sizes(1, 100, 30, 96, true),
                sizes(1, 64, 64, 128, false),
                sizes(1, 20, 50, 160, true),
            ] {
                attends(gpu, &mut draw, sizes, Extras::default(), dtype);
            }
        }
        for (sizes, extras) in cases(16) {
            attends(gpu, &mut draw, sizes, extras, ElementType::Bf16);
        }
        // Rows that no copy of 16 bytes can begin at.
        let (odd, extras) = cases(12)[0];
        attends(gpu, &mut draw, odd, extras, ElementType::F16);
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
            let sizes = sizes(1, 3, 5, dim, false);
            if fits {
                attends(gpu, &mut draw, sizes, Extras::default(), dtype);
                continue;
            }
            let x = gpu.zeros(dtype, 5 * dim).unwrap();
            let q = x.view(0..3 * dim).unwrap();
            let error = attention(gpu, &of(sizes, [&q, &x, &x])).unwrap_err();
            assert!(error.to_string().contains("bytes of shared memory, and has 101376"), "{error}");
        }
    });
}
