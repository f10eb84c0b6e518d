//! Attention by tiles against plain loops in f64.

use phalanx_kernels::{
    AttentionElement, AttentionGrads, AttentionInputs, AttentionMask, AttentionOperands, AttentionShape,
    Context, Dropout, Level, attention_backward, attention_forward, bf16, f16,
};

use crate::harness::random;

/// Attention, its inputs and the gradient of its output in f64.
struct Case {
    shape: AttentionShape,
    q: Vec<f64>,
    k: Vec<f64>,
    v: Vec<f64>,
    dy: Vec<f64>,
}

/// Results of attention: the output and the gradients of q, k and v.
type Results<T> = [Vec<T>; 4];

impl Case {
    fn new(shape: AttentionShape) -> Self {
        let AttentionShape { samples, heads, key_heads, length, keys, dim } = shape;
        let (queries, keys) = (samples * length * heads * dim, samples * keys * key_heads * dim);
        Self { shape, q: random(1, queries), k: random(3, keys), v: random(4, keys), dy: random(2, queries) }
    }

    fn inputs<'a>(&'a self, mask: AttentionMask<'a>, dropout: Option<Dropout>) -> AttentionInputs<'a, f64> {
        let operands = AttentionOperands::Apart { q: &self.q, k: &self.k, v: &self.v };
        AttentionInputs { shape: self.shape, mask, dropout, operands }
    }

    /// Computes the results by plain loops. `sees(sample, query, key)` is the mask.
    fn expected(&self, sees: &dyn Fn(usize, usize, usize) -> bool) -> Results<f64> {
        let AttentionShape { samples, heads, key_heads, length, keys, dim } = self.shape;
        let mut all =
            [self.q.clone(), self.q.clone(), self.k.clone(), self.v.clone()].map(|v| vec![0.0; v.len()]);
        let factor = 1.0 / (dim as f64).sqrt();
        for (sample, head, t) in indices([samples, heads, length]) {
            let at = ((sample * length + t) * heads + head) * dim;
            let key = |s: usize| ((sample * keys + s) * key_heads + head * key_heads / heads) * dim;
            let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
            let (q, dy) = (&self.q[at..at + dim], &self.dy[at..at + dim]);
            let mut weights: Vec<f64> =
                (0..keys)
                    .map(|s| {
                        if sees(sample, t, s) {
                            (dot(q, &self.k[key(s)..][..dim]) * factor).exp()
                        } else {
                            0.0
                        }
                    })
                    .collect();
            let sum: f64 = weights.iter().sum();
            if sum == 0.0 {
                continue;
            }
            weights.iter_mut().for_each(|weight| *weight /= sum);
            let slopes: Vec<f64> = (0..keys).map(|s| dot(dy, &self.v[key(s)..][..dim])).collect();
            let along = dot(&weights, &slopes);
            for s in 0..keys {
                let slope = weights[s] * (slopes[s] - along) * factor;
                for d in 0..dim {
                    all[0][at + d] += weights[s] * self.v[key(s) + d];
                    all[1][at + d] += slope * self.k[key(s) + d];
                    all[2][key(s) + d] += slope * q[d];
                    all[3][key(s) + d] += weights[s] * dy[d];
                }
            }
        }
        all
    }

    /// Computes the results by the kernels.
    fn found(&self, threads: usize, inputs: AttentionInputs<'_, f64>) -> Results<f64> {
        let context = Context::new(threads);
        let shape = self.shape;
        let (mut out, mut log_sums) =
            (vec![9.0; self.q.len()], vec![9.0; shape.samples * shape.heads * shape.length]);
        attention_forward(&context, inputs, &mut out, &mut log_sums).expect("fits");
        let mut grads = [&self.q, &self.k, &self.v].map(|of| vec![9.0; of.len()]);
        let [q, k, v] = grads.each_mut().map(|grad| Some(&mut grad[..]));
        let to = AttentionGrads::Apart { q, k, v };
        attention_backward(&context, inputs, [&out, &self.dy], &log_sums, to).expect("fits");
        let mut alone = vec![9.0; self.k.len()];
        let to = AttentionGrads::Apart { q: None, k: Some(&mut alone), v: None };
        attention_backward(&context, inputs, [&out, &self.dy], &log_sums, to).expect("fits");
        assert_eq!(alone, grads[1], "a gradient does not depend on which others are wanted");
        let [q, k, v] = grads;
        [out, q, k, v]
    }
}

fn indices(sizes: [usize; 3]) -> impl Iterator<Item = (usize, usize, usize)> {
    (0..sizes[0]).flat_map(move |a| (0..sizes[1]).flat_map(move |b| (0..sizes[2]).map(move |c| (a, b, c))))
}

