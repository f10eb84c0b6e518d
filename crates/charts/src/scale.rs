//! Maps from numbers to coordinates.

/// The largest magnitude that is drawn: differences of larger numbers overflow. Smaller magnitudes than its inverse are
/// drawn as 0.
const LARGEST: f64 = 1e250;
/// The share of the axis by which lines keep away from its ends.
const ROOM: f64 = 0.04;

/// Returns a number as it is drawn; `None` if it is not finite or too large.
pub(crate) fn drawable(number: f64) -> Option<f64> {
    let size = number.abs();
    (size <= LARGEST).then_some(if size < 1.0 / LARGEST { 0.0 } else { number })
}

/// Returns the smallest and the largest of the numbers that can be drawn.
pub(crate) fn range(numbers: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
    let mut numbers = numbers.filter_map(drawable);
    let first = numbers.next()?;
    Some(numbers.fold((first, first), |(low, high), number| (low.min(number), high.max(number))))
}

/// A map from the numbers `low..high` to the coordinates `from..to`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Scale {
    /// True if equal ratios have equal distances.
    pub(crate) logarithmic: bool,
    /// The smallest number.
    pub(crate) low: f64,
    /// The largest number.
    pub(crate) high: f64,
    /// The coordinate of `low`.
    pub(crate) from: f64,
    /// The coordinate of `high`.
    pub(crate) to: f64,
}

impl Scale {
    /// Returns a linear scale over a range. A single number is centred. Without numbers the scale is 0 to 1.
    pub(crate) fn linear(range: Option<(f64, f64)>, from: f64, to: f64) -> Self {
        let (low, high) = range.unwrap_or((0.0, 1.0));
        let (low, high) = match are_apart(low, high) {
            true => (low, high),
            false => {
                let room = if low.abs() > 1e-9 { 0.5 * low.abs() } else { 0.5 };
                (low - room, high + room)
            }
        };
        Self { logarithmic: false, low, high, from, to }
    }

    /// Returns a logarithmic scale over a range of positive numbers.
    pub(crate) fn logarithmic((low, high): (f64, f64), from: f64, to: f64) -> Self {
        let (low, high) = if are_apart(low, high) { (low, high) } else { (0.5 * low, 2.0 * high) };
        Self { logarithmic: true, low, high, from, to }
    }

    /// Returns the scale with room for lines at both ends. A scale of numbers that begin near 0 begins at 0.
    pub(crate) fn with_room(self) -> Self {
        if self.logarithmic {
            let room = (ROOM * decades(self.low, self.high)).exp();
            return Self { low: self.low / room, high: self.high * room, ..self };
        }
        let room = ROOM * (self.high - self.low);
        let low = if (0.0..room).contains(&self.low) { 0.0 } else { self.low - room };
        Self { low, high: self.high + room, ..self }
    }

    /// Returns the coordinate of a number; `None` if it is not finite or has no logarithm.
    pub(crate) fn place(&self, number: f64) -> Option<f64> {
        let number = drawable(number)?;
        (!self.logarithmic || number > 0.0).then(|| self.at(number))
    }

    /// Returns the coordinate of a number that the scale can show.
    pub(crate) fn at(&self, number: f64) -> f64 {
        let share = match self.logarithmic {
            true => decades(self.low, number) / decades(self.low, self.high),
            false => (number - self.low) / (self.high - self.low),
        };
        self.from + share * (self.to - self.from)
    }
}

/// Returns the logarithm of the ratio of two positive numbers, which may itself be too large for a number.
fn decades(low: f64, high: f64) -> f64 {
    high.ln() - low.ln()
}

/// Returns false if two numbers differ only by rounding.
fn are_apart(low: f64, high: f64) -> bool {
    high - low > 1e-9 * low.abs().max(high.abs())
}

/// The ratio of the largest to the smallest number below which an axis is linear.
const LEAST_RATIO: f64 = 20.0;
/// The share of a linear axis below which a line is flat, and the gain of a logarithmic axis that is worth it.
const FLAT: f64 = 0.05;
const GAIN: f64 = 2.5;
/// The share of a logarithmic axis below which a line is nearly constant, so that no axis shows it better.
const CONSTANT: f64 = 0.05;

