//! Elementary functions in forms that the compiler can vectorise.

/// The least number whose exponential is a normal f32.
const LOWEST: f32 = -87.336_55;

/// eˣ in f32: 2ⁿ·e^r with r in ±ln 2/2 and the polynomial of Cephes' `expf`; within 2 units in the last place.
#[inline(always)]
pub(crate) fn exp_f32(x: f32) -> f32 {
    // Beyond these the result is 0 or infinity.
    let clamped = if x > 88.722_84 { 88.722_84 } else { x };
    let Reduced { value, n } = reduced(if clamped < LOWEST { LOWEST } else { clamped });
    // 2ⁿ in two factors: n = 128 alone would overflow the exponent.
    let half = n >> 1;
    let value = value * power_of_2(half) * power_of_2(n - half);
    let value = if x < -103.972_08 { 0.0 } else { value };
    let value = if x > 88.722_84 { f32::INFINITY } else { value };
    if x.is_nan() { x } else { value }
}

/// eˣ of a number up to 1, in f32: as [`exp_f32`], but 0 below 2⁻¹²⁶. Without the cases of large numbers it takes two thirds of the
/// instructions.
#[inline(always)]
pub(crate) fn exp_f32_up_to_1(x: f32) -> f32 {
    let Reduced { value, n } = reduced(if x < LOWEST { LOWEST } else { x });
    let value = value * power_of_2(n);
    if x < LOWEST { 0.0 } else { value }
}

/// An exponential is `value`·2ⁿ.
struct Reduced {
    value: f32,
    n: i32,
}

#[inline(always)]
fn reduced(x: f32) -> Reduced {
    // Adding 1.5·2²³ rounds to the nearest integer, which is then in the low bits.
    const SHIFT: f32 = 12_582_912.0;
    let shifted = x * std::f32::consts::LOG2_E + SHIFT;
    let n = shifted - SHIFT;
    // ln 2 in two parts, so that the reduction is exact.
    let r = x - n * 0.693_359_4;
    let r = r - n * -2.121_944_4e-4;
    let p = 1.987_569_2e-4_f32;
    let p = p * r + 1.398_199_9e-3;
    let p = p * r + 8.333_452e-3;
    let p = p * r + 4.166_579_6e-2;
    let p = p * r + 0.166_666_65;
    let p = p * r + 0.5;
    Reduced { value: p * r * r + r + 1.0, n: shifted.to_bits().wrapping_sub(SHIFT.to_bits()) as i32 }
}

#[inline(always)]
fn power_of_2(n: i32) -> f32 {
    f32::from_bits((n.wrapping_add(127) as u32) << 23)
}

/// erf in f64: its Taylor series near zero, the continued fraction of erfc beyond 2.5.
pub(crate) fn erf_f64(x: f64) -> f64 {
    let a = x.abs();
    if a.is_nan() {
        return x;
    }
    let value = if a < 2.5 {
        // Σ (−1)ⁿ x²ⁿ⁺¹ / (n! (2n+1)) · 2/√π in its all-positive form: e^(−x²) Σ 2ⁿ x²ⁿ⁺¹ / (2n+1)!!
        let (mut term, mut sum, mut n) = (a, a, 0.0);
        while term > sum * 1e-17 {
            n += 1.0;
            term *= 2.0 * a * a / (2.0 * n + 1.0);
            sum += term;
        }
        std::f64::consts::FRAC_2_SQRT_PI * (-a * a).exp() * sum
    } else if a > 6.0 {
        1.0
    } else {
        let fraction = (1..60).rev().fold(a, |f, k| a + f64::from(k) * 0.5 / f);
        1.0 - (-a * a).exp() / (fraction * std::f64::consts::PI.sqrt())
    };
    if x < 0.0 { -value } else { value }
}

/// erf in f32 by formula 7.1.26 of Abramowitz & Stegun, whose error is below 1.5e-7, with a series near zero
/// where that error would be large relative to the value.
#[inline(always)]
pub(crate) fn erf_f32(x: f32) -> f32 {
    let a = x.abs();
    let t = 1.0 / (1.0 + 0.327_591_1 * a);
    let p = 1.061_405_4_f32;
    let p = p * t - 1.453_152;
    let p = p * t + 1.421_413_7;
    let p = p * t - 0.284_496_74;
    let p = p * t + 0.254_829_6;
    let far = 1.0 - p * t * exp_f32(-a * a);
    let s = a * a;
    let near =
        std::f32::consts::FRAC_2_SQRT_PI * a * (1.0 + s * (-0.333_333_34 + s * (0.1 + s * -0.023_809_524)));
    let value = if a < 0.25 { near } else { far };
    if x < 0.0 { -value } else { value }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_accurate_over_its_whole_range() {
        let mut worst = 0.0_f64;
        for i in -870_000..=887_000 {
            let x = i as f32 * 1e-4;
            let exact = f64::from(x).exp();
            worst = worst.max((f64::from(exp_f32(x)) / exact - 1.0).abs());
            if (LOWEST..=1.0).contains(&x) {
                assert_eq!(exp_f32_up_to_1(x).to_bits(), exp_f32(x).to_bits(), "{x}");
            }
        }
        assert!(worst < 3e-7, "{worst:e}");
        assert_eq!(exp_f32(0.0), 1.0);
        assert_eq!(exp_f32(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp_f32(f32::INFINITY), f32::INFINITY);
        assert_eq!(exp_f32(100.0), f32::INFINITY);
        assert_eq!(exp_f32(-200.0), 0.0);
        assert!(exp_f32(f32::NAN).is_nan() && exp_f32_up_to_1(f32::NAN).is_nan());
        assert_eq!([-88.0, -1e9, f32::MIN, f32::NEG_INFINITY].map(exp_f32_up_to_1), [0.0; 4]);
    }

    #[test]
    fn erf_matches_known_values() {
        // From tables of the error function.
        let known = [
            (0.1, 0.112_462_916_018_284_9),
            (0.5, 0.520_499_877_813_046_5),
            (1.0, 0.842_700_792_949_714_9),
            (2.0, 0.995_322_265_018_952_7),
            (2.4, 0.999_311_486_103_354_9),
            (3.0, 0.999_977_909_503_001_4),
        ];
        for (x, y) in known {
            assert!((erf_f64(x) - y).abs() < 1e-14, "erf({x}) = {}", erf_f64(x));
            assert!((erf_f64(-x) + y).abs() < 1e-14);
            assert!((f64::from(erf_f32(x as f32)) - y).abs() < 4e-7, "erf32({x})");
        }
        assert_eq!(erf_f64(0.0), 0.0);
        assert!(erf_f64(f64::NAN).is_nan());
    }
}
