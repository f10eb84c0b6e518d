//! Gradient codecs: compared with plain references and recorded values; damaged messages.

use phalanx_kernels::{
    Context, accumulate_momentum, clear_indices, compress_lossless, decompress_lossless, dequantise_int4,
    dequantise_int8, dequantise_stochastic, fnv1a, gather_indices, int4_len, lossless_bound,
    low_rank_product, orthogonalise, quantise_int4, quantise_int8, quantise_stochastic, random_indices,
    scales_len, scatter_add, sign_decode, sign_encode, sign_len, top_k, uniform,
};
use proptest::prelude::*;

/// Returns the stream of recorded values that are filled by name.
fn stream(name: &str) -> u64 {
    fnv1a(name.as_bytes())
}

/// `len` numbers of [-1, 1) by name.
fn filled(name: &str, len: usize) -> Vec<f32> {
    (0..len).map(|at| 2.0 * uniform(stream(name), at as u64) - 1.0).collect()
}

/// Numbers as gradients are: of many magnitudes, some 0.
fn gradients() -> impl Strategy<Value = Vec<f32>> {
    let one = prop_oneof![4 => -1.0_f32..1.0, 2 => -1e-6_f32..1e-6, 1 => Just(0.0), 1 => -1e20_f32..1e20];
    prop::collection::vec(one, 0..700)
}

fn int8(values: &[f32], chunk: usize) -> (Vec<f32>, Vec<i8>) {
    let (mut scales, mut out) = (vec![0.0; scales_len(values.len(), chunk)], vec![0; values.len()]);
    quantise_int8(&Context::new(1), values, chunk, &mut scales, &mut out).expect("sizes go together");
    (scales, out)
}

#[test]
fn recorded_integers_of_8_bits() {
    let mut x = filled("int8.x", 1000);
    (0..256).for_each(|i| x[256 + i] = (i % 9) as f32 - 4.0 + 0.5);
    x[256] = 127.0;
    x[512..768].fill(0.0);
    x[768..].iter_mut().for_each(|x| *x *= 1e-3);
    let (scales, q) = int8(&x, 256);
    assert_eq!(scales[0], 0.007_871_857);
    assert_eq!(q[..12], [51, -68, 126, -36, 74, -109, 61, -63, 9, -67, 28, 66]);
    assert_eq!(q[..256].iter().map(|q| i32::from(*q)).sum::<i32>(), 2077);
    assert_eq!(q[..256].iter().map(|q| i32::from(*q).pow(2)).sum::<i32>(), 1_356_737);
    // Halves go to the even neighbour: −2.5, −1.5, −0.5, 0.5 … after the 127.
    assert_eq!((scales[1], &q[256..265]), (1.0, &[127, -2, -2, 0, 0, 2, 2, 4, 4][..]));
    assert!(scales[2] == 0.0 && q[512..768].iter().all(|q| *q == 0));
}

#[test]
fn recorded_levels_at_random() {
    let (x, context) = (filled("qsgd.x", 300), Context::new(1));
    for (levels, first, sum) in
        [(4, [1_i8, 0, 0, 1, 1, 0, 0, -1], -12), (127, [9, 9, -5, 11, 10, 7, -7, -8], -54)]
    {
        let (mut norms, mut q) = (vec![0.0; 1], vec![0; 300]);
        quantise_stochastic(&context, (&x, 300), (levels, stream("qsgd.u")), &mut norms, &mut q)
            .expect("fits");
        assert!((norms[0] / 10.091_325 - 1.0).abs() < 1e-6, "{norms:?}");
        assert_eq!(
            (&q[..8], q.iter().map(|q| i32::from(*q)).sum::<i32>()),
            (&first[..], sum),
            "{levels} levels"
        );
    }
}

#[test]
fn levels_at_random_are_right_on_average() {
    let (x, context) = (filled("x", 64), Context::new(1));
    let (mut sum, draws) = (vec![0.0; 64], 4000);
    for draw in 0..draws {
        let (mut norms, mut q) = (vec![0.0; 2], vec![0; 64]);
        quantise_stochastic(&context, (&x, 40), (4, stream("u") ^ draw << 32), &mut norms, &mut q)
            .expect("fits");
        dequantise_stochastic(&context, (&norms, &q), (40, 4), &mut sum, true).expect("fits");
    }
    for (mean, x) in sum.iter().zip(&x) {
        // A level is about a norm of 3.7 over 4; its error's deviation below half of that over √4000.
        assert!((mean / draws as f32 - x).abs() < 0.06, "{mean} over {draws}, not {x}");
    }
}

