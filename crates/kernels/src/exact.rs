//! Sums of squares without rounding: the same bits in any order and for any division into parts.
//!
//! A square of an f32 is a 48-bit integer times a power of two. The sum is one long fixed-point number in 32-bit limbs (the
//! long accumulator of Kulisch 2013). Addition is exact and therefore independent of the order. [`ExactSquares::value`] rounds
//! once.

use crate::context::Context;

/// Limbs of the fixed-point number: squares of f32 lie from 2⁻²⁹⁸ to 2²⁵⁶, and 2⁴⁶ of them need two limbs more.
const LIMBS: usize = 20;
/// Bits of a limb.
const BITS: u32 = 32;
/// The exponent of the lowest bit.
const LOWEST: i32 = -298;
/// Elements of a task.
const PIECE: usize = 1 << 16;

/// The exact sum of the squares of many f32.
///
/// ```
/// use phalanx_kernels::{Context, ExactSquares};
///
/// let mut whole = ExactSquares::default();
/// whole.add(&Context::new(1), &[1e20, 3.0, 1e-20, 4.0]);
/// let mut parts = ExactSquares::default();
/// parts.add(&Context::new(2), &[1e-20, 4.0]);
/// parts.add(&Context::new(1), &[3.0, 1e20]);
/// assert_eq!(whole, parts);
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ExactSquares {
    /// Limb `k` counts 2^(32·k − 298). Below 2³² each.
    limbs: [u64; LIMBS],
    /// The number of infinite elements, and of NaN.
    infinite: u64,
    nan: u64,
}

impl ExactSquares {
    /// The length of [`ExactSquares::digits`].
    pub const DIGITS: usize = LIMBS + 2;

    /// Adds the squares of all elements.
    pub fn add(&mut self, context: &Context, values: &[f32]) {
        let mut partial = vec![Self::default(); values.len().div_ceil(PIECE)];
        context.run_chunks(&mut partial, 1, |index, out| {
            out[0] = piece(&values[index * PIECE..((index + 1) * PIECE).min(values.len())]);
        });
        for partial in partial {
            self.limbs.iter_mut().zip(partial.limbs).for_each(|(own, other)| *own += other);
            self.infinite += partial.infinite;
            self.nan += partial.nan;
            self.carry();
        }
    }

    /// Returns the sum as whole numbers below 2³² in f64.
    ///
    /// The element-wise sum over several parts gives the digits of the whole: f64 adds whole numbers exactly up to 2⁵³, which
    /// suffices for two million parts.
    pub fn digits(&self) -> [f64; Self::DIGITS] {
        let mut digits = [0.0; Self::DIGITS];
        digits.iter_mut().zip(self.limbs).for_each(|(digit, limb)| *digit = limb as f64);
        digits[LIMBS] = self.infinite as f64;
        digits[LIMBS + 1] = self.nan as f64;
        digits
    }

    /// Restores a sum from its [`ExactSquares::digits`], or from the sums of the digits of its parts.
    pub fn from_digits(digits: &[f64; Self::DIGITS]) -> Self {
        let mut sum = Self::default();
        sum.limbs.iter_mut().zip(digits).for_each(|(limb, digit)| *limb = *digit as u64);
        sum.infinite = digits[LIMBS] as u64;
        sum.nan = digits[LIMBS + 1] as u64;
        sum.carry();
        sum
    }

    /// Returns the sum, rounded down to f64's 53 bits. It is infinite or NaN if an element was.
    pub fn value(&self) -> f64 {
        if self.nan > 0 {
            return f64::NAN;
        }
        if self.infinite > 0 {
            return f64::INFINITY;
        }
        let Some(top) = self.limbs.iter().rposition(|limb| *limb > 0) else { return 0.0 };
        // Three limbs have 65 bits at least.
        let low = top.saturating_sub(2);
        let bits =
            self.limbs[low..=top].iter().rev().fold(0_u128, |bits, limb| bits << BITS | u128::from(*limb));
        let surplus = (128 - bits.leading_zeros()).saturating_sub(f64::MANTISSA_DIGITS);
        // The rest has at most 53 bits, as f64 has.
        let exponent = BITS as i32 * low as i32 + LOWEST + surplus as i32;
        (bits >> surplus) as f64 * 2.0_f64.powi(exponent)
    }

