//! The result of a comparison, quantity by quantity.

use serde_json::Value;

/// One quantity of a reference file, and the error of this program.
#[derive(Debug, Clone, PartialEq)]
pub struct Quantity {
    /// The name of the quantity.
    pub name: String,
    /// The number of compared values.
    pub count: usize,
    /// The worst relative error.
    pub error: f64,
    /// The allowed relative error.
    pub tolerance: f64,
    /// The widened tolerance, if rounding errors exceed the usual one.
    pub widened: Option<f64>,
    /// The position of the worst error, if there are several numbers.
    pub worst: Option<String>,
}

impl Quantity {
    /// Returns true if the error is within the tolerance. NaN is not.
    pub fn passes(&self) -> bool {
        self.error <= self.widened.unwrap_or(self.tolerance)
    }

    /// Raises the tolerance to `tolerance` if the quantity misses its current one.
    pub(super) fn widen(&mut self, tolerance: f64) {
        // Exact comparisons have no tolerance.
        if self.tolerance > 0.0
            && self.error > self.tolerance
            && tolerance > self.widened.unwrap_or(self.tolerance)
        {
            self.widened = Some(tolerance);
        }
    }

    /// Compares the numbers of one vector, such as logits: errors are relative to the largest.
    pub fn vector(name: &str, found: &[f64], expected: &[f64], tolerance: f64) -> Self {
        let scale = expected.iter().fold(0.0_f64, |max, value| max.max(value.abs()));
        let named = expected.iter().zip(found).enumerate();
        let errors =
            named.map(|(index, (expected, found))| (format!("[{index}]"), (found - expected).abs(), scale));
        Self::worst_of(name, errors.collect(), found.len() == expected.len(), tolerance)
    }

    /// Compares independent numbers with names, such as norms of gradients. Each error is relative to its number, or to
    /// the fraction `floor` of the largest if that is more: smaller numbers are rounding errors.
    pub fn each(name: &str, pairs: &[(String, f64, f64)], floor: f64, tolerance: f64) -> Self {
        let largest = pairs.iter().fold(0.0_f64, |max, (_, _, expected)| max.max(expected.abs()));
        let errors = pairs.iter().map(|(at, found, expected)| {
            (at.clone(), (found - expected).abs(), expected.abs().max(floor * largest))
        });
        Self::worst_of(name, errors.collect(), true, tolerance)
    }

    /// Compares values that must be equal.
    pub fn exact<T: PartialEq>(name: &str, found: &[T], expected: &[T]) -> Self {
        let wrong = found.iter().zip(expected).position(|(found, expected)| found != expected);
        let equal = wrong.is_none() && found.len() == expected.len();
        Self {
            name: name.to_owned(),
            count: expected.len(),
            error: if equal { 0.0 } else { f64::INFINITY },
            tolerance: 0.0,
            widened: None,
            worst: (!equal)
                .then(|| format!("[{}]", wrong.unwrap_or_else(|| found.len().min(expected.len())))),
        }
    }

    fn worst_of(name: &str, errors: Vec<(String, f64, f64)>, complete: bool, tolerance: f64) -> Self {
        let count = errors.len();
        let relative = |difference: f64, scale: f64| {
            let error = if difference == 0.0 { 0.0 } else { difference / scale.max(f64::MIN_POSITIVE) };
            // NaN fails every comparison, so it would never be the worst.
            if error.is_nan() { f64::INFINITY } else { error }
        };
        let errors = errors.into_iter().map(|(at, difference, scale)| (at, relative(difference, scale)));
        let worst = errors.max_by(|(_, a), (_, b)| a.total_cmp(b));
        let (at, error) = match worst {
            Some((at, error)) if complete => (Some(at), error),
            _ => (None, f64::INFINITY),
        };
        let worst = if count > 1 { at } else { None };
        Self { name: name.to_owned(), count, error, tolerance, widened: None, worst }
    }
}

/// Returns the numbers of a JSON array, or an empty list for other values.
pub(super) fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().into_iter().flatten().map(|value| value.as_f64().unwrap_or(f64::NAN)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_relative_and_nan_never_passes() {
        let quantity = Quantity::vector("v", &[1.0, 99.0], &[2.0, 100.0], 0.02);
        assert_eq!((quantity.error, quantity.passes()), (0.01, true));
        assert!(!Quantity::vector("v", &[f64::NAN, 1.0], &[0.0, 1.0], 1.0).passes());
        assert!(!Quantity::vector("v", &[1.0], &[1.0, 1.0], 1.0).passes());
        assert!(!Quantity::vector("v", &[], &[], 1.0).passes());
        let pairs = [("a".to_owned(), 1e-9, 2e-9), ("b".to_owned(), 101.0, 100.0)];
        let quantity = Quantity::each("norms", &pairs, 1e-6, 1e-3);
        assert_eq!((quantity.worst.as_deref(), quantity.error, quantity.passes()), (Some("b"), 0.01, false));
        assert!(Quantity::exact("ids", &[1, 2], &[1, 2]).passes());
        assert_eq!(Quantity::exact("ids", &[1, 3], &[1, 2]).worst.as_deref(), Some("[1]"));
        assert!(!Quantity::exact("ids", &[1], &[1, 2]).passes());
    }
}