fn assert_near(what: &str, found: &[f64], expected: &[f64], tolerance: f64) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (index, (found, expected)) in found.iter().zip(expected).enumerate() {
        assert!((found - expected).abs() < tolerance, "{what}[{index}]: {found} {expected}");
    }
}

/// Sizes of one tile and of several, with heads of their own and shared ones.
fn shapes() -> [AttentionShape; 5] {
    let shape = |[samples, heads, key_heads]: [usize; 3], [length, keys, dim]: [usize; 3]| AttentionShape {
        samples,
        heads,
        key_heads,
        length,
        keys,
        dim,
    };
    [
        shape([2, 1, 1], [3, 5, 4]),
        shape([1, 1, 1], [1, 1, 1]),
        shape([3, 2, 2], [17, 17, 8]),
        shape([2, 4, 2], [70, 300, 6]),
        shape([1, 3, 1], [270, 270, 5]),
    ]
}

#[test]
fn attention_and_its_gradients_are_those_of_plain_loops() {
    for shape in shapes() {
        let AttentionShape { samples, length, keys, .. } = shape;
        let case = Case::new(shape);
        // Some samples have few keys, one none; documents of 7 keys.
        let lengths: Vec<u32> = (0..samples).map(|sample| [keys * 2 / 3, 0, keys][sample] as u32).collect();
        let own = |query: usize| (query + keys).saturating_sub(length);
        let starts: Vec<u32> = (0..samples * length).map(|at| (own(at % length) / 7 * 7) as u32).collect();
        for pattern in 0..16 {
            let [causal, windowed, padded, packed] = [1, 2, 4, 8].map(|bit| pattern & bit != 0);
            let mask = AttentionMask {
                causal,
                window: (windowed && causal).then_some(4),
                lengths: padded.then_some(&lengths),
                starts: packed.then_some(&starts),
            };
            let sees = |sample: usize, query: usize, key: usize| {
                let end = query + 1 + keys;
                (!causal || key + length < end)
                    && (!(windowed && causal) || key + length + 4 >= end.min(length + keys))
                    && (!padded || key < lengths[sample] as usize)
                    && (!packed || key >= starts[sample * length + query] as usize)
            };
            let expected = case.expected(&sees);
            let found = case.found(1, case.inputs(mask, None));
            for ((what, found), expected) in ["out", "dq", "dk", "dv"].iter().zip(&found).zip(&expected) {
                assert_near(&format!("{what} of {shape:?}, {mask:?}"), found, expected, 1e-12);
            }
            assert_eq!(case.found(3, case.inputs(mask, None)), found, "threads change no bit");
        }
    }
}

/// The results of kernels of f32 or of 16 bits, widened.
fn results<E: AttentionElement<Float = f32>>(
    case: &Case,
    context: &Context,
    mask: AttentionMask<'_>,
    narrow: fn(f64) -> E,
    widen: fn(E) -> f64,
) -> Results<f64> {
    let [q, k, v, dy] = [&case.q, &case.k, &case.v, &case.dy]
        .map(|values| values.iter().map(|value| narrow(*value)).collect::<Vec<E>>());
    let operands = AttentionOperands::Apart { q: &q, k: &k, v: &v };
    let inputs = AttentionInputs { shape: case.shape, mask, dropout: None, operands };
    let rows = case.shape.samples * case.shape.heads * case.shape.length;
    let (mut out, mut log_sums) = (vec![narrow(9.0); q.len()], vec![9.0f32; rows]);
    attention_forward(context, inputs, &mut out, &mut log_sums).expect("fits");
    let mut grads = [&q, &k, &v].map(|of| vec![narrow(9.0); of.len()]);
    let to = grads.each_mut().map(|grad| Some(&mut grad[..]));
    let [q, k, v] = to;
    attention_backward(context, inputs, [&out, &dy], &log_sums, AttentionGrads::Apart { q, k, v })
        .expect("fits");
    let [q, k, v] = grads;
    [out, q, k, v].map(|values| values.into_iter().map(widen).collect())
}

/// The results of f32 kernels.
fn singles(case: &Case, context: &Context, mask: AttentionMask<'_>) -> Results<f64> {
    results(case, context, mask, |value| value as f32, f64::from)
}

