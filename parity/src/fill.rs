//! The fill of the reference files, `splitmix64-v1`: every tensor is a function of its name.

/// 2^64 divided by the golden ratio.
const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;

/// Returns the first value of the counter of the tensor `name`.
pub fn base(name: &str, seed: u64) -> u64 {
    phalanx_kernels::fnv1a(name.as_bytes()).wrapping_add(seed.wrapping_mul(GOLDEN))
}

/// Returns `n` uniform numbers in [-scale, scale) for the tensor `name`.
pub fn sym(name: &str, seed: u64, n: usize, scale: f64) -> Vec<f32> {
    let start = base(name, seed);
    (1..=n as u64)
        .map(|i| {
            let z = start.wrapping_add(i.wrapping_mul(GOLDEN));
            let z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
            let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
            let z = z ^ (z >> 31);
            let u = (z >> 40) as f64 / f64::from(1 << 24);
            ((2.0 * u - 1.0) * scale) as f32
        })
        .collect()
}

/// Returns the values of a model's parameter by its name and shape.
pub fn parameter(name: &str, seed: u64, dims: &[usize]) -> Vec<f32> {
    let n: usize = dims.iter().product();
    match dims {
        [_] | [] if name.ends_with("weight") => {
            // `1 + s` is computed before rounding, as in the formula.
            sym64(name, seed, n, 0.1).map(|s| (1.0 + s) as f32).collect()
        }
        [_] | [] => sym(name, seed, n, 0.1),
        [.., width] if name.contains("embedding") => sym(name, seed, n, (3.0 / *width as f64).sqrt()),
        [rows, ..] => sym(name, seed, n, (3.0 / (n / rows) as f64).sqrt()),
    }
}

fn sym64(name: &str, seed: u64, n: usize, scale: f64) -> impl Iterator<Item = f64> {
    sym(name, seed, n, 1.0).into_iter().map(move |u| f64::from(u) * scale)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_lie_in_range_and_depend_on_name_and_seed() {
        let values = sym("w", 0, 1000, 0.5);
        assert!(values.iter().all(|v| (-0.5..0.5).contains(v)));
        let mean = values.iter().sum::<f32>() / 1000.0;
        assert!(mean.abs() < 0.03, "{mean}");
        assert_ne!(values, sym("v", 0, 1000, 0.5));
        assert_ne!(values, sym("w", 1, 1000, 0.5));
        assert_eq!(values[..10], sym("w", 0, 10, 0.5));
        assert!(parameter("bn.weight", 0, &[64]).iter().all(|v| (0.9..1.1).contains(v)));
        assert!(parameter("bn.bias", 0, &[64]).iter().all(|v| (-0.1..0.1).contains(v)));
    }
}
