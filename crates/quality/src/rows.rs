//! Rows of features.

use crate::error::QualityError;

/// Rows of features of samples, one after the other.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rows<'a> {
    values: &'a [f32],
    width: usize,
}

impl<'a> Rows<'a> {
    /// Takes `values` as rows of `width` features.
    ///
    /// # Errors
    /// [`QualityError::Width`] if `width` is 0 or does not divide the count of numbers.
    pub fn new(values: &'a [f32], width: usize) -> Result<Self, QualityError> {
        match width > 0 && values.len().is_multiple_of(width) {
            true => Ok(Self { values, width }),
            false => Err(QualityError::Width { values: values.len(), width }),
        }
    }

    /// The count of rows.
    #[must_use]
    pub fn count(&self) -> usize {
        self.values.len() / self.width
    }

    /// The features of a row.
    #[must_use]
    pub fn width(&self) -> usize {
        self.width
    }

    /// All numbers, row by row.
    #[must_use]
    pub fn values(&self) -> &'a [f32] {
        self.values
    }

    /// The rows, in order.
    pub fn iter(&self) -> impl Iterator<Item = &'a [f32]> + use<'a> {
        self.values.chunks_exact(self.width)
    }

    /// Checks that rows have as many features as others.
    pub(crate) fn check_comparable(&self, other: &Rows<'_>) -> Result<(), QualityError> {
        match self.width == other.width {
            true => Ok(()),
            false => Err(QualityError::Widths { one: self.width, other: other.width }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_whole_rows() {
        let rows = Rows::new(&[1.0, 2.0, 3.0, 4.0], 2).expect("two rows");
        assert_eq!((rows.count(), rows.width(), rows.values().len()), (2, 2, 4));
        assert_eq!(rows.iter().collect::<Vec<_>>(), [[1.0, 2.0], [3.0, 4.0]]);
        assert_eq!(Rows::new(&[], 3).expect("no rows").count(), 0);
        assert_eq!(Rows::new(&[1.0; 5], 2), Err(QualityError::Width { values: 5, width: 2 }));
        assert_eq!(Rows::new(&[], 0), Err(QualityError::Width { values: 0, width: 0 }));
        let other = Rows::new(&[1.0; 6], 3).expect("two rows");
        assert_eq!(rows.check_comparable(&other), Err(QualityError::Widths { one: 2, other: 3 }));
    }
}