#[test]
fn operands_of_16_bits_have_the_rounded_results_of_f32() {
    let bits_of = |name: &str, found: &[f64], expected: &[f64], round: fn(f64) -> f64| {
        let expected: Vec<f64> = expected.iter().map(|value| round(*value)).collect();
        assert_eq!(found, expected, "{name}");
    };
    for (length, keys, dim) in [(1, 300, 64), (3, 90, 48), (7, 7, 5), (70, 70, 48), (65, 300, 16)] {
        let shape = AttentionShape { samples: 2, heads: 4, key_heads: 2, length, keys, dim };
        let mask = AttentionMask { causal: true, ..AttentionMask::default() };
        let context = Context::new(2);
        let of_bf16 = |value: f64| f64::from(bf16::from_f64(value));
        let of_f16 = |value: f64| f64::from(f16::from_f64(value));
        for (name, round) in [("bf16", of_bf16 as fn(f64) -> f64), ("f16", of_f16)] {
            let mut case = Case::new(shape);
            for values in [&mut case.q, &mut case.k, &mut case.v, &mut case.dy] {
                values.iter_mut().for_each(|value| *value = round(*value));
            }
            let found = match name {
                "bf16" => results(&case, &context, mask, bf16::from_f64, f64::from),
                _ => results(&case, &context, mask, f16::from_f64, f64::from),
            };
            let expected = singles(&case, &context, mask);
            // Forward has the same bits. Backward reads its rounded output.
            bits_of(&format!("{name} {shape:?}"), &found[0], &expected[0], round);
            for (found, expected) in found.iter().zip(&expected).skip(1) {
                assert_near(&format!("{name} {shape:?}"), found, expected, 0.02);
            }
        }
    }
}

#[test]
fn vectors_of_every_instruction_set_compute_what_f64_does() {
    for (length, keys, dim) in
        [(1, 1, 16), (1, 300, 64), (3, 90, 48), (70, 70, 48), (65, 300, 64), (330, 330, 80)]
    {
        let shape = AttentionShape { samples: 1, heads: 4, key_heads: 2, length, keys, dim };
        let case = Case::new(shape);
        let lengths = [keys as u32 - keys as u32 / 3];
        let masks = [
            AttentionMask::default(),
            AttentionMask { causal: true, ..AttentionMask::default() },
            AttentionMask { causal: true, window: Some(90), ..AttentionMask::default() },
            AttentionMask { lengths: Some(&lengths), ..AttentionMask::default() },
        ];
        for mask in masks {
            let expected = case.found(1, case.inputs(mask, None));
            for level in Level::ALL {
                let Ok(context) = Context::with_level(1, *level) else { continue };
                let found = singles(&case, &context, mask);
                for ((what, found), expected) in ["out", "dq", "dk", "dv"].iter().zip(&found).zip(&expected) {
                    assert_near(&format!("{what} of {shape:?}, {mask:?}, {level:?}"), found, expected, 3e-5);
                }
                let threads = Context::with_level(3, *level).expect("as before");
                assert_eq!(singles(&case, &threads, mask), found, "threads change no bit");
            }
        }
    }
}

#[test]
fn a_joined_projection_has_the_results_of_its_parts() {
    let shape = AttentionShape { samples: 2, heads: 4, key_heads: 2, length: 9, keys: 9, dim: 3 };
    let case = Case::new(shape);
    let join = |[q, k, v]: [&[f64]; 3]| -> Vec<f64> {
        let rows = q.chunks(12).zip(k.chunks(6)).zip(v.chunks(6));
        rows.flat_map(|((q, k), v)| [q, k, v].concat()).collect()
    };
    let mask = AttentionMask { causal: true, ..AttentionMask::default() };
    let [out, q, k, v] = case.found(1, case.inputs(mask, None));
    let joined = join([&case.q, &case.k, &case.v]);
    let inputs = AttentionInputs { operands: AttentionOperands::Joined(&joined), ..case.inputs(mask, None) };
    let context = Context::new(2);
    let (mut found, mut log_sums) = (vec![9.0; out.len()], vec![9.0; 2 * 4 * 9]);
    attention_forward(&context, inputs, &mut found, &mut log_sums).expect("fits");
    assert_eq!(found, out);
    let mut grads = vec![9.0; joined.len()];
    let to = AttentionGrads::Joined(&mut grads);
    attention_backward(&context, inputs, [&out, &case.dy], &log_sums, to).expect("fits");
    assert_eq!(grads, join([&q, &k, &v]));
}