proptest! {
    #[test]
    fn integers_are_within_half_of_a_step(values in gradients(), half in 1_usize..40) {
        let (context, chunk) = (Context::new(1), 2 * half);
        let (scales, q) = int8(&values, chunk);
        let mut back = vec![1.0; values.len()];
        dequantise_int8(&context, (&scales, &q), chunk, &mut back, true).expect("fits");
        back.iter_mut().for_each(|back| *back -= 1.0);
        let mut plain = vec![0.0; values.len()];
        dequantise_int8(&context, (&scales, &q), chunk, &mut plain, false).expect("fits");
        let (mut scales4, mut bytes) = (scales.clone(), vec![0; int4_len(values.len())]);
        quantise_int4(&context, &values, chunk, &mut scales4, &mut bytes).expect("fits");
        let mut back4 = vec![0.0; values.len()];
        dequantise_int4(&context, (&scales4, &bytes), chunk, &mut back4, false).expect("fits");
        for (at, value) in values.iter().enumerate() {
            let (scale, scale4) = (scales[at / chunk], scales4[at / chunk]);
            prop_assert_eq!(back[at], (plain[at] + 1.0) - 1.0);
            prop_assert!((plain[at] - value).abs() <= scale * 0.5001 + 1e-37, "{value} as {} of {scale}", plain[at]);
            prop_assert!((back4[at] - value).abs() <= scale4 * 0.5001 + 1e-37, "{value} as {} of {scale4}", back4[at]);
        }
    }

    #[test]
    fn what_is_not_finite_stays_so_in_its_chunk(mut values in gradients(), at in any::<prop::sample::Index>(), nan in any::<bool>()) {
        prop_assume!(!values.is_empty());
        let (at, chunk) = (at.index(values.len()), 16);
        values[at] = if nan { f32::NAN } else { f32::NEG_INFINITY };
        let (scales, q) = int8(&values, chunk);
        let mut back = vec![0.0; values.len()];
        dequantise_int8(&Context::new(1), (&scales, &q), chunk, &mut back, false).expect("fits");
        prop_assert!(!back[at].is_finite());
        let elsewhere = (0..values.len()).filter(|other| other / chunk != at / chunk);
        prop_assert!(elsewhere.into_iter().all(|other| back[other].is_finite()));
    }

    #[test]
    fn signs_with_the_mean_magnitude(values in gradients(), eighth in 1_usize..9) {
        let (context, chunk) = (Context::new(1), 8 * eighth);
        let (mut scales, mut bits) = (vec![0.0; scales_len(values.len(), chunk)], vec![0; sign_len(values.len())]);
        sign_encode(&context, &values, chunk, &mut scales, &mut bits).expect("fits");
        let mut back = vec![0.0; values.len()];
        sign_decode(&context, (&scales, &bits), chunk, &mut back, false).expect("fits");
        for (values, back) in values.chunks(chunk).zip(back.chunks(chunk)) {
            let mean = values.iter().map(|v| f64::from(v.abs())).sum::<f64>() / values.len() as f64;
            for (value, back) in values.iter().zip(back) {
                prop_assert_eq!(*value < 0.0, back.is_sign_negative());
                prop_assert!((f64::from(back.abs()) - mean).abs() <= 1e-6 * mean);
            }
        }
    }

    #[test]
    fn floats_come_back_bit_by_bit(bits in prop::collection::vec(any::<u32>(), 0..400), spread in gradients()) {
        for values in [bits.iter().map(|bits| f32::from_bits(*bits)).collect::<Vec<_>>(), spread] {
            let mut message = vec![7];
            compress_lossless(&Context::new(1), &values, &mut message);
            prop_assert!(message.len() <= 1 + lossless_bound(values.len()));
            let mut back = vec![0.0; values.len()];
            decompress_lossless(&Context::new(1), &message[1..], &mut back).expect("sound");
            let same = values.iter().zip(&back).all(|(a, b)| a.to_bits() == b.to_bits());
            prop_assert!(same);
        }
    }

    #[test]
    fn damaged_messages_are_errors_or_other_numbers(at in any::<prop::sample::Index>(), to in any::<u8>(), cut in any::<prop::sample::Index>()) {
        let values: Vec<f32> = filled("damage", 3000).iter().map(|value| value * value * value).collect();
        let mut message = Vec::new();
        compress_lossless(&Context::new(1), &values, &mut message);
        prop_assert!(message.len() < lossless_bound(3000) * 9 / 10, "{} bytes", message.len());
        let mut back = vec![0.0; 3000];
        prop_assert!(decompress_lossless(&Context::new(1), &message[..cut.index(message.len())], &mut back).is_err());
        let at = at.index(message.len());
        message[at] = to;
        // It must not panic; mantissas have no checksum.
        let _ = decompress_lossless(&Context::new(1), &message, &mut back);
    }

    #[test]
    fn the_largest_are_those_of_a_sort(seed in any::<u64>(), len in 1_usize..200_000, part in 0.0_f64..1.0, few in any::<bool>()) {
        // Of few different magnitudes, so that there are ties.
        let values: Vec<f32> = (0..len as u64).map(|at| {
            let value = uniform(seed, at) - 0.5;
            if few { (value * 8.0).round() } else { value * value * value }
        }).collect();
        let k = (part * part * part * len as f64) as usize;
        let mut found = Vec::new();
        top_k(&Context::new(1), &values, k, &mut found).expect("there are as many");
        let mut all: Vec<u32> = (0..len as u32).collect();
        all.sort_by(|a, b| values[*b as usize].abs().total_cmp(&values[*a as usize].abs()).then(a.cmp(b)));
        let mut expected = all[..k].to_vec();
        expected.sort_unstable();
        prop_assert_eq!(found, expected);
    }

    #[test]
    fn drawn_indices_are_rising_and_below(base in any::<u64>(), len in 0_usize..5000, k in 0_usize..5000) {
        let drawn = random_indices(base, len, k);
        prop_assert_eq!(drawn.len(), k.min(len));
        prop_assert!(drawn.windows(2).all(|pair| pair[0] < pair[1]));
        prop_assert!(drawn.last().is_none_or(|last| (*last as usize) < len));
    }

    #[test]
    fn columns_become_orthonormal_and_products_are_those_of_a_loop(seed in any::<u64>(), rows in 1_usize..40, columns in 1_usize..30, rank in 1_usize..5) {
        let draw = |from: u64, len: usize| (0..len as u64).map(|at| uniform(seed ^ from, at) - 0.5).collect::<Vec<f32>>();
        let (mut p, q) = (draw(1 << 60, rows * rank), draw(2 << 60, columns * rank));
        let mut out = vec![f32::NAN; rows * columns];
        low_rank_product(&Context::new(1), &p, &q, rank, &mut out).expect("fits");
        for row in 0..rows {
            for column in 0..columns {
                let mut exact = 0.0;
                (0..rank).for_each(|at| exact += f64::from(p[row * rank + at]) * f64::from(q[column * rank + at]));
                prop_assert!((f64::from(out[row * columns + column]) - exact).abs() < 1e-6);
            }
        }
        orthogonalise(&mut p, rank).expect("whole rows");
        for a in 0..rank.min(rows) {
            for b in 0..=a {
                let dot: f64 = p.chunks(rank).map(|row| f64::from(row[a]) * f64::from(row[b])).sum();
                // Columns that happen to be nearly dependent lose digits.
                prop_assert!((dot - f64::from(u8::from(a == b))).abs() < 0.05, "{a}·{b} = {dot}");
            }
        }
    }
}

