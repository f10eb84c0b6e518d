//! The normal distribution: its cumulative distribution function and the inverse.

use std::f64::consts::{PI, SQRT_2};

/// Returns the probability of values below `x`.
pub(super) fn cumulative(x: f64) -> f64 {
    0.5 * libm::erfc(-x / SQRT_2)
}

/// Returns the value below which values have probability `p`: P. J. Acklam's rational approximation, refined by a step of
/// Halley's method to about 1e-15.
pub(super) fn quantile(p: f64) -> f64 {
    if p <= 0.0 {
        return f64::NEG_INFINITY;
    }
    if p >= 1.0 {
        return f64::INFINITY;
    }
    let x = approximate(p);
    let error = cumulative(x) - p;
    let newton = error * (2.0 * PI).sqrt() * (0.5 * x * x).exp();
    x - newton / (1.0 + 0.5 * x * newton)
}

const A: [f64; 6] = [
    -3.969_683_028_665_376e1,
    2.209_460_984_245_205e2,
    -2.759_285_104_469_687e2,
    1.383_577_518_672_69e2,
    -3.066_479_806_614_716e1,
    2.506_628_277_459_239,
];
const B: [f64; 6] = [
    -5.447_609_879_822_406e1,
    1.615_858_368_580_409e2,
    -1.556_989_798_598_866e2,
    6.680_131_188_771_972e1,
    -1.328_068_155_288_572e1,
    1.0,
];
const C: [f64; 6] = [
    -7.784_894_002_430_293e-3,
    -3.223_964_580_411_365e-1,
    -2.400_758_277_161_838,
    -2.549_732_539_343_734,
    4.374_664_141_464_968,
    2.938_163_982_698_783,
];
const D: [f64; 5] =
    [7.784_695_709_041_462e-3, 3.224_671_290_700_398e-1, 2.445_134_137_142_996, 3.754_408_661_907_416, 1.0];

/// Returns the quantile with a relative error of 1.15e-9.
fn approximate(p: f64) -> f64 {
    const TAIL: f64 = 0.024_25;
    let polynomial = |of: &[f64], x: f64| of.iter().fold(0.0, |sum, coefficient| sum * x + coefficient);
    if p > 1.0 - TAIL {
        return -approximate(1.0 - p);
    }
    if p < TAIL {
        let q = (-2.0 * p.ln()).sqrt();
        return polynomial(&C, q) / polynomial(&D, q);
    }
    let q = p - 0.5;
    q * polynomial(&A, q * q) / polynomial(&B, q * q)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_of_the_normal_distribution() {
        for (x, p) in [
            (0.0, 0.5),
            (1.0, 0.841_344_746_068_542_9),
            (-1.959_963_984_540_054, 0.025),
            (3.0, 0.998_650_101_968_369_9),
            (-5.0, 2.866_515_718_791_94e-7),
        ] {
            assert!((cumulative(x) - p).abs() < 1e-15, "{x}: {}", cumulative(x));
            assert!((quantile(p) - x).abs() < 1e-9, "{p}: {}", quantile(p));
        }
        for step in 1..1000 {
            let p = f64::from(step) / 1000.0;
            assert!((cumulative(quantile(p)) - p).abs() < 1e-14, "{p}");
        }
        assert_eq!((quantile(0.0), quantile(1.0)), (f64::NEG_INFINITY, f64::INFINITY));
    }
}