#[test]
fn dropped_weights_are_the_same_in_backward_on_any_split_and_padding() {
    let shape = AttentionShape { samples: 2, heads: 2, key_heads: 1, length: 5, keys: 5, dim: 3 };
    let dropout = Dropout { key: 99, p: 0.4, first_sample: 0, part: None };
    let mask = AttentionMask { causal: true, ..AttentionMask::default() };
    let mut case = Case::new(shape);
    let [out, q, k, v] = case.found(1, case.inputs(mask, Some(dropout)));
    assert_ne!(out, case.found(1, case.inputs(mask, None))[0]);
    // Gradients by finite differences, which have their own forward passes.
    let loss = |case: &Case| -> f64 {
        let (mut out, mut log_sums) = (vec![0.0; case.q.len()], vec![0.0; 20]);
        attention_forward(&Context::new(1), case.inputs(mask, Some(dropout)), &mut out, &mut log_sums)
            .expect("fits");
        out.iter().zip(&case.dy).map(|(y, dy)| y * dy).sum()
    };
    type Of = fn(&mut Case) -> &mut Vec<f64>;
    for (of, grad) in [((|c| &mut c.q) as Of, &q), (|c| &mut c.k, &k), (|c| &mut c.v, &v)] {
        for (index, grad) in grad.iter().enumerate() {
            let before = of(&mut case)[index];
            let [above, below] = [1e-5, -1e-5].map(|step| {
                of(&mut case)[index] = before + step;
                loss(&case)
            });
            of(&mut case)[index] = before;
            assert!(((above - below) / 2e-5 - grad).abs() < 1e-8, "{index}");
        }
    }
    // The second sample alone, with three columns of padding.
    let padded = AttentionShape { samples: 1, length: 8, keys: 8, ..shape };
    let pad = |values: &[f64], len: usize| [&values[values.len() / 2..], &vec![5.0; len]].concat();
    let alone = Case {
        shape: padded,
        q: pad(&case.q, 18),
        k: pad(&case.k, 9),
        v: pad(&case.v, 9),
        dy: pad(&case.dy, 18),
    };
    let second = Dropout { first_sample: 1, ..dropout };
    let found = alone.found(1, alone.inputs(mask, Some(second)));
    assert_near("the second sample", &found[0][..30], &out[30..], 1e-14);
}

#[test]
fn weights_are_dropped_as_often_as_asked() {
    // All weights are 1/keys and all values 1, so an output is the share of weights that were kept, rescaled.
    let shape = AttentionShape { samples: 3, heads: 4, key_heads: 4, length: 60, keys: 500, dim: 1 };
    let (q, k, v) = (vec![0.0; 720], vec![0.0; 6000], vec![1.0; 6000]);
    let dropout = Dropout { key: 5, p: 0.1, first_sample: 0, part: None };
    let inputs = AttentionInputs {
        shape,
        mask: AttentionMask::default(),
        dropout: Some(dropout),
        operands: AttentionOperands::Apart { q: &q, k: &k, v: &v },
    };
    let (mut out, mut log_sums) = (vec![0.0; 720], vec![0.0; 720]);
    attention_forward(&Context::new(2), inputs, &mut out, &mut log_sums).expect("fits");
    let mean = out.iter().sum::<f64>() / 720.0;
    let variance = out.iter().map(|share| (share - 1.0_f64).powi(2)).sum::<f64>() / 720.0;
    let of_share = 0.1 / 0.9 / 500.0;
    assert!((mean - 1.0).abs() < 4.0 * f64::sqrt(of_share / 720.0), "{mean}");
    assert!((variance / of_share - 1.0).abs() < 0.25, "{variance} {of_share}");
}

#[test]
fn wrong_lengths_are_named() {
    let shape = AttentionShape { samples: 1, heads: 2, key_heads: 1, length: 3, keys: 3, dim: 2 };
    let case = Case::new(shape);
    let refused = |inputs: AttentionInputs<'_, f64>| {
        attention_forward(&Context::new(1), inputs, &mut [0.0; 12], &mut [0.0; 6])
            .expect_err("refused")
            .to_string()
    };
    let good = case.inputs(AttentionMask::default(), None);
    let operands = AttentionOperands::Apart { q: &case.q[1..], k: &case.k, v: &case.v };
    assert!(refused(AttentionInputs { operands, ..good }).contains('q'));
    let shape = AttentionShape { key_heads: 3, ..shape };
    assert!(refused(AttentionInputs { shape, ..good }).contains("3 heads of keys"));
    let mask = AttentionMask { lengths: Some(&[1, 2]), ..AttentionMask::default() };
    assert!(refused(AttentionInputs { mask, ..good }).contains("lengths"));
    let mask = AttentionMask { window: Some(2), ..AttentionMask::default() };
    assert!(refused(AttentionInputs { mask, ..good }).contains("window"));
}
