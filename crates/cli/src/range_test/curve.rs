//! The curve of a range test, without its noise, and the learning rate that it suggests.

/// The loss after a step with a learning rate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RatePoint {
    /// The learning rate of the step.
    pub rate: f64,
    /// The loss of the step that follows.
    pub loss: f64,
}

/// The result of a range test.
#[derive(Debug, Clone, PartialEq)]
pub struct RateSuggestion {
    /// The smooth curve: at each rate a line through the points around.
    pub curve: Vec<RatePoint>,
    /// The lowest point of the first valley of the curve.
    pub lowest: RatePoint,
    /// The learning rate to begin with: a third of the lowest point's.
    pub rate: f64,
}

/// A range test that suggests nothing.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum RangeTestError {
    /// There are too few losses.
    #[error(
        "only {found} steps have a loss, and {least} are needed; --steps makes more of them, and a lower --to keeps the loss finite"
    )]
    TooShort {
        /// Steps with a loss.
        found: usize,
        /// The least number.
        least: usize,
    },
    /// The loss does not fall by more than its noise.
    #[error(
        "the loss does not fall between the rates {from:.1e} and {to:.1e}; --from and --to choose others, and --steps more of them"
    )]
    Flat {
        /// The lowest rate.
        from: f64,
        /// The highest rate that has a loss.
        to: f64,
    },
    /// The loss falls up to the end.
    #[error("the loss still falls at the highest rate, {to:.1e}; choose a higher --to")]
    StillFalling {
        /// The highest rate.
        to: f64,
    },
}

/// The least number of points that a test needs.
pub const LEAST_POINTS: usize = 16;
/// The number of points of which a line takes one to each side.
const PART: usize = 16;
/// The standard deviations of the noise of a smooth point that a fall and a rise have at least.
const SURE: [f64; 2] = [6.0, 4.0];
/// The part of its fall by which the loss rises behind a valley.
const RISE: f64 = 0.2;
/// The rate of the lowest loss over the suggested one.
const BELOW: f64 = 3.0;

/// Returns the learning rate that the points of a range test suggest, in the order of their rates. Points after the first loss that
/// is not finite do not count.
///
/// # Errors
/// [`RangeTestError`] if the points suggest none.
pub fn suggestion(points: &[RatePoint]) -> Result<RateSuggestion, RangeTestError> {
    let finite = points.iter().position(|point| !point.loss.is_finite()).unwrap_or(points.len());
    let (points, is_broken) = (&points[..finite], finite < points.len());
    if points.len() < LEAST_POINTS {
        return Err(RangeTestError::TooShort { found: points.len(), least: LEAST_POINTS });
    }
    let reach = (points.len() / PART).max(2);
    let curve: Vec<RatePoint> = (0..points.len()).map(|at| smooth(points, at, reach)).collect();
    let [surely_fallen, surely_risen] = SURE.map(|deviations| deviations * noise(points, &curve, reach));
    let (mut top, mut end) = (curve[0].loss, 0);
    for (at, point) in curve.iter().enumerate() {
        if point.loss < curve[end].loss {
            end = at;
        }
        let fall = top - curve[end].loss;
        if fall > surely_fallen && point.loss - curve[end].loss > surely_risen.max(RISE * fall) {
            break;
        }
        // As long as nothing has fallen, the loss begins at its highest.
        if fall <= surely_fallen && point.loss > top {
            (top, end) = (point.loss, at);
        }
    }
    let (from, to) = (curve[0].rate, curve[curve.len() - 1].rate);
    if top - curve[end].loss <= surely_fallen {
        return Err(RangeTestError::Flat { from, to });
    }
    if end + 1 == curve.len() && !is_broken {
        return Err(RangeTestError::StillFalling { to });
    }
    let lowest = curve[end];
    Ok(RateSuggestion { rate: lowest.rate / BELOW, lowest, curve })
}

/// Returns the standard deviation of the noise of a smooth point, by the median of what lies around the curve: a loss that diverges
/// does not count.
fn noise(points: &[RatePoint], curve: &[RatePoint], reach: usize) -> f64 {
    let mut apart: Vec<f64> =
        points.iter().zip(curve).map(|(point, smooth)| (point.loss - smooth.loss).abs()).collect();
    apart.sort_by(f64::total_cmp);
    // The median is 0.67 standard deviations, and weights that fall along a line average two thirds of their reach.
    apart[apart.len() / 2] / 0.67 * (0.67 / (reach + 1) as f64).sqrt()
}