#[test]
fn one_run_of_drawn_indices_covers_all() {
    let mut seen = vec![0; 100];
    (0..2000).for_each(|base| {
        random_indices(stream("r") ^ base << 20, 100, 7).iter().for_each(|at| seen[*at as usize] += 1);
    });
    // 140 are expected of each.
    assert!(seen.iter().all(|seen| (80..220).contains(seen)), "{seen:?}");
}

#[test]
fn momentum_is_added_before_what_is_sent_is_cleared() {
    let (mut u, mut v) = (vec![1.0, 2.0, 0.0], vec![10.0, 0.0, -1.0]);
    accumulate_momentum(&Context::new(1), 0.5, &[1.0, 0.0, 4.0], &mut u, &mut v).expect("as many");
    assert_eq!((u.as_slice(), v.as_slice()), (&[1.5, 1.0, 4.0][..], &[11.5, 1.0, 3.0][..]));
    let mut sent = [0.0; 2];
    gather_indices(&v, &[0, 2], &mut sent).expect("there");
    [&mut u, &mut v].into_iter().for_each(|of| clear_indices(&[0, 2], of).expect("there"));
    assert_eq!((sent, u, v), ([11.5, 3.0], vec![0.0, 1.0, 0.0], vec![0.0, 1.0, 0.0]));
    let mut sum = vec![1.0; 3];
    scatter_add(&[0, 2], &sent, &mut sum).expect("there");
    assert_eq!(sum, [12.5, 1.0, 4.0]);
    assert!(scatter_add(&[3], &[1.0], &mut sum).is_err() && gather_indices(&sum, &[9], &mut [0.0]).is_err());
}

#[test]
fn sizes_that_do_not_go_together_are_named() {
    let context = Context::new(1);
    let said =
        quantise_int8(&context, &[1.0; 5], 2, &mut [0.0; 2], &mut [0; 5]).expect_err("three").to_string();
    assert_eq!(said, "quantise_int8: `scales` has 2 elements; the shape needs 3");
    assert!(quantise_int4(&context, &[1.0; 3], 3, &mut [0.0], &mut [0; 2]).is_err());
    assert!(sign_encode(&context, &[1.0; 3], 4, &mut [0.0], &mut [0]).is_err());
    assert!(top_k(&context, &[1.0], 2, &mut Vec::new()).is_err());
}
