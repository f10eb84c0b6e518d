//! Exact sums of squares: the CPU's digits and values, for any partition of an array.

use phalanx_cuda::kernels::{exact_squares, exact_squares_value};
use phalanx_cuda::{ElementType, Gpu};
use phalanx_kernels::ExactSquares;

use super::inputs::{LENGTHS, cpu, on_gpu};

/// Returns numbers of all magnitudes, including subnormal ones; neighbours rarely have similar magnitudes.
fn numbers(seed: u32, count: usize) -> Vec<f32> {
    let mut state = seed;
    let number = |_| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let value = f32::from_bits(state ^ state >> 15);
        if value.is_finite() { value } else { 0.0 }
    };
    (0..count).map(number).collect()
}

fn on_cpu(values: &[f32]) -> ExactSquares {
    let mut squares = ExactSquares::default();
    squares.add(&cpu(), values);
    squares
}

/// Returns the GPU's digits, and their value.
fn found(gpu: &Gpu, values: &[f32]) -> (Vec<f64>, f64) {
    let digits = exact_squares(gpu, &gpu.upload(values).unwrap()).unwrap();
    (gpu.download(&digits).unwrap(), value_of(gpu, &gpu.download(&digits).unwrap()))
}

fn value_of(gpu: &Gpu, digits: &[f64]) -> f64 {
    let value = exact_squares_value(gpu, &gpu.upload(digits).unwrap()).unwrap();
    gpu.download(&value).unwrap()[0]
}

#[test]
fn squares_are_added_without_rounding() {
    on_gpu(|gpu| {
        for len in LENGTHS.into_iter().chain([0, 1, 100_003]) {
            for (what, values) in [
                ("all magnitudes", numbers(7, len)),
                (
                    "gradients",
                    numbers(9, len).iter().map(|value| (value.to_bits() as f32).sin() * 1e-3).collect(),
                ),
                ("ones", vec![1.0; len]),
                ("the largest", vec![f32::MAX; len]),
                ("the smallest", vec![f32::from_bits(1); len]),
            ] {
                let expected = on_cpu(&values);
                let (digits, value) = found(gpu, &values);
                assert_eq!(digits, expected.digits(), "{what}, {len}");
                assert_eq!(value.to_bits(), expected.value().to_bits(), "{what}, {len}: {value}");
            }
        }
        // An unaligned array, and the added digits of its parts.
        let values = numbers(11, 5000);
        let whole = gpu.upload(&values).unwrap();
        let mut sums = vec![0.0; ExactSquares::DIGITS];
        for part in [0..1, 1..1, 1..1234, 1234..5000] {
            let digits = exact_squares(gpu, &whole.view(part).unwrap()).unwrap();
            sums.iter_mut().zip(gpu.download::<f64>(&digits).unwrap()).for_each(|(sum, digit)| *sum += digit);
        }
        assert_eq!(value_of(gpu, &sums).to_bits(), on_cpu(&values).value().to_bits());
    });
}

#[test]
fn nan_and_infinity_are_reported_and_other_types_refused() {
    on_gpu(|gpu| {
        let with = |value: f32| [vec![1.0; 300], vec![value], vec![2.0; 300]].concat();
        assert_eq!(found(gpu, &with(f32::NEG_INFINITY)).1, f64::INFINITY);
        assert!(found(gpu, &with(f32::NAN)).1.is_nan());
        assert_eq!(found(gpu, &with(f32::NAN)).0, on_cpu(&with(f32::NAN)).digits());
        let halves = gpu.zeros(ElementType::Bf16, 4).unwrap();
        let error = exact_squares(gpu, &halves).unwrap_err().to_string();
        assert!(error.contains("exact_squares") && error.contains("f32"), "{error}");
        let few = gpu.upload(&[1.0_f64]).unwrap();
        assert!(exact_squares_value(gpu, &few).is_err());
    });
}