/// Fits a line to the points around the one at `at`, nearer ones with more weight, over the logarithm of the rate. It lags behind on
/// neither side, as a moving average of earlier points would.
fn smooth(points: &[RatePoint], at: usize, reach: usize) -> RatePoint {
    let around = at.saturating_sub(reach)..(at + reach + 1).min(points.len());
    let middle = points[at].rate.ln();
    let [mut w, mut wx, mut wy, mut wxx, mut wxy] = [0.0; 5];
    for other in around {
        let weight = 1.0 - at.abs_diff(other) as f64 / (reach + 1) as f64;
        let (x, y) = (points[other].rate.ln() - middle, points[other].loss);
        w += weight;
        wx += weight * x;
        wy += weight * y;
        wxx += weight * x * x;
        wxy += weight * x * y;
    }
    let slope = (w * wxy - wx * wy) / (w * wxx - wx * wx);
    RatePoint { rate: points[at].rate, loss: (wy - slope * wx) / w }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The points of a test whose loss is `of(ln rate)`, over the rates from e-14 to e.
    fn points(of: impl Fn(f64) -> f64) -> Vec<RatePoint> {
        let logs = (0..=150).map(|at| -14.0 + 0.1 * f64::from(at));
        logs.map(|log| RatePoint { rate: log.exp(), loss: of(log) }).collect()
    }

    /// Noise without a trend.
    fn noise_of(log: f64) -> f64 {
        (1e4 * log).sin()
    }

    #[test]
    fn the_rate_of_a_valley_is_found_through_noise() {
        // A fall around e-7 and a rise from e-3 on.
        let valley = |log: f64| 2.0 - (log + 7.0).tanh() + (2.0 * (log + 2.0)).exp();
        for amplitude in [0.0, 0.1, 0.3] {
            let found = suggestion(&points(|log| valley(log) + amplitude * noise_of(log))).expect("a valley");
            assert!((found.lowest.rate.ln() + 4.2).abs() < 1.0, "{amplitude}: {}", found.lowest.rate.ln());
            assert_eq!(found.rate, found.lowest.rate / 3.0);
        }
    }

    #[test]
    fn the_first_of_several_valleys_counts() {
        let hill = |log: f64| 0.8 * (-(log + 4.0).powi(2)).exp();
        let valley =
            |log: f64| 2.0 - (log + 8.0).tanh() - 0.2 * (log + 2.0).tanh() + hill(log) + (2.0 * log).exp();
        let found = suggestion(&points(|log| valley(log) + 0.02 * noise_of(log))).expect("a valley");
        assert!((-7.0..-5.0).contains(&found.lowest.rate.ln()), "{}", found.lowest.rate.ln());
    }

    #[test]
    fn a_line_is_its_own_smooth_curve() {
        let line = points(|log| 3.0 - 0.5 * log);
        for at in [0, 1, 70, 149, 150] {
            assert!((smooth(&line, at, 9).loss - line[at].loss).abs() < 1e-9, "{at}");
        }
        assert!(matches!(suggestion(&line), Err(RangeTestError::StillFalling { .. })));
    }

    #[test]
    fn tests_that_suggest_nothing_are_refused() {
        let flat = suggestion(&points(|log| 2.0 + 0.1 * noise_of(log)));
        assert!(matches!(flat, Err(RangeTestError::Flat { .. })), "{flat:?}");
        let rising = suggestion(&points(f64::exp));
        assert!(matches!(rising, Err(RangeTestError::Flat { .. })), "{rising:?}");
        let broken = suggestion(&points(|log| if log < -13.0 { 2.0 } else { f64::NAN }));
        assert!(matches!(broken, Err(RangeTestError::TooShort { .. })), "{broken:?}");
        assert!(suggestion(&[]).is_err());
    }

    #[test]
    fn what_follows_a_broken_loss_does_not_count() {
        let valley = |log: f64| if log < -1.0 { (log + 4.0).powi(2) } else { f64::INFINITY };
        let found = suggestion(&points(valley)).expect("a valley");
        assert!((found.lowest.rate.ln() + 4.0).abs() < 0.2, "{found:?}");
        assert!(found.curve.iter().all(|point| point.rate.ln() < -1.0));
    }
}