    /// Carries, so that limbs are below 2³² again.
    fn carry(&mut self) {
        let mut over = 0;
        for limb in &mut self.limbs {
            let sum = *limb + over;
            (*limb, over) = (sum & u64::from(u32::MAX), sum >> BITS);
        }
    }
}

/// The sum of the squares of at most [`PIECE`] elements.
fn piece(values: &[f32]) -> ExactSquares {
    // The products that begin in each limb: 2¹⁶ of at most 48 + 31 bits.
    let mut sums = [0_u128; LIMBS];
    let (mut infinite, mut nan) = (0, 0);
    for value in values {
        let bits = value.to_bits();
        let (exponent, fraction) = (bits >> 23 & 0xff, u64::from(bits & 0x7f_ffff));
        if exponent == 0xff {
            if fraction == 0 {
                infinite += 1;
            } else {
                nan += 1;
            }
            continue;
        }
        // value = mantissa · 2^(power − 149).
        let (mantissa, power) =
            if exponent == 0 { (fraction, 0) } else { (fraction | 1 << 23, exponent - 1) };
        let at = 2 * power;
        sums[(at / BITS) as usize] += u128::from(mantissa * mantissa) << (at % BITS);
    }
    let mut sum = ExactSquares { infinite, nan, ..ExactSquares::default() };
    let mut over = 0_u128;
    for (limb, of_limb) in sum.limbs.iter_mut().zip(sums) {
        let all = of_limb + over;
        (*limb, over) = ((all & u128::from(u32::MAX)) as u64, all >> BITS);
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers of all magnitudes.
    fn numbers(count: u32) -> Vec<f32> {
        let mut state = 7_u32;
        let number = |_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let value = f32::from_bits(state);
            if value.is_finite() { value } else { 1.0 }
        };
        (0..count).map(number).collect()
    }

    #[test]
    fn no_order_and_no_cut_changes_a_bit() {
        let values = numbers(200_001);
        let mut whole = ExactSquares::default();
        whole.add(&Context::new(1), &values);
        let mut backwards: Vec<f32> = values.iter().rev().copied().collect();
        for cut in [0, 1, 77_777, 200_001] {
            let mut digits = [0.0; ExactSquares::DIGITS];
            for part in [&backwards[..cut], &backwards[cut..]] {
                let mut sum = ExactSquares::default();
                sum.add(&Context::new(3), part);
                digits.iter_mut().zip(sum.digits()).for_each(|(all, digit)| *all += digit);
            }
            assert_eq!(ExactSquares::from_digits(&digits), whole, "{cut}");
        }
        backwards[5] = f32::NAN;
        let mut broken = whole.clone();
        broken.add(&Context::new(1), &backwards);
        assert!(broken.value().is_nan());
    }

    #[test]
    fn the_sum_is_that_of_the_numbers() {
        let sum = |values: &[f32]| {
            let mut sum = ExactSquares::default();
            sum.add(&Context::new(1), values);
            sum.value()
        };
        assert_eq!(sum(&[]), 0.0);
        assert_eq!(sum(&[3.0, -4.0]), 25.0);
        assert_eq!(sum(&[0.1]), f64::from(0.1_f32) * f64::from(0.1_f32));
        for extreme in [f32::from_bits(1), f32::MIN_POSITIVE, f32::MAX] {
            let square = f64::from(extreme) * f64::from(extreme);
            assert_eq!(sum(&[extreme, extreme]), 2.0 * square, "{extreme:e}");
        }
        // 2²⁴ + 1 in f64, where f32 would stay at 2²⁴. Digits also hold a number too small for f64 next to another.
        assert_eq!(sum(&[4096.0, 1.0]), 16_777_217.0);
        let tiny = 2.0_f32.powi(-60);
        assert_eq!(sum(&[1.0, tiny]), 1.0);
        let mut both = ExactSquares::default();
        both.add(&Context::new(1), &[1.0, tiny]);
        let mut one = ExactSquares::default();
        one.add(&Context::new(1), &[1.0]);
        assert_ne!(both, one);
        assert_eq!(sum(&[f32::NEG_INFINITY, 1.0]), f64::INFINITY);
        let normal: Vec<f32> = (1..5000_u16).map(|number| 1.0 / f32::from(number)).collect();
        let plain: f64 = normal.iter().map(|value| f64::from(*value).powi(2)).sum();
        assert!((sum(&normal) / plain - 1.0).abs() < 1e-13);
    }
}
