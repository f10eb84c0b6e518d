//! A curve of a metric over the steps.

/// Pairs of a step and a value, in the order of steps.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Curve {
    points: Vec<(f64, f64)>,
}

/// The factors of the exponential moving average; 0 is no smoothing.
pub(super) const SMOOTHING: [f64; 4] = [0.0, 0.6, 0.9, 0.98];

/// The largest drawn magnitude: differences of larger values would overflow.
const LARGEST: f64 = 1e100;

impl Curve {
    /// Adds a value. Ignores values that are not finite or exceed [`LARGEST`].
    pub(super) fn push(&mut self, step: u64, value: f64) {
        if value.abs() <= LARGEST {
            self.points.push((step as f64, value));
        }
    }

    /// Returns the last value.
    pub(super) fn last(&self) -> Option<f64> {
        self.points.last().map(|(_, value)| *value)
    }

    /// Returns the points to plot: smoothed, and at most `columns`, each the mean of an interval of steps. If
    /// `logarithmic`, values are logarithms to base 10, and values up to 0 are left out.
    pub(super) fn drawn(&self, smoothing: f64, logarithmic: bool, columns: usize) -> Vec<(f64, f64)> {
        let (mut mean, mut weight) = (0.0, 0.0);
        let smooth = self.points.iter().map(|(step, value)| {
            // Bias correction: the first weights do not sum to 1.
            mean = smoothing * mean + (1.0 - smoothing) * value;
            weight = smoothing * weight + (1.0 - smoothing);
            (*step, mean / weight)
        });
        let scaled = smooth.filter(|(_, value)| !logarithmic || *value > 0.0);
        let scaled: Vec<(f64, f64)> =
            scaled.map(|(step, value)| (step, if logarithmic { value.log10() } else { value })).collect();
        if scaled.len() <= columns.max(1) {
            return scaled;
        }
        let (first, last) = (scaled[0].0, scaled[scaled.len() - 1].0);
        let width = (last - first).max(1.0) / columns.max(1) as f64;
        let column = |step: f64| (((step - first) / width) as usize).min(columns.max(1) - 1);
        scaled
            .chunk_by(|one, other| column(one.0) == column(other.0))
            .map(|stretch| {
                let count = stretch.len() as f64;
                let (steps, values) =
                    stretch.iter().fold((0.0, 0.0), |sum, point| (sum.0 + point.0, sum.1 + point.1));
                (steps / count, values / count)
            })
            .collect()
    }
}

/// Returns the ranges of x and y over several curves, widened if they are empty; `None` without points.
pub(super) fn bounds(curves: &[Vec<(f64, f64)>]) -> Option<([f64; 2], [f64; 2])> {
    let points = || curves.iter().flatten();
    let least = |of: fn(&(f64, f64)) -> f64| points().map(of).reduce(f64::min);
    let most = |of: fn(&(f64, f64)) -> f64| points().map(of).reduce(f64::max);
    let apart = |[from, to]: [f64; 2]| match to > from {
        true => [from, to],
        false => [from - 0.5 * from.abs().max(1e-9), to + 0.5 * to.abs().max(1e-9)],
    };
    Some((
        apart([least(|point| point.0)?, most(|point| point.0)?]),
        apart([least(|point| point.1)?, most(|point| point.1)?]),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_drawn_is_smooth_short_and_logarithmic_where_that_is_wanted() {
        let mut curve = Curve::default();
        for step in 1..=1000 {
            curve.push(step, if step % 2 == 0 { 1.0 } else { 3.0 });
        }
        for value in [f64::NAN, f64::INFINITY, 1.5e308, -1.5e308] {
            curve.push(1001, value);
        }
        assert_eq!(curve.drawn(0.0, false, 2000).len(), 1000);
        assert_eq!(curve.last(), Some(1.0));
        let columns = curve.drawn(0.0, false, 50);
        assert_eq!(columns.len(), 50);
        assert!(columns.iter().all(|(_, value)| (value - 2.0).abs() < 0.06), "{columns:?}");
        assert!(columns.is_sorted_by(|one, other| one.0 < other.0));
        let smooth = curve.drawn(0.98, false, 2000);
        assert_eq!(smooth[0].1, 3.0);
        assert!((smooth[999].1 - 2.0).abs() < 0.05, "{:?}", smooth[999]);
        let mut powers = Curve::default();
        for (step, value) in [100.0, 0.0, 0.01].into_iter().enumerate() {
            powers.push(step as u64, value);
        }
        assert_eq!(powers.drawn(0.0, true, 10), [(0.0, 2.0), (2.0, -2.0)]);
    }

    #[test]
    fn bounds_are_never_a_point() {
        assert_eq!(bounds(&[vec![]]), None);
        assert_eq!(bounds(&[vec![(1.0, 5.0)], vec![(3.0, 2.0)]]), Some(([1.0, 3.0], [2.0, 5.0])));
        let ([left, right], [low, high]) = bounds(&[vec![(0.0, 4.0)]]).expect("a point");
        assert!(left < right && low < 4.0 && high > 4.0);
    }
}