/// Returns true if all numbers are positive and a linear axis over all of them would press a line flat: the middle half
/// of its values would share less than a twentieth of the axis, and a logarithmic axis would give them much more.
pub fn pressed_flat<'a>(lines: impl Iterator<Item = &'a [f64]> + Clone) -> bool {
    let Some((low, high)) = range(lines.clone().flatten().copied()) else { return false };
    if low <= 0.0 || high < LEAST_RATIO * low {
        return false;
    }
    let is_flat = |line: &[f64]| {
        let mut numbers: Vec<f64> = line.iter().copied().filter_map(drawable).collect();
        numbers.sort_by(f64::total_cmp);
        let Some(last) = numbers.len().checked_sub(1) else { return false };
        let (first, last) = (numbers[last / 4], numbers[last - last / 4]);
        let linear = (last - first) / (high - low);
        let logarithmic = decades(first, last) / decades(low, high);
        linear < FLAT && logarithmic > CONSTANT && logarithmic > GAIN * linear
    };
    lines.into_iter().any(is_flat)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn scales_hold_their_numbers() {
        let over = |numbers: &[f64]| {
            let scale = Scale::linear(range(numbers.iter().copied()), 0.0, 10.0);
            (scale.low, scale.high)
        };
        assert_eq!(over(&[3.0, f64::NAN, 1.0, f64::INFINITY, 1e305]), (1.0, 3.0));
        assert_eq!([over(&[2.0]), over(&[0.0, 0.0]), over(&[])], [(1.0, 3.0), (-0.5, 0.5), (0.0, 1.0)]);
        let scale = Scale::logarithmic((1.0, 100.0), 10.0, 0.0);
        assert_eq!((scale.place(10.0), scale.place(0.0), scale.place(f64::NAN)), (Some(5.0), None, None));
        assert_eq!(Scale::linear(Some((0.5, 100.0)), 0.0, 1.0).with_room().low, 0.0);
    }

    #[test]
    fn flat_lines_ask_for_a_logarithmic_axis() {
        let flat = |lines: &[Vec<f64>]| pressed_flat(lines.iter().map(Vec::as_slice));
        let line = |of: &dyn Fn(f64) -> f64| (1..=200).map(|step| of(f64::from(step))).collect::<Vec<_>>();
        assert!(flat(&[line(&|step| 1.0 / step.powi(2))]), "most values are near the smallest");
        assert!(flat(&[line(&|step| 500.0 + step), line(&|step| 0.1 + 0.01 * step)]), "one line is small");
        for (why, lines) in [
            ("it falls slowly", vec![line(&|step| 2.3 - 0.009 * step)]),
            ("its largest value alone stands out", vec![line(&|step| if step == 1.0 { 5.0 } else { 100.0 })]),
            ("0 has no logarithm", vec![line(&|step| 1.0 / step.powi(2)), vec![0.0]]),
            ("it is constant", vec![line(&|_| 3.0), line(&|step| 300.0 * step)]),
            ("there are no numbers", vec![vec![], vec![f64::NAN]]),
        ] {
            assert!(!flat(&lines), "{why}");
        }
    }

    proptest! {
        #[test]
        fn numbers_stay_within_their_axis(numbers in prop::collection::vec(prop::num::f64::ANY, 0..20)) {
            let range = range(numbers.iter().copied());
            let linear = Scale::linear(range, 10.0, 0.0).with_room();
            let positive = range.filter(|(low, _)| *low > 0.0);
            let logarithmic = positive.map(|range| Scale::logarithmic(range, 10.0, 0.0).with_room());
            for scale in std::iter::once(linear).chain(logarithmic) {
                for place in numbers.iter().filter_map(|number| scale.place(*number)) {
                    prop_assert!((-1e-9..=10.0 + 1e-9).contains(&place), "{scale:?}: {place}");
                }
            }
        }
    }
}
