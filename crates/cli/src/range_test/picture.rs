//! The picture of a range test.

use phalanx_charts::{Axis, AxisScale, Figure, Panel, Series, Unit};

use super::curve::{RatePoint, RateSuggestion};

/// The size of the panel in pixels.
const SIZE: (f64, f64) = (680.0, 380.0);
/// The share of the loss's fall by which a diverging loss may leave the picture.
const ABOVE: f64 = 0.5;

/// Draws the losses of a range test, the smooth curve, and the suggested rate with that of the lowest loss.
pub fn picture(title: &str, points: &[RatePoint], found: &RateSuggestion) -> String {
    let first = found.curve[0].loss;
    let top = first + ABOVE * (first - found.lowest.loss);
    let shown = |loss: f64| if loss <= top { loss } else { f64::NAN };
    let at = |rate: f64| {
        let nearest = found.curve.iter().min_by(|a, b| {
            let apart = |point: f64| (point / rate).ln().abs();
            apart(a.rate).total_cmp(&apart(b.rate))
        });
        (rate, nearest.map_or(f64::NAN, |point| point.loss))
    };
    let lines = vec![
        Series::new("loss", points.iter().map(|point| (point.rate, shown(point.loss))).collect()),
        Series::new("smooth", found.curve.iter().map(|point| (point.rate, shown(point.loss))).collect()),
        Series::new(format!("suggested: {:.1e}", found.rate), vec![at(found.rate)]),
        Series::new(format!("lowest: {:.1e}", found.lowest.rate), vec![at(found.lowest.rate)]),
    ];
    let x = Axis { scale: AxisScale::Logarithmic, ..Axis::of("learning rate", Unit::Plain) };
    let panel = Panel::lines("loss of the step after", x, Axis::default(), lines);
    Figure::new(title.to_owned(), vec![panel]).grid(1, SIZE).svg()
}

#[cfg(test)]
mod tests {
    use super::super::suggestion;
    use super::*;

    #[test]
    fn a_diverging_loss_leaves_the_picture() {
        let points: Vec<RatePoint> = (0..100)
            .map(|at| f64::from(at) * 0.1 - 8.0)
            .map(|log| RatePoint { rate: log.exp(), loss: (log + 4.0).powi(2) + (3.0 * log).exp() })
            .collect();
        let found = suggestion(&points).expect("a valley");
        let svg = picture("rates of tiny", &points, &found);
        assert!(svg.contains("learning rate, logarithmic") && svg.contains("suggested: "), "{svg}");
        assert!(!svg.contains(">1000<"), "the highest loss does not press the valley flat: {svg}");
    }
}
