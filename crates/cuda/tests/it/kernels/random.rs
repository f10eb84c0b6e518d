//! Random numbers: those of the CPU's generator, for any part of a stream.

use phalanx_cuda::ElementType;
use phalanx_cuda::kernels::{Dropout, SamplePart, StreamKey, dropout, normal, uniform};
use phalanx_kernels as cpu;
use rand::{Rng as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

use super::inputs::{Draw, FLOATS, assert_close, assert_within, download, on_gpu};

const KEYS: [StreamKey; 3] = [
    StreamKey { seed: 7, step: 3, rank: 0, stream: 0x1234_5678_9abc_def0 },
    StreamKey { seed: u64::MAX, step: 1 << 40, rank: 5, stream: u64::MAX },
    StreamKey { seed: 0, step: 0, rank: 0, stream: 0 },
];

/// The first element and the length of a part; the last is beyond 2³² blocks.
const PARTS: [(usize, usize); 9] =
    [(0, 1), (0, 16), (1, 1), (1, 40), (13, 3), (15, 2), (16, 5000), (1001, 777), ((1 << 36) + 5, 100)];

/// Returns the words of `phalanx_tensor::Key`.
fn words(key: StreamKey, start: usize, count: usize) -> Vec<u32> {
    let mut seed = [0_u8; 32];
    seed[..8].copy_from_slice(&key.seed.to_le_bytes());
    seed[8..16].copy_from_slice(&key.step.to_le_bytes());
    seed[16..24].copy_from_slice(&key.rank.to_le_bytes());
    let mut rng = ChaCha8Rng::from_seed(seed);
    rng.set_stream(key.stream);
    rng.set_word_pos(start as u128);
    (0..count).map(|_| rng.next_u32()).collect()
}

#[test]
fn uniform_numbers_are_those_of_the_cpu() {
    on_gpu(|gpu| {
        for key in KEYS {
            for (start, count) in PARTS {
                let expected: Vec<f64> =
                    words(key, start, count).iter().map(|word| f64::from(*word) / 4_294_967_296.0).collect();
                let drawn = gpu.download::<f64>(&uniform(gpu, key, start, count).unwrap()).unwrap();
                assert_eq!(drawn, expected, "{key:?} {start} {count}");
            }
        }
        assert_eq!(uniform(gpu, KEYS[0], 3, 0).unwrap().len(), 0);
    });
}

#[test]
fn normal_numbers_follow_from_pairs_of_words() {
    on_gpu(|gpu| {
        for key in KEYS {
            for (start, count) in PARTS {
                let first = start - start % 2;
                let pairs = words(key, first, count + 2);
                let all: Vec<f64> = pairs
                    .chunks_exact(2)
                    .flat_map(|pair| {
                        let u = (f64::from(pair[0]) + 1.0) / 4_294_967_296.0;
                        let angle = f64::from(pair[1]) * (std::f64::consts::TAU / 4_294_967_296.0);
                        let radius = (-2.0 * u.ln()).sqrt();
                        [radius * angle.cos(), radius * angle.sin()]
                    })
                    .chain([0.0])
                    .collect();
                let expected = &all[start - first..][..count];
                for dtype in FLOATS {
                    let drawn = normal(gpu, key, start, count, dtype).unwrap();
                    assert_within(gpu, &format!("{start} {count}"), &drawn, expected, 1e-6);
                }
            }
        }
        // Words at both ends of the logarithm: far out, and near 0 where f32 has few digits of 1 − u.
        let whole = normal(gpu, KEYS[0], 0, 200_000, ElementType::F32).unwrap();
        let numbers = download(gpu, &whole);
        let mean = numbers.iter().sum::<f64>() / 2e5;
        let variance = numbers.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / 2e5;
        assert!(mean.abs() < 1e-2 && (variance - 1.0).abs() < 1.5e-2, "{mean} {variance}");
    });
}

/// Returns `phalanx_tensor::Key::hash`, from which the CPU's kernels draw dropout.
pub(super) fn hash(key: StreamKey) -> u64 {
    const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
    let mix = |z: u64| {
        let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    };
    let words = [key.seed, key.step, key.rank, key.stream];
    words.into_iter().fold(0_u64, |hash, word| mix(mix(hash.wrapping_add(GOLDEN)).wrapping_add(word)))
}

#[test]
fn dropout_keeps_the_elements_that_the_cpu_keeps() {
    on_gpu(|gpu| {
        let mut draw = Draw::new(31);
        for dtype in FLOATS {
            for (samples, len) in [(1, 1), (8, 1), (5, 51), (1, 1027), (3, 700)] {
                for (key, p) in [(KEYS[0], 0.3), (KEYS[1], 0.0), (KEYS[2], 0.9)] {
                    let (x, x_gpu) = draw.slice(gpu, dtype, samples * len);
                    let mut expected = vec![0.0; x.len()];
                    let of = cpu::Dropout { key: hash(key), p, first_sample: 6, part: None };
                    cpu::dropout(&super::inputs::cpu(), of, samples, &x, &mut expected).expect("fits");
                    let y = dropout(gpu, &x_gpu, samples, Dropout { key, p, first_sample: 6, part: None })
                        .unwrap();
                    assert_close(gpu, "dropout", &y, &expected);
                }
            }
        }
        // Of runs of 30 elements 13, in samples of 40 runs.
        let (first, own, all) = (7, 13, 30);
        let (x, x_gpu) = draw.slice(gpu, ElementType::F32, 3 * 40 * own);
        let mut expected = vec![0.0; x.len()];
        let part = Some(cpu::SamplePart { first, own, all });
        let of = cpu::Dropout { key: hash(KEYS[0]), p: 0.3, first_sample: 2, part };
        cpu::dropout(&super::inputs::cpu(), of, 3, &x, &mut expected).expect("fits");
        let part = Some(SamplePart { first, own, all });
        let y = dropout(gpu, &x_gpu, 3, Dropout { key: KEYS[0], p: 0.3, first_sample: 2, part }).unwrap();
        assert_close(gpu, "dropout of parts", &y, &expected);
        let x = gpu.zeros(ElementType::F32, 7).unwrap();
        let of = Dropout { key: KEYS[0], p: 0.5, first_sample: 0, part: None };
        assert!(dropout(gpu, &x, 2, of).unwrap_err().to_string().contains("2 samples"));
    });
}
